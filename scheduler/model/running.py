"""The attempt whose handler is running here, if one is: what it schedules and logs belongs to it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from scheduler.model.envelope import idempotency_key
from scheduler.model.spec import TaskSpec
from scheduler.model.times import to_datetime


class Claim(Protocol):
    """What is read here of a claimed task."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def key(self) -> str | None: ...
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


class Running(Protocol):
    """An attempt, as far as those below the engine know it."""

    @property
    def claimed(self) -> Claim: ...
    def capture(self, text: str) -> None: ...


current_attempt: ContextVar[Running | None] = ContextVar("schedd_attempt", default=None)


def inherit(spec: TaskSpec) -> None:
    """A task that a handler schedules belongs to what the handler's task belongs to, and names it as its cause.

    What the spec says itself, it keeps.
    """
    running = current_attempt.get()
    if running is None:
        return
    cause = running.claimed
    if spec.correlation is None:
        spec.correlation = cause.correlation if cause.correlation is not None else str(cause.id)
    if spec.causation is None:
        spec.causation = str(cause.id)


LOG_FIELDS = ("task", "kind", "attempt", "key", "correlation", "causation", "subject", "message_type", "sequence")


def log_fields(c: Claim) -> dict[str, Any]:
    """What every log line of an attempt carries: which one it is, and its message's envelope as far as it was given."""
    correlation = c.correlation if c.correlation is not None else str(c.id)
    told = (c.id, c.kind, c.attempt, c.key, correlation, c.causation, c.subject, c.message_type, c.sequence)
    return {name: value for name, value in zip(LOG_FIELDS, told, strict=True) if value is not None}


def envelope_fields(c: Claim) -> dict[str, Any]:
    """The rest of the envelope, for the line that tells how an attempt ended."""
    told = {
        "idempotency_key": idempotency_key(c.key, c.original_id, c.id),
        "message_type": c.message_type if c.message_type is not None else c.kind,
        "schema_version": c.schema_version,
        "created_at": to_datetime(c.created_at).isoformat().replace("+00:00", "Z"),
    }
    return told if c.payload_ref is None else told | {"payload_ref": c.payload_ref}
