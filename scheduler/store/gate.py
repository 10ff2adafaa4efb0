"""A turnstile in front of SQLite's one write lock.

SQLite's own waiters sleep and retry, so an engine that drains holds the lock nearly always and an enqueuer starves.
Here a writer takes ``next`` and then ``turn``, and gives ``next`` back once it has ``turn``: whoever held ``turn`` last
queues up behind the one that was waiting. Both are flocks (between processes) behind a thread lock (within one). The
gate is only about fairness: when it cannot be had in time, SQLite's own lock still keeps writers apart.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

_STEP = 0.0003  # seconds between tries; short, because the holder's transactions are


class _Lock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._fd = -1
        self._pid = 0
        self._closer: weakref.finalize[..., _Lock] | None = None

    def acquire(self, deadline: float) -> bool:
        if not self._mutex.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            if self._pid != os.getpid():  # a lock inherited over fork is shared with the parent: open one's own
                if self._closer is not None:
                    self._closer()  # this process's copy only
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
                self._pid = os.getpid()
                self._closer = weakref.finalize(self, os.close, self._fd)
                self._closer.atexit = False  # an engine's thread may hold it until the process ends
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(_STEP)
        except OSError:
            pass
        except BaseException:  # somebody's Ctrl-C: the next one is not to wait for ever
            self._mutex.release()
            raise
        self._mutex.release()
        return False

    def release(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._mutex.release()


class Gate:
    """The turnstile of one database file. ``directory`` None: no gate, SQLite's own lock alone."""

    def __init__(self, directory: Path | None) -> None:
        self._next = _Lock(directory / "next") if directory is not None else None
        self._turn = _Lock(directory / "turn") if directory is not None else None

    def pass_through(self, timeout: float = 10.0) -> AbstractContextManager[None]:
        """Hold the turn, or after ``timeout`` seconds go on without it."""
        if self._next is None or self._turn is None:
            return nullcontext()
        return _Passage(self._next, self._turn, timeout)


class _Passage:
    __slots__ = ("_got", "_next", "_timeout", "_turn")

    def __init__(self, next_: _Lock, turn: _Lock, timeout: float) -> None:
        self._next, self._turn, self._timeout = next_, turn, timeout
        self._got = False

    def __enter__(self) -> None:
        deadline = time.monotonic() + self._timeout
        if self._next.acquire(deadline):
            try:
                self._got = self._turn.acquire(deadline)
            finally:
                self._next.release()

    def __exit__(self, *_: object) -> None:
        if self._got:
            self._turn.release()
