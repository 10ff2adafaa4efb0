"""Suspects that killed the process in which they ran alone: three times, and they are dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.engine.attempt import Attempt
from scheduler.errors import ProcessDied
from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.store import claim as claims
from scheduler.store.finish import Finished
from scheduler.store.workers import DEATHS_ALONE

if TYPE_CHECKING:
    import sqlalchemy as sa


def judge(connection: sa.Connection, outcomes: list[tuple[Attempt, Outcome]]) -> list[tuple[Attempt, Outcome]]:
    """End those for good that have died alone too often. To be called before the outcomes are recorded."""
    return [(a, _judged(connection, a, o) if o.end is AttemptEnd.LOST else o) for a, o in outcomes]


def _judged(connection: sa.Connection, attempt: Attempt, o: Outcome) -> Outcome:
    deaths = claims.deaths_alone(connection, o.task_id) + 1
    if deaths < DEATHS_ALONE:
        return o
    how = o.failure.text if o.failure is not None else "it died"
    failure = Failure(f"killed its process {deaths} times while running alone; last: {how}", ProcessDied.__name__)
    end, state = (AttemptEnd.DEAD, st.DEAD) if attempt.claimed.dead_letter else (AttemptEnd.FAILED, st.FAILED)
    return o._replace(end=end, state=state, failure=failure, run_at=None)


def count(connection: sa.Connection, outcomes: list[tuple[Attempt, Outcome]], finished: Finished) -> None:
    """Count the deaths that have just been recorded."""
    died = [o for a, o in outcomes if o.end is AttemptEnd.LOST]
    not_recorded = {(o.task_id, o.claim) for o in (*finished.lost, *finished.deferred)}
    for o in died:
        if (o.task_id, o.claim) not in not_recorded:
            claims.count_death(connection, o.task_id, o.claim)
