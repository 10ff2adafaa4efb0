"""Where work goes: children are started while more waits than there are, and each is given what it has room for.

Used by the pool's thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from scheduler.engine.attempt import Attempt
from scheduler.engine.brood import Brood
from scheduler.engine.children import Child, Job
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processspec import Spec
from scheduler.engine.waiting import Waiting

QUICK = 0.002  # seconds: kinds that take less on average are given to a child several at a time
AHEAD = 0.02  # seconds of work that a child may have waiting
MOST_AHEAD = 64
HIGH = 0


class Feeding:
    """See the module. ``means``: seconds that attempts take, by kind."""

    def __init__(
        self, brood: Brood, waiting: Waiting, options: ProcessOptions, spec: Spec, means: Mapping[str, float]
    ) -> None:
        self._brood = brood
        self._waiting = waiting
        self._options = options
        self._spec = spec
        self._means = means
        self._where: dict[int, tuple[Child, Job]] = {}  # attempts, by their id() here

    # children come

    def grow(self) -> None:
        """Start children while more work waits than there are that could take it."""
        if self._brood.out_of_order:
            return
        waits = [self._waiting.count(level) for level in (0, 1, 2)]
        if not any(waits):
            return
        living = [c for c in self._brood.children.values() if c.stopping is None and not c.killed]
        common = [c for c in living if c.only is None]
        free = sum(1 for c in common if not c.jobs)
        missing = self._options.children - len(common)
        for _ in range(min(sum(waits) - free, missing)):
            if not self._brood.start(None, self._spec.message()):
                return
        taken = missing <= 0 and all(c.current is not None for c in common)
        lower = any(c.current is not None and c.current.level != HIGH for c in common)
        if waits[HIGH] and taken and lower and all(c.only is None for c in living):
            self._brood.start(HIGH, self._spec.message())

    # work goes out

    def feed(self) -> None:
        takers = [c for c in self._brood.children.values() if c.ready and not c.on_its_way_out]
        takers.sort(key=lambda c: len(c.jobs))
        while takers:
            for child in list(takers):
                if not self.give(child):
                    takers.remove(child)

    def give(self, child: Child) -> bool:
        """Give one job to a child, if it has room for one that waits."""
        if child.jobs and (child.by_itself or len(child.jobs) >= MOST_AHEAD):
            return False
        job = self._waiting.next(child.only)
        if job is None:
            return False
        mean = self._means.get(job.attempt.kind.name, 1.0) if job.slots is not None and not job.alone else 1.0
        too_long = child.jobs and (mean > QUICK or len(child.jobs) * mean > AHEAD)
        if too_long or not child.give(job):
            self.put_back([job])
            return False
        child.by_itself = mean > QUICK
        if len(child.jobs) == 1:
            child.idle_since = time.monotonic()
        self._brood.watch(child)
        if job.slots is not None:
            self._where[id(job.attempt)] = (child, job)
        return True

    def put_back(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._where.pop(id(job.attempt), None)
        self._waiting.put_back(jobs)

    def take_back(self, child: Child) -> None:
        self.put_back(child.take_back())

    # where it is

    def find(self, attempt: Attempt) -> tuple[Child, Job] | None:
        """The child that was given it, and has not said that it ended."""
        return self._where.get(id(attempt))

    def forget(self, attempt: Attempt) -> None:
        """It has ended."""
        self._where.pop(id(attempt), None)
