"""Finds the lanes that hold work which this worker may claim.

Mostly one stretch is everything, and nothing needs to be remembered. Of very many lanes a cycle scans one stretch at
most, and the next one goes on there. Lanes that are known to hold work are remembered meanwhile, so many of each kind,
and while these are enough nothing is scanned. A cycle is given the first ones of each kind in the order of their turns.
So what it looks at hangs on what can start, not on how many lanes wait, and a kind with many lanes puts no other one
out of mind. The memory is a hint: the claim says what a lane holds, and other workers may have been there.

While reading from the start is slow, as behind an old snapshot on PostgreSQL, it is remembered where each lane of the
ready index begins, to skip the dead entries before it. Tasks that become ready before an offset (released, committed
late, by another clock) are found by scans from the start, paced by their own cost.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from scheduler.model.lanes import parts_of
from scheduler.ports import FOREVER, SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import LANE_OF, LANE_OF_CLAIMED, Claimed, LaneClaim, LaneHead, heads_of, lane_heads
from scheduler.store.tasks.lane_offsets import Lane, Place, heads_from, lanes_between

if TYPE_CHECKING:
    from scheduler.store.tasks.ready_children import ReadyChildren


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


LANES_PER_SCAN = 128  # in one cycle
MAX_REMEMBERED_LANES = 8192  # over all kinds; the next round finds the others again
LANES_PER_PLAN = 128  # of them, in one cycle; as many as it may start, if that is more
MIN_LANES = 32  # of each kind, however many kinds there are
ENOUGH_LANES = 16  # of a kind with more lanes than are remembered; below that it is scanned for them
RELY_ON_SCAN_S = 0.25  # how long a whole scan's result is relied on
MAX_RECENT_LANES = 32  # recently claimed lanes, read first when there may be new work


Turn = tuple[str, int, str]
Due = Mapping[Turn, list[LaneHead]]  # the lanes with due tasks, of each kind those whose turn it is, in their order
_Of = TypeVar("_Of", LaneHead, LaneClaim)


def turn_of(head: LaneHead | LaneClaim) -> Turn:
    """Lanes for which this is the same take turns as one: a kind's in a queue and priority, whatever its keys."""
    return head[0], head[2], parts_of(head[1]).turn


def by_turn(lanes: Iterable[_Of]) -> dict[Turn, list[_Of]]:
    """Lanes that take turns as one, each list in the given order."""
    kinds: dict[Turn, list[_Of]] = {}
    of_kind: list[_Of] = []
    queue, level, name = "", -1, ""
    for lane in lanes:
        turn = parts_of(lane[1])[-1]
        if turn != name or lane[2] != level or lane[0] != queue:  # mostly the same one again
            queue, level, name = lane[0], lane[2], turn
            of_kind = kinds.setdefault((queue, level, name), [])
        of_kind.append(lane)
    return kinds


def flat(due: Due) -> list[LaneHead]:
    """The lanes of all kinds."""
    return [*chain.from_iterable(due.values())]


def forget_first(entries: dict[Any, Any], most: int) -> None:
    """Keep so many entries, the last ones. At once: to look for the first one passes by all that are gone."""
    for entry in list(islice(entries, max(0, len(entries) - most))):
        del entries[entry]


def claimed_per_lane(picks: Sequence[LaneClaim], claimed: Sequence[Claimed]) -> Mapping[tuple[str, str, int], int]:
    """How many tasks were claimed of each lane. The common case is one lane: a Counter is slower."""
    one = claimed and len(picks) == 1
    return defaultdict(int, {LANE_OF(picks[0]): len(claimed)}) if one else Counter(map(LANE_OF_CLAIMED, claimed))


class Order(Protocol):
    """In which order lanes have their turns; see lane_turns.py."""

    def owed(self, lanes: Sequence[LaneClaim]) -> Collection[Lane]:
        """The claimed ones among a kind's lanes that have another turn before the others."""
        ...


class _Known:
    """The lanes of one kind that are remembered. ``new``: as they were found; ``again``: those that have given
    something since, which come after the others."""

    __slots__ = ("again", "new")

    def __init__(self) -> None:
        self.new: dict[Lane, LaneHead] = {}
        self.again: dict[Lane, LaneHead] = {}

    def __len__(self) -> int:
        return len(self.new) + len(self.again)

    def add(self, heads: Iterable[LaneHead]) -> None:
        new, again = self.new, self.again
        for head in heads:
            lane = head[:3]
            (again if lane in again else new)[lane] = head

    def pop(self, lane: Lane) -> LaneHead | None:
        return self.new.pop(lane, None) or self.again.pop(lane, None)

    def first(self, most: int) -> Iterable[LaneHead]:
        return islice(chain(self.new.values(), self.again.values()), most)


