"""What code in a child process writes: each piece goes to the engine at once, so that a death loses none of it.

The engine keeps it with the attempt and, for records of ``logging``, hands it to its own loggers.
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
_PLAIN = (str, int, float, bool, type(None))
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Output(io.TextIOBase):
    """``sys.stdout`` and ``sys.stderr``: whole lines go to ``say``. What is written to ``buffer`` takes another way,
    as does what C code and other programs write: through a pipe that the engine reads."""

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
            there = self._line + text
            end = there.rfind("\n") + 1
            if len(there) - end > MAX_PIECE:
                end = len(there)
            self._line = there[end:]
        if end:
            self._say(there[:end][-MAX_PIECE:])
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:  # type: ignore[override]
        self.write("".join(lines))

    def flush(self) -> None:
        """Lines are whole, or wait for :meth:`end`."""

    def end(self) -> None:
        """The attempt is over: what has no newline yet, and what went past us into the pipe."""
        if self._line:
            with self._lock:
                rest, self._line = self._line, ""
            self._say(rest)
        try:
            self._raw.flush()
        except (OSError, ValueError):
            pass  # a body may have closed it


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
    """In a process that a body forked: what it prints and logs takes the way of other programs' output."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if isinstance(getattr(sys, name), Output):
            opened = open(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, opened)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, Records)]:
        root.removeHandler(handler)
        plain = logging.StreamHandler()
        plain.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(plain)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What of a record can travel; values of extra fields that cannot go as their repr."""
    text = record.exc_text
    if text is None and record.exc_info and record.exc_info[0] is not None:
        text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
    extra = {name: _plain(value) for name, value in vars(record).items() if name not in _OWN}
    return {
        "name": record.name,
        "levelno": record.levelno,
        "levelname": record.levelname,
        "msg": storable(record.getMessage())[-MAX_PIECE:],
        "created": record.created,
        "msecs": record.msecs,
        "exc_text": None if text is None else storable(text)[-MAX_PIECE:],
        "pathname": record.pathname,
        "filename": record.filename,
        "module": record.module,
        "lineno": record.lineno,
        "funcName": record.funcName,
        "process": record.process,
        "threadName": record.threadName,
        **extra,
    }


def _plain(value: Any) -> Any:
    if type(value) is dict and all(type(name) is str for name in value):
        return {storable(name): _plain(one) for name, one in value.items()}
    if type(value) is str:
        return storable(value)
    if type(value) is int and not -(2**63) <= value < 2**64:
        return str(value)
    return value if type(value) in _PLAIN else storable(repr(value))
