"""Something that does not move by itself, or goes wrong, as ``schedctl status`` and the other voices name it.

And what a worker publishes of its sources and sinks.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec


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


Side = Literal["source", "sink"]


class TransportProblem(msgspec.Struct, frozen=True, array_like=True):
    """What is wrong with a source or a sink. ``since``: microseconds.

    ``old``: messages of it were sent at ``since``, and its transport keeps them for ``keeps`` microseconds; else it
    cannot be reached, or nothing can be received, as ``text`` says.
    """

    side: Side
    name: str
    since: int
    text: str = ""
    old: bool = False
    keeps: int = 0
