"""Spans as plain values: what a handler recorded, on its way from a child process to the engine."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from scheduler.ports import FOREVER

AttributeValue = str | bool | int | float | list[str | bool | int | float]
Attributes = dict[str, AttributeValue]
_Id = Annotated[int, Meta(ge=0)]  # msgpack has none above 64 bits
_Time = Annotated[int, Meta(ge=0, le=FOREVER)]


class EventNote(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An event of a span. ``at``: nanoseconds."""

    name: str
    at: _Time
    attributes: Attributes


class LinkNote(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A link of a span to the span with this ``traceparent``."""

    traceparent: str
    attributes: Attributes


class SpanNote(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A span inside an attempt, or (``parent`` 0) what the handler added to the attempt's own span.

    Times are nanoseconds. ``error``: the class of what was raised. ``kind``: as ``opentelemetry.trace.SpanKind``
    numbers them. ``scope``: the name of the tracer that made it, empty for schedd's own.
    """

    name: str
    span: _Id
    parent: _Id
    start: _Time
    end: _Time
    attributes: Attributes
    events: list[EventNote]
    error: str | None = None
    kind: Annotated[int, Meta(ge=0, le=4)] = 0
    scope: str = ""
    links: list[LinkNote] = []
