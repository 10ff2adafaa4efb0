"""By when what a thread asks of the database is to be answered, whatever the server does.

A socket's timeout does not help: the server's host acknowledges what a server that stands still never reads. So a
thread of the deadline's own ends what the first one waits for. A thread that waits for something else on the way (a
place in the pool, the turn to write, a new connection) asks :func:`left` for how long.

The time counts from the first question to the database. A program that starts loads a driver and much else before, and
a busy machine takes its time over that: it says nothing about the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

GRACE = 0.7  # seconds that an answer may come later than was asked for: a server is given that long for timeout 0, too
_RECUT_EVERY_S = 0.1  # seconds between cuts of what goes on after the first
_LONGEST = 3600.0  # seconds of one wait: threads cannot wait for any number
_here = threading.local()
T = TypeVar("T")


class Deadline:
    """A context: what this thread asks of the database in it is cut ``seconds`` (and ``GRACE``) after it first asks.

    ``cut``: called from another thread, again and again until the context ends. ``each``: each transaction has so many
    seconds. One within another changes nothing.
    """

    def __init__(self, seconds: float, cut: Callable[[], object], *, each: bool = False) -> None:
        self.seconds = seconds
        self.each = each
        self.passed = False
        self._cut = cut
        self._until: float | None = None  # nothing has been asked yet
        self._over = False
        self._changed = threading.Condition()
        self._cutting = threading.Lock()
        self._outermost = False
        self._files: set[Any] = set()

    def __enter__(self) -> Deadline:
        self._outermost = current() is None
        if self._outermost:
            _here.deadline = self
            with suppress(RuntimeError):  # no thread can be had: the answer is waited for, as it comes
                threading.Thread(target=self._watch, name="schedd-deadline", daemon=True).start()
        return self

    def __exit__(self, _kind: object, _error: BaseException | None, _trace: TracebackType | None) -> None:
        if not self._outermost:
            return
        _here.deadline = None
        with self._changed:
            self._over = True
            self._changed.notify()
        with self._cutting:  # what this thread does next is not to be cut
            pass

    def start(self) -> None:
        """The thread is about to ask the database, perhaps not for the first time."""
        if self._until is None:
            self.restart()

    def restart(self) -> None:
        """Give it all of its time again."""
        with self._changed:
            self._until = time.monotonic() + self.seconds + GRACE
            self.passed = False
            self._changed.notify()

    def interrupts(self, raw: Any) -> None:
        """End what this connection to a SQLite file does then, too. Not where each transaction has its time: there it
        waits for other programs for a limited time, and may read for longer."""
        if not self.each:
            self._files.add(raw)

    @property
    def left(self) -> float:
        """Seconds, not below 0."""
        return self.seconds + GRACE if self._until is None else max(0.0, self._until - time.monotonic())

    def _watch(self) -> None:
        while self._sleep():
            with self._cutting:
                if not self._over and self.left == 0:
                    self.passed = True
                    for raw in list(self._files):
                        with suppress(Exception):  # closed
                            raw.interrupt()
                    self._cut()

    def _sleep(self) -> bool:
        """Until there is something to be cut; False: it is over."""
        with self._changed:
            if self.passed:
                self._changed.wait(_RECUT_EVERY_S)
            while not self._over and (self._until is None or self.left > 0):
                self._changed.wait(_LONGEST if self._until is None else min(self.left, _LONGEST))
            return not self._over


def current() -> Deadline | None:
    """This thread's."""
    found: Deadline | None = getattr(_here, "deadline", None)
    return found


def begin() -> None:
    """A transaction of this thread begins."""
    found = current()
    if found is not None:
        found.restart() if found.each else found.start()


def left(most: float) -> float:
    """Seconds that this thread may wait for something of the database: at most ``most``."""
    deadline = current()
    if deadline is None:
        return most
    deadline.start()
    return min(most, deadline.left)


def in_time(work: Callable[[], T], seconds: float, undo: Callable[[T], Any] = lambda _: None) -> T:
    """What ``work`` returns, done in another thread. Raises TimeoutError if it takes longer, and what it raises.

    ``undo``: what to do with what comes too late.
    """
    from concurrent.futures import Future

    answer: Future[T] = Future()

    def run() -> None:
        try:
            found = work()
        except BaseException as error:
            with suppress(Exception):
                answer.set_exception(error)
            return
        try:
            answer.set_result(found)
        except Exception:  # it was given up
            undo(found)

    threading.Thread(target=run, name="schedd-in-time", daemon=True).start()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.cancel():
            raise
        return answer.result()  # at the last moment
