"""Outcome: how one attempt ended, as the executor reports it to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from scheduler.model.spec import TaskSpec
from scheduler.model.state import SUCCESS, StoredEnum


class AttemptEnd(StoredEnum):
    """How an attempt ended, as its history has it. Stored by position: append, never reorder."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRIED = "retried"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    SUSPENDED = "suspended"
    LOST = "lost"
    HANDED_BACK = "handed back"
    REPLACED = "replaced"


class Failure(NamedTuple):
    """An error as it is stored: text, class name, fingerprint, upstream status."""

    text: str
    error_class: str
    fingerprint: str | None = None
    status: int | None = None


class Lifetimes(NamedTuple):
    """How long a success keeps its result and its key (microseconds), if the task itself does not say."""

    result: int = 86_400 * 1_000_000
    key: int = 86_400 * 1_000_000


class Outcome(NamedTuple):
    """The end of one attempt, which the engine writes under the fence (task_id, claim, worker).

    ``state`` is the state code the task goes to, ``run_at`` when it is due again (None: unchanged), ``refund``
    1 if the execution does not use an attempt. Times are microseconds.
    """

    task_id: int
    claim: int
    number: int
    end: AttemptEnd
    state: int
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    result: str | None = None
    failure: Failure | None = None
    run_at: int | None = None
    refund: int = 0
    log: str | None = None
    publish: TaskSpec | None = None  # the message that tells of a success, stored with it


class OutcomeColumns(NamedTuple):
    """Outcomes by their columns, so that equal ones of a large batch are found without a Python loop."""

    task_ids: tuple[int, ...]
    claims: tuple[int, ...]
    numbers: tuple[int, ...]
    ends: tuple[AttemptEnd, ...]
    states: tuple[int, ...]
    claimed_at: tuple[int | None, ...]
    started_at: tuple[int | None, ...]
    finished_at: tuple[int, ...]
    results: tuple[str | None, ...]
    failures: tuple[Failure | None, ...]
    run_at: tuple[int | None, ...]
    refunds: tuple[int, ...]
    logs: tuple[str | None, ...]
    publish: tuple[TaskSpec | None, ...]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> OutcomeColumns:
        return cls._make(zip(*outcomes, strict=True)) if outcomes else cls(*[()] * len(cls._fields))

    @property
    def plain(self) -> bool:
        """Whether each outcome is a plain success, with at most a result."""
        count = len(self.task_ids)
        return (
            self.states.count(SUCCESS) == count
            and self.ends.count(AttemptEnd.SUCCEEDED) == count
            and self.failures.count(None) == count
            and self.logs.count(None) == count
            and None not in self.started_at
        )


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that has just become a dead letter; the names are those of its stored record."""

    id: int
    kind: str
    queue: str
    key: str | None
    correlation: str
    attempt: int
    error: str | None
    error_class: str | None
    fingerprint: str | None
    status_code: int | None
    finished_at: datetime
