"""Signals that the main thread waits for, and functions that run in threads meanwhile."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Generic, TypeVar

from scheduler.forking import after_fork
from scheduler.system.waiting import waits_for

T = TypeVar("T")


class Signals:
    """While entered, collects the signals ``numbers`` for :meth:`wait`. For the main thread."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers
        self._before: dict[int, Any] = {}
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._readable = waits_for(self._reader)
        self._old_fd = -1

    def __enter__(self) -> Signals:
        # Blocking them instead (sigwait) would not do: commands that tasks start inherit a mask.
        self._old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            self._before[number] = signal.signal(number, _nothing)
        after_fork(self, Signals._on_fork)
        return self

    def _on_fork(self) -> None:
        """Restore the signals in a process that a task forked.

        A signal must end that process, and must not wake this one through the descriptor that they share."""
        if self._before:
            signal.set_wakeup_fd(-1)
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        signal.set_wakeup_fd(self._old_fd)
        self._reader.close()
        self._writer.close()

    def wait(self, timeout: float | None) -> list[int]:
        """The signals that came, or none after ``timeout`` seconds or a :meth:`wake`."""
        ready = self._readable(timeout)
        return [number for number in self._reader.recv(4096) if number in self._numbers] if ready else []

    def wake(self) -> None:
        """Let :meth:`wait` return; from any thread."""
        with contextlib.suppress(OSError):  # full, so it wakes anyway; or closed
            self._writer.send(b"\0")


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the thread in :meth:`Signals.wait` handles the signal."""


class BackgroundCall(Generic[T]):
    """A function that runs in its own thread, and wakes ``signals`` when it ends."""

    def __init__(self, signals: Signals, function: Callable[[], T], name: str) -> None:
        self._signals = signals
        self._function = function
        self._result: T | None = None
        self._error: BaseException | None = None
        self._over = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error
        self._over.set()
        self._signals.wake()

    @property
    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return self._over.is_set()

    def result(self) -> T:
        """Return what the function returned, or raise what it raised. Only when it is done."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # done without an error, so this is a T
