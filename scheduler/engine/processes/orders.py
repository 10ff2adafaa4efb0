"""Orders for the pool's thread, which any thread may post."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.processes.child_handle import ChildJob


class SubmitOrder(NamedTuple):
    """Run this function."""

    job: ChildJob


class CancelOrder(NamedTuple):
    """End this function: its caller waits for its end, not for its value."""

    job: ChildJob


class Interrupt(NamedTuple):
    """End this attempt: it was cancelled, or its worker lost it."""

    attempt: Attempt


class LookOrder(NamedTuple):
    """Ask the child where this attempt, or its function, stands."""

    attempt: Attempt


class Asker(NamedTuple):
    """The request (its tag) to answer, and the child that sent it."""

    child: int
    request: int


class ReplyOrder(NamedTuple):
    """The answer to a request of a child. ``value``: if not ``fine``, the error as ``failure_of()`` encodes it."""

    to: Asker
    fine: bool
    value: Any


Order = SubmitOrder | CancelOrder | Interrupt | LookOrder | ReplyOrder


class Orders:
    """The inbox of the pool's thread. Its eventfd wakes that thread."""

    def __init__(self) -> None:
        self.wakeup = -1  # the eventfd, once the thread is about to start
        self._posted: deque[Order] = deque()

    def open(self) -> None:
        wakeup = self.wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # It stays open as long as this object: a late wake() must not write into another file of that number.
        weakref.finalize(self, os.close, wakeup).atexit = False

    def forget(self) -> None:
        """Wake no thread any more: this process was forked, so the thread is another process's."""
        self.wakeup = -1

    def wake(self) -> None:
        if self.wakeup >= 0:
            os.eventfd_write(self.wakeup, 1)

    def post(self, order: Order) -> None:
        self._posted.append(order)
        self.wake()

    def take(self) -> Iterator[Order]:
        """The posted orders, removed one by one."""
        while self._posted:
            yield self._posted.popleft()

    def __bool__(self) -> bool:
        """Whether an order waits."""
        return bool(self._posted)
