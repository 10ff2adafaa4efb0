"""Tasks that may have killed a process: one runs alone, so that nobody else is blamed for what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.engine.desk import Desk
from scheduler.engine.planner import ALONE, Planner
from scheduler.store import claim as claims
from scheduler.store.claim import SUSPECT_LANE, Claimed, Pick

if TYPE_CHECKING:
    import sqlalchemy as sa


class Suspects:
    """See the module. The one that runs alone is the planner's: nothing else is claimed beside it."""

    def __init__(self, desk: Desk, planner: Planner) -> None:
        self._desk = desk
        self._planner = planner

    def absolve(self, connection: sa.Connection, worker: int, gone: set[tuple[int, int]]) -> None:
        """One that has ended, or has run long enough, no longer keeps others waiting (nor is it blamed alone).

        ``gone``: (task id, claim) of what has ended.
        """
        alone = self._planner.alone
        if alone is None:
            return
        c = alone.claimed
        if (c.id, c.claim) in gone or (c.id, c.claim) not in self._desk.held:
            self._planner.alone = None
        elif alone.started_at is not None and alone.started_mono <= self._desk.monotonic() - ALONE:
            claims.clear_suspicion(connection, worker, c.id, c.claim)
            self._planner.alone = None

    def part(self, connection: sa.Connection, worker: int, picks: Sequence[Pick], claimed: Sequence[Claimed]) -> None:
        """One that runs in a process of its own does not die with this one: should that happen, it is one of the
        bystanders again."""
        processes = self._desk.processes
        if processes is None or not any(pick.lane.startswith(SUSPECT_LANE) for pick in picks):
            return
        for c in claimed:
            if c.lane.startswith(SUSPECT_LANE) and processes.can_run(self._desk.registry.named(c.kind)):
                claims.clear_suspicion(connection, worker, c.id, c.claim)
