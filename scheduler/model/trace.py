"""W3C Trace Context: the ids of a span as text, and in the headers of a task. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

_TRACEPARENT = r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
_SAMPLED = 1  # a bit of the flags
_PARENT, _STATE = "traceparent", "tracestate"


class TraceContext(NamedTuple):
    """The ids of a span. ``state``: its ``tracestate``, as the caller's tracing system wrote it."""

    trace_id: int
    span_id: int
    sampled: bool = True
    state: str | None = None

    @property
    def traceparent(self) -> str:
        """It as the value of the header ``traceparent``."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse_traceparent(text: object, state: str | None = None) -> TraceContext | None:
    """The context in a ``traceparent``; None for a text that is none, or whose ids are zero."""
    found = re.fullmatch(_TRACEPARENT, text) if isinstance(text, str) else None
    if found is None:
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED), state)


def context_in(headers: str | None) -> TraceContext | None:
    """The trace context in the headers of a task (a JSON object); None if there is none that is valid."""
    if headers is None or _PARENT not in headers.lower():
        return None
    values = {name.lower(): value for name, value in _decoded(headers).items()}
    state = values.get(_STATE)
    return parse_traceparent(values.get(_PARENT), state if isinstance(state, str) else None)


def with_context(headers: str | None, context: TraceContext) -> str:
    """Headers with this trace context in place of any other."""
    known = {} if headers is None else _decoded(headers)
    kept = {name: value for name, value in known.items() if name.lower() not in (_PARENT, _STATE)}
    kept[_PARENT] = context.traceparent
    if context.state:
        kept[_STATE] = context.state
    return msgspec.json.encode(kept).decode()


def _decoded(headers: str) -> dict[str, Any]:
    """The headers; none for a text that is no JSON object."""
    try:
        return msgspec.json.decode(headers, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError):
        return {}
