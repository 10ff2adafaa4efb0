"""What a test replaces: the clock, threads and failpoints; with the system's own versions.

Wall-clock instants are integers everywhere inside: microseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

SECOND = 1_000_000
FOREVER = 2**62  # "no time": sorts behind every real instant, and no column needs NULL for it
NEVER = FOREVER + 1  # a schedule whose last fire time has passed


IN_CHILD = False  # whether this is a child process of an engine


class Clock(Protocol):
    """The source of time. ``steps``: whether a test moves it by hand."""

    steps: bool

    def now(self) -> int:
        """Wall time in microseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""
        ...


class SystemClock:
    """The machine's clocks."""

    steps = False

    monotonic = staticmethod(time.monotonic)  # the function itself: each dispatch cycle calls it many times

    def now(self) -> int:
        return time.time_ns() // 1000


class Spawner(Protocol):
    """How threads are started."""

    def __call__(self, target: Callable[[], None], name: str) -> threading.Thread: ...


def spawn_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread: a handler that never ends must not keep the process from ending."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def random_incarnation() -> str:
    """A worker's identity for one life of one engine; never derived from the host name alone."""
    import secrets

    return secrets.token_hex(8)


class Failpoints:
    """Named places in the engine where a fault test stops or kills the process. Does nothing otherwise."""

    def __init__(self) -> None:
        self.hit: Callable[[str], None] = lambda name: None


FAILPOINTS = Failpoints()
