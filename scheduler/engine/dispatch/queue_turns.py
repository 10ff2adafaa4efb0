"""Decides which lanes go first where they share the limits of their queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scheduler.engine.fair_rotation import FairRotation
from scheduler.store.tasks.claim import LANE_OF, Claimed, LaneClaim

MAX_REMEMBERED_LANES = 1024  # when each was last claimed from; an older one goes first, like a new one


class QueueTurns:
    """By level as where levels share slots, and within a level the lane first that was served the longest ago."""

    def __init__(self) -> None:
        self._levels: dict[str, FairRotation] = {}
        self._served: dict[tuple[str, str, int], int] = {}  # the longest ago first
        self._serial = 0

    def keep(self, queues: Collection[str]) -> None:
        """Forget all but these queues."""
        self._levels = {queue: levels for queue, levels in self._levels.items() if queue in queues}
        self._served = {lane: serial for lane, serial in self._served.items() if lane[0] in queues}

    def order(self, picks: Sequence[LaneClaim], queues: Collection[str]) -> list[LaneClaim]:
        """The picks in their order; those of limited queues in the order in which they take of the queue's room."""
        rank: dict[tuple[str, int], int] = {}
        for queue in {pick.queue for pick in picks if pick.queue in queues}:
            levels = self._levels.setdefault(queue, FairRotation())
            order = levels.order({pick.pool for pick in picks if pick.queue == queue})
            rank |= {(queue, level): place for place, level in enumerate(order)}
        return sorted(picks, key=lambda p: (rank.get((p.queue, p.pool), -1), self._served.get(LANE_OF(p), 0)))

    def record(self, picks: Iterable[LaneClaim], claimed: Iterable[Claimed], queues: Collection[str]) -> None:
        """Record which of these picks of limited queues gave something."""
        got = {LANE_OF(c) for c in claimed if c.queue in queues}
        if not got:
            return
        waiting: dict[str, set[int]] = {}
        for pick in picks:
            if pick.queue in queues:
                waiting.setdefault(pick.queue, set()).add(pick.pool)
        for queue, levels in waiting.items():
            self._levels.setdefault(queue, FairRotation()).record(levels, {lane[2] for lane in got if lane[0] == queue})
        self._serial += 1
        for lane in sorted(got):
            self._served.pop(lane, None)
            self._served[lane] = self._serial
        while len(self._served) > MAX_REMEMBERED_LANES:
            del self._served[next(iter(self._served))]
