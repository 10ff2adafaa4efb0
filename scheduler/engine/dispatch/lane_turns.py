"""Whose turn it is: kinds take turns, and within a kind the lane goes first that was looked at the longest ago."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.engine.dispatch.lanes import Turn, turn_of
from scheduler.store.tasks.claim import LANE_OF, LaneHead

MAX_REMEMBERED_LANES = 4096  # when each was last looked at; an older one goes first, like a new one


class LaneTurns:
    """The lanes of each kind in the order of their turns. Not thread-safe."""

    def __init__(self) -> None:
        self._looked_at: dict[tuple[str, str, int], int] = {}  # the longest ago first
        self._serial = 0

    def by_kind(self, heads: Iterable[LaneHead]) -> dict[Turn, list[LaneHead]]:
        """Lanes that take turns as one, each list in its order."""
        kinds: dict[Turn, list[LaneHead]] = {}
        for head in heads:
            kinds.setdefault(turn_of(head), []).append(head)
        return {turn: self.in_turn(lanes) for turn, lanes in kinds.items()}

    def in_turn(self, heads: list[LaneHead]) -> list[LaneHead]:
        """The same, the one first that was looked at the longest ago."""
        if len(heads) < 2:
            return heads
        return sorted(heads, key=lambda head: self._looked_at.get(LANE_OF(head), 0))

    def record(self, lanes: Sequence[tuple[str, str, int]]) -> None:
        """These were claimed from, or would have been but for a limit."""
        self._serial += 1
        for lane in lanes:
            self._looked_at.pop(lane, None)
            self._looked_at[lane] = self._serial
        while len(self._looked_at) > MAX_REMEMBERED_LANES:
            del self._looked_at[next(iter(self._looked_at))]
