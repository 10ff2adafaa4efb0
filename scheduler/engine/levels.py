"""Whose turn it is where levels share places: child processes, or all of them under max_concurrent_tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

EVERY = 4  # so many times a lower level goes first once


class Turns:
    """The highest level that waits goes first, but every fourth time a lower one: who was passed over most often.

    What is counted is how often it made a difference who goes first, so that no rhythm of the caller's keeps a level
    out.
    """

    def __init__(self) -> None:
        self._in_a_row = 0  # times that nobody but the highest got something
        self._passed: Counter[int] = Counter()

    def order(self, levels: Iterable[int]) -> list[int]:
        """These levels, which all wait, in the order in which they are to be given something."""
        order = sorted(levels)
        if len(order) > 1 and self._in_a_row >= EVERY - 1:
            first = max(order[1:], key=lambda level: (self._passed[level], level))
            order.remove(first)
            order.insert(0, first)
        return order

    def gave(self, levels: Collection[int], got: Collection[int]) -> None:
        """Of these levels, which all waited, those got something."""
        if len(levels) < 2 or not got:
            return
        lower = [level for level in levels if level != min(levels)]
        self._in_a_row = 0 if any(level in got for level in lower) else self._in_a_row + 1
        for level in lower:
            self._passed[level] = 0 if level in got else self._passed[level] + 1
