"""Decides which lanes go first where they share the limits of their queue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from scheduler.engine.dispatch.lanes import Turn, turn_of
from scheduler.engine.fair_rotation import FairRotation
from scheduler.store.tasks.claim import LANE_OF, Claimed, LaneClaim

MAX_REMEMBERED_LANES = 1024  # when each was last claimed from; an older one goes first, like a new one


class QueueTurns:
    """By priority as where priorities share slots, within one by kind, the one first that was served the longest ago,
    then by fairness key, and of its lanes the one that was served the longest ago."""

    def __init__(self) -> None:
        self._rotations: dict[str, FairRotation] = {}
        self._served: dict[tuple[str, str, int], int] = {}  # the longest ago first
        self._kinds: dict[Turn, int] = {}
        self._serial = 0

    def keep(self, queues: Collection[str]) -> None:
        """Forget all but these queues."""
        self._rotations = {queue: rotation for queue, rotation in self._rotations.items() if queue in queues}
        self._served = {lane: serial for lane, serial in self._served.items() if lane[0] in queues}
        self._kinds = {turn: serial for turn, serial in self._kinds.items() if turn[0] in queues}

    def order(
        self, picks: Sequence[LaneClaim], queues: Collection[str], start_of: Callable[[LaneClaim], float]
    ) -> list[LaneClaim]:
        """The picks in their order; those of limited queues in the order in which they take of the queue's room.

        ``start_of``: when the turn of a pick's fairness key begins.
        """
        rank: dict[tuple[str, int], int] = {}
        for queue in {pick.queue for pick in picks if pick.queue in queues}:
            rotation = self._rotations.setdefault(queue, FairRotation())
            order = rotation.order({pick.priority for pick in picks if pick.queue == queue})
            rank |= {(queue, priority): place for place, priority in enumerate(order)}

        def turn(pick: LaneClaim) -> tuple[int, int, float, int]:
            place = rank.get((pick.queue, pick.priority), -1)
            if place < 0:
                return place, 0, 0.0, 0
            return place, self._kinds.get(turn_of(pick), 0), start_of(pick), self._served.get(LANE_OF(pick), 0)

        return sorted(picks, key=turn)

    def record(self, picks: Sequence[LaneClaim], claimed: Iterable[Claimed], queues: Collection[str]) -> None:
        """Record which of these picks of limited queues gave something."""
        got = {LANE_OF(c) for c in claimed if c.queue in queues}
        if not got:
            return
        waiting: dict[str, set[int]] = {}
        for pick in picks:
            if pick.queue in queues:
                waiting.setdefault(pick.queue, set()).add(pick.priority)
        for queue, priorities in waiting.items():
            given = {lane[2] for lane in got if lane[0] == queue}
            self._rotations.setdefault(queue, FairRotation()).record(priorities, given)
        self._serial += 1
        self._kinds |= dict.fromkeys((turn_of(pick) for pick in picks if LANE_OF(pick) in got), self._serial)
        for lane in sorted(got):
            self._served.pop(lane, None)
            self._served[lane] = self._serial
        while len(self._served) > MAX_REMEMBERED_LANES:
            del self._served[next(iter(self._served))]
