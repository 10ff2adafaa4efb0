"""The current attempt of this thread or coroutine: tasks and log lines of its handler belong to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from scheduler.model.envelope import idempotency_key
from scheduler.model.lanes import inherited_lane
from scheduler.model.spec import TaskSpec
from scheduler.model.times import to_datetime
from scheduler.model.trace import TraceContext, context_in, with_context


class Claim(Protocol):
    """The fields of a claimed task that this module reads."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def schedule(self) -> str | None: ...
    @property
    def correlation(self) -> str | None: ...
    @property
    def causation(self) -> str | None: ...
    @property
    def subject(self) -> str | None: ...
    @property
    def message_type(self) -> str | None: ...
    @property
    def schema_version(self) -> int: ...
    @property
    def sequence(self) -> int | None: ...
    @property
    def original_id(self) -> int | None: ...
    @property
    def created_at(self) -> int: ...
    @property
    def payload_ref(self) -> str | None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def headers(self) -> str | None: ...
    @property
    def lane(self) -> str: ...


class Running(Protocol):
    """An attempt, as far as packages below the engine know it."""

    @property
    def claimed(self) -> Claim: ...
    def capture(self, text: str) -> None: ...
    def is_of(self, url: object) -> bool:
        """Whether its task is in the store with this URL."""
        ...

    def is_by(self, database: object) -> bool:
        """Whether the Scheduler that has this Database object runs it."""
        ...


TRACE_HEADERS = frozenset({"traceparent", "tracestate", "baggage"})  # W3C Trace Context and Baggage
current_attempt: ContextVar[Running | None] = ContextVar("schedd_attempt", default=None)


def inherit(spec: TaskSpec) -> None:
    """Give a task that a handler schedules the correlation of the handler's task and its fairness key, and name that
    task as its cause.

    Values that the spec already has stay.
    """
    running = current_attempt.get()
    if running is not None:
        inherit_from(spec, running.claimed)


def inherit_from(spec: TaskSpec, cause: Claim) -> None:
    """:func:`inherit` from this task."""
    if spec.correlation is None:
        spec.correlation = cause.correlation if cause.correlation is not None else str(cause.id)
    if spec.causation is None:
        spec.causation = str(cause.id)
    if cause.headers is not None:
        spec.headers = _with_trace(spec.headers, cause.headers)
    spec.lane = inherited_lane(spec.lane, cause.lane)


def _with_trace(own: str | None, causes: str) -> str | None:
    """Headers with the trace context of the causing task, unless they have their own."""
    known = {} if own is None else msgspec.json.decode(own)
    names = {name.lower() for name in known}
    trace = {
        name: value
        for name, value in msgspec.json.decode(causes).items()
        if name.lower() in TRACE_HEADERS and name.lower() not in names
    }
    if "traceparent" in names:  # another trace: that state is not its own
        trace = {name: value for name, value in trace.items() if name.lower() != "tracestate"}
    return msgspec.json.encode(known | trace).decode() if trace else own


def send_in(spec: TaskSpec, context: TraceContext, inherited: str | None) -> None:
    """Give a task the trace context that it is sent in, unless its caller gave it another one.

    ``inherited``: headers of the task that sends it, whose context it has only by :func:`inherit`.
    """
    given = context_in(spec.headers)
    if given is None or given == context_in(inherited):
        spec.headers = with_context(spec.headers, context)


LOG_FIELDS = ("task", "kind", "attempt", "key", "correlation", "causation", "subject", "message_type", "sequence")


def log_fields(c: Claim) -> dict[str, Any]:
    """The fields of every log line of an attempt: its identity, and the envelope's fields that are set."""
    correlation = c.correlation if c.correlation is not None else str(c.id)
    values = (c.id, c.kind, c.attempt, c.key, correlation, c.causation, c.subject, c.message_type, c.sequence)
    return {name: value for name, value in zip(LOG_FIELDS, values, strict=True) if value is not None}


def envelope_fields(c: Claim) -> dict[str, Any]:
    """The rest of the envelope's fields, for the log line about an attempt's end."""
    fields = {
        "idempotency_key": idempotency_key(c.key, c.original_id, c.id, c.epoch),
        "message_type": c.message_type if c.message_type is not None else c.kind,
        "schema_version": c.schema_version,
        "created_at": to_datetime(c.created_at).isoformat().replace("+00:00", "Z"),
    }
    return fields if c.payload_ref is None else fields | {"payload_ref": c.payload_ref}