class LaneScanner:
    """Scans lanes, stretch by stretch."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.offsets = LaneOffsets(monotonic)
        self.whole = True  # whether the last stretch was everything
        self._known: dict[Turn, _Known] = {}
        self._beyond: set[Turn] = set()  # kinds that have more than the last cycle was given
        self._dropped: set[Turn] = set()  # kinds with lanes that were found and not remembered, in the last round
        self._dropping: set[Turn] = set()  # and in this one
        self._used: dict[tuple[str, str, int], None] = {}  # the oldest first
        self._cursor: LaneHead | None = None
        self._used_up = False  # a stretch is used up by one cycle: the next one may be longer
        self._passes_left = 0  # rounds still to end before every lane was read since ``fresh``
        self._untried = False  # some gave less, or nothing, and others of their kind have not been looked at
        self._monotonic = monotonic
        self._known_nonempty: Due = {}  # due lanes of the last whole scan
        self._known_until = 0.0
        self._empty_until = 0.0  # the last look was at the whole, and nothing was due
        self._rescan_at = FOREVER  # when (microseconds) that is over, if a cycle relies on it
        self._used_known = False  # whether the last cycle looked at nothing else
        self._most = LANES_PER_PLAN  # for one cycle, over all kinds
        self._first_later = FOREVER  # when the first task comes due that this round has met
        self._last_later = FOREVER  # the same of the last whole round

    @property
    def unfinished(self) -> bool:
        """Whether lanes are left to scan before the worker may be called idle."""
        return self._passes_left > 0 or self._untried

    @property
    def next_due(self) -> int:
        """When the next known task becomes due (microseconds)."""
        return min(self._first_later, self._last_later, self.offsets.again, self._rescan_at)

    def scan(
        self,
        tx: Tx,
        serves: Callable[[LaneHead], bool],
        *,
        fresh: bool,
        rely: bool,
        ready_children: ReadyChildren | None = None,
        starts: int = 0,
    ) -> Due:
        """Known lanes with due tasks.

        ``fresh``: other workers or programs may have changed them. ``rely``: this worker has changed nothing itself,
        except for ``ready_children``. ``starts``: how many tasks may be claimed.
        """
        self._most = max(LANES_PER_PLAN, starts)
        rely = rely and not (fresh or (ready_children is not None and ready_children.scheduled))
        if not ready_children:
            return self._scan(tx, serves, fresh=fresh, rely=rely)
        left = self._empty_until - self._monotonic()
        if rely and left > 0:
            self._used_known, self._rescan_at = False, tx.now + math.ceil(left * SECOND)
            return by_turn(ready_children.merge((), serves))
        due = self._scan(tx, serves, fresh=fresh, rely=False)
        if self.whole:
            return by_turn(ready_children.merge(flat(due), serves))
        ready_children.schedule()  # tasks of other lanes may come first: the next cycle decides
        return due

    def _scan(self, tx: Tx, serves: Callable[[LaneHead], bool], *, fresh: bool, rely: bool) -> Due:
        self._used_known = rely and bool(self._known_nonempty) and self._monotonic() < self._known_until
        if self._used_known:
            return {turn: lanes for turn, lanes in self._known_nonempty.items() if serves(lanes[0])}
        self.reset()
        self._rescan_at = FOREVER
        if fresh:
            self._passes_left = 1 if self._cursor is None else 2  # the rest of this round, and a new one
        self._untried = False
        if not self.whole and self._known and not self._passes_left:
            if all(len(self._known.get(turn, ())) >= ENOUGH_LANES for turn in self._dropped):
                return self._first(serves)
            self._passes_left = 1
        most = 2 * LANES_PER_SCAN if self._used_up else LANES_PER_SCAN
        if self._cursor is None:
            stretch = self.offsets.heads(tx, most)
            self._first_later = FOREVER
        else:
            stretch = lane_heads(tx, self._cursor, most)
        ended = len(stretch) < most or bool(self.offsets.start)
        self.whole = ended and self._cursor is None
        self._cursor = None if ended else stretch[-1]
        due: dict[Turn, list[LaneHead]] = {}
        now, first_later = tx.now, FOREVER
        for turn, heads in by_turn(stretch).items():
            if not serves(heads[0]):
                continue
            ready = [head for head in heads if head[3] <= now]
            if ready:
                due[turn] = ready
            if len(ready) < len(heads):
                first_later = min(first_later, *(head[3] for head in heads if head[3] > now))
        self._first_later = min(self._first_later, first_later)
        if ended:
            self._last_later = self._first_later
            self._dropped, self._dropping = self._dropping, set()
            self._passes_left = max(0, self._passes_left - 1)
        if self.whole:
            self._forget_known()
            self._known_nonempty, self._known_until = due, self._monotonic() + RELY_ON_SCAN_S
            self._empty_until = 0.0 if due else self._known_until
            return due
        for turn, heads in due.items():
            self._known.setdefault(turn, _Known()).add(heads)
        if fresh and self._used:
            used = heads_of(tx, list(self._used))
            self.add(head for head in used if head.run_at <= now and serves(head))
        return self._first(serves)

    def _first(self, serves: Callable[[LaneHead], bool]) -> Due:
        """The first lanes of each kind."""
        most = max(MIN_LANES, self._most // len(self._known)) if self._known else 0
        self._beyond = {turn for turn, lanes in self._known.items() if len(lanes) > most}
        first = {turn: [*known.first(most)] for turn, known in self._known.items()}
        return {turn: heads for turn, heads in first.items() if serves(heads[0])}

    def add(self, heads: Iterable[LaneHead]) -> None:
        """These may be claimed from, too."""
        for head in heads:
            self._known.setdefault(turn_of(head), _Known()).add([head])

    def reset(self) -> None:
        """Rely on no earlier scan: there may be work in other lanes."""
        self._known_nonempty, self._empty_until = {}, 0.0

    def forget(self) -> None:
        """Forget every lane that was read: others may be served from now on."""
        self.reset()
        self._forget_known()
        self._cursor = None
        self._first_later = self._last_later = FOREVER

    def on_claimed(self, asked: int, got: int) -> None:
        """Note a claim. A lane that gave less than asked is empty: scan all before the worker is idle."""
        if got < asked:
            self._known_nonempty = {}
            self._passes_left = max(self._passes_left, int(self._used_known))

    def remember(
        self,
        refused: Iterable[LaneHead],
        asked: Mapping[Turn, Sequence[LaneClaim]],
        got: Mapping[tuple[str, str, int], int],
        order: Order,
    ) -> None:
        """Remember which lanes may hold more after this claim. Not needed after a whole scan.

        ``refused``: by a limit, so that they need not be remembered.
        """
        for lane in [lane for lane, number in got.items() if number][-MAX_RECENT_LANES:]:
            self._used.pop(lane, None)
            self._used[lane] = None
        forget_first(self._used, MAX_RECENT_LANES)
        for head in refused:
            turn = turn_of(head)
            if turn in self._known:
                self._known[turn].pop(head[:3])
            if turn in self._beyond:
                self._untried = True
                self._drops(turn)
        for turn, of_kind in asked.items():
            known = self._known.get(turn)
            if known is None:
                continue
            spent, served = 0, False
            keeps, owed = turn not in self._dropped, order.owed(of_kind)
            new, again = known.new, known.again
            for pick in of_kind:
                lane = pick[:3]
                if got[lane] < pick[3]:
                    known.pop(lane)
                    spent += 1
                elif lane not in owed:
                    found = new.pop(lane, None) or again.pop(lane, None)
                    served = True
                    if keeps and found is not None:  # else the next round finds it, in its turn
                        again[lane] = found
            if served and not keeps:
                self._dropping.add(turn)
            if spent and turn in self._beyond:
                self._untried = True
                if spent >= ENOUGH_LANES and 2 * spent > len(of_kind):  # what is known of them is too old
                    del self._known[turn]
                    self._passes_left = max(self._passes_left, 1)
        most = max(MIN_LANES, MAX_REMEMBERED_LANES // max(1, len(self._known)))
        for turn, known in list(self._known.items()):
            if not known:
                del self._known[turn]
            while len(known) > most:
                (known.new or known.again).popitem()
                self._drops(turn)
        self._used_up = sum(map(bool, got.values())) >= LANES_PER_SCAN // 2

    def _drops(self, turn: Turn) -> None:
        self._dropping.add(turn)
        self._dropped.add(turn)

    def _forget_known(self) -> None:
        self._known.clear()
        self._beyond, self._untried = set(), False
        self._dropped, self._dropping = set(), set()
