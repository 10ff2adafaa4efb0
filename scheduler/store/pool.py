"""The pool of connections, in which whoever has waited longest is served first.

SQLAlchemy's own gives a connection that comes back to whoever asks next: of forty threads that use it without a pause
some wait until their patience ends.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool


class Line:
    """So many places, handed over in the order of those who wait.

    Without a lock, for a signal's handler or the collector may give one back in the midst of anything: each step is
    one operation of a deque, and whoever has added to either of them passes on what there is.
    """

    def __init__(self, places: int) -> None:
        self._free = deque([None] * places)
        self._waiting: deque[threading.Lock] = deque()

    def enter(self, timeout: float) -> bool:
        """Take a place, after at most so many seconds. Returns whether there is one."""
        turn = threading.Lock()
        turn.acquire()
        self._waiting.append(turn)
        try:
            self._pass_on()
            return turn.acquire(timeout=timeout) or self._was_handed_over(turn)
        except BaseException:  # somebody's Ctrl-C
            if self._was_handed_over(turn):
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place back."""
        self._free.append(None)
        self._pass_on()

    def has_room(self) -> bool:
        """Whether a place is free, so that nobody waits."""
        return bool(self._free)

    def _pass_on(self) -> None:
        while self._free and self._waiting:
            with suppress(IndexError):  # somebody else has just taken the last one
                self._free.pop()
                try:
                    self._waiting.popleft().release()
                except IndexError:
                    self._free.append(None)

    def _was_handed_over(self, turn: threading.Lock) -> bool:
        """Whether the place came at the last moment; else out of the line."""
        try:
            self._waiting.remove(turn)
        except ValueError:
            return True
        return False


class FairPool(QueuePool):
    """See the module. Raises SQLAlchemy's TimeoutError after ``timeout`` seconds."""

    # Else its messages would come from a logger of ours, past what keeps SQLAlchemy's own quiet.
    _sqla_logger_namespace = "sqlalchemy.pool.impl"

    def __init__(self, creator: Any, pool_size: int = 5, max_overflow: int = 10, **options: Any) -> None:
        super().__init__(creator, pool_size, max_overflow, **options)
        self._places = pool_size + max_overflow
        self._line = Line(self._places)
        self.has_room = self._line.has_room

    def _do_get(self) -> ConnectionPoolEntry:
        if not self._line.enter(self._timeout):
            raise PoolTimeoutError(
                f"all {self._places} connections of this process are in use, and none became free "
                f"within {self._timeout:g} s"
            )
        try:
            return super()._do_get()
        except BaseException:
            self._line.leave()
            raise

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        try:
            super()._do_return_conn(record)
        finally:
            self._line.leave()
