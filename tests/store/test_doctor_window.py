"""What ``doctor`` costs beside tasks that are kept, and that it says what it has not looked at."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler import Context, Scheduler, task
from scheduler.model.state import SCHEDULED, SUCCESS
from scheduler.store.admin import doctor
from scheduler.store.admin.doctor import DoctorFinding
from support.databases import Database
from support.plans import work_of

WINDOW = 200


@task
def ping(ctx: Context) -> None: ...


@pytest.fixture
def jobs(database: Database, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.setattr(doctor, "NEWEST", WINDOW)
    made = Scheduler.for_testing(url=database.url)
    made.register(ping)
    return made


def keep(jobs: Scheduler, number: int, state: int = SUCCESS) -> None:
    """So many more tasks that have ended, or are in another state, and an attempt of each."""
    numbers = "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < :number) "
    with jobs.database.write() as tx:
        last = tx.run("SELECT coalesce(max(id), 0) FROM schedd_tasks").scalar_one()
        bound = {"number": number, "last": last, "now": tx.now}
        tx.run(
            "INSERT INTO schedd_tasks (id, kind, state, queue, lane, priority, run_at, unmet, created_at, finished_at, "
            f"payload, attempt, claim) {numbers}SELECT :last + i, 'ping', :state, 'default', 'ping', 1, :now, 0, :now, "
            ":now, '{}', 1, 1 FROM s",
            **bound,
            state=state,
        )
        tx.run(
            "INSERT INTO schedd_attempts "
            "(task_id, claim, number, worker, claimed_at, started_at, finished_at, outcome) "
            f"{numbers}SELECT :last + i, 1, 1, 1, :now, :now, :now, 0 FROM s",
            **bound,
        )


def execute(jobs: Scheduler, sql: str) -> None:
    with jobs.database.write() as tx:
        tx.run(sql)


def of(found: Sequence[DoctorFinding], check: str) -> list[DoctorFinding]:
    return [one for one in found if one.check == check]


@pytest.mark.parametrize("state", [SUCCESS, SCHEDULED], ids=["ended", "scheduled"])
def test_the_cost_does_not_grow_with_what_is_kept(jobs: Scheduler, state: int) -> None:
    work = []
    for more in (12_000, 36_000):  # a finder looks at the newest 10,000
        keep(jobs, more, state)
        if jobs.database.dialect.name == "postgresql":
            execute(jobs, "ANALYZE")
        with work_of(jobs) as counted:
            jobs.doctor()
        work.append(counted.done)
    assert work[1] < 1.5 * work[0] + 50, work
    with work_of(jobs) as counted:
        jobs.doctor(full=True)
    assert counted.done > 2 * work[1]  # so the measure sees rows that are read


def test_rows_that_were_not_looked_at_are_said_and_found_in_full(jobs: Scheduler) -> None:
    keep(jobs, WINDOW)
    assert of(jobs.doctor(), "extent") == []  # everything was looked at
    keep(jobs, 1)
    execute(jobs, "UPDATE schedd_attempts SET outcome = 99 WHERE task_id = (SELECT min(id) FROM schedd_tasks)")
    (extent,) = of(jobs.doctor(), "extent")
    assert extent.level == "note"
    assert "the newest 200 tasks: `schedctl doctor --full` looks at all" in extent.text
    assert [one.level for one in of(jobs.doctor(), "rows")] == ["ok"]
    full = jobs.doctor(full=True)
    assert of(full, "extent") == []
    assert "the outcome 99 of an attempt is unknown" in of(full, "rows")[0].text
    execute(jobs, "UPDATE schedd_attempts SET outcome = 99 WHERE task_id = (SELECT max(id) FROM schedd_tasks)")
    assert "the outcome 99 of an attempt is unknown" in of(jobs.doctor(), "rows")[0].text
