"""Firing a schedule, and a look at its runs, beside all the runs of it that are kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler import Context, Scheduler, task
from scheduler.model import state as st
from scheduler.model.recurrence import Mode, every
from scheduler.model.spec import TaskSpec
from scheduler.store import schedules
from scheduler.store.read import schedules as read_schedules
from scheduler.store.schedule_runs import have_run
from scheduler.store.schedules import ScheduleSpec
from scheduler.testing import drain
from support.fleet import Fleet, write
from support.plans import work_of

DAY = 86_400
SECOND = 1_000_000


@task
def tick(ctx: Context) -> None: ...


def keep_a_day_of_runs(jobs: Scheduler, name: str, *, runs: int = DAY) -> None:
    """As if the schedule had fired each second of the day before: its tasks, and what is remembered of older ones."""
    sqlite = jobs.database.dialect.name == "sqlite"
    numbers = (
        "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :runs)"
        if sqlite
        else "WITH g AS (SELECT generate_series(1, CAST(:runs AS bigint)) AS i)"
    )
    start = jobs.database.now() - (runs + 5) * SECOND
    write(
        jobs,
        f"{numbers} INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, payload, claim, "
        "finished_at, kept_until, schedule, slot, key) "
        f"SELECT {st.SUCCESS}, 'default', 'tick', 1, :start + i * 1000000, 'tick', :start + i * 1000000, '{{}}', 1, "
        ":start + i * 1000000, :start * 2, :name, :start + i * 1000000, :name || '@' || i FROM g",
        runs=runs, start=start, name=name,
    )  # fmt: skip
    write(
        jobs,
        f"{numbers} INSERT INTO schedd_outcomes (task_id, state, removed_at, schedule, slot) "
        "SELECT 1000000000 + i, 6, :start, :name, :start - i * 1000000 FROM g",
        runs=runs, start=start, name=name,
    )  # fmt: skip
    write(jobs, "ANALYZE schedd_tasks")
    write(jobs, "ANALYZE schedd_outcomes")


@pytest.mark.parametrize(("overlap", "mode"), [("skip", "fixed_rate"), ("allow", "fixed_delay")])
def test_to_fire_reads_no_run_that_is_kept(fleet: Fleet, overlap: str, mode: Mode, tell: Callable[[str], None]) -> None:
    jobs = fleet.worker(tick)
    with jobs.database.write() as tx:
        spec = ScheduleSpec("s", every(1, mode), TaskSpec("tick", "{}", "tick"), "all", overlap)
        schedules.register(tx, spec)
    for _ in range(3):
        fleet.clock.advance(1)
        drain(jobs)

    def fire() -> int:
        fleet.clock.advance(1)
        with work_of(jobs) as work, jobs.database.write() as tx:
            made = [i for fired in schedules.tick(tx, 60 * SECOND) for i in fired.ids]
        assert len(made) == 1
        drain(jobs)
        return work.done

    few = max(fire() for _ in range(3))
    keep_a_day_of_runs(jobs, "s")
    many = max(fire() for _ in range(3))
    tell(f"{few} beside a few runs, {many} beside a day of them")
    assert many <= 2 * few + 10


def test_runs_are_found_without_the_others(fleet: Fleet, tell: Callable[[str], None]) -> None:
    jobs = fleet.worker(tick)
    keep_a_day_of_runs(jobs, "s")
    start = jobs.database.now() - (DAY + 5) * SECOND
    asked = [("s", start + i * SECOND) for i in (1, 40_000, DAY, DAY + 1)]
    older = [("s", start - i * SECOND) for i in (-1, 1, 40_000, DAY)]
    with work_of(jobs) as work, jobs.database.read() as tx:
        assert have_run(tx, asked) == set(asked[:3])
        assert have_run(tx, older) == set(older)
    assert work.done <= 100
    with work_of(jobs) as work, jobs.database.read() as tx:
        found = read_schedules.runs(tx, "s", 20)
        assert [run.first for run in found] == sorted((run.first for run in found), reverse=True)
        more = read_schedules.runs(tx, "s", 20, found[-1].first)
        assert more[0].first == found[-1].first - 1
    tell(f"{work.done}")
    assert work.done <= 3_000  # of the newest tasks; all runs are some 50,000
    assert {run.state.value for run in found} == {"success"}


def test_old_runs_are_found_below_newer_tasks(fleet: Fleet) -> None:
    """Runs by hand and by slot of a schedule that has not fired for long."""
    jobs = fleet.worker(tick)
    jobs.task(tick).key("old").every(3600).schedule()
    by_hand = [int(jobs.schedules.trigger("old")) for _ in range(3)]
    fleet.clock.advance(3600)
    drain(jobs)
    keep_a_day_of_runs(jobs, "other", runs=3_000)
    found = jobs.schedules.runs("old", limit=10)
    assert [run.first for run in found][1:] == by_hand[::-1]
    assert [run.slot is None for run in found] == [False, True, True, True]
    assert [r.first for r in jobs.schedules.runs("old", limit=2, cursor=found[1].first)] == by_hand[1::-1]
    assert jobs.schedules.runs("old", limit=2, cursor=by_hand[0]) == []
