"""The pool of connections, in which the thread that has waited longest is served first.

SQLAlchemy's own pool gives a returned connection to the next thread that asks: of many busy threads some would wait
until they time out.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from scheduler.store.db import deadline


class FairQueue:
    """A number of places, handed to threads in the order in which they wait.

    It has no lock, because a signal's handler or the garbage collector may give a place back at any moment: each step
    is one operation of a deque, and the thread that has added to a deque passes places on.
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
        except BaseException:  # Ctrl-C
            if self._was_handed_over(turn):
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place back."""
        self._free.append(None)
        self._pass_on()

    def has_room(self) -> bool:
        """Whether a place is free, so that no thread waits."""
        return bool(self._free)

    def _pass_on(self) -> None:
        while self._free and self._waiting:
            with suppress(IndexError):  # another thread has just taken the last one
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
        self._line = FairQueue(self._places)
        # Without spare places none is kept aside: what a kept connection holds, no thread could get.
        self.has_room = self._line.has_room if max_overflow > 0 else lambda: False

    def _do_get(self) -> ConnectionPoolEntry:
        timeout = deadline.left(self._timeout)
        if not self._line.enter(timeout):
            raise PoolTimeoutError(
                f"all {self._places} connections of this process are in use, and none became free within {timeout:g} s"
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
