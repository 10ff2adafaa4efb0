"""A worker is killed where it commits what a handler in a child process asked for: another one goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults import isolated as kinds
from faults.harness import Fleet, all_ended, attempts, rows, until
from scheduler import Scheduler

pytestmark = [pytest.mark.faults, pytest.mark.case(6, 52, 57)]


@pytest.mark.parametrize("point", ["before answer commit", "after answer commit"])
def test_killed_at_the_commit_of_an_answer(fleet: Fleet, jobs: Scheduler, tmp_path: Path, point: str) -> None:
    for kind in (kinds.Durable, kinds.Twice):
        jobs.register(kind)
    notes = tmp_path / "notes"
    task_id = jobs.task(kinds.Durable(str(notes))).schedule()
    options = {"lease": 1.0, "processes": 1}
    doomed = fleet.worker(arm=point, options=options)
    doomed.expect(point)
    kept = rows(jobs, "SELECT name FROM schedd_checkpoints WHERE task_id = :id", id=task_id)
    assert [row.name for row in kept] == (["one"] if point.startswith("after") else [])
    doomed.kill()
    fleet.worker(options=options)
    all_ended(jobs, timeout=40)
    assert jobs.result(task_id, timeout=5) == [1, 10, True, 1]
    effects = [line for line in kinds.lines(notes) if line[0] == "effect"]
    assert len(effects) == (1 if point.startswith("after") else 2)
    assert str(attempts(jobs, task_id)[0].outcome) == "lost"
    assert until(lambda: len(jobs.list_tasks(kind="Twice")) == 1, "one child", every=0.01)
    (event,) = rows(jobs, "SELECT count(*) AS n FROM schedd_events")
    assert event.n == 1
