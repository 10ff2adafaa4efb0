"""Decides which level goes first where levels share slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

LOWER_EVERY = 4  # one in so many times a lower level goes first


class FairRotation:
    """The highest waiting level goes first; every fourth time, the lower one that was passed over most often.

    A level that became the highest keeps its place then if it was passed over more often than those below it.
    Only rounds in which a level got something count, so no rhythm of the caller's can starve a level.
    """

    def __init__(self) -> None:
        self._in_a_row = 0  # times that only the highest level got something
        self._passed: Counter[int] = Counter()

    def order(self, levels: Iterable[int]) -> list[int]:
        """The order in which to serve these waiting levels."""
        order = sorted(levels)
        if len(order) > 1 and self._in_a_row >= LOWER_EVERY - 1:
            first = max(order[1:], key=lambda level: (self._passed[level], level))
            if self._passed[first] >= self._passed[order[0]]:
                order.remove(first)
                order.insert(0, first)
        return order

    def record(self, levels: Collection[int], got: Collection[int]) -> None:
        """Record which of these waiting levels got something."""
        if len(levels) < 2 or not got:
            return
        lower = [level for level in levels if level != min(levels)]
        self._in_a_row = 0 if any(level in got for level in lower) else self._in_a_row + 1
        for level in levels:
            self._passed[level] = 0 if level in got else self._passed[level] + 1
