"""Takes back claims that no job has taken over. By the fence: a job that comes first keeps its claim."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from scheduler.engine.dead_letter_hook import DeadLetterHook
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.placement import MAX_LOST_STARTS
from scheduler.model.state import CANCELLED, DEAD, FAILED, SCHEDULED
from scheduler.model.texts import counted
from scheduler.ports import SECOND
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.placements import Placement
from scheduler.store.tasks.complete import finish

LAST_LINE = 300  # characters of what a lost job wrote last

log = logging.getLogger("scheduler.executors")

_STATES = {
    AttemptEnd.CANCELLED: CANCELLED,
    AttemptEnd.DEAD: DEAD,
    AttemptEnd.FAILED: FAILED,
    AttemptEnd.HANDED_BACK: SCHEDULED,
}


class ClaimRelease:
    """Ends claims of one executor. ``interval``: seconds between two looks; ``ring``: tasks may run that could not."""

    def __init__(
        self,
        name: str,
        interval: float,
        database: Database,
        ring: Callable[[], object],
        dead_letters: DeadLetterHook,
    ) -> None:
        self._name = name
        self._interval = interval
        self._database = database
        self._ring = ring
        self._dead_letters = dead_letters

    def asked_for(self, worker: int, found: Sequence[Placement]) -> None:
        """These tasks were cancelled, or replaced: then they run as what they are now."""
        ends = {}
        for placement in found:
            cancelled = placement.cancel_requested is not None and placement.rerun != 1
            ends[placement] = AttemptEnd.CANCELLED if cancelled else AttemptEnd.HANDED_BACK
        self._end(worker, ends)

    def lost(self, worker: int, placement: Placement, why: str, tail: str | None, *, counts: bool = True) -> None:
        """The job will not begin: the task goes back without using an attempt, and fails after some in a row.

        ``tail``: what the job wrote last. ``counts``: it is one of those in a row.
        """
        with self._database.read() as tx:
            lost = placements.lost_starts(tx, placement.task_id) + 1
        if lost < MAX_LOST_STARTS or not counts:
            log.warning("executor %s, job %s: %s", self._name, placement.name, why, extra={"task": placement.task_id})
            due = self._database.now() + round(lost * self._interval * SECOND)
            self._end(worker, {placement: AttemptEnd.HANDED_BACK}, reason=why, log_text=tail, due=due, lost=counts)
            return
        wrote = (tail or "").strip()
        last = f"; it wrote: {wrote.splitlines()[-1][:LAST_LINE]}" if wrote else ""
        text = f"{counted(lost, 'job')} of executor {self._name} in a row did not begin; last: {why}{last}"
        self._fail(worker, placement, Failure(text, "LostStart"), tail)

    def refused(self, worker: int, placement: Placement, reason: str) -> None:
        """The backend never takes the job: the task fails."""
        text = f"executor {self._name} never takes it: {reason}"
        self._fail(worker, placement, Failure(text, "ExecutorRefused"), None)

    def _fail(self, worker: int, placement: Placement, failure: Failure, tail: str | None) -> None:
        log.error("%s", failure.text, extra={"task": placement.task_id})
        end = AttemptEnd.DEAD if placement.dead_letter else AttemptEnd.FAILED
        self._dead_letters.pending.add(placement.task_id)
        self._end(worker, {placement: end}, failure=failure, reason=failure.text, log_text=tail, lost=True)
        self._dead_letters.notify_pending(self._database)

    def _end(
        self,
        worker: int,
        ends: Mapping[Placement, AttemptEnd],
        *,
        failure: Failure | None = None,
        reason: str | None = None,
        log_text: str | None = None,
        due: int | None = None,
        lost: bool = False,
    ) -> None:
        """End these claims in one transaction, but for those that a job has taken over."""

        def work(tx: Tx) -> int:
            outcomes = [
                Outcome(
                    placement.task_id,
                    placement.claim,
                    placement.attempt,
                    end,
                    _STATES[end],
                    placement.claimed_at,
                    None,
                    tx.now,
                    failure=failure,
                    run_at=due,
                    refund=1 if end is AttemptEnd.HANDED_BACK else 0,
                    log=log_text,
                )
                for placement, end in ends.items()
            ]
            done = finish(tx, worker, outcomes)
            left = {(outcome.task_id, outcome.claim) for outcome in (*done.lost, *done.deferred)}
            over = [placement.key for placement in ends if placement.key not in left]
            placements.end(tx, over, lost=lost, reason=reason)
            for task_id, _ in over if failure is not None else ():
                placements.count_no_more(tx, task_id)
            return len(over)

        if self._database.change(work):
            self._ring()
