"""Which lanes a worker knows to hold work that it may claim.

A turn looks at one stretch of the lanes there are, and the next one goes on from there, so that a hundred thousand
lanes, most of them at their cap or none of ours, cost a turn no more than a hundred. Lanes that are known to hold more
are kept between. As long as one stretch is all there is, which is nearly always, nothing needs to be kept.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.engine.prefix import Prefix
from scheduler.ports import FOREVER, SECOND
from scheduler.store.claim import LANE_OF, Claimed, LaneHead, Pick, heads_of, lane_heads

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.store.ripe import Ripe

STRETCH = 128  # lanes looked at in a turn
KNOWN = 256  # lanes kept between turns at most: the next round finds the others again
STILL = 0.25  # seconds for which lanes that gave all that was asked of them are taken to hold more
USED = 32  # lanes that work was claimed from last: looked at first when there may be new work


def got_of(picks: Sequence[Pick], claimed: Sequence[Claimed]) -> Mapping[tuple[str, str, int], int]:
    """How many of these were claimed of each lane. Mostly it is one lane, and a Counter takes ten times as long."""
    one = claimed and len(picks) == 1
    return defaultdict(int, {LANE_OF(picks[0]): len(claimed)}) if one else Counter(map(LANE_OF, claimed))


class Lanes:
    """See the module."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.prefix = Prefix(monotonic)
        self.whole = True  # whether the last stretch was all there is
        self._known: dict[tuple[str, str, int], LaneHead] = {}
        self._used: dict[tuple[str, str, int], None] = {}  # the oldest first
        self._cursor: LaneHead | None = None
        self._owed = 0  # ends of a round to come until everything has been looked at since it was asked for
        self._monotonic = monotonic
        self._still: list[LaneHead] = []  # of the last look, if it was at the whole, and each gave what was asked of it
        self._still_until = 0.0
        self._nothing_until = 0.0  # the last look was at the whole, and nothing was due
        self._look_again = FOREVER  # when (microseconds) that is over, if a turn relies on it
        self._relied = False  # whether the last turn looked at nothing else
        self._first_later = FOREVER  # when the first task comes due that this round has met
        self._last_later = FOREVER  # the same of the last whole round

    @property
    def unfinished(self) -> bool:
        """Whether lanes are left to be looked at before it can be said that there is nothing to do."""
        return self._owed > 0

    @property
    def next_due(self) -> int:
        """When the first of the tasks comes due that are not due yet (microseconds)."""
        return min(self._first_later, self._last_later, self.prefix.again, self._look_again)

    def look(
        self,
        connection: sa.Connection,
        serves: Callable[[LaneHead], bool],
        now: int,
        *,
        fresh: bool,
        rely: bool,
        ripe: Ripe | None = None,
    ) -> list[LaneHead]:
        """Lanes with something due, as far as is known. ``fresh``: anything may have changed since the last turn.
        ``rely``: nothing has that this worker did itself, either, but for what is ``ripe``."""
        rely = rely and not (fresh or (ripe is not None and ripe.scheduled))
        if not ripe:
            return self._look(connection, serves, now, fresh=fresh, rely=rely)
        left = self._nothing_until - self._monotonic()
        if rely and left > 0:
            self._relied, self._look_again = False, now + math.ceil(left * SECOND)
            return ripe.join([], serves)
        due = self._look(connection, serves, now, fresh=fresh, rely=False)
        if self.whole:
            return ripe.join(due, serves)
        ripe.schedule()  # others may come before them: the next turn sees
        return due

    def _look(
        self, connection: sa.Connection, serves: Callable[[LaneHead], bool], now: int, *, fresh: bool, rely: bool
    ) -> list[LaneHead]:
        self._relied = rely and bool(self._still) and self._monotonic() < self._still_until
        if self._relied:
            return [head for head in self._still if serves(head)]
        self.forget()
        self._look_again = FOREVER
        if fresh:
            self._owed = 1 if self._cursor is None else 2  # what is left of this round, and then one from the start
        if self._cursor is None:
            stretch = self.prefix.heads(connection, now, STRETCH)
            self._first_later = FOREVER
        else:
            stretch = lane_heads(connection, self._cursor, STRETCH)
        ended = len(stretch) < STRETCH or bool(self.prefix.start)
        self.whole = ended and self._cursor is None
        self._cursor = None if ended else stretch[-1]
        found = [head for head in stretch if serves(head)]
        self._first_later = min((head.run_at for head in found if head.run_at > now), default=self._first_later)
        if ended:
            self._last_later = self._first_later
            self._owed = max(0, self._owed - 1)
        due = [head for head in found if head.run_at <= now]
        if self.whole:
            self._known.clear()
            self._still, self._still_until = due, self._monotonic() + STILL
            self._nothing_until = 0.0 if due else self._still_until
            return due
        if fresh and self._used:
            due += [head for head in heads_of(connection, list(self._used)) if head.run_at <= now]
        return list((self._known | {LANE_OF(head): head for head in due}).values())

    def forget(self) -> None:
        """There may be work in other lanes."""
        self._still, self._nothing_until = [], 0.0

    def claimed(self, picks: Sequence[Pick], claimed: Sequence[Claimed]) -> None:
        """What was picked has been claimed. A lane that gave less is empty: look at all, before there is a pause."""
        got = got_of(picks, claimed)
        if any(got[LANE_OF(pick)] < pick.limit for pick in picks):
            self._still = []
            self._owed = max(self._owed, int(self._relied))

    def keep(self, left: Iterable[LaneHead], picks: Sequence[Pick], claimed: Sequence[Claimed]) -> None:
        """Remember which of these may hold more, after what was picked has been claimed. Not needed of the whole."""
        got = got_of(picks, claimed)
        spent = {LANE_OF(pick) for pick in picks if got[LANE_OF(pick)] < pick.limit}
        for lane in got:
            self._used.pop(lane, None)
            self._used[lane] = None
        while len(self._used) > USED:
            del self._used[next(iter(self._used))]
        known = [head for head in left if LANE_OF(head) not in spent]
        self._known = {LANE_OF(head): head for head in known[-KNOWN:]}
