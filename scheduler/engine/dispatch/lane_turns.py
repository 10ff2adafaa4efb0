"""Whose turn it is: kinds take turns, within a kind fairness keys by weight, and of a key the lane goes first that was
looked at the longest ago.

Keys take turns by start-time fair queueing. Each start moves its key on by 1 / weight in the virtual time of its kind,
and the key goes first that is the least far. A key that is new, or comes back, begins where the others are: nothing is
saved up by having had no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heapreplace
from types import MappingProxyType
from typing import Any

from scheduler.engine.dispatch.lanes import Turn, forget_first, turn_of
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
_Place = tuple[float, int, int, str, float]  # start, starts so far, place among those that start then, key, step
Take = Callable[[int], dict[LaneHead, int]]  # shares out so many starts more


class _Line:
    """The keys of a kind in the order of their turns (``line``, sorted), and the lanes of each."""

    __slots__ = ("_lanes", "_line", "_moved")

    def __init__(self, line: list[_Place], lanes: Mapping[str, Sequence[LaneHead]]) -> None:
        self._line = line
        self._lanes = lanes
        self._moved = 0  # the first ones have had a start, and stand where they stood

    def take(self, number: int) -> dict[LaneHead, int]:
        """How many of so many starts more each lane gets."""
        line, lanes = self._line, self._lanes
        if self._moved:
            moved = line[: self._moved]
            line[: self._moved] = [(start + step, n + 1, place, key, step) for start, n, place, key, step in moved]
            line.sort()
            self._moved = 0
        if number <= len(line):
            first = line[:number]
            last = first[-1][0]
            if all(start + step >= last for start, _, _, _, step in first):  # mostly: one each
                self._moved = number
                return {lanes[key][0]: 1 for _, _, _, key, _ in first}
        counts: dict[str, int] = {}
        for _ in range(number):
            start, n, place, key, step = line[0]
            counts[key] = counts.get(key, 0) + 1
            heapreplace(line, (start + step, n + 1, place, key, step))
        line.sort()  # of a heap the first one alone stands in its place
        shares: dict[LaneHead, int] = {}
        for key, count in counts.items():
            shares |= evenly(lanes[key], count)
        return shares


class LaneTurns:
    """The lanes of each kind in the order of their turns. Not thread-safe."""

    def __init__(self) -> None:
        self.weights: Mapping[tuple[str, str], float] = MappingProxyType({})  # by (kind, key) and ("", key): set live
        self._looked_at: dict[tuple[str, str, int], int] = {}  # the longest ago first
        self._serial = 0
        self._clocks: dict[Turn, _Clock] = {}

    def by_kind(self, heads: Iterable[LaneHead]) -> dict[Turn, list[LaneHead]]:
        """Lanes that take turns as one, each list in its order."""
        kinds: dict[Turn, list[LaneHead]] = {}
        for head in heads:
            kinds.setdefault(turn_of(head), []).append(head)
        return {turn: self.in_turn(lanes) for turn, lanes in kinds.items()}

    def in_turn(self, heads: list[LaneHead]) -> list[LaneHead]:
        """The same, in their order within each kind."""
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

    def share(self, heads: Sequence[LaneHead]) -> Take:
        """A function that gives starts to these lanes of one kind, in their order; the pools take one after another."""
        if len(heads) == 1:
            return lambda number: {heads[0]: number}
        lanes: dict[str, list[LaneHead]] = {}
        line: list[_Place] = []
        clock = self._clocks.get(turn_of(heads[0]), _NEW)
        now, started = clock.now, clock.next.get
        for head in self._by_last_look(heads):
            parts = parts_of(head[1])
            key, weight = parts.fairness
            if key in lanes:
                lanes[key].append(head)
                continue
            lanes[key] = [head]
            start = started(key, now)
            step = 1.0 if weight == 1 and not self.weights else self._step(parts)
            line.append((max(now, start), 0, len(line), key, step))
        if len(line) == 1:
            return partial(evenly, lanes[line[0][3]])
        line.sort()
        return _Line(line, lanes).take

    def start_of(self, pick: LaneClaim) -> float:
        """When the next turn of its key begins; compared with others of the kind only."""
        return self._clocks.get(turn_of(pick), _NEW).start(fairness_of(pick.lane).key) if self._clocks else 0.0

    def owed(self, lane: LaneClaim) -> bool:
        """Whether its key, which has just had a turn, has another one before those that had none: it weighs more."""
        if not self._clocks or (not self.weights and WEIGHT_SEPARATOR not in lane[1]):
            return False
        if self._step(parts_of(lane[1])) >= 1:
            return False
        clock = self._clocks.get(turn_of(lane), _NEW)
        return clock.start(fairness_of(lane.lane).key) < clock.now + _ALMOST

    def record(self, lanes: Sequence[tuple[str, str, int]]) -> None:
        """These were claimed from, or would have been but for a limit."""
        self._serial += 1
        looked_at, serial = self._looked_at, self._serial
        for lane in lanes:
            looked_at.pop(lane, None)
            looked_at[lane] = serial
        forget_first(looked_at, MAX_REMEMBERED_LANES)

    def charge(self, claimed: list[Claimed], picks: Sequence[LaneClaim]) -> list[Claimed]:
        """Count what was claimed as turns of its keys. Returns it with the turns of each kind in their order."""
        if not claimed or not (self._clocks or any(fairness_of(pick.lane).key for pick in picks)):
            return claimed
        lanes: dict[tuple[str, str, int], tuple[_Clock, str, float]] = {}
        tags: dict[_Clock, list[tuple[float, int]]] = {}
        for pick in picks:
            parts = parts_of(pick[1])
            turn, (key, weight) = (pick[0], pick[2], parts.turn), parts.fairness
            clock = self._clocks.get(turn)
            if clock is None:
                if not key:
                    continue
                clock = self._begin(turn)
            lanes[pick[:3]] = clock, key, 1.0 if weight == 1 and not self.weights else self._step(parts)
            tags[clock] = []
        if len(picks) == 1:  # as many turns of one key
            for clock, key, step in lanes.values():
                last = clock.start(key) + (len(claimed) - 1) * step
                clock.now, clock.next[key] = last, last + step
            return claimed
        for place, one in enumerate(claimed):
            found = lanes.get(LANE_OF_CLAIMED(one))
            if found is not None:
                clock, key, step = found
                start = clock.next.get(key, 0.0)
                if start < clock.now:
                    start = clock.now
                clock.next[key] = start + step
                tags[clock].append((start, place))
        ordered = list(claimed)
        for clock, starts in tags.items():
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


def evenly(heads: Sequence[LaneHead], number: int) -> dict[LaneHead, int]:
    """So many starts of each of these lanes, in the order in which they are given."""
    taken = {}
    for place, head in enumerate(heads):
        if number <= 0:
            break
        taken[head] = -(-number // (len(heads) - place))
        number -= taken[head]
    return taken
