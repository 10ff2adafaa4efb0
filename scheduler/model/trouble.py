"""What is wrong with a source or a sink, as a worker publishes it."""

from __future__ import annotations

from typing import Literal

import msgspec

Side = Literal["source", "sink"]


class Trouble(msgspec.Struct, frozen=True, array_like=True):
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
