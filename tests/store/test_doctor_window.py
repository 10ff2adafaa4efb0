"""What ``doctor`` costs beside tasks that are kept, and that it says what it has not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from scheduler import Context, Scheduler, task
from scheduler.model.state import RUNNING, SCHEDULED, SUCCESS, SUSPENDED, WAITING
from scheduler.ports import FOREVER
from scheduler.store.admin import doctor
from scheduler.store.admin.doctor import DoctorFinding
from support.databases import Database
from support.plans import work_of

WINDOW = 200


@task
def ping(ctx: Context) -> None: ...


@pytest.fixture
def jobs(database: Database, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    for name in ("NEWEST", "LOOKED", "ENDS"):
        monkeypatch.setattr(doctor, name, WINDOW)
    made = Scheduler.for_testing(url=database.url)
    made.register(ping)
    return made


def keep(jobs: Scheduler, number: int, state: int = SUCCESS) -> None:
    """So many more tasks that have ended, or are in another state, each with a key, an attempt and an open message.

    A waiting one waits for the one before it, a suspended one awaits the one before it and an event."""
    numbers = "WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < :number) "
    with jobs.database.write() as tx:
        last = tx.run("SELECT coalesce(max(id), 0) FROM schedd_tasks").scalar_one()
        bound = {"number": number, "last": last, "now": tx.now}
        tx.run(
            "INSERT INTO schedd_tasks (id, kind, state, queue, lane, priority, run_at, unmet, created_at, claimed_at, "
            f"started_at, finished_at, payload, attempt, claim, worker, held_key) {numbers}SELECT :last + i, 'ping', "
            f"CASE WHEN i = 1 AND :state = {WAITING} THEN {SCHEDULED} ELSE :state END, 'default', 'ping', 1, "
            f"CASE WHEN :state = {SUSPENDED} THEN {FOREVER} ELSE :now END, "
            f"CASE WHEN i > 1 AND :state = {WAITING} THEN 1 ELSE 0 END, :now, {{at}}, {{at}}, "
            f"CASE WHEN :state = {SUCCESS} THEN :now END, '{{{{}}}}', 1, 1, 1, 'k' || (:last + i) FROM s".format(
                at=f"CASE WHEN :state = {RUNNING} THEN :now END"
            ),
            **bound,
            state=state,
        )
        tx.run(
            "INSERT INTO schedd_attempts "
            "(task_id, claim, number, worker, claimed_at, started_at, finished_at, outcome) "
            f"{numbers}SELECT :last + i, 1, 1, 1, :now, :now, :now, 0 FROM s",
            **bound,
        )
        tx.run(
            "INSERT INTO schedd_inbox (source, message_key, message_id, task_id, first_at, last_at, verdict, "
            f"expires_at, receipt) {numbers}SELECT 'orders', 'm' || (:last + i), 'm', :last + i, 0, 0, 0, :now, 'r' "
            "FROM s",
            **bound,
        )
        if state == WAITING:
            tx.run(
                f"INSERT INTO schedd_edges (parent, child, on_end, otherwise, ok) {numbers}"
                "SELECT :last + i - 1, :last + i, 0, 0, 1 FROM s WHERE i > 1",
                **bound,
            )
        if state == SUSPENDED:
            for item, event in (("0", "'never'"), (":last + i - 1", "NULL")):
                tx.run(
                    f"INSERT INTO schedd_waits (task_id, name, item, event, until, claim, at, met) {numbers}"
                    f"SELECT :last + i, 'w' || {item}, {item}, {event}, {FOREVER}, 1, :now, 0 FROM s WHERE i > 1",
                    **bound,
                )


def execute(jobs: Scheduler, sql: str) -> None:
    with jobs.database.write() as tx:
        tx.run(sql)


def of(found: Sequence[DoctorFinding], check: str) -> list[DoctorFinding]:
    return [one for one in found if one.check == check]


STATES = {"ended": SUCCESS, "scheduled": SCHEDULED, "waiting": WAITING, "suspended": SUSPENDED}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_the_cost_does_not_grow_with_what_is_kept(jobs: Scheduler, state: int) -> None:
    work = []
    for more in (12_000, 36_000):  # a finder looks at the newest 10,000
        keep(jobs, more, state)
        if jobs.database.dialect.name == "postgresql":
            execute(jobs, "ANALYZE")
        with work_of(jobs) as counted:
            jobs.doctor()
        work.append(counted.done)
        dearest = [f"{pages} {' '.join(text.split())[:90]}" for text, pages in counted.by.most_common(4)]
    assert work[1] < 1.5 * work[0] + 50, (work, dearest)
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
    assert "the 200 oldest and the 200 newest waiting tasks; up to 200 held, suspended and awaited" in extent.text
    assert [one.level for one in of(jobs.doctor(), "rows")] == ["ok"]
    full = jobs.doctor(full=True)
    assert of(full, "extent") == []
    assert "the outcome 99 of an attempt is unknown" in of(full, "rows")[0].text
    execute(jobs, "UPDATE schedd_attempts SET outcome = 99 WHERE task_id = (SELECT max(id) FROM schedd_tasks)")
    assert "the outcome 99 of an attempt is unknown" in of(jobs.doctor(), "rows")[0].text


def test_waiting_tasks_at_both_ends_are_looked_at_and_all_in_full(jobs: Scheduler) -> None:
    keep(jobs, 3 * WINDOW, WAITING)
    oldest, newest = 2, 3 * WINDOW
    for wrong in (oldest, newest, newest // 2):
        execute(jobs, f"UPDATE schedd_tasks SET unmet = 7 WHERE id = {wrong}")
    assert [one.tasks for one in of(jobs.doctor(), "unmet counts")] == [(oldest, newest)]
    assert [one.tasks for one in of(jobs.doctor(full=True), "unmet counts")] == [(oldest, newest // 2, newest)]


def test_a_waiting_task_without_an_edge_has_a_wrong_count(jobs: Scheduler) -> None:
    keep(jobs, 3 * WINDOW, WAITING)
    execute(jobs, "DELETE FROM schedd_edges WHERE child = 2")
    execute(jobs, "UPDATE schedd_tasks SET unmet = 0 WHERE id = 2")
    for full in (False, True):
        assert [one.tasks for one in of(jobs.doctor(full=full), "unmet counts")] == [(2,)]


class _RolledBackError(Exception):
    pass


def test_a_key_that_is_held_twice_is_found(jobs: Scheduler) -> None:
    keep(jobs, 3 * WINDOW)
    with suppress(_RolledBackError), jobs.database.write() as tx:  # the next test has the index
        tx.run("DROP INDEX ux_schedd_tasks_held_key")
        tx.run(f"UPDATE schedd_tasks SET held_key = 'k1' WHERE id = {3 * WINDOW}")
        for full in (False, True):
            assert [one.tasks for one in of(doctor.check(tx, full=full), "keys")] == [(1,)]
        raise _RolledBackError


def test_more_held_tasks_than_are_looked_at_are_said(jobs: Scheduler) -> None:
    keep(jobs, WINDOW, RUNNING)
    (claims,) = of(jobs.doctor(), "claims")
    assert len(claims.tasks) == WINDOW  # each has worker 1, which has no row
    keep(jobs, 1, RUNNING)
    (claims,) = of(jobs.doctor(), "claims")
    assert len(claims.tasks) == WINDOW
    (claims,) = of(jobs.doctor(full=True), "claims")
    assert len(claims.tasks) == WINDOW + 1
