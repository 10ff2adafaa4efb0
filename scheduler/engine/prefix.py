"""What a worker need not walk past at every turn: the dead entries in front of each lane of the ready index.

Only where walking past them has turned out to be slow, as behind an old snapshot on PostgreSQL: a healthy database is
always read from the start. What becomes ready in front of a lane's place (given back, released, committed late, by
another's clock) is found by walks from the start, as often as their own cost allows: they get about a seventh of the
time, and there is a second between two at most, unless one takes half a second itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scheduler.ports import FOREVER, SECOND
from scheduler.store.claim import LANE_OF, LaneHead, lane_heads
from scheduler.store.prefix import Lane, Place, heads_from, lanes_between

if TYPE_CHECKING:
    import sqlalchemy as sa

SLOW = 0.005  # seconds from which a walk over all heads is too slow to be made at every turn
BEHIND = SECOND // 10  # places stay so far behind: callers' commits come a little late
MOST_LANES = 512  # of which places are kept; with more, look after look from the start
_REST = 6.0  # times as long as the work took, until it is done again
_AT_MOST = 1.0  # seconds of rest
_FIRST = 0.04  # seconds: a first time says little, the process may have stood still meanwhile
_ROUNDS = 8  # looks for more lanes in a turn


class Pace:
    """Lets something be done again only after a rest, in proportion to what it cost (seconds, monotonic)."""

    def __init__(self) -> None:
        self._last = _FIRST
        self.due = 0.0

    def took(self, seconds: float, ended: float) -> None:
        cost, self._last = min(seconds, self._last), seconds
        self.due = ended + min(_REST * cost, max(_AT_MOST, 2 * cost))


class Prefix:
    """See the module. ``start``: where to begin in each lane, for the claim that follows a look; empty while nothing is
    slow, which means at its start. The claim sets it on. ``again``: when (microseconds) to look again for what the last
    look may have missed."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.slow = SLOW
        self.start: dict[Lane, Place] = {}
        self.again = FOREVER
        self._walk, self._between = Pace(), Pace()

    def forget(self) -> None:
        """Nothing is slow, or what is known may be wrong: the next look is a walk."""
        self.again = FOREVER
        if self.start:
            self.start, self._walk, self._between = {}, Pace(), Pace()

    def heads(self, connection: sa.Connection, now: int, most: int, *, urgent: bool = False) -> list[LaneHead]:
        """The heads of the first ``most`` lanes, from the start if that is quick or its time has come. ``urgent``: not
        now, if it is slow."""
        begun = self._monotonic()
        if self.start and (urgent or begun < self._walk.due):
            return self._look(connection, now)
        heads = lane_heads(connection, most=most)
        if connection.dialect.name == "postgresql":
            self._walked(heads, begun, complete=len(heads) < most)
        return heads

    def _walked(self, heads: Sequence[LaneHead], begun: float, *, complete: bool) -> None:
        ended = self._monotonic()
        if not complete or ended - begun < self.slow or len(self.start) > MOST_LANES:
            self.forget()
            return
        self.again = FOREVER
        self._walk.took(ended - begun, ended)
        # Of a lane that is empty at present the place stays: what died in it is still in the way.
        self.start |= _places(heads)

    def _look(self, connection: sa.Connection, now: int) -> list[LaneHead]:
        latest = (now - BEHIND, 0)
        self.start = {lane: min(place, latest) for lane, place in self.start.items()}
        begun = self._monotonic()
        due = self._walk.due
        if begun >= self._between.due:
            self._find_lanes(connection)
            ended = self._monotonic()
            self._between.took(ended - begun, ended)
        else:
            due = min(due, self._between.due)
        self.again = now + max(0, int((due - begun) * SECOND))
        heads = heads_from(connection, self.start)
        self.start |= _places(heads)
        return heads

    def _find_lanes(self, connection: sa.Connection) -> None:
        """Lanes that came to be since the last walk, as many as a turn looks at."""
        for _ in range(_ROUNDS):
            found = lanes_between(connection, self.start)
            self.start |= _places(found)
            if not found or len(self.start) > MOST_LANES:
                break


def _places(heads: Sequence[LaneHead]) -> dict[Lane, Place]:
    return {LANE_OF(head): (head.run_at, head.id) for head in heads}
