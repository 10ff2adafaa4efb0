"""The slots of one level in the pool of child processes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from scheduler.engine.attempt.attempt import Attempt

if TYPE_CHECKING:
    from scheduler.engine.processes.pool import ProcessPool


class ProcessSlots:
    """The slots of one level; all levels share one :class:`ProcessPool`."""

    def __init__(self, pool: ProcessPool, level: int, size: int) -> None:
        self.pool = pool
        self.level = level
        self._size = size
        self.waiting: deque[Attempt] = deque()
        pool.levels[level] = self

    @property
    def size(self) -> int:
        """0 while there is no child, and none can be started: then nothing is claimed."""
        return min(self._size, self.pool.ready_count)

    def submit(self, attempts: list[Attempt], wake: int) -> None:
        for attempt in attempts:
            attempt.slot = self
        self.waiting.extend(attempts)
        self.pool.wake()

    def nudge(self) -> None:
        self.pool.wake()

    def interrupt(self, attempt: Attempt) -> None:
        self.pool.post("interrupt", attempt)

    def abandon(self) -> None:
        self.pool.close()

    def close(self) -> None:
        self.pool.close()
