"""How children, and what they do, are ended from here. Used by the pool's thread."""

from __future__ import annotations

import time

from scheduler.engine.options import ProcessOptions
from scheduler.engine.processes.child_handle import ChildHandle, Job
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.feeding import JobFeeder


class ChildStopper:
    """See the module."""

    def __init__(self, children: ChildRegistry, feeder: JobFeeder, options: ProcessOptions) -> None:
        self._children = children
        self._feeder = feeder
        self._options = options

    def stop(self, child: ChildHandle, job: Job, why: str) -> None:
        """End what a job does: at first it is asked to, and its group gets SIGTERM; after the grace period, SIGKILL."""
        self._feeder.take_back(child)
        if job.number not in child.jobs or child.kill_at is not None:
            return  # it had not begun, or is being stopped already
        child.kill_at = time.monotonic() + self._options.grace
        self._children.say(child, "stop", job.number, why)

    def leave(self, child: ChildHandle, why: str) -> None:
        """It takes nothing more, by its own account."""
        self._feeder.take_back(child)
        child.stopping = why
        if why in ("stopped", "processes"):
            self._children.kill(child)
        else:
            child.kill_at = time.monotonic() + self._options.grace

    def recycle(self, child: ChildHandle) -> None:
        """It has ended something, and is replaced if that was the last that it was meant to do."""
        if 0 < self._options.recycle_tasks <= child.done:
            self.retire(child, "tasks")

    def retire(self, child: ChildHandle, why: str) -> None:
        """It is to end in good order, when it has nothing to do: it may have begun what waited behind the last."""
        self._feeder.take_back(child)
        child.stopping = why
        if not child.jobs:
            child.close_work()
            child.kill_at = time.monotonic() + self._options.grace
