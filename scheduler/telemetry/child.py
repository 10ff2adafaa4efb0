"""Tracing in a child process: the notes of its handlers, and the spans that they make, go to the engine.

The engine writes them. So a child needs no connection, and has nothing to lose when it is killed. Where a task module
has set a tracer provider, the handlers' own spans go where that one says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode

from scheduler.config.model import Otel
from scheduler.model.trace import TraceContext, parse_traceparent
from scheduler.telemetry.attempt_trace import MAX_EVENTS, AttemptTrace, clean_text, plain_attributes
from scheduler.telemetry.notes import EventNote, LinkNote, SpanNote


class ChildTracing(SpanProcessor):
    """Makes the traces of attempts in this child. ``settings``: the engine's, as plain values."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._options = msgspec.convert(settings, Otel)
        self._current: AttemptTrace | None = None
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            # Only spans inside of an attempt that is traced are made at all.
            provider = TracerProvider(ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
            provider.add_span_processor(self)
            trace.set_tracer_provider(provider)

    def adopt(self, traceparent: str, send: Callable[[SpanNote], None], now: Callable[[], int]) -> AttemptTrace | None:
        """The trace of an attempt, as the engine has begun it. ``send``: takes notes; ``now``: microseconds."""
        context = parse_traceparent(traceparent)
        if context is not None:
            self._current = AttemptTrace(context, None, now, logs=self._options.logs, send=send)
        return self._current

    def on_end(self, span: ReadableSpan) -> None:
        """Send a span that a handler has made to the engine."""
        current, context = self._current, span.get_span_context()
        if current is not None and context is not None and context.trace_id == current.context.trace_id:
            current.add(_note_of(span, context))


def _note_of(span: ReadableSpan, context: trace.SpanContext) -> SpanNote:
    scope = span.instrumentation_scope
    failed = span.status.status_code is StatusCode.ERROR
    return SpanNote(
        *(clean_text(span.name), context.span_id, span.parent.span_id if span.parent is not None else 0),
        *(max(0, span.start_time or 0), max(0, span.end_time or 0), plain_attributes(span.attributes)),
        [
            EventNote(clean_text(event.name), max(0, event.timestamp), plain_attributes(event.attributes))
            for event in span.events[:MAX_EVENTS]
        ],
        str(span.attributes.get("error.type", "_OTHER")) if failed and span.attributes is not None else None,
        span.kind.value,
        clean_text(scope.name) if scope is not None else "",
        [
            LinkNote(
                TraceContext(link.context.trace_id, link.context.span_id, link.context.trace_flags.sampled).traceparent,
                plain_attributes(link.attributes),
            )
            for link in span.links[:MAX_EVENTS]
        ],
    )
