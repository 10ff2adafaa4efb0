"""Something that does not move by itself, or goes wrong, as ``schedctl status`` and the other voices name it."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong. ``name``: its row in the table of problems, ``store/read/problems.py``.

    ``text``: a sentence; ``number``: how many are concerned, and ``tasks`` some of them. ``since``: microseconds.
    ``remedy``: what to do; None until the row's own is taken. ``act``: the verb, and
    the task, that mend it.
    """

    name: str
    text: str
    number: int
    tasks: tuple[int, ...] = ()
    since: int | None = None
    remedy: str | None = None
    act: tuple[str, int] | None = None
