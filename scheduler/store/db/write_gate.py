"""A turnstile in front of SQLite's one write lock.

SQLite's own waiters sleep and retry, so an engine that drains holds the lock nearly always and an enqueuer starves.
Here a writer takes ``next`` and then ``turn``, and gives ``next`` back once it has ``turn``: the last holder
of ``turn`` queues up behind the writer that was waiting. Both are locks of files (between processes) behind a thread
lock (within one). A hand-over costs a waiter's nap, so a writer that waited its turn may take a free ``turn`` again
for a moment without ``next``: whoever holds ``next`` waits for that slice and one transaction at most. The gate is
only about fairness: when it cannot be had in time, SQLite's own lock still keeps writers apart.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scheduler.forking import after_fork
from scheduler.store.db.deadline import left
from scheduler.system import files
from scheduler.system.locks import lock, unlock

TIMEOUT = 10.0  # seconds
SLICE = 0.002  # seconds from a turn for which its writer need not queue up again
_STEP = 0.0003  # seconds between tries for ``turn``; short, because the holder's transactions are
_QUEUE_STEP = SLICE / 2  # seconds between tries for ``next``, whose holder waits for about a slice


class _Lock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._fd = -1
        self._own = False  # whether this process opened the file
        self._closer: weakref.finalize[..., _Lock] | None = None
        after_fork(self, _Lock._on_fork)

    def _on_fork(self) -> None:
        self._own = False

    def take(self) -> bool:
        """Take it if it is free. False also if something has to be done first, which acquire() does."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if self._own:
                lock(self._fd)
                return True
        except OSError:
            pass
        except BaseException:  # Ctrl-C, right after it was taken
            self._leave_all()
            raise
        self._mutex.release()
        return False

    def acquire(self, deadline: float, step: float) -> bool:
        if not self._mutex.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return False
        try:
            if not self._own:  # a lock inherited over fork is shared with the parent: open one's own
                if self._closer is not None:
                    self._closer()  # this process's copy only
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | files.CLOEXEC, 0o660)
                self._own = True
                self._closer = weakref.finalize(self, os.close, self._fd)
                self._closer.atexit = False  # an engine's thread may hold it until the process ends
            while True:
                try:
                    lock(self._fd)
                    return True
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(step)
        except OSError:
            pass
        except BaseException:  # the next one is not to wait for ever
            self._leave_all()
            raise
        self._mutex.release()
        return False

    def release(self) -> None:
        try:
            unlock(self._fd)
        finally:
            self._mutex.release()

    def _leave_all(self) -> None:
        with suppress(OSError):
            if self._own:
                unlock(self._fd)
        self._mutex.release()


class WriteGate:
    """The turnstile of one database file. ``directory`` None: no gate, SQLite's own lock alone."""

    def __init__(self, directory: Path | None) -> None:
        self._next = _Lock(directory / "next") if directory is not None else None
        self._turn = _Lock(directory / "turn") if directory is not None else None
        self._slice_end = 0.0  # by the monotonic clock

    def enter(self, timeout: float = TIMEOUT) -> bool:
        """Take the turn, or after ``timeout`` seconds go on without it. Returns whether to :meth:`leave` then."""
        if self._next is None or self._turn is None:
            return False
        if time.monotonic() < self._slice_end and self._turn.take():
            return True
        deadline = 0.0  # what follows reads no clock where no other writer is in the way
        if not self._next.take():
            deadline = time.monotonic() + left(timeout)
            if not self._next.acquire(deadline, _QUEUE_STEP):
                return False
        entered = False
        try:
            entered = self._turn.take() or self._turn.acquire(deadline or time.monotonic() + left(timeout), _STEP)
        finally:
            try:
                self._next.release()
            except BaseException:
                if entered:
                    self._turn.release()
                raise
        if entered:
            self._slice_end = time.monotonic() + SLICE
        return entered

    def leave(self) -> None:
        """Give the turn back."""
        assert self._turn is not None
        self._turn.release()

    @contextmanager
    def hold(self, timeout: float = TIMEOUT) -> Iterator[None]:
        """Hold the turn, or after ``timeout`` seconds go on without it."""
        entered = self.enter(timeout)
        try:
            yield
        finally:
            if entered:
                self.leave()
