"""Poison tasks: those that may have killed a worker run alone, and end for good after repeated crashes."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.dispatch.planner import ClaimPlanner
from scheduler.engine.state import EngineState
from scheduler.errors import ProcessDied
from scheduler.model.defaults import SUSPECT_ALONE_S
from scheduler.model.lanes import QUARANTINE_LANE
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.retry import is_spent
from scheduler.model.state import DEAD, FAILED
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import claim
from scheduler.store.tasks.claim import Claimed, LaneClaim
from scheduler.store.tasks.complete import Completion
from scheduler.store.workers import DEATHS_ALONE


class Quarantine:
    """Ends the isolation of suspects. The planner holds the one that runs alone."""

    def __init__(self, engine_state: EngineState, planner: ClaimPlanner) -> None:
        self._state = engine_state
        self._planner = planner

    def clear(self, tx: Tx, worker: int, gone: set[tuple[int, int]]) -> None:
        """End the isolation of a suspect that has ended, or has run long enough.

        ``gone``: (task id, claim) of what has ended.
        """
        alone = self._planner.alone
        if alone is None:
            return
        c = alone.claimed
        if (c.id, c.claim) in gone or (c.id, c.claim) not in self._state.held:
            self._planner.alone = None
        elif alone.started_at is not None and alone.started_mono <= self._state.monotonic() - SUSPECT_ALONE_S:
            claim.end_quarantine(tx, worker, c.id, c.claim)
            self._planner.alone = None

    def isolate(self, tx: Tx, worker: int, picks: Sequence[LaneClaim], claimed: Sequence[Claimed]) -> None:
        """Clear the suspicion of a suspect in a child process: if this process dies, the child is not to blame."""
        processes = self._state.processes
        if processes is None or not any(pick.lane.startswith(QUARANTINE_LANE) for pick in picks):
            return
        for c in claimed:
            if c.lane.startswith(QUARANTINE_LANE) and processes.can_run(self._state.registry.named(c.kind)):
                claim.end_quarantine(tx, worker, c.id, c.claim)


def judge_crashes(tx: Tx, outcomes: list[tuple[Attempt, Outcome]]) -> list[tuple[Attempt, Outcome]]:
    """Make permanent the crashes of tasks that crashed alone too often. Call it before recording."""
    return [(a, _judged(tx, a, o) if o.end is AttemptEnd.LOST else o) for a, o in outcomes]


def _judged(tx: Tx, attempt: Attempt, o: Outcome) -> Outcome:
    deaths, c = claim.quarantined_crashes(tx, o.task_id) + 1, attempt.claimed
    how = o.failure.text if o.failure is not None else "it died"
    if deaths >= DEATHS_ALONE:
        text = f"killed its process {deaths} times while running alone; last: {how}"
    elif is_spent(c.attempt - c.attempt_base, c.max_attempts):
        text = f"killed its process in the last attempt of {c.max_attempts}: {how}"
    else:
        return o
    failure = Failure(text, ProcessDied.__name__)
    end, state = (AttemptEnd.DEAD, DEAD) if attempt.claimed.dead_letter else (AttemptEnd.FAILED, FAILED)
    return o._replace(end=end, state=state, failure=failure, run_at=None)


def count_crashes(tx: Tx, outcomes: list[tuple[Attempt, Outcome]], finished: Completion) -> None:
    """Count the crashes that have just been recorded."""
    died = [o for a, o in outcomes if o.end is AttemptEnd.LOST]
    not_recorded = {(o.task_id, o.claim) for o in (*finished.lost, *finished.deferred)}
    for o in died:
        if (o.task_id, o.claim) not in not_recorded:
            claim.record_quarantined_crash(tx, o.task_id, o.claim)
