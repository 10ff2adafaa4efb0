"""Traces of tasks as OpenTelemetry spans, by its semantic conventions for messaging.

The only importer of ``opentelemetry``, with its neighbours that it imports. Nothing imports this one unless ``[otel]``
is on, or the program's own code is in a span that is recorded.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, Status, StatusCode, set_span_in_context

from scheduler.model.defaults import POOLS
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.running import current_attempt
from scheduler.model.times import to_datetime
from scheduler.model.trace import TraceContext, context_in, parse_traceparent
from scheduler.telemetry import providers
from scheduler.telemetry.attempt_trace import AttemptTrace, api_context, new_span_id, new_trace_id
from scheduler.telemetry.notes import SpanNote
from scheduler.telemetry.otel_metrics import MetricsSource, export_metrics
from scheduler.telemetry.sending import SendSpan, write_context

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Tracer

    from scheduler.config.model import Otel
    from scheduler.model.spec import TaskSpec
    from scheduler.store.tasks.claim import Claimed

SYSTEM = "schedd"
_HEADERS_OF = attrgetter("claimed.headers")
MAX_SCOPES = 100  # whose tracers are kept
FAILURES = frozenset({AttemptEnd.RETRIED, AttemptEnd.DEAD, AttemptEnd.FAILED, AttemptEnd.LOST})
LEASE_LOST = "lease lost"


class Traced(Protocol):
    """What this needs of an attempt."""

    claimed: Claimed
    trace: AttemptTrace | None


class _GivenIds(IdGenerator):
    """Gives a span the ids that its attempt has had from the start."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class Tracing:
    """Decides which attempts are traced, and writes their spans.

    ``now``: microseconds; ``server``: the host of the database, None for a file. Raises ConfigError.
    """

    def __init__(self, options: Otel, now: Callable[[], int], server: str | None = None) -> None:
        self.options = options
        self.slow_us = round(options.slow * 1_000_000) or 2**63
        self._now = now
        self._provider = providers.tracer_provider(options)
        self._ids = _GivenIds()
        self._tracers: dict[str, Tracer] = {}  # by the scope of their spans
        self._sends = providers.deciding_tracer(self._provider)
        self.metrics = MetricsSource()
        self._meters = export_metrics(options, self.metrics) if options.metrics else None
        self._lock = threading.Lock()  # held while a span takes its ids
        self._common = {"messaging.system": SYSTEM}
        if server:
            self._common["server.address"] = server
        self.chosen = 0  # attempts that are traced, and whose spans are not written yet: at least those
        self._client = ("", 0)
        self._began = now()  # the transaction under way, or the last one (microseconds)

    # deciding

    def sample(self, attempts: Sequence[Traced]) -> None:
        """Choose, before any object is made, which of these attempts to trace.

        The context that a task was sent in decides, if it has one, else the ratio.
        """
        ratio = self.options.ratio
        if not ratio and not any(map(_HEADERS_OF, attempts)):  # a loop over them would cost twice as much
            return
        for attempt in attempts:
            headers = attempt.claimed.headers
            creation = None if headers is None else context_in(headers)
            if (ratio and random.random() < ratio) if creation is None else creation.sampled:
                attempt.trace = self._new(creation)

    def choose_late(self, attempt: Traced, outcome: Outcome) -> bool:
        """Whether an attempt that has ended is traced; one that failed or was slow always is."""
        if attempt.trace is None and self.must_trace(outcome):
            headers = attempt.claimed.headers
            attempt.trace = self._new(None if headers is None else context_in(headers))
        return attempt.trace is not None

    def must_trace(self, outcome: Outcome) -> bool:
        """Whether the attempt failed or was slow."""
        if outcome.end in FAILURES:
            return True
        took = 0 if outcome.started_at is None else outcome.finished_at - outcome.started_at
        return outcome.end is AttemptEnd.SUCCEEDED and took > self.slow_us

    def _new(self, creation: TraceContext | None) -> AttemptTrace:
        inherits = creation is not None and self.options.parent == "producer"
        trace_id = creation.trace_id if creation is not None and inherits else new_trace_id()
        state = creation.state if creation is not None and inherits else None
        context = TraceContext(trace_id, new_span_id(), state=state)
        self.chosen += 1
        return AttemptTrace(context, creation, self._now, logs=self.options.logs)

    def for_child(self) -> dict[str, Any]:
        """The settings, for a child process that runs attempts."""
        settings: dict[str, Any] = msgspec.to_builtins(self.options)
        return settings

    # writing

    def write(self, attempt: Traced, outcome: Outcome, lost_by: str | None = None) -> None:
        """Write the span of an attempt whose end is committed, and the spans inside it.

        ``lost_by``: of an attempt that was taken back, the process that ran it, ``host:pid``.
        """
        traced, c = attempt.trace, attempt.claimed
        if traced is None or outcome.started_at is None:
            return
        own = traced.own
        base = Context()
        creation = traced.creation
        if creation is not None and traced.context.trace_id == creation.trace_id:
            base = set_span_in_context(NonRecordingSpan(api_context(creation, remote=True)), base)
        span = self._span(
            (own.name if own is not None else "") or f"process {c.queue}",
            traced.context,
            base,
            SpanKind.CONSUMER,
            outcome.started_at * 1000,
            {**(own.attributes if own is not None else {}), **self._attributes(c, outcome, traced, lost_by)},
            self._links(traced),
        )
        for event in own.events if own is not None else ():
            span.add_event(event.name, event.attributes, event.at)
        error = outcome.failure.error_class if outcome.failure is not None else None
        if error is not None or (own is not None and own.error is not None):
            span.set_status(Status(StatusCode.ERROR, None if lost_by is None else LEASE_LOST))
        span.end(outcome.finished_at * 1000)
        for note in traced.notes:
            self._write_inner(traced.context, note)

    def _write_inner(self, attempt: TraceContext, note: SpanNote) -> None:
        parent = NonRecordingSpan(api_context(attempt._replace(span_id=note.parent)))
        context = attempt._replace(span_id=note.span)
        base = set_span_in_context(parent, Context())
        attributes = dict(note.attributes) if note.error is None else {**note.attributes, "error.type": note.error}
        links = [
            Link(api_context(other, remote=True), link.attributes)
            for link in note.links
            if (other := parse_traceparent(link.traceparent)) is not None
        ]
        span = self._span(
            note.name, context, base, SpanKind(note.kind), note.start, attributes, links, note.scope or SYSTEM
        )
        for event in note.events:
            span.add_event(event.name, event.attributes, event.at)
        if note.error is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(max(note.start, note.end))

    def _span(
        self,
        name: str,
        context: TraceContext,
        base: Context,
        kind: SpanKind,
        start: int,
        attributes: dict[str, Any],
        links: Sequence[Link],
        scope: str = SYSTEM,
    ) -> trace.Span:
        with self._lock:
            tracer = self._tracers.get(scope)
            if tracer is None:
                tracer = providers.deciding_tracer(self._provider, scope)
                tracer.id_generator = self._ids
                if len(self._tracers) < MAX_SCOPES:
                    self._tracers[scope] = tracer
            self._ids.trace_id, self._ids.span_id = context.trace_id, context.span_id
            return tracer.start_span(name, base, kind, attributes, links, start)

    def _links(self, traced: AttemptTrace) -> list[Link]:
        """To the context that the task was sent in, to the attempt before, to the tasks that it waited for."""
        links = []
        if traced.creation is not None:
            links.append(Link(api_context(traced.creation, remote=True), {"schedd.link": "creation"}))
        linked = traced.linked
        if linked is not None:
            found = [("previous", linked.previous), *(("parent", text) for text in linked.parents)]
            for what, text in found:
                other = parse_traceparent(text)
                if other is not None:
                    links.append(Link(api_context(other, remote=True), {"schedd.link": what}))
        return links

    def _attributes(self, c: Claimed, o: Outcome, traced: AttemptTrace, client: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {
            **self._common,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": c.queue,
            "messaging.message.id": str(c.id),
            "messaging.message.conversation_id": c.correlation if c.correlation is not None else str(c.id),
            "messaging.client.id": client or self.client_id(),
            "schedd.task.kind": c.kind,
            "schedd.task.attempt": c.attempt,
            "schedd.task.outcome": o.end.value,
            "schedd.pool": POOLS[c.priority] if 0 <= c.priority < len(POOLS) else str(c.priority),
        }
        if c.key is not None:
            found["schedd.task.key"] = c.key
        if c.schedule is not None:
            found["schedd.task.schedule"] = c.schedule
        if c.slot is not None:
            found["schedd.task.slot"] = to_datetime(c.slot).isoformat().replace("+00:00", "Z")
        if traced.linked is not None and traced.linked.replay_count:
            found["schedd.task.replay_count"] = traced.linked.replay_count
        if traced.dropped:
            found["schedd.dropped_spans"] = traced.dropped
        if o.failure is not None:
            found["error.type"] = o.failure.error_class
        return found

    def client_id(self) -> str:
        """This process: ``host:pid``."""
        name, pid = self._client
        if pid != os.getpid():
            pid = os.getpid()
            name = f"{socket.gethostname()}:{pid}"
            self._client = (name, pid)
        return name

    def recording_began(self) -> None:
        """A transaction begins to record outcomes."""
        if self.options.settle:
            self._began = self._now()

    def recorded(self, count: int) -> None:
        """It has committed, with so many outcomes: write its span, if those are wanted."""
        if not self.options.settle:
            return
        attributes: dict[str, Any] = {
            **self._common,
            "messaging.operation.name": "settle",
            "messaging.operation.type": "settle",
            "messaging.batch.message_count": count,
            "messaging.client.id": self.client_id(),
        }
        context = TraceContext(new_trace_id(), new_span_id())
        span = self._span("settle", context, Context(), SpanKind.CLIENT, self._began * 1000, attributes, ())
        span.end(self._now() * 1000)

    # sending

    def open_send(self, specs: Sequence[TaskSpec]) -> SendSpan | None:
        """The span of storing these tasks; None if it is not to be traced. Writes their headers."""
        current = trace.get_current_span()
        context = current.get_span_context()
        if current.is_recording():
            return SendSpan(self._sends, specs, self._common)
        if context.is_valid:
            state = context.trace_state.to_header() or None
            write_context(specs, TraceContext(context.trace_id, context.span_id, False, state))
            return None
        if current_attempt.get() is not None or not random.random() < self.options.ratio:
            return None  # of an attempt that is not traced nothing is
        return SendSpan(self._sends, specs, self._common)

    def flush(self, seconds: float = providers.FLUSH_S) -> bool:
        """Export what waits, in at most so many seconds. False if the time was not enough."""
        waiting = [self._provider] if self._meters is None else [self._provider, self._meters]
        return providers.flush(waiting, seconds)
