"""Decides which priority goes first where priorities share slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

LOWER_EVERY = 4  # one in so many times a lower priority goes first


class FairRotation:
    """The highest waiting priority goes first; every fourth time, the lower one that was passed over most often.

    A priority that became the highest keeps its place then if it was passed over more often than those below it.
    Only rounds in which a priority got something count, so no rhythm of the caller's can starve a priority.
    """

    def __init__(self) -> None:
        self._in_a_row = 0  # times that only the highest priority got something
        self._passed: Counter[int] = Counter()

    def order(self, priorities: Iterable[int]) -> list[int]:
        """The order in which to serve these waiting priorities."""
        order = sorted(priorities)
        if len(order) > 1 and self._in_a_row >= LOWER_EVERY - 1:
            first = max(order[1:], key=lambda priority: (self._passed[priority], priority))
            if self._passed[first] >= self._passed[order[0]]:
                order.remove(first)
                order.insert(0, first)
        return order

    def record(self, priorities: Collection[int], got: Collection[int]) -> None:
        """Record which of these waiting priorities got something."""
        if len(priorities) < 2 or not got:
            return
        lower = [priority for priority in priorities if priority != min(priorities)]
        self._in_a_row = 0 if any(priority in got for priority in lower) else self._in_a_row + 1
        for priority in priorities:
            self._passed[priority] = 0 if priority in got else self._passed[priority] + 1
