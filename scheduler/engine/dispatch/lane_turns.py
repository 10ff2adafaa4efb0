"""Whose turn it is: kinds take turns, within a kind fairness keys by weight, and of a key the lane goes first that was
looked at the longest ago.

Keys take turns by start-time fair queueing. Each start moves its key on by 1 / weight in the virtual time of its kind,
and the key goes first that is the least far. A key that is new, or comes back, begins where the others are: nothing is
saved up by having had no work.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from scheduler.engine.dispatch.lanes import Turn, turn_of
from scheduler.model.lanes import SIZED_LANE, WEIGHT_SEPARATOR, Parts, delay_of, fairness_of, parts_of
from scheduler.store.tasks.claim import LANE_OF_CLAIMED, Claimed, LaneClaim, LaneHead

MAX_REMEMBERED_LANES = 4096  # when each was last looked at; an older one goes first, like a new one
MAX_REMEMBERED_KEYS = 16_384  # of a kind: how far each is; a forgotten one begins where the others are
MAX_CLOCKS = 1024  # of kinds in a queue and priority
_ALMOST = 1 - 1e-9


class _Clock:
    """The virtual time of a kind that has had fairness keys. ``next``: when the next turn of a key begins, if that is
    not past."""

    __slots__ = ("next", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.next: dict[str, float] = {}

    def start(self, key: str) -> float:
        """When the next turn of this key begins."""
        found = self.next.get(key, 0.0)
        return max(self.now, found)

    def forget(self) -> None:
        """Forget the keys that are where they would begin, and of the others the first ones, if they are too many."""
        kept = [(key, start) for key, start in self.next.items() if start > self.now]
        self.next = dict(kept[-MAX_REMEMBERED_KEYS // 2 :])


_NEW = _Clock()
_Place = tuple[float, int, int, float]  # start, starts so far, place among those that start then, step
_PLACE_OF = itemgetter(2)
Starts = list[tuple[LaneHead, int]]  # so many of each lane
Take = Callable[[int], Starts]  # shares out so many starts more


class _Line:
    """The keys of a kind in the order of their turns (``line``, sorted), and the lanes of each by its place."""

    __slots__ = ("_lanes", "_least", "_line", "_moved")

    def __init__(self, line: list[_Place], lanes: Sequence[Sequence[LaneHead]]) -> None:
        self._line = line
        self._lanes = lanes
        self._least = min(map(itemgetter(3), line))
        self._moved = 0  # the first ones have had a start, and stand where they stood

    def take(self, number: int) -> Starts:
        """How many of so many starts more each lane gets."""
        line = self._line
        counts: Counter[int] = Counter()
        while number > 0:
            moved, line[: self._moved] = line[: self._moved], []
            for start, n, place, step in moved:
                insort(line, (start + step, n + 1, place, step))
            # So many have a turn before the second one of any; one at least, should a step be too small for the sum.
            self._moved = min(number, max(1, bisect(line, (line[0][0] + self._least, 1))))
            counts.update(map(_PLACE_OF, line[: self._moved]))
            number -= self._moved
        shares: Starts = []
        for place, count in counts.items():
            lanes = self._lanes[place]
            shares += [(lanes[0], count)] if len(lanes) == 1 else evenly(lanes, count)
        return shares


class LaneTurns:
    """The lanes of each kind in the order of their turns. Not thread-safe."""

    def __init__(self) -> None:
        self.weights: Mapping[tuple[str, str], float] = MappingProxyType({})  # by (kind, key) and ("", key): set live
        self._looked_at: dict[tuple[str, str, int], int] = {}
        self._serial = 0
        self._clocks: dict[Turn, _Clock] = {}

    def in_turn(self, heads: list[LaneHead]) -> list[LaneHead]:
        """The lanes of a kind in their order."""
        if len(heads) < 2:
            return heads
        ordered = self._by_last_look(heads)
        if not any(fairness_of(head.lane).key for head in ordered):
            return ordered
        first: dict[tuple[Turn, str], float] = {}  # where the key's next lane stands
        places = []
        for place, head in enumerate(ordered):
            parts = parts_of(head.lane)
            key = (head.queue, head.priority, parts.turn), parts.fairness.key
            start = first[key] if key in first else self._clocks.get(key[0], _NEW).start(key[1])
            first[key] = start + self._step(parts)
            places.append((start, place))
        return [ordered[place] for _, place in sorted(places)]

    def share(self, heads: Sequence[LaneHead], *, ordered: bool = False) -> Take:
        """A function that gives starts to these lanes of one kind, in their order; the pools take one after another."""
        if len(heads) == 1:
            return lambda number: [(heads[0], number)]
        lanes: dict[str, list[LaneHead]] = {}
        line: list[_Place] = []
        clock, live = self._clocks.get(turn_of(heads[0]), _NEW), self.weights
        now, started = clock.now, clock.next.get
        for head in heads:
            parts = parts_of(head[1])
            key, weight = parts[4]
            if key in lanes:
                if not ordered:  # the lanes of a key take turns
                    return self.share(self._by_last_look(heads), ordered=True)
                lanes[key].append(head)
                continue
            lanes[key] = [head]
            start = started(key, now)
            line.append((max(now, start), 0, len(line), self._step(parts) if live or weight != 1.0 else 1.0))
        if len(line) == 1:
            return partial(evenly, lanes[key])
        line.sort()
        return _Line(line, [*lanes.values()]).take

    def start_of(self, pick: LaneClaim) -> float:
        """When the next turn of its key begins; compared with others of the kind only."""
        return self._clocks.get(turn_of(pick), _NEW).start(fairness_of(pick.lane).key) if self._clocks else 0.0

    def owed(self, lanes: Sequence[LaneClaim]) -> set[tuple[str, str, int]]:
        """Those whose keys have had a turn and have another one before those that had none: they weigh more."""
        heavy = [lane for lane in lanes if self.weights or WEIGHT_SEPARATOR in lane[1]] if self._clocks else []
        if not heavy:
            return set()
        clock = self._clocks.get(turn_of(heavy[0]), _NEW)
        parts = [(lane[:3], parts_of(lane[1])) for lane in heavy]
        before = clock.now + _ALMOST
        return {lane for lane, of in parts if self._step(of) < 1 and clock.start(of.fairness.key) < before}

    def record(self, lanes: Iterable[tuple[str, str, int]]) -> None:
        """These were claimed from, or would have been but for a limit."""
        self._serial += 1
        self._looked_at |= dict.fromkeys(lanes, self._serial)
        if len(self._looked_at) > MAX_REMEMBERED_LANES:
            last = sorted(self._looked_at.items(), key=itemgetter(1))
            self._looked_at = dict(last[-MAX_REMEMBERED_LANES // 2 :])

    def charge(self, claimed: list[Claimed], asked: Mapping[Turn, Sequence[LaneClaim]]) -> list[Claimed]:
        """Count what was claimed as turns of its keys. Returns it with the turns of each kind in their order."""
        lanes: dict[tuple[str, str, int], tuple[_Clock, list[tuple[float, int]], str, float]] = {}
        clocks = []
        live = self.weights
        for turn, of_kind in asked.items() if claimed else ():
            clock = self._clocks.get(turn)
            if clock is None:
                if not any(fairness_of(pick.lane).key for pick in of_kind):
                    continue
                clock = self._begin(turn)
            starts: list[tuple[float, int]] = []
            clocks.append((clock, starts))
            for pick in of_kind:
                parts = parts_of(pick[1])
                key, weight = parts[4]
                lanes[pick[:3]] = clock, starts, key, self._step(parts) if live or weight != 1.0 else 1.0
        if len(lanes) == 1 == len(asked):  # as many turns of one key
            for clock, _, key, step in lanes.values():
                last = clock.start(key) + (len(claimed) - 1) * step
                clock.now, clock.next[key] = last, last + step
            return claimed
        if not lanes:
            return claimed
        for place, one in enumerate(claimed):
            found = lanes.get(LANE_OF_CLAIMED(one))
            if found is not None:
                clock, starts, key, step = found
                start = clock.next.get(key, 0.0)
                if start < clock.now:
                    start = clock.now
                clock.next[key] = start + step
                starts.append((start, place))
        ordered = list(claimed)
        for clock, starts in clocks:
            if starts:
                in_order = sorted(starts)
                for (_, place), (_, other) in zip(starts, in_order, strict=True) if in_order != starts else ():
                    ordered[place] = claimed[other]
                clock.now = max(clock.now, in_order[-1][0])
                if len(clock.next) > MAX_REMEMBERED_KEYS:
                    clock.forget()
        return ordered

    def _begin(self, turn: Turn) -> _Clock:
        if len(self._clocks) >= MAX_CLOCKS:
            del self._clocks[next(iter(self._clocks))]
        made = self._clocks[turn] = _Clock()
        return made

    def _by_last_look(self, heads: Sequence[LaneHead]) -> list[LaneHead]:
        """Lanes of graphs with a size go by that and their age."""
        looked_at = self._looked_at.get
        last: list[Any] = [looked_at(head[:3], 0) for head in heads]
        if any(SIZED_LANE in head[1] for head in heads):
            delays = [delay_of(head[1]) for head in heads]
            ages = [0 if delay is None else head.run_at + delay for head, delay in zip(heads, delays, strict=True)]
            last = [*zip(ages, last, strict=True)]
        return [heads[place] for place in sorted(range(len(heads)), key=last.__getitem__)]

    def _step(self, parts: Parts) -> float:
        """How far a start of a lane moves its key on."""
        key, weight = parts.fairness
        if weight == 1 and not self.weights:
            return 1.0
        if self.weights:
            live = self.weights.get((parts.kind, key))
            weight = self.weights.get(("", key), weight) if live is None else live
        return 1 / weight


def evenly(heads: Sequence[LaneHead], number: int) -> Starts:
    """So many starts of each of these lanes, in the order in which they are given."""
    taken: Starts = []
    for place, head in enumerate(heads):
        if number <= 0:
            break
        taken.append((head, -(-number // (len(heads) - place))))
        number -= taken[-1][1]
    return taken
