"""Output of a command: lines for the attempt's log, and its end for the result and the error."""

from __future__ import annotations

import codecs
from collections.abc import Callable

MAX_LINE = 8 * 1024  # characters after which an unfinished line is passed on in pieces
MAX_TAIL = 4 * 1024  # characters of the end that are kept


class Output:
    """Takes bytes as they come, passes whole lines to ``sink`` (the log, which bounds what it keeps).

    As many lines at a time as there are, so that a command that floods costs little. Bytes that are not UTF-8
    become U+FFFD, and so does NUL, which PostgreSQL cannot store.
    """

    def __init__(self, sink: Callable[[str], object]) -> None:
        self._sink = sink
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""  # a line whose end has not come yet
        self.size = 0  # bytes
        self.tail = ""

    def feed(self, data: bytes, final: bool = False) -> None:
        self.size += len(data)
        text = self._decoder.decode(data, final).replace("\0", "\ufffd")
        self.tail = (self.tail + text)[-MAX_TAIL:]
        lines, newline, self._pending = (self._pending + text).rpartition("\n")
        if newline:
            self._sink(lines.replace("\r\n", "\n").removesuffix("\r") + "\n")
        if self._pending and (final or len(self._pending) > MAX_LINE):
            self._sink(self._pending + "\n")
            self._pending = ""

    def close(self) -> None:
        """Passes on an unfinished last line."""
        self.feed(b"", final=True)

    @property
    def last_line(self) -> str:
        """The last line that is not empty, shortened; for an error's text."""
        lines = self.tail.rstrip().splitlines()
        return lines[-1].strip()[:200] if lines else ""
