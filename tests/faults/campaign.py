"""A random graph on three workers while one sort of fault happens to them again and again; then everything is checked.

What handlers noted in their own files is held against what the database recorded.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from faults.harness import Fleet, Process, Run, all_ended, rows, until
from faults.kinds import Hold, Step
from scheduler import Scheduler
from scheduler.build import running
from scheduler.model.outcome import AttemptEnd
from scheduler.store.admin import doctor as checks
from scheduler.store.admin.surroundings import check_surroundings

NEAR = 300  # a task depends on some of so many before it
LEVELS = ("high", "medium", "low")


class Stop(NamedTuple):
    """A worker process that stood still or was cut off, or that was killed (``upto`` infinite). Nanoseconds."""

    pid: int
    since: int
    upto: float
    killed: bool


class Report(NamedTuple):
    """One row of the fault table."""

    faults: int
    tasks: int
    reclaimed: int  # claims taken back from a worker that died or lost its lease
    interrupted: int  # handlers that never came to their end
    rerun: int  # tasks whose handler began more than once
    lost: int  # tasks without a recorded success
    doubled: int  # tasks with more than one
    beside: int  # handlers begun while a handler of the same task that had lost its lease through a stop went on
    stall: float  # seconds: the longest time in which no handler began or ended
    seconds: float

    def text(self) -> str:
        return (
            f"{self.faults} faults, {self.tasks} tasks, {self.reclaimed} claims taken back, "
            f"{self.interrupted} handlers interrupted, {self.rerun} tasks run again, {self.lost} lost, "
            f"{self.doubled} completed twice, "
            f"{self.beside} beside a stopped one, longest stall {self.stall:.2f} s, {self.seconds:.0f} s in all"
        )


class Seat:
    """A place in the fleet that always has a process, one after the other."""

    def __init__(self, start: Callable[[], Process]) -> None:
        self._start = start
        self.process = start()
        self.former: list[Process] = []

    def replace(self) -> None:
        self.former.append(self.process)
        self.process = self._start()


class Campaign:
    """See the module. ``start``: makes a worker process, one function for each seat."""

    def __init__(
        self, fleet: Fleet, jobs: Scheduler, rng: random.Random, start: Sequence[Callable[[], Process]]
    ) -> None:
        self.fleet = fleet
        self.jobs = jobs
        self.rng = rng
        self.stops: list[Stop] = []
        self.faults = 0
        self.ids: list[int] = []
        self._begun = 0.0
        self._start = start
        self.seats: list[Seat] = []

    def build(self, tasks: int, longest: float) -> None:
        """Store a random graph; ``longest``: milliseconds that a handler takes at most."""
        with self.jobs.batch() as batch:
            builders = []
            for index in range(tasks):
                builder = batch.task(Step(self.rng.uniform(0.0, longest))).priority(self.rng.choice(LEVELS))
                near = range(max(0, index - NEAR), index)
                builder.depend_on([builders[i] for i in self.rng.sample(near, min(len(near), self.rng.randrange(4)))])
                builders.append(builder)
        self.ids = [int(i) for i in batch.ids]

    def run(self, faults: Sequence[Callable[[Campaign], None]], timeout: float) -> None:
        """Start the workers and let each fault happen, evenly spread over the work; wait for the end of all tasks."""
        self._begun = time.monotonic()
        self.seats = [Seat(start) for start in self._start]
        last = len(self.ids) * 9 // 10
        for number, fault in enumerate(faults):
            moment = max(1, last * (number + 1) // (len(faults) + 1))
            until(lambda: self.begun_tasks() >= moment, f"{moment} tasks have begun", timeout, every=0.01)  # noqa: B023
            fault(self)
            self.faults += 1
        all_ended(self.jobs, timeout=timeout)

    def begun_tasks(self) -> int:
        return len(os.listdir(self.fleet.notes))

    def some(self) -> Seat:
        """A seat, any."""
        return self.rng.choice(self.seats)

    def busy(self) -> Seat:
        """A seat whose worker holds tasks, so that a fault interrupts something."""
        held = "SELECT DISTINCT w.pid FROM schedd_tasks t JOIN schedd_workers w ON w.id = t.worker WHERE t.state = 5"

        def found() -> list[Seat]:
            pids = {row.pid for row in rows(self.jobs, held)}
            return [seat for seat in self.seats if seat.process.pid in pids]

        return self.rng.choice(until(found, "some worker is at work", every=0.001))

    def lines(self, containing: str) -> list[str]:
        """What all processes said so far, those of before included."""
        return [line for process in self.fleet.processes for line in process.lines(containing)]

    # afterwards

    def check(self) -> Report:
        """Hold what handlers noted against what was recorded. Everything must be right; returns the figures."""
        jobs, ids = self.jobs, self.ids
        bad = rows(jobs, "SELECT id, state, error FROM schedd_tasks WHERE state <> 6")
        succeeded = rows(
            jobs, "SELECT task_id, claim FROM schedd_attempts WHERE outcome = :end", end=AttemptEnd.SUCCEEDED.code
        )
        number = Counter(row.task_id for row in succeeded)
        claim = {row.task_id: row.claim for row in succeeded}
        runs = {i: sorted(self.fleet.runs(i), key=lambda run: run.start) for i in ids}
        report = Report(
            self.faults,
            len(ids),
            rows(jobs, "SELECT count(*) AS n FROM schedd_attempts WHERE outcome = :end", end=AttemptEnd.LOST.code)[0].n,
            sum(run.end is None for r in runs.values() for run in r),
            sum(len(r) > 1 for r in runs.values()),
            sum(not number[i] for i in ids),
            sum(number[i] > 1 for i in ids),
            sum(self._beside(i, r, claim.get(i, -1)) for i, r in runs.items()),
            self._stall(runs),
            time.monotonic() - self._begun,
        )
        assert not bad, f"did not succeed: {bad[:10]}"
        assert report.lost == report.doubled == 0, report
        ends = {}
        for task_id, its in runs.items():
            (winner,) = (run for run in its if run.claim == claim[task_id])
            assert winner.end is not None, f"task {task_id} is recorded as done by a handler that never ended"
            ends[task_id] = winner.end
        for parent, child in rows(jobs, "SELECT parent, child FROM schedd_edges"):
            assert runs[child][0].start >= ends[parent], f"task {child} began before task {parent} had ended"
        for process in self.fleet.processes:
            assert "Traceback" not in process.text(), process.tail()
        self._doctor()
        return report

    def _beside(self, task_id: int, its: list[Run], winner: int) -> int:
        """How often a handler began while another of its task went on: only one that was stopped may go on so, and it
        must not have been recorded."""
        found = 0
        for index, first in enumerate(its):
            end = first.end if first.end is not None else self._killed(first)
            for second in its[index + 1 :]:
                if second.start < end:
                    stopped = any(s.pid == first.pid and first.start <= s.upto and s.since < end for s in self.stops)
                    assert stopped, f"task {task_id} ran beside itself: {its}"
                    assert first.claim != winner, f"task {task_id}: the loser of {its} was recorded"
                    found += 1
        return found

    def _killed(self, run: Run) -> float:
        at = [s.since for s in self.stops if s.killed and s.pid == run.pid]
        assert at, f"a handler never ended, and its process was not killed: {run}"
        return at[0]

    @staticmethod
    def _stall(runs: dict[int, list[Run]]) -> float:
        moments = sorted(at for r in runs.values() for run in r for at in (run.start, run.end) if at is not None)
        return max(b - a for a, b in itertools.pairwise(moments)) / 1e9

    def _doctor(self) -> None:
        with self.jobs.database.read() as tx:
            found = check_surroundings(self.jobs.database, tx, running())
            found += checks.check(tx)
        assert not [f for f in found if f.level == checks.PROBLEM and f.check != "disk"], found

    def no_slot_is_leaked(self, slots: dict[str, int]) -> None:
        """As many handlers as the workers have slots (by level, of one worker) are under way at once."""
        with self.jobs.batch() as batch:
            for level, size in slots.items():
                for _ in range(size * len(self.seats)):
                    batch.task(Hold()).priority(level)
        ids = [int(i) for i in batch.ids]
        until(lambda: all(self.fleet.runs(i) for i in ids), f"{len(ids)} handlers are under way at once")
        for seat in self.seats:
            seat.process.open()
        all_ended(self.jobs)
