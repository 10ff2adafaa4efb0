"""The columns of a task that are read and shown, each listed once."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from scheduler.model.priority import Priority
from scheduler.model.resources import Resources
from scheduler.model.retry import RetryPolicy
from scheduler.model.state import TaskState

Instant = TypeVar("Instant")
Due = TypeVar("Due")
Span = TypeVar("Span")


class TaskColumns(msgspec.Struct, Generic[Instant, Due, Span], frozen=True, kw_only=True):
    """What is stored of a task, in the order in which JSON shows it.

    ``Instant`` and ``Span`` are integers in the store, and datetimes and timedeltas for programs; ``Due`` is an
    instant that programs see as None where it never comes.
    """

    id: int
    kind: str
    state: TaskState
    queue: str
    priority: Priority
    key: str | None
    attempt: int
    max_attempts: int | None
    created_at: Instant
    run_at: Due
    claimed_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None
    progress: float | None
    progress_message: str | None
    last_heartbeat_at: Instant | None
    cancel_requested: Instant | None
    unmet: int
    result_until: Instant | None
    error: str | None
    error_class: str | None
    fingerprint: str | None
    status_code: int | None
    ended_by: int | None
    payload: str | None
    payload_ref: str | None
    schema_version: int
    headers: dict[str, Any]
    correlation: str
    causation: str | None
    subject: str | None
    message_type: str | None
    sequence: int | None
    schedule: str | None
    slot: Instant | None
    missed: int | None
    missed_since: Instant | None
    timeout: Span | None
    max_duration: Span | None
    max_delay: Span | None
    expires_at: Instant | None
    retry: RetryPolicy | None
    dead_letter: bool
    rerun: bool
    original_id: int | None
    replay_count: int
    spawned_by: int | None
    worker: int | None
    fairness_key: str | None
    executor: str | None
    resources: Resources | None
    executor_options: dict[str, Any] | None


def _columns_of(*variables: TypeVar) -> tuple[str, ...]:
    hints = {f"{variable.__name__}{rest}" for variable in variables for rest in ("", " | None")}
    return tuple(name for name, hint in TaskColumns.__annotations__.items() if hint in hints)


INSTANTS = _columns_of(Instant, Due)
SPANS = _columns_of(Span)
