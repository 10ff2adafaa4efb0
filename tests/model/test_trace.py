"""Trace contexts in headers: read as the W3C says, written in place of another one."""

from __future__ import annotations

import json

import pytest

from scheduler.model.trace import TraceContext, context_in, parse_traceparent, with_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_traceparent_is_read_and_written() -> None:
    context = parse_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), sampled=True)
    assert context.traceparent == f"00-{TRACE}-{SPAN}-01"
    unsampled = parse_traceparent(f"00-{TRACE}-{SPAN}-02")
    assert unsampled is not None
    assert not unsampled.sampled


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01 ",
    ],
)
def test_what_is_no_traceparent_is_left_aside(text: object) -> None:
    assert parse_traceparent(text) is None


def test_a_later_version_may_say_more() -> None:
    assert parse_traceparent(f"01-{TRACE}-{SPAN}-01-more") is not None


@pytest.mark.parametrize("headers", [None, "{}", '{"traceparent": 3}', '["traceparent"]', '{"traceparent": "no"}', "{"])
def test_headers_without_a_context(headers: str | None) -> None:
    assert context_in(headers) is None


def test_the_names_of_headers_have_no_case() -> None:
    headers = json.dumps({"Traceparent": f"00-{TRACE}-{SPAN}-01", "TraceState": "vendor=1", "x": 1})
    context = context_in(headers)
    assert context is not None
    assert (f"{context.trace_id:032x}", context.state) == (TRACE, "vendor=1")


def test_a_context_replaces_another_and_nothing_else() -> None:
    given = json.dumps({"Traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "tenant": "a"})
    made = json.loads(with_context(given, TraceContext(1, 2, sampled=False)))
    assert made == {"tenant": "a", "traceparent": f"00-{'1':0>32}-{'2':0>16}-00"}
