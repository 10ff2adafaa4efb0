"""Releases tasks claimed by a commit whose answer was lost, which no slot here knows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from scheduler.engine.attempt.attempt import CountedStarts
from scheduler.engine.dispatch.limits import DispatchLimits
from scheduler.engine.state import EngineState
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.state import SCHEDULED
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import claim
from scheduler.store.tasks.claim import Claimed
from scheduler.store.tasks.complete import finish

log = logging.getLogger("scheduler.engine")

RECHECK_S = 600.0  # a server may make such a commit late


class LostCommits:
    """See the module. ``pending``: the next cycle is to look for claims that this engine does not know of."""

    def __init__(self, engine_state: EngineState, limits: DispatchLimits) -> None:
        self._state = engine_state
        self._limits = limits
        self.pending = False
        self.noted = 0  # grows with each such commit
        self._until = 0.0  # monotonic
        # Starts that such a commit has counted: by (task id, claim).
        self._starts: dict[tuple[int, int], CountedStarts] = {}

    def on_uncertain_commit(self) -> None:
        """Note that the last commit may have been made, or may still be made by the server. From any thread."""
        self.noted += 1
        self.pending = True
        self._until = self._state.monotonic() + RECHECK_S

    def conclude(self, pending: bool, noted: int) -> None:
        """Note what a cycle has left. ``noted``: as it looked, for a caller may have lost a commit since."""
        self.pending = pending
        if self.noted != noted:
            self.pending = True

    def recheck(self) -> None:
        """Let the next cycle check once more. The engine calls it with each renewal."""
        if self._state.monotonic() < self._until:
            self.pending = True

    def remember(self, claimed: Iterable[Claimed], start_by: Mapping[tuple[str, str], CountedStarts]) -> None:
        """Remember the counted starts of a failed cycle's claims."""
        self._starts |= {(c.id, c.claim): start_by[c.queue, c.lane] for c in claimed if (c.queue, c.lane) in start_by}

    def clear(self) -> None:
        """Forget the counted starts: all such claims are released."""
        if self._starts:
            self._starts.clear()

    def release_unknown(self, tx: Tx, worker: int) -> bool:
        """Release what ``worker`` holds in the database but not here; ``now`` in microseconds.

        Returns whether some are left for the next cycle, as another transaction holds them.
        """
        engine_state = self._state
        if engine_state.reserved:
            return True  # what a caller has just stored as claimed is not held yet
        unknown = [
            Outcome(r.id, r.claim, r.attempt, AttemptEnd.HANDED_BACK, SCHEDULED, r.claimed_at, None, tx.now, refund=1)
            for r in claim.held_by(tx, worker)
            if (r.id, r.claim) not in engine_state.held
        ]
        if not unknown:
            return False
        log.warning("%d tasks were claimed by a commit that was not answered: given back", len(unknown))
        deferred = finish(tx, worker, unknown).deferred
        left = {(o.task_id, o.claim) for o in deferred}
        keys = {(o.task_id, o.claim) for o in unknown} - left
        self._limits.refund(tx, Counter(one for key in keys & self._starts.keys() for one in self._starts[key]))
        return bool(deferred)
