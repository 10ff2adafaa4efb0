"""The sink of CloudEvents: what an endpoint answers decides whether an event was taken, comes later, or never."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import ConfigError
from scheduler.transports import types
from scheduler.transports.cloudevents import (
    CloudEventsSink,
    CloudEventsSinkSettings,
    CloudEventsSource,
    CloudEventsSourceSettings,
)
from scheduler.transports.envelope import Message, decode, encode
from scheduler.transports.ports import Outgoing, Published, Refused, Request, Sink, Source, TransportError, Unreadable
from support.endpoint import Endpoint

ROOT = Path(__file__).parents[2]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    made.start()
    yield made
    made.stop()


def sink(endpoint: Endpoint, **more: Any) -> CloudEventsSink:
    return CloudEventsSink("shop", CloudEventsSinkSettings(url=endpoint.url, **more))


def outgoing(key: str, **more: Any) -> Outgoing:
    message = Message(
        idempotency_key=key, message_type="order.taken", created_at=datetime(2026, 1, 31, tzinfo=UTC),
        payload_inline={"order": 1}, **more,
    )  # fmt: skip
    return Outgoing(key=key, body=encode(message), message=message)


@pytest.mark.parametrize(
    ("status", "headers", "wanted"),
    [
        (200, {}, Published("k")),
        (202, {}, Published("k")),
        (400, {}, Refused("k", "answered 400", final=True)),
        (410, {}, Refused("k", "answered 410", final=True)),
        (301, {"location": "/"}, Refused("k", "answered 301", final=True)),
        (429, {"retry-after": "17"}, Refused("k", "answered 429", after=17.0)),
        (503, {"retry-after": "Fri, 01 Jan 2021 00:00:00 GMT"}, Refused("k", "answered 503", after=0.0)),
        (500, {"retry-after": "soon"}, Refused("k", "answered 500")),
    ],
)
def test_the_answer_decides(endpoint: Endpoint, status: int, headers: dict[str, str], wanted: Any) -> None:
    endpoint.status, endpoint.headers = status, headers
    (answer,) = sink(endpoint).publish([outgoing("k")])
    if isinstance(answer, Refused):
        answer = Refused(answer.key, answer.reason.partition(" ")[2], answer.final, answer.after)
    assert answer == wanted


def test_an_endpoint_that_is_away_is_trouble_of_the_transport(endpoint: Endpoint) -> None:
    made = CloudEventsSink("shop", CloudEventsSinkSettings(url="http://127.0.0.1:9/"))
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:9"):
        made.publish([outgoing("k")])


def test_an_event_that_went_out_comes_in_with_the_same_envelope(endpoint: Endpoint) -> None:
    sent = outgoing("k", subject="s", correlation_id="c", causation_id="7", schema_version=3, sequence=5)
    sink(endpoint, token="t", source="/me").publish([sent])
    ((headers, event),) = endpoint.came
    assert headers["authorization"] == "Bearer t"
    assert event["time"] == "2026-01-31T00:00:00Z"
    request = Request(headers=headers, body=json.dumps(event).encode())
    (delivery,) = CloudEventsSource("orders", CloudEventsSourceSettings(token="t")).accept(request)
    got = decode(delivery.body)
    assert got.idempotency_key == "/me k"
    for name in (
        "message_type",
        "subject",
        "correlation_id",
        "causation_id",
        "schema_version",
        "sequence",
        "created_at",
    ):
        assert getattr(got, name) == getattr(sent.message, name), name
    assert got.payload_inline == {"order": 1}


def test_the_client_logs_no_line_for_each_event(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    sink(endpoint, token="of-the-shop").publish([outgoing("k")])
    assert caplog.records == []


def test_a_batch_is_one_request(endpoint: Endpoint) -> None:
    made = sink(endpoint, mode="batch")
    assert made.publish([outgoing("a"), outgoing("b")]) == [Published("a"), Published("b")]
    ((headers, events),) = endpoint.came
    assert headers["content-type"].startswith("application/cloudevents-batch+json")
    assert [event["id"] for event in events] == ["a", "b"]


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="begins with https:// or http://"):
        CloudEventsSink("shop", CloudEventsSinkSettings(url="shop.example.com"))
    with pytest.raises(ConfigError, match="no base64"):
        CloudEventsSink("shop", CloudEventsSinkSettings(url="https://shop.example.com", secret="whsec_!"))


@pytest.mark.parametrize("group", [types.SOURCES, types.SINKS])
def test_each_transport_is_an_entry_point_and_known_without_a_search(group: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {name: place for name, place in types.OWN[group].items() if place.startswith("scheduler.")}  # not the tests'
    assert project["entry-points"][group] == own
    for name in own:
        factory = types.find(group, name)
        for method in ("check", "close", *(["publish"] if group == types.SINKS else [])):
            assert callable(getattr(factory, method, None)), (name, method)


def test_the_protocols_tell_fetched_and_pushed_sources_apart() -> None:
    pushed = CloudEventsSource("orders", CloudEventsSourceSettings(token="t"))
    assert not isinstance(pushed, Source)
    assert isinstance(CloudEventsSink("shop", CloudEventsSinkSettings(url="https://a/")), Sink)


@pytest.mark.case(92, pure=True)
@pytest.mark.parametrize("text", [rb"\ud800", b"\xff\xfe"], ids=["half a surrogate pair", "no UTF-8"])
def test_a_broken_text_in_a_batch_spoils_its_own_event_alone(text: bytes) -> None:
    event = b'{"specversion": "1.0", "id": "%s", "source": "shop", "type": "t", "data": {"note": "%s"}}'
    body = b"[" + b", ".join((event % (b"1", b"fine"), event % (b"2", text), event % (b"3", b"fine"))) + b"]"
    request = Request(headers={"content-type": "application/cloudevents-batch+json"}, body=body)
    one, two, three = CloudEventsSource("orders", CloudEventsSourceSettings(token="t")).accept(request)
    assert (one.unreadable, three.unreadable) == (None, None)
    assert two.unreadable is not None
    assert two.unreadable.startswith("no JSON")


def test_a_batch_that_is_cut_off_is_refused_whole() -> None:
    request = Request(headers={"content-type": "application/cloudevents-batch+json"}, body=b'[{"id": "1"}, {"id": "2')
    with pytest.raises(Unreadable, match="no JSON"):
        CloudEventsSource("orders", CloudEventsSourceSettings(token="t")).accept(request)
