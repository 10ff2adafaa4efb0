"""Writing to a stream that nobody may read: what it does not take waits, up to a bound, and what is more is dropped.

A pipe whose reader stands still, and a terminal that was stopped by Ctrl-S, would block each thread that writes a line.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from scheduler.forking import after_fork
from scheduler.system import files, sockets
from scheduler.system.waiting import waits_for

MAX_WAITING = 1024 * 1024  # bytes of lines that wait for a reader
MAX_LINE = 64 * 1024  # characters without a newline that wait for it
EXIT_SECONDS = 0.5  # that the end of a process waits for a reader that stands still
PIECE = 4096  # a pipe takes so many bytes at once, or none

_writers: dict[int, Writer] = {}
_making = threading.Lock()


def writer_of(stream: TextIO) -> Writer | None:
    """What writes to the stream's descriptor without blocking; None for a stream that has none."""
    try:
        fd = stream.fileno()
        found = os.fstat(fd)
    except (OSError, ValueError, AttributeError):
        return None
    with _making:
        known = _writers.get(fd)
        if known is None or not known.is_of(found):
            known = _writers[fd] = Writer(fd, found)
        return known


def say(text: str) -> None:
    """Print a line on stderr; waits for its reader a moment only."""
    writer = writer_of(sys.stderr)
    if writer is None:
        print(text, file=sys.stderr)
        return
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    writer.write(f"{text}\n".encode("utf-8", "backslashreplace"))
    writer.flush(EXIT_SECONDS)


class Writer:
    """Writes bytes to a descriptor. From any thread. ``note``: makes the line that says how many were dropped."""

    def __init__(self, fd: int, found: os.stat_result) -> None:
        self._fd = fd
        self._is = (found.st_dev, found.st_ino)
        self.note: Callable[[int], bytes] | None = None
        self._gone = False
        self._socket: socket.socket | None = None
        self._own: int | None = None
        self._may_block = False
        self._renew()
        if stat.S_ISSOCK(found.st_mode):
            self._socket = socket.socket(fileno=os.dup(fd))
        elif not stat.S_ISREG(found.st_mode):
            try:  # a description of our own, so that others who have this one see no O_NONBLOCK
                self._own = files.open_again(fd, os.O_WRONLY | files.NONBLOCK)
            except OSError:  # or it was opened by another user; so a thread of its own waits in each write
                self._may_block = True
        after_fork(self, Writer._renew)

    def _renew(self) -> None:
        """Begin without a thread, and without what waits for one: in a forked process both are the parent's."""
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._waiting: deque[bytes] = deque()
        self._size = self._dropped = 0
        self._thread: threading.Thread | None = None

    def is_of(self, found: os.stat_result) -> bool:
        """Whether it writes to what the descriptor is now."""
        return not self._gone and self._is == (found.st_dev, found.st_ino)

    def write(self, data: bytes) -> None:
        """Write it now, or once there is a reader again, or drop it. Raises nothing."""
        with self._lock:
            if self._gone:
                return
            if not self._waiting and not self._may_block:
                data = self._try(data)
                if not data:
                    return
            elif self._dropped or self._size + len(data) > MAX_WAITING:
                self._dropped += 1  # and so the next ones, until the note stands where these would
                return
            self._waiting.append(data)
            self._size += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="schedd-writer", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # no thread can be started; the next line tries it again
                    self._thread = None

    def flush(self, seconds: float) -> bool:
        """Wait until nothing waits, and no longer than this without a reader; returns whether nothing does."""
        with self._lock:
            while self._waiting and self._thread is not None and not self._gone:
                before = self._size
                if not self._moved.wait(seconds) or self._size >= before:
                    return False
            return not self._waiting

    def _try(self, data: bytes) -> bytes:
        """Write what is taken at once. Returns the rest."""
        try:
            while data:
                if self._socket is not None:
                    sent = self._socket.send(data, sockets.AT_ONCE)
                else:
                    sent = os.write(self._fd if self._own is None else self._own, data)
                data = data[sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in _GONE:
                self._abandon()
            return b""
        return data

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting and self._dropped:
                    note = b"" if self.note is None else self.note(self._dropped)
                    self._dropped = 0
                    if note:
                        self._waiting.append(note)
                        self._size += len(note)
                if not self._waiting or self._gone:
                    self._thread = None
                    self._moved.notify_all()
                    return
                piece = self._waiting[0][:PIECE]
            left = self._wait_and_write(piece)
            with self._lock:
                if self._waiting:
                    rest = self._waiting.popleft()[len(piece) - len(left) :]
                    if rest:
                        self._waiting.appendleft(rest)
                    self._size -= len(piece) - len(left)
                    self._moved.notify_all()

    def _wait_and_write(self, piece: bytes) -> bytes:
        if not self._may_block:
            waits_for(self._socket if self._socket is not None else self._own or self._fd, writing=True)(1.0)
        left = self._try(piece)
        if len(left) == len(piece) and not self._may_block:
            time.sleep(0.01)  # a terminal may say that it takes something, and take nothing
        return left

    def _abandon(self) -> None:
        """Drop a stream without a reader: flushing its buffer at exit would fail again and set status 120."""
        self._gone = True
        self._waiting.clear()
        self._size = 0
        with suppress(OSError, ValueError):
            found = os.fstat(self._fd)
            if self._is != (found.st_dev, found.st_ino):  # the number has become another file's
                return
            null = os.open(os.devnull, os.O_WRONLY | files.CLOEXEC)
            try:
                os.dup2(null, self._fd)
            finally:
                os.close(null)


_GONE = frozenset({errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.ENOTCONN, errno.EIO})


class Unblocked(io.TextIOBase):
    """A text stream over a :class:`Writer`: it passes whole lines on, and never waits."""

    def __init__(self, original: TextIO, writer: Writer) -> None:
        self._original = original
        self._writer = writer
        self._line = ""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return str(getattr(self._original, "name", ""))

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._original.errors

    @property
    def buffer(self) -> object:
        return self._original.buffer

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            pending = self._line + text
            end = len(pending) if len(pending) > MAX_LINE else pending.rfind("\n") + 1
            self._line = pending[end:]
        self._pass_on(pending[:end])
        return len(text)

    def flush(self) -> None:
        """Pass the unfinished line on."""
        with self._lock:
            rest, self._line = self._line, ""
        self._pass_on(rest)

    def _pass_on(self, text: str) -> None:
        if text:
            self._writer.write(text.encode(self.encoding or "utf-8", "backslashreplace"))


def unblocked(stream: TextIO) -> TextIO:
    """The stream as one that never waits for its reader, where it might."""
    if isinstance(cast("object", stream), Unblocked):
        return stream
    writer = writer_of(stream)
    if writer is None or stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.flush()
    return cast("TextIO", Unblocked(stream, writer))


@contextmanager
def unblocked_output() -> Iterator[None]:
    """Have ``sys.stdout`` and ``sys.stderr`` never wait for a reader: handlers print, too."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = unblocked(sys.stdout), unblocked(sys.stderr)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = before
