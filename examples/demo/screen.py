"""What the demo prints: a table that is drawn again on a terminal, a line for every change where there is none."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_COLOURS = {"success": "32", "running": "36", "retry": "33", "dead": "31", "failed": "31"}
_SAVE_ROWS = 2  # of a terminal, below the table


class Row(NamedTuple):
    """One task, or what stands for several."""

    label: str
    state: str
    attempt: int
    note: str = ""


class Screen:
    """Prints what is said, and below it, on a terminal, a table of how things stand."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._colours = self.terminal and not os.environ.get("NO_COLOR")
        self._drawn = 0
        self._known: dict[str, Row] = {}
        self._since = time.monotonic()

    def say(self, text: str = "") -> None:
        """Print lines that stay."""
        self._erase()
        print(text, flush=True)

    def show(self, rows: Sequence[Row]) -> None:
        """Show how things stand now."""
        if self.terminal:
            self._draw(rows)
            return
        for row in rows:
            before = self._known.get(row.label)
            if before is None or (before.state, before.attempt) != (row.state, row.attempt):
                self._known[row.label] = row
                note = f" ({row.note})" if row.note and row.state != "running" else ""
                seconds = time.monotonic() - self._since
                attempt = f", attempt {row.attempt}" if row.attempt else ""
                print(f"{seconds:6.2f} s  {row.label}: {row.state}{attempt}{note}", flush=True)

    def done(self) -> None:
        """Leave what is drawn where it is."""
        self._drawn = 0

    def _draw(self, rows: Sequence[Row]) -> None:
        size = shutil.get_terminal_size()
        cells = [("task", "state", "attempt", ""), *((r.label, r.state, str(r.attempt or "-"), r.note) for r in rows)]
        lines = list(aligned(cells))[: max(3, size.lines - _SAVE_ROWS)]
        state_at = max(len(cell[0]) for cell in cells) + 2
        self._erase()
        for line, cell in zip(lines, cells, strict=False):
            text = line[: size.columns - 1]
            colour = _COLOURS.get(cell[1]) if self._colours else None
            if colour:
                end = state_at + len(cell[1])
                text = f"{text[:state_at]}\x1b[{colour}m{text[state_at:end]}\x1b[0m{text[end:]}"
            print(text)
        sys.stdout.flush()
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}F\x1b[J", end="")
            self._drawn = 0


def aligned(cells: Sequence[Sequence[str]]) -> Iterable[str]:
    """The lines of a table, its columns as wide as they have to be."""
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
