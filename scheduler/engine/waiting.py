"""What waits for a child process, by level: attempts, functions and hooks. Used by the pool's thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from scheduler.engine.attempt import Attempt
from scheduler.engine.children import Job
from scheduler.engine.endings import answer_to
from scheduler.engine.levels import Turns
from scheduler.engine.processspec import Spec
from scheduler.engine.runtime import Runtime
from scheduler.engine.verdict import ended_by, hand_back
from scheduler.errors import Cancelled, ProcessDied
from scheduler.model.outcome import Outcome

if TYPE_CHECKING:
    from scheduler.engine.processslots import ProcessSlots

Report = Callable[[Attempt, Outcome], None]


class Waiting:
    """See the module. ``levels``: the slots of each, whose attempts wait; the rest is of the pool's own making."""

    def __init__(self, spec: Spec, runtime: Runtime, report: Report) -> None:
        self.levels: dict[int, ProcessSlots] = {}
        self._spec = spec
        self._runtime = runtime
        self._report = report
        self._errands: dict[int, deque[Job]] = {}  # functions and hooks, by level
        self._numbers = 0
        self._turns = Turns()

    def count(self, level: int) -> int:
        return len(self.levels[level].waiting if level in self.levels else ()) + len(self._errands.get(level, ()))

    def attempts(self) -> Iterator[Attempt]:
        """Those that wait, of all levels."""
        for slots in self.levels.values():
            yield from list(slots.waiting)

    def errands(self) -> Iterator[Job]:
        """Functions and hooks that wait, of all levels."""
        for errands in self._errands.values():
            yield from list(errands)

    def add(self, errand: Job) -> None:
        """A function or a hook."""
        self._errands.setdefault(errand.level, deque()).append(errand)

    def drop(self, errand: Job) -> None:
        """Nobody wants it any more. Whoever asked is told, if it waits here."""
        for errands in self._errands.values():
            if errand in errands:
                errands.remove(errand)
                answer_to(errand, error=_not_begun())

    def put_back(self, jobs: list[Job]) -> None:
        """What was given to a child and did not begin goes to the front, in order, but for what nobody wants."""
        for job in reversed(jobs):
            if job.slots is not None:
                job.slots.waiting.appendleft(job.attempt)
            elif job.withdrawn:
                answer_to(job, error=_not_begun())
            else:
                self._errands.setdefault(job.level, deque()).appendleft(job)

    def next(self, only: int | None) -> Job | None:
        """The next job, of this level only or of any. What is not to be run any more is reported."""
        levels = [level for level in ((0, 1, 2) if only is None else (only,)) if self.count(level)]
        if not levels:
            return None
        for level in self._turns.order(levels):
            errands = self._errands.get(level)
            if errands:
                self._turns.gave(levels, {level})
                return self._numbered(errands.popleft())
            slots = self.levels.get(level)
            while slots is not None and slots.waiting:
                try:
                    attempt = slots.waiting.popleft()
                except IndexError:
                    break  # the engine has just taken it back
                if attempt.lost or self._runtime.monotonic() >= self._runtime.lapses_at:
                    self._report(attempt, hand_back(attempt, self._runtime.now()))
                    continue
                if attempt.cancelled:
                    self._report(attempt, ended_by(attempt, self._runtime, Cancelled("cancelled"))[0])
                    continue
                self._turns.gave(levels, {level})
                return self._numbered(self._job(attempt, level, slots))
        return None

    def _job(self, attempt: Attempt, level: int, slots: ProcessSlots) -> Job:
        kind = attempt.kind
        clock_offset = self._runtime.now() - time.time_ns() // 1000
        about: tuple[Any, ...] = (kind.name, *self._spec.reference(kind), tuple(attempt.claimed), attempt.start_by)
        job = Job(0, level, ("run", *about, clock_offset, self._runtime.lapses_at), attempt)
        job.slots = slots
        job.alone = attempt.apart
        return job

    def _numbered(self, job: Job) -> Job:
        self._numbers += 1
        job.number = self._numbers
        return job


def _not_begun() -> ProcessDied:
    return ProcessDied("it was withdrawn before it began")
