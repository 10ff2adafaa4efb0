"""Makes texts safe to print: no character of them controls the terminal. Pure."""

from __future__ import annotations

import json

_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """Replace each character that could control a terminal, or disguise a line, by a dot.

    These are escapes and all other control characters (C0, DEL, C1), marks that turn the direction of writing, and
    separators of lines other than the line feed. Line feed and tab are kept.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in _KEPT else "·" for c in text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """The same value in JSON, with each such character as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
