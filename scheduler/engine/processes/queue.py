"""Jobs that wait for a child process, and where each went. Used by the pool's thread.

Children are started while more jobs wait than there are children for them. Each child is given what it has room for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.outcomes import outcome_of_external_end, released
from scheduler.engine.fair_rotation import FairRotation
from scheduler.engine.processes.child_handle import ChildHandle, ChildJob
from scheduler.engine.processes.children import ChildRegistry
from scheduler.engine.processes.host import ChildHost, resolve
from scheduler.errors import Cancelled, ConfigError, ProcessDied

SHORT_TASK_S = 0.002  # seconds: kinds that take less on average are given to a child several at a time
MAX_AHEAD_S = 0.02  # seconds of work that a child may have waiting
MAX_JOBS_AHEAD = 64
PRIORITIES = (0, 1, 2)
HIGH_PRIORITY = 0


class JobQueue:
    """Attempts, functions and hooks by priority. ``priorities``: the waiting attempts, which the engine changes."""

    def __init__(self, children: ChildRegistry, host: ChildHost) -> None:
        self.priorities: dict[int, deque[Attempt]] = {}
        self._children = children
        self._host = host
        self._functions: dict[int, deque[ChildJob]] = {}  # functions and hooks, by priority
        self._numbers = 0
        self._rotation = FairRotation()
        self._given: dict[int, tuple[ChildHandle, ChildJob]] = {}  # by id() of the attempt

    # what waits

    def count(self, priority: int) -> int:
        return len(self.priorities.get(priority, ())) + len(self._functions.get(priority, ()))

    def attempts(self) -> Iterator[Attempt]:
        """The waiting attempts of all priorities."""
        for waiting in self.priorities.values():
            yield from list(waiting)

    def functions(self) -> Iterator[ChildJob]:
        """The waiting functions and hooks of all priorities."""
        for waiting in self._functions.values():
            yield from list(waiting)

    def add(self, job: ChildJob) -> None:
        """Add a function or a hook."""
        self._functions.setdefault(job.priority, deque()).append(job)

    def drop(self, job: ChildJob) -> None:
        """Remove a cancelled function, if it waits here, and answer its caller."""
        for waiting in self._functions.values():
            if job in waiting:
                waiting.remove(job)
                resolve(job, error=_not_begun())

    def next(self, only: int | None) -> ChildJob | None:
        """The next job, of this priority only or of any. Reports the waiting attempts that must not run any more."""
        priorities = [priority for priority in (PRIORITIES if only is None else (only,)) if self.count(priority)]
        if not priorities:
            return None
        for priority in self._rotation.order(priorities):
            functions = self._functions.get(priority)
            job = functions.popleft() if functions else self._next_attempt(priority)
            if job is not None:
                self._rotation.record(priorities, {priority})
                self._numbers += 1
                job.number = self._numbers
                return job
        return None

    def _next_attempt(self, priority: int) -> ChildJob | None:
        waiting, runtime = self.priorities.get(priority), self._host.runtime
        while waiting:
            try:
                attempt = waiting.popleft()
            except IndexError:
                break  # the engine has just taken it back
            if attempt.lost or runtime.monotonic() >= runtime.lease_expires_at:
                self._host.report(attempt, released(attempt, runtime.now()))
            elif attempt.cancelled:
                self._host.report(attempt, outcome_of_external_end(attempt, runtime, Cancelled("cancelled"))[0])
            else:
                try:
                    return self._job(attempt, priority)
                except ConfigError as error:  # where its type is cannot be said any more: a deploy has removed it
                    self._host.report(attempt, outcome_of_external_end(attempt, runtime, error)[0])
        return None

    def _job(self, attempt: Attempt, priority: int) -> ChildJob:
        runtime, kind = self._host.runtime, attempt.kind
        clock_offset = runtime.now() - time.time_ns() // 1000
        trace = None if attempt.trace is None else attempt.trace.context.traceparent
        about: tuple[Any, ...] = (*(kind.name, *kind.reference, tuple(attempt.claimed), attempt.start_by, trace),)
        job = ChildJob(priority, ("run", *about, clock_offset, runtime.lease_expires_at), attempt)
        job.is_attempt, job.quarantined = True, attempt.isolated
        return job

    # children for it

    def start_children(self) -> None:
        """Start children while more work waits than there are free children."""
        if self._children.backing_off:
            return
        waits = [self.count(priority) for priority in PRIORITIES]
        if not any(waits):
            return
        living = [c for c in self._children.children.values() if c.stopping is None and not c.killed]
        common = [c for c in living if c.only is None]
        free = sum(1 for c in common if not c.jobs)
        missing = self._host.options.children - len(common)
        for _ in range(min(sum(waits) - free, missing)):
            if not self._start(None):
                return
        taken = missing <= 0 and all(c.current is not None for c in common)
        lower = any(c.current is not None and c.current.priority != HIGH_PRIORITY for c in common)
        if waits[HIGH_PRIORITY] and taken and lower and all(c.only is None for c in living):
            self._start(HIGH_PRIORITY)

    def _start(self, only: int | None) -> bool:
        try:
            message = self._host.message()
        except ConfigError as error:  # where ``around_run`` is cannot be said
            self._children.start_failed(str(error))
            return False
        return self._children.start(only, message)

    # given and taken back

    def feed(self) -> None:
        """Give the children what they have room for, the least busy first."""
        takers = [c for c in self._children.children.values() if c.ready and not c.ending]
        takers.sort(key=lambda c: len(c.jobs))
        while takers:
            for child in list(takers):
                if not self.give(child):
                    takers.remove(child)

    def give(self, child: ChildHandle) -> bool:
        """Give one job to a child, if it has room for one more."""
        if child.jobs and (child.exclusive or len(child.jobs) >= MAX_JOBS_AHEAD):
            return False
        job = self.next(child.only)
        if job is None:
            return False
        known = job.is_attempt and not job.quarantined
        mean = self._host.means.get(job.attempt.kind.name, 1.0) if known else 1.0
        too_long = child.jobs and (mean > SHORT_TASK_S or len(child.jobs) * mean > MAX_AHEAD_S)
        try:
            given = not too_long and child.give(job)
        except Exception as error:  # it cannot be put into a message
            self._host.failed(job, error)
            return True
        if not given:
            self.put_back([job])
            return False
        child.exclusive = mean > SHORT_TASK_S
        if len(child.jobs) == 1:
            child.idle_since = time.monotonic()
        self._children.watch(child)
        if job.is_attempt:
            self._given[id(job.attempt)] = (child, job)
        return True

    def put_back(self, jobs: list[ChildJob]) -> None:
        """Put jobs that did not begin back at the front, in order. Ends the cancelled functions among them."""
        for job in reversed(jobs):
            if job.is_attempt:
                self.forget(job.attempt)
                self.priorities[job.priority].appendleft(job.attempt)
            elif job.cancelled:
                resolve(job, error=_not_begun())
            else:
                self._functions.setdefault(job.priority, deque()).appendleft(job)

    def take_back(self, child: ChildHandle) -> None:
        """Take back what the child has not begun."""
        self.put_back(child.take_back())

    def find(self, attempt: Attempt) -> tuple[ChildHandle, ChildJob] | None:
        """The child that has the attempt, while it has not ended."""
        return self._given.get(id(attempt))

    def forget(self, attempt: Attempt) -> None:
        """The attempt has ended."""
        self._given.pop(id(attempt), None)


def _not_begun() -> ProcessDied:
    return ProcessDied("it was withdrawn before it began")
