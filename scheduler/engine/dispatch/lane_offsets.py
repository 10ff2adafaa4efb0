"""Remembers where each lane of the ready index begins, to skip the dead entries before it.

Used only while reading from the start is slow, as behind an old snapshot on PostgreSQL. Tasks that become ready before
an offset (released, committed late, by another clock) are found by scans from the start, paced by their own cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.ports import FOREVER, SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import LANE_OF, LaneHead, lane_heads
from scheduler.store.tasks.lane_offsets import Lane, Place, heads_from, lanes_between

SLOW_SCAN_S = 0.005  # a scan that takes longer is not made in every cycle
OFFSET_LAG_US = SECOND // 10  # offsets lag: commits come a little late
MAX_OFFSETS = 512  # with more lanes every read is a full scan
_REST_FACTOR = 6.0  # rest, in multiples of the cost
_MAX_REST_S = 1.0
_FIRST_COST_S = 0.04  # bound on the first cost: the process may have stood still
_MAX_LANE_READS = 8  # reads for new lanes in one cycle


class CostPacer:
    """Spaces out repeated work in proportion to its cost (seconds, monotonic)."""

    def __init__(self) -> None:
        self._last = _FIRST_COST_S
        self.due = 0.0

    def took(self, seconds: float, ended: float) -> None:
        cost, self._last = min(seconds, self._last), seconds
        self.due = ended + min(_REST_FACTOR * cost, max(_MAX_REST_S, 2 * cost))


class LaneOffsets:
    """The offsets of lanes.

    ``start``: where the next claim begins in each lane; empty while scans are fast. The claim moves it on. ``again``:
    when (microseconds) to scan again for tasks that the last read may have missed.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.slow = SLOW_SCAN_S
        self.start: dict[Lane, Place] = {}
        self.again = FOREVER
        self._walk, self._between = CostPacer(), CostPacer()

    def reset(self) -> None:
        """Drop all offsets: the next read is a full scan."""
        self.again = FOREVER
        if self.start:
            self.start, self._walk, self._between = {}, CostPacer(), CostPacer()

    def heads(self, tx: Tx, most: int, *, urgent: bool = False) -> list[LaneHead]:
        """The heads of the first ``most`` lanes, by a scan if fast or due. ``urgent``: no slow scan now."""
        begun = self._monotonic()
        if self.start and (urgent or begun < self._walk.due):
            return self._read_known(tx)
        heads = lane_heads(tx, most=most)
        if tx.dialect.name == "postgresql":
            self._walked(heads, begun, complete=len(heads) < most)
        return heads

    def _walked(self, heads: Sequence[LaneHead], begun: float, *, complete: bool) -> None:
        ended = self._monotonic()
        if not complete or ended - begun < self.slow or len(self.start) > MAX_OFFSETS:
            self.reset()
            return
        self.again = FOREVER
        self._walk.took(ended - begun, ended)
        # An empty lane keeps its offset: its dead entries are still there.
        self.start |= _places(heads)

    def _read_known(self, tx: Tx) -> list[LaneHead]:
        latest = (tx.now - OFFSET_LAG_US, 0)
        self.start = {lane: min(place, latest) for lane, place in self.start.items()}
        begun = self._monotonic()
        due = self._walk.due
        if begun >= self._between.due:
            self._find_lanes(tx)
            ended = self._monotonic()
            self._between.took(ended - begun, ended)
        else:
            due = min(due, self._between.due)
        self.again = tx.now + max(0, int((due - begun) * SECOND))
        heads = heads_from(tx, self.start)
        self.start |= _places(heads)
        return heads

    def _find_lanes(self, tx: Tx) -> None:
        """Find lanes that are new since the last scan, within a bound."""
        for _ in range(_MAX_LANE_READS):
            found = lanes_between(tx, self.start)
            self.start |= _places(found)
            if not found or len(self.start) > MAX_OFFSETS:
                break


def _places(heads: Sequence[LaneHead]) -> dict[Lane, Place]:
    return {LANE_OF(head): (head.run_at, head.id) for head in heads}
