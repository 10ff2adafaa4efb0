"""Sends what a child process prints and logs to the engine at once: a crash loses none.

The engine stores it with the attempt, and passes log records on to its own loggers.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from scheduler.model.texts import storable

MAX_PIECE = 64 * 1024
_JSON_TYPES = (str, int, float, bool, type(None))
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class ChildOutput(io.TextIOBase):
    """``sys.stdout`` and ``sys.stderr``: passes whole lines to ``say``.

    Bytes written to ``buffer``, and output of C code and other programs, go through a pipe that the engine reads.
    """

    def __init__(self, name: str, raw: Any, say: Callable[[str], None]) -> None:
        self.name = name
        self._raw = raw
        self._say = say
        self._line = ""
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "replace"

    @property
    def buffer(self) -> Any:
        return self._raw

    def fileno(self) -> int:
        number: int = self._raw.fileno()
        return number

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            pending = self._line + text
            end = pending.rfind("\n") + 1
            if len(pending) - end > MAX_PIECE:
                end = len(pending)
            self._line = pending[end:]
        if end:
            self._say(pending[:end][-MAX_PIECE:])
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        self.write("".join(lines))

    def flush(self) -> None:
        """Does nothing: an unfinished line waits for its newline or for :meth:`end`."""

    def end(self) -> None:
        """Send the unfinished line and flush the pipe at the end of an attempt."""
        if self._line:
            with self._lock:
                rest, self._line = self._line, ""
            self._say(rest)
        try:
            self._raw.flush()
        except (OSError, ValueError):
            pass  # a handler may have closed it


class Records(logging.Handler):
    """Sends log records to the engine as plain fields."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(fields_of(record))
        except Exception:
            self.handleError(record)


def write_past_python() -> None:
    """Let a process that a handler forked print and log to the pipe, as other programs do."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if isinstance(getattr(sys, name), ChildOutput):
            opened = open(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, Records)]:
        root.removeHandler(handler)
        plain = logging.StreamHandler()
        plain.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(plain)


_SENT_FIELDS = (
    *("name", "levelno", "levelname", "created", "msecs", "pathname", "filename", "module", "lineno", "funcName"),
    *("process", "threadName"),
)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """A record as plain fields; extra values of other types become their repr."""
    text = record.exc_text
    if text is None and record.exc_info and record.exc_info[0] is not None:
        text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
    extra = {name: _as_json_type(value) for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return {
        **{name: getattr(record, name) for name in _SENT_FIELDS},
        "msg": storable(record.getMessage())[-MAX_PIECE:],
        "exc_text": None if text is None else storable(text)[-MAX_PIECE:],
        **extra,
    }


def _as_json_type(value: Any) -> Any:
    if type(value) is dict and all(type(name) is str for name in value):
        return {storable(name): _as_json_type(one) for name, one in value.items()}
    if type(value) is str:
        return storable(value)
    if type(value) is int and not -(2**63) <= value < 2**64:
        return str(value)
    return value if type(value) in _JSON_TYPES else storable(repr(value))
