"""A task that takes its worker process with it, again and again, beside tasks that do no harm."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from faults.harness import Fleet, Process, attempts, counts, history, rows, state, unfinished
from faults.kinds import Hold, Segfault, Work
from scheduler import Scheduler
from support.databases import one_database

pytestmark = [pytest.mark.faults, pytest.mark.case(66)]
OPTIONS: dict[str, Any] = {"lease": 0.5, "pools": {"high": (0, 0), "medium": (6, 0), "low": (2, 0)}}


class Supervisor:
    """Restarts a worker that died, as systemd would, and counts."""

    def __init__(self, fleet: Fleet, **options: Any) -> None:
        self.fleet = fleet
        self.options = OPTIONS | options
        self.deaths = 0
        self.process: Process | None = None

    def look(self) -> Process:
        if self.process is None or not self.process.alive():
            if self.process is not None:
                assert self.process.wait() == -signal.SIGSEGV
                self.deaths += 1
            self.process = self.fleet.worker(ready=False, options=self.options)
        return self.process


@pytest.mark.parametrize(
    ("after", "where"),
    [pytest.param(0.0, "apart", marks=pytest.mark.soak), (0.05, "apart"), (0.05, "in threads")],
    ids=["at once-apart", "while others run-apart", "while others run-in threads"],
)
def test_the_bystanders_succeed_and_the_culprit_ends_dead(
    fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None], after: float, where: str
) -> None:
    """``while others run``: bystanders that take about as long are interrupted with it, every time.

    ``in threads``: the program has a state that child processes cannot have, so suspects have to run alone in its own.
    """
    with jobs.batch() as batch:
        bystanders = [batch.task(Work(40.0)) for _ in range(8)]
        batch.task(Segfault(after))
        bystanders += [batch.task(Work(40.0)) for _ in range(8)]
        batch.task(Work()).depend_on(bystanders)
    culprit = batch.ids[8]
    good = [i for i in batch.ids if i != culprit]
    lease = OPTIONS["lease"] if after else 2.0  # on a busy machine a short one ends bystanders before they are done
    supervisor = Supervisor(fleet, lease=lease, state=None if where == "apart" else "of this process")
    deadline = time.monotonic() + 60
    while unfinished(jobs):
        supervisor.look()
        assert supervisor.deaths <= 8, f"the workers go on dying: {counts(jobs)}"
        assert time.monotonic() < deadline, counts(jobs)
        time.sleep(0.01)
    assert {state(jobs, i) for i in good} == {"success"}
    assert state(jobs, culprit) == "dead"
    (row,) = rows(jobs, "SELECT error FROM schedd_tasks WHERE id = :id", id=culprit)
    ends = [str(a.outcome) for a in attempts(jobs, culprit)]
    if where == "apart":
        assert "killed its process 3 times while running alone" in row.error
        assert ends[-3:] == ["lost", "lost", "dead"]
        assert set(ends[:-1]) == {"lost"}
        assert supervisor.deaths == 2
    else:
        assert "killed its worker" in row.error
        assert set(ends) == {"lost"}
        assert supervisor.deaths >= 3, "nothing was interrupted"
    rerun = sum(len(fleet.runs(i)) > 1 for i in good)
    lost = sum(("lost" in [end for _, end in history(jobs, i)]) for i in good)
    assert lost, "no bystander was held by a worker that died"
    if after:
        assert rerun, "no bystander was interrupted"
    for task_id in good:
        assert [end for _, end in history(jobs, task_id)].count("succeeded") == 1
    tell(f"{supervisor.deaths} workers died; {lost} bystanders reclaimed, {rerun} run again, none dead")


@one_database
def test_a_long_bystander_is_not_blamed_for_what_others_do(fleet: Fleet, jobs: Scheduler) -> None:
    """It is under way at every death of its worker, and still it neither dies nor keeps others from running.

    Being a suspect, too, it runs in a child process beside the culprit.
    """
    with jobs.batch() as batch:
        batch.task(Hold())
        batch.task(Segfault(0.1))
    held, culprit = batch.ids
    supervisor = Supervisor(fleet)
    deadline = time.monotonic() + 60
    opened = False
    while unfinished(jobs):
        process = supervisor.look()
        if not opened and state(jobs, culprit) == "dead":
            process.open()
            opened = True
        assert supervisor.deaths <= 2
        assert time.monotonic() < deadline, counts(jobs)
        time.sleep(0.01)
    assert state(jobs, held) == "success"
    assert state(jobs, culprit) == "dead"
