"""Claims behind an old snapshot that another session holds open on PostgreSQL: dead rows stay in the index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.engine.dispatch import lanes as prefix
from scheduler.model.state import TaskState
from scheduler.ports import FAILPOINTS
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import LaneHead, lane_heads
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, rows, run_claimed, step, write

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
READ = "SELECT idx_tup_read AS n FROM pg_stat_user_indexes WHERE indexrelname = 'ix_schedd_tasks_ready'"
WALK = 0.05  # seconds that a walk over all heads takes: slow


@task
def plain(ctx: Context, n: int = 0) -> None: ...


@task
def another(ctx: Context) -> None: ...


class Walks:
    """Each walk over all heads takes its time, by the tests' clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.seconds = WALK
        self.number = 0

    def __call__(self, tx: Tx, after: LaneHead | None = None, most: int = 10**9) -> list[LaneHead]:
        self.number += 1
        self.clock.advance(self.seconds)
        return lane_heads(tx, after, most)


@pytest.fixture
def walks(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Walks:
    made = Walks(clock)
    monkeypatch.setattr(prefix, "lane_heads", made)
    return made


@contextmanager
def old_snapshot(jobs: Scheduler) -> Iterator[None]:
    with jobs.database.open().connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(sa.text("SELECT count(*) FROM schedd_tasks"))
        yield


def entries_read(jobs: Scheduler) -> int:
    """Entries of the ready index that the engine's connection has read so far, dead ones too."""
    with jobs.database.write(engine_of(jobs)._conn()) as tx:
        tx.connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    return int(rows(jobs, READ)[0].n)


def schedule(jobs: Scheduler, count: int, clock: FakeClock, age: float = 1.0) -> None:
    with jobs.batch() as batch:
        for n in range(count):
            batch.task(plain, n)
    clock.advance(age)


def succeeded(jobs: Scheduler) -> int:
    return int(rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE state = 6")[0].n)


def slow(fleet: Fleet, clock: FakeClock, *types: Any) -> Scheduler:
    """A worker for whom walks have just turned out to be slow: the next one is not due."""
    jobs = fleet.worker(*types)
    schedule(jobs, 1, clock)
    step(jobs)
    assert run_claimed(jobs) == 1
    return jobs


def look(jobs: Scheduler) -> int:
    """Take one step without a notification; returns how many tasks run."""
    engine_of(jobs).step()
    return run_claimed(jobs)


def test_claims_do_not_walk_past_all_that_died(fleet: Fleet, clock: FakeClock, walks: Walks) -> None:
    jobs = fleet.worker(plain)
    with old_snapshot(jobs):
        schedule(jobs, 1_000, clock)
        drain(jobs)
        schedule(jobs, 1_000, clock)
        before, ran, walked = entries_read(jobs), 0, walks.number
        while ran < 1_000:
            step(jobs)
            ran += run_claimed(jobs)
        read = entries_read(jobs) - before
    assert walks.number - walked == 1
    assert read - 2_000 < 5 * 1_000, "but for the one walk"


def test_what_becomes_ready_in_front_is_found_without_a_notification(
    fleet: Fleet, clock: FakeClock, walks: Walks
) -> None:
    jobs = slow(fleet, clock, plain)
    schedule(jobs, 2, clock, 0.15)
    late = rows(jobs, "SELECT max(id) AS id FROM schedd_tasks")[0].id
    write(jobs, "UPDATE schedd_tasks SET run_at = run_at - 3600000000 WHERE id = :id", id=late)
    step(jobs)
    assert run_claimed(jobs) == 1, "only what is behind the place"
    for _ in range(100):
        clock.advance(0.02)
        if look(jobs):
            break
    assert walks.number == 2
    drain(jobs)
    assert succeeded(jobs) == 3


def test_it_is_found_within_about_a_second_however_long_walks_take(
    fleet: Fleet, clock: FakeClock, walks: Walks
) -> None:
    walks.seconds = 0.4
    jobs = slow(fleet, clock, plain)
    for _ in range(3):
        schedule(jobs, 1, clock)
        step(jobs)
        run_claimed(jobs)
    write(jobs, "UPDATE schedd_tasks SET state = 1, run_at = 1 WHERE id = (SELECT min(id) FROM schedd_tasks)")
    begun, number = clock.monotonic(), walks.number
    while not look(jobs):
        clock.advance(0.02)
    assert clock.monotonic() - begun - walks.seconds * (walks.number - number) < 1.1


def test_other_lanes_and_levels_are_found_at_once(fleet: Fleet, clock: FakeClock, walks: Walks) -> None:
    jobs = slow(fleet, clock, plain, another)
    number = walks.number
    jobs.task(another).schedule()
    jobs.task(plain).priority("high").schedule()
    jobs.task(plain).queue("side").schedule()
    step(jobs)
    assert run_claimed(jobs) == 3
    jobs.task(another).queue("a").schedule()
    clock.advance(0.2)
    step(jobs)
    assert run_claimed(jobs) == 1
    assert walks.number == number


def test_what_a_cycle_claimed_that_failed_is_claimed_again(
    fleet: Fleet, clock: FakeClock, walks: Walks, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = slow(fleet, clock, plain)
    schedule(jobs, 10, clock, 0.15)

    def fail(name: str) -> None:
        if name == "before finish commit":
            raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(FAILPOINTS, "hit", fail)
        with pytest.raises(RuntimeError):
            step(jobs)
    drain(jobs)
    assert succeeded(jobs) == 11


def test_nothing_is_passed_over_once_walks_are_quick_again(fleet: Fleet, clock: FakeClock, walks: Walks) -> None:
    jobs = slow(fleet, clock, plain)
    walks.seconds = 0.0
    clock.advance(1)
    step(jobs)
    number = walks.number
    for _ in range(3):
        step(jobs)
    assert walks.number == number + 3
    assert not engine_of(jobs).dispatch.lanes.offsets.start


def test_a_drain_runs_what_is_due_in_front_of_its_places(fleet: Fleet, clock: FakeClock) -> None:
    """Where looks are slow, be it for a busy machine, tests do not wait for the next one from the start."""
    jobs = fleet.worker(plain)
    drain(jobs)
    early = jobs.task(plain).schedule()
    clock.advance(0.5)
    known = engine_of(jobs).dispatch.lanes.offsets
    known.start = {("default", "plain", 1): (jobs.database.now(), 0)}
    known._walk.due = clock.monotonic() + 1.0
    assert drain(jobs) == 1
    assert jobs.get_task_status(early) is TaskState.SUCCESS
