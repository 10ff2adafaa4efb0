"""What was probably meant by a name that is unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_LEAST_ALIKE = 0.6


def nearest(name: str, known: Iterable[str], most: int = 1, least: float = _LEAST_ALIKE) -> list[str]:
    """The known names that are most like it, the best first: with the fewest letters changed, swapped or left out.

    ``least``: how alike they are, of 1.
    """
    import difflib

    close = difflib.get_close_matches(name, list(known), max(most, 10), least)
    return sorted(close, key=lambda one: (_changes(name, one), abs(len(name) - len(one))))[:most]


def _changes(one: str, other: str) -> int:
    """How many letters are put in, left out, changed, or swapped with their neighbours."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, another in enumerate(other, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != another)))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == another:
                row[-1] = min(row[-1], older[j - 2] + 1)
    return row[-1]
