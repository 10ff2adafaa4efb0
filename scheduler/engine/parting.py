"""How children, and what they do, are ended from here. Used by the pool's thread."""

from __future__ import annotations

import time

from scheduler.engine.brood import Brood
from scheduler.engine.children import Child, Job
from scheduler.engine.feeding import Feeding
from scheduler.engine.options import ProcessOptions


class Parting:
    """See the module."""

    def __init__(self, brood: Brood, feeding: Feeding, options: ProcessOptions) -> None:
        self._brood = brood
        self._feeding = feeding
        self._options = options

    def stop(self, child: Child, job: Job, why: str) -> None:
        """End what a job does: at first it is asked to, and its group gets SIGTERM; after the grace period, SIGKILL."""
        self._feeding.take_back(child)
        if job.number not in child.jobs or child.kill_at is not None:
            return  # it had not begun, or is being stopped already
        child.kill_at = time.monotonic() + self._options.grace
        self._brood.say(child, "stop", job.number, why)

    def leave(self, child: Child, why: str) -> None:
        """It takes nothing more, by its own account."""
        self._feeding.take_back(child)
        child.stopping = why
        if why in ("stopped", "processes"):
            self._brood.kill(child)
        else:
            child.kill_at = time.monotonic() + self._options.grace

    def recycle(self, child: Child) -> None:
        """It has ended something, and is replaced if that was the last that it was meant to do."""
        if 0 < self._options.recycle_tasks <= child.done:
            self.retire(child, "tasks")

    def retire(self, child: Child, why: str) -> None:
        """It is to end in good order, when it has nothing to do: it may have begun what waited behind the last."""
        self._feeding.take_back(child)
        child.stopping = why
        if not child.jobs:
            child.close_work()
            child.kill_at = time.monotonic() + self._options.grace
