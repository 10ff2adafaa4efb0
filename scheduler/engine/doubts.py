"""Commits whose answers got lost: they may have been made, and nobody here knows of the tasks that they claimed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from scheduler.engine.desk import Desk
from scheduler.engine.limits import Limits
from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.store import claim as claims
from scheduler.store.claim import Claimed
from scheduler.store.finish import finish

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

FOR = 600.0  # seconds after a failed turn for which what it claimed is looked for


class Doubts:
    """See the module. ``unsure``: the next turn is to look whether anything is held that nobody here knows of."""

    def __init__(self, desk: Desk, limits: Limits) -> None:
        self._desk = desk
        self._limits = limits
        self.unsure = False
        self._until = 0.0  # monotonic
        # Starts that such a commit has counted: (task id, claim) -> kind, until when.
        self._starts: dict[tuple[int, int], tuple[str, int]] = {}

    def arise(self) -> None:
        """The last commit may or may not have been made, or is only being made yet, by a server that has not noticed
        that nobody waits for it any more."""
        self.unsure = True
        self._until = self._desk.monotonic() + FOR

    def look_back(self) -> None:
        """Let the next turn look once more. To be called now and then."""
        if self._desk.monotonic() < self._until:
            self.unsure = True

    def keep(self, claimed: Iterable[Claimed], start_by: Mapping[str, int]) -> None:
        """What a turn that failed had claimed, and until when its starts were counted, by kind."""
        self._starts |= {(c.id, c.claim): (c.kind, start_by[c.kind]) for c in claimed if c.kind in start_by}

    def end(self) -> None:
        """Everything that such a commit had claimed was given back, or there was nothing."""
        if self._starts:
            self._starts.clear()

    def give_back(self, connection: sa.Connection, worker: int, now: int) -> bool:
        """Give back what ``worker`` holds and nobody here knows of; ``now`` in microseconds.

        Returns whether some are left for the next turn, since somebody's transaction holds them.
        """
        desk = self._desk
        unknown = [
            Outcome(r.id, r.claim, r.attempt, AttemptEnd.HANDED_BACK, st.SCHEDULED, r.claimed_at, None, now, refund=1)
            for r in claims.held_by(connection, worker)
            if (r.id, r.claim) not in desk.held
        ]
        if not unknown:
            return False
        log.warning("%d tasks were claimed by a commit that was not answered: given back", len(unknown))
        deferred = finish(connection, desk.database.dialect, worker, unknown, now).deferred
        left = {(o.task_id, o.claim) for o in deferred}
        keys = {(o.task_id, o.claim) for o in unknown} - left
        self._limits.uncount(connection, Counter(self._starts[key] for key in keys & self._starts.keys()))
        return bool(deferred)
