"""Schedules that run at the fleet's start, with real daemons: two at once, one after the other, restarted, killed."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from faults.harness import Fleet, Process, rows, until
from faults.kinds import Work
from scheduler import Scheduler

pytestmark = pytest.mark.faults
LONG = 60.0
LIVE = "SELECT count(*) AS n FROM schedd_workers WHERE state < 2"


def started(fleet: Fleet, many: int = 1) -> list[Process]:
    made = [fleet.daemon(ready=False, worker__lease="2") for _ in range(many)]
    for one in made:
        until(partial(one.lines, "ready"), "schedd is ready", LONG)
    return made


def stop(process: Process) -> None:
    process.kill(signal.SIGTERM)
    process.wait()


def runs(jobs: Scheduler, live: int) -> int:
    """How many runs there are once so many workers are known to be live."""
    until(lambda: rows(jobs, LIVE)[0].n == live, f"{live} are live", LONG)
    return len(jobs.schedules.runs("boot"))


def test_once_for_all_at_the_start_of_the_first(fleet: Fleet, jobs: Scheduler) -> None:
    jobs.task(Work(0.01)).key("boot").at_start().schedule()
    first, second = started(fleet, 2)
    until(lambda: runs(jobs, 2), "it runs", LONG)
    stop(first)
    (third,) = started(fleet)
    second.kill()
    assert runs(jobs, 1) == 1, "one was live at each start and each end"
    stop(third)
    (fourth,) = started(fleet)
    until(lambda: runs(jobs, 1) == 2, "the only daemon has been restarted", LONG)
    fourth.kill()
    started(fleet, 2)
    until(lambda: runs(jobs, 2) == 3, "all had been killed", LONG)
