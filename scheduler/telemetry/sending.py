"""The span of sending tasks, and its context in their headers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind, Status, StatusCode, get_current_span, get_tracer

from scheduler.model.running import current_attempt, send_in
from scheduler.model.trace import TraceContext

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from scheduler.model.spec import TaskId, TaskSpec


class SendSpan:
    """A span around storing tasks: PRODUCER for one, CLIENT for a batch. All of a batch carry the same context."""

    def __init__(self, tracer: Tracer, specs: Sequence[TaskSpec], common: Mapping[str, str]) -> None:
        queues = {spec.queue for spec in specs}
        queue = next(iter(queues)) if len(queues) == 1 else None
        attributes: dict[str, Any] = {
            **common,
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
        }
        if queue is not None:
            attributes["messaging.destination.name"] = queue
        if len(specs) == 1:
            attributes["schedd.task.kind"] = specs[0].kind
        else:
            attributes["messaging.batch.message_count"] = len(specs)
        kind = SpanKind.PRODUCER if len(specs) == 1 else SpanKind.CLIENT
        name = "send" if queue is None else f"send {queue}"
        self.span = tracer.start_span(name, kind=kind, attributes=attributes, start_time=time.time_ns())
        context = self.span.get_span_context()
        if context.is_valid:
            state = context.trace_state.to_header() or None
            write_context(specs, TraceContext(context.trace_id, context.span_id, context.trace_flags.sampled, state))

    def stored(self, ids: Sequence[TaskId]) -> None:
        """The tasks are stored under these ids."""
        if len(ids) == 1:
            self.span.set_attribute("messaging.message.id", str(int(ids[0])))

    def __enter__(self) -> SendSpan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.span.set_attribute("error.type", type(error).__qualname__)
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end()


def write_context(specs: Sequence[TaskSpec], context: TraceContext) -> None:
    """Write the context into the headers of those tasks to which the caller gave none."""
    running = current_attempt.get()
    for spec in specs:
        send_in(spec, context, None if running is None else running.claimed.headers)


def send_in_span(specs: Sequence[TaskSpec]) -> SendSpan | None:
    """A span in that of the program's own tracing; None if no span of it is recorded here."""
    if not get_current_span().is_recording():
        return None
    return SendSpan(get_tracer("schedd"), specs, {"messaging.system": "schedd"})
