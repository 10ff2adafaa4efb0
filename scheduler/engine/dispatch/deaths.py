"""Ends poison tasks for good: those that killed their process repeatedly while they ran alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.engine.attempt.attempt import Attempt
from scheduler.errors import ProcessDied
from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.retry import is_spent
from scheduler.store.tasks import claim as claims
from scheduler.store.tasks.complete import Completion
from scheduler.store.workers import DEATHS_ALONE

if TYPE_CHECKING:
    import sqlalchemy as sa


def judge_crashes(connection: sa.Connection, outcomes: list[tuple[Attempt, Outcome]]) -> list[tuple[Attempt, Outcome]]:
    """Make permanent the crashes of tasks that crashed alone too often. Call it before recording."""
    return [(a, _judged(connection, a, o) if o.end is AttemptEnd.LOST else o) for a, o in outcomes]


def _judged(connection: sa.Connection, attempt: Attempt, o: Outcome) -> Outcome:
    deaths, c = claims.quarantined_crashes(connection, o.task_id) + 1, attempt.claimed
    how = o.failure.text if o.failure is not None else "it died"
    if deaths >= DEATHS_ALONE:
        text = f"killed its process {deaths} times while running alone; last: {how}"
    elif is_spent(c.attempt - c.attempt_base, c.max_attempts):
        text = f"killed its process in the last attempt of {c.max_attempts}: {how}"
    else:
        return o
    failure = Failure(text, ProcessDied.__name__)
    end, state = (AttemptEnd.DEAD, st.DEAD) if attempt.claimed.dead_letter else (AttemptEnd.FAILED, st.FAILED)
    return o._replace(end=end, state=state, failure=failure, run_at=None)


def count_crashes(connection: sa.Connection, outcomes: list[tuple[Attempt, Outcome]], finished: Completion) -> None:
    """Count the crashes that have just been recorded."""
    died = [o for a, o in outcomes if o.end is AttemptEnd.LOST]
    not_recorded = {(o.task_id, o.claim) for o in (*finished.lost, *finished.deferred)}
    for o in died:
        if (o.task_id, o.claim) not in not_recorded:
            claims.record_quarantined_crash(connection, o.task_id, o.claim)
