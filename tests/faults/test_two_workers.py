"""Two processes on one database: each task runs once, and both take part."""

from __future__ import annotations

import pytest

from faults.harness import Fleet, all_ended, all_take_part, rows
from faults.kinds import Work
from scheduler import Scheduler

pytestmark = [pytest.mark.faults, pytest.mark.case(5)]
TASKS = 1000


@pytest.mark.parametrize("sort", ["workers", "daemons"])
def test_each_task_runs_once_and_both_take_part(fleet: Fleet, jobs: Scheduler, sort: str) -> None:
    processes = [fleet.worker() if sort == "workers" else fleet.daemon() for _ in range(2)]
    for _ in range(TASKS // 100):
        with jobs.batch() as batch:
            for index in range(100):
                batch.task(Work(3.0)).priority(("high", "medium", "low")[index % 3])
    all_ended(jobs)
    runs = fleet.started()
    assert len(runs) == TASKS
    assert {len(r) for r in runs.values()} == {1}, "a task ran twice"
    (attempts,) = rows(jobs, "SELECT count(*) AS n, count(DISTINCT task_id) AS ids FROM schedd_attempts")
    assert (attempts.n, attempts.ids) == (TASKS, TASKS)
    all_take_part(fleet, jobs, processes)
    for process in processes:
        assert "Traceback" not in process.text()
        assert not process.lines("dropped")
