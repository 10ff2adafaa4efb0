"""How one attempt ended, as running code reports it to the engine. Transitions come from named constructors."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class AttemptEnd(StrEnum):
    """What the history says of an attempt. Stored by position: append, never reorder."""

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

    @property
    def code(self) -> int:
        return _END_CODES[self]

    @classmethod
    def from_code(cls, code: int) -> AttemptEnd:
        return _ENDS[code]


_ENDS = tuple(AttemptEnd)
_END_CODES = {end: code for code, end in enumerate(_ENDS)}


class Failure(NamedTuple):
    """An error as it is stored: text, class name, fingerprint, upstream status."""

    text: str
    error_class: str
    fingerprint: str | None = None
    status: int | None = None


class Outcome(NamedTuple):
    """What the engine writes for one attempt, under the fence (task_id, claim, worker).

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
