"""How many slots the coming runs want at once, and where that is more than there are. Pure; times in microseconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_JOIN = 60_000_000  # two times of too much that lie nearer together are one


class Use(NamedTuple):
    """A slot of ``group`` in use from ``start`` to ``end``; ``name``: by which schedule."""

    group: object
    start: int
    end: int
    name: str


class Collision(NamedTuple):
    """From ``start`` to ``end`` at most ``wants`` slots of ``group`` are wanted at once, and there are ``slots``.

    ``names``: the schedules whose runs fall into that time.
    """

    group: object
    start: int
    end: int
    wants: int
    slots: int
    names: tuple[str, ...]


def collisions(uses: Iterable[Use], slots: Mapping[object, int], base: Mapping[object, float]) -> list[Collision]:
    """When more slots are wanted than there are. ``base``: slots that are wanted all the time, by group."""
    by_group: dict[object, list[Use]] = {}
    for use in uses:
        if use.end > use.start and slots.get(use.group, 0) > 0:
            by_group.setdefault(use.group, []).append(use)
    found: list[Collision] = []
    for group, some in by_group.items():
        there, steady = slots[group], base.get(group, 0.0)
        for start, end, peak in _joined(_over(_steps(some), there - steady)):
            names = sorted({use.name for use in some if use.start < end and use.end > start})
            found.append(Collision(group, start, end, round(peak + steady), there, tuple(names)))
    return sorted(found, key=lambda one: (one.start, str(one.group)))


def _steps(uses: Iterable[Use]) -> list[tuple[int, int]]:
    """(instant, how many are in use from then on), in order."""
    changes: dict[int, int] = {}
    for use in uses:
        changes[use.start] = changes.get(use.start, 0) + 1
        changes[use.end] = changes.get(use.end, 0) - 1
    level, found = 0, []
    for at in sorted(changes):
        level += changes[at]
        found.append((at, level))
    return found


def _over(steps: Sequence[tuple[int, int]], room: float) -> list[tuple[int, int, int]]:
    found = []
    for (start, level), (end, _) in itertools.pairwise(steps):
        if level > room:
            found.append((start, end, level))
    return found


def _joined(times: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for start, end, level in times:
        if found and start - found[-1][1] <= _JOIN:
            found[-1] = (found[-1][0], end, max(found[-1][2], level))
        else:
            found.append((start, end, level))
    return found


def load(uses: Iterable[Use], since: int, until: int, buckets: int) -> dict[object, list[float]]:
    """How many slots of each group are in use on average, in equal parts of the time from ``since`` to ``until``."""
    length = (until - since) / buckets
    found: dict[object, list[float]] = {}
    for use in uses:
        start, end = max(use.start, since), min(use.end, until)
        row = found.setdefault(use.group, [0.0] * buckets)
        while start < end:
            bucket = min(int((start - since) / length), buckets - 1)
            stop = min(end, max(start + 1, round(since + (bucket + 1) * length)))
            row[bucket] += (stop - start) / length
            start = stop
    return found
