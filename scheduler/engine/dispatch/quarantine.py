"""Runs suspects (tasks that may have killed a worker) alone, so that no other task is blamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.engine.dispatch.planner import SUSPECT_ALONE_S, ClaimPlanner
from scheduler.engine.state import EngineState
from scheduler.store.tasks import claim as claims
from scheduler.store.tasks.claim import QUARANTINE_LANE, Claimed, LaneClaim

if TYPE_CHECKING:
    import sqlalchemy as sa


class Quarantine:
    """Ends the isolation of suspects. The planner holds the one that runs alone."""

    def __init__(self, engine_state: EngineState, planner: ClaimPlanner) -> None:
        self._state = engine_state
        self._planner = planner

    def clear(self, connection: sa.Connection, worker: int, gone: set[tuple[int, int]]) -> None:
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
            claims.end_quarantine(connection, worker, c.id, c.claim)
            self._planner.alone = None

    def isolate(
        self, connection: sa.Connection, worker: int, picks: Sequence[LaneClaim], claimed: Sequence[Claimed]
    ) -> None:
        """Clear the suspicion of a suspect in a child process: if this process dies, the child is not to blame."""
        processes = self._state.processes
        if processes is None or not any(pick.lane.startswith(QUARANTINE_LANE) for pick in picks):
            return
        for c in claimed:
            if c.lane.startswith(QUARANTINE_LANE) and processes.can_run(self._state.registry.named(c.kind)):
                claims.end_quarantine(connection, worker, c.id, c.claim)
