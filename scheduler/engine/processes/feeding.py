"""Where work goes: children are started while more waits than there are, and each is given what it has room for.

Used by the pool's thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processes.child_handle import ChildHandle, Job
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.host import ChildHost
from scheduler.engine.processes.queue import JobQueue

SHORT_TASK_S = 0.002  # seconds: kinds that take less on average are given to a child several at a time
MAX_AHEAD_S = 0.02  # seconds of work that a child may have waiting
MAX_JOBS_AHEAD = 64
HIGH_LEVEL = 0


class JobFeeder:
    """See the module. ``means``: seconds that attempts take, by kind."""

    def __init__(
        self,
        children: ChildRegistry,
        waiting: JobQueue,
        options: ProcessOptions,
        spec: ChildHost,
        means: Mapping[str, float],
    ) -> None:
        self._children = children
        self._waiting = waiting
        self._options = options
        self._spec = spec
        self._means = means
        self._where: dict[int, tuple[ChildHandle, Job]] = {}  # attempts, by their id() here

    # children come

    def grow(self) -> None:
        """Start children while more work waits than there are that could take it."""
        if self._children.backing_off:
            return
        waits = [self._waiting.count(level) for level in (0, 1, 2)]
        if not any(waits):
            return
        living = [c for c in self._children.children.values() if c.stopping is None and not c.killed]
        common = [c for c in living if c.only is None]
        free = sum(1 for c in common if not c.jobs)
        missing = self._options.children - len(common)
        for _ in range(min(sum(waits) - free, missing)):
            if not self._children.start(None, self._spec.message()):
                return
        taken = missing <= 0 and all(c.current is not None for c in common)
        lower = any(c.current is not None and c.current.level != HIGH_LEVEL for c in common)
        if waits[HIGH_LEVEL] and taken and lower and all(c.only is None for c in living):
            self._children.start(HIGH_LEVEL, self._spec.message())

    # work goes out

    def feed(self) -> None:
        takers = [c for c in self._children.children.values() if c.ready and not c.ending]
        takers.sort(key=lambda c: len(c.jobs))
        while takers:
            for child in list(takers):
                if not self.give(child):
                    takers.remove(child)

    def give(self, child: ChildHandle) -> bool:
        """Give one job to a child, if it has room for one that waits."""
        if child.jobs and (child.exclusive or len(child.jobs) >= MAX_JOBS_AHEAD):
            return False
        job = self._waiting.next(child.only)
        if job is None:
            return False
        mean = self._means.get(job.attempt.kind.name, 1.0) if job.slots is not None and not job.alone else 1.0
        too_long = child.jobs and (mean > SHORT_TASK_S or len(child.jobs) * mean > MAX_AHEAD_S)
        if too_long or not child.give(job):
            self.put_back([job])
            return False
        child.exclusive = mean > SHORT_TASK_S
        if len(child.jobs) == 1:
            child.idle_since = time.monotonic()
        self._children.watch(child)
        if job.slots is not None:
            self._where[id(job.attempt)] = (child, job)
        return True

    def put_back(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._where.pop(id(job.attempt), None)
        self._waiting.put_back(jobs)

    def take_back(self, child: ChildHandle) -> None:
        self.put_back(child.take_back())

    # where it is

    def find(self, attempt: Attempt) -> tuple[ChildHandle, Job] | None:
        """The child that was given it, and has not said that it ended."""
        return self._where.get(id(attempt))

    def forget(self, attempt: Attempt) -> None:
        """It has ended."""
        self._where.pop(id(attempt), None)
