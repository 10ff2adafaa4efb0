"""What waits for a child process, by level: attempts, functions and hooks. Used by the pool's thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.outcomes import outcome_of_external_end, released
from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.fair_rotation import FairRotation
from scheduler.engine.processes.child_handle import Job
from scheduler.engine.processes.endings import resolve
from scheduler.engine.processes.host import ChildHost
from scheduler.errors import Cancelled, ProcessDied
from scheduler.model.outcome import Outcome

if TYPE_CHECKING:
    from scheduler.engine.processes.processslots import ProcessSlots

Report = Callable[[Attempt, Outcome], None]


class JobQueue:
    """See the module. ``levels``: the slots of each, whose attempts wait; the rest is of the pool's own making."""

    def __init__(self, spec: ChildHost, runtime: Runtime, report: Report) -> None:
        self.levels: dict[int, ProcessSlots] = {}
        self._spec = spec
        self._runtime = runtime
        self._report = report
        self._functions: dict[int, deque[Job]] = {}  # functions and hooks, by level
        self._numbers = 0
        self._turns = FairRotation()

    def count(self, level: int) -> int:
        return len(self.levels[level].waiting if level in self.levels else ()) + len(self._functions.get(level, ()))

    def attempts(self) -> Iterator[Attempt]:
        """Those that wait, of all levels."""
        for slots in self.levels.values():
            yield from list(slots.waiting)

    def functions(self) -> Iterator[Job]:
        """Functions and hooks that wait, of all levels."""
        for waiting in self._functions.values():
            yield from list(waiting)

    def add(self, job: Job) -> None:
        """A function or a hook."""
        self._functions.setdefault(job.level, deque()).append(job)

    def drop(self, job: Job) -> None:
        """Nobody wants it any more. Whoever asked is told, if it waits here."""
        for waiting in self._functions.values():
            if job in waiting:
                waiting.remove(job)
                resolve(job, error=_not_begun())

    def put_back(self, jobs: list[Job]) -> None:
        """What was given to a child and did not begin goes to the front, in order, but for what nobody wants."""
        for job in reversed(jobs):
            if job.slots is not None:
                job.slots.waiting.appendleft(job.attempt)
            elif job.withdrawn:
                resolve(job, error=_not_begun())
            else:
                self._functions.setdefault(job.level, deque()).appendleft(job)

    def next(self, only: int | None) -> Job | None:
        """The next job, of this level only or of any. What is not to be run any more is reported."""
        levels = [level for level in ((0, 1, 2) if only is None else (only,)) if self.count(level)]
        if not levels:
            return None
        for level in self._turns.order(levels):
            functions = self._functions.get(level)
            if functions:
                self._turns.record(levels, {level})
                return self._numbered(functions.popleft())
            slots = self.levels.get(level)
            while slots is not None and slots.waiting:
                try:
                    attempt = slots.waiting.popleft()
                except IndexError:
                    break  # the engine has just taken it back
                if attempt.lost or self._runtime.monotonic() >= self._runtime.lease_expires_at:
                    self._report(attempt, released(attempt, self._runtime.now()))
                    continue
                if attempt.cancelled:
                    self._report(attempt, outcome_of_external_end(attempt, self._runtime, Cancelled("cancelled"))[0])
                    continue
                self._turns.record(levels, {level})
                return self._numbered(self._job(attempt, level, slots))
        return None

    def _job(self, attempt: Attempt, level: int, slots: ProcessSlots) -> Job:
        kind = attempt.kind
        clock_offset = self._runtime.now() - time.time_ns() // 1000
        about: tuple[Any, ...] = (kind.name, *self._spec.reference(kind), tuple(attempt.claimed), attempt.start_by)
        job = Job(0, level, ("run", *about, clock_offset, self._runtime.lease_expires_at), attempt)
        job.slots = slots
        job.alone = attempt.isolated
        return job

    def _numbered(self, job: Job) -> Job:
        self._numbers += 1
        job.number = self._numbers
        return job


def _not_begun() -> ProcessDied:
    return ProcessDied("it was withdrawn before it began")
