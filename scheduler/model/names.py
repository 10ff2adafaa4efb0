"""Names of kinds and queues, texts of callers, and the known names that are most like an unknown one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scheduler.errors import ConfigError, PayloadError
from scheduler.model.texts import storable
from scheduler.model.times import brief

_NAME = re.compile(r"[A-Za-z_][\w.:-]{0,199}\Z")


def is_name(value: str) -> bool:
    """Whether a text is a name: a letter first, then letters, digits and ``_ . : -``."""
    return _NAME.match(value) is not None


def check_name(what: str, value: object) -> str:
    """A kind's or queue's name, as :func:`is_name` says. Raises ConfigError that names ``what``."""
    if not isinstance(value, str) or not is_name(value):
        raise ConfigError(
            f"{what} {value!r} is not a name: a letter first, then letters, digits, _ . : or -, 200 at most"
        )
    return value


def check_whole(value: object, what: str, least: int = 1, most: int | None = None) -> int:
    """Check a whole number within bounds; of 64 bits without ``most``. Raises ConfigError, which names ``what``."""
    highest = 2**63 - 1 if most is None else most
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= highest:
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{what} must be a whole number {bounds}, not {brief(value)}")
    return value


def check_text(value: object, what: str, longest: int = 255) -> str:
    """Check a text of 1 to ``longest`` characters. Raises PayloadError, which names ``what``."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise PayloadError(f"{what} is a text of 1 to {longest} characters, not {value!r:.80}")
    if value != storable(value):
        raise PayloadError(f"{what} has a NUL or half a surrogate pair in it, which cannot be stored: {value!r:.80}")
    return value


_LEAST_ALIKE = 0.6


def nearest(name: str, known: Iterable[str], most: int = 1, least: float = _LEAST_ALIKE) -> list[str]:
    """The known names that are most like it, the best first: with the fewest letters changed, swapped or left out.

    ``least``: how alike they are, of 1.
    """
    import difflib  # only needed after a mistake

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
