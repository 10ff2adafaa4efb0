"""What stands in front of a claim and may not be claimed costs it next to nothing, however much of it there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import Context, Scheduler, task
from scheduler.engine.dispatch.lanes import LANES_PER_SCAN
from scheduler.store.tasks.claim import lane_heads
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database
from support.fleet import Fleet, no_autovacuum, rows, run_claimed, step, write
from support.own_server import OwnServer

READ = "SELECT idx_tup_read AS n FROM pg_stat_user_indexes WHERE indexrelname = 'ix_schedd_tasks_ready'"


@task
def plain(ctx: Context, n: int = 0) -> None: ...


@task(max_concurrency=1)
def narrow(ctx: Context, n: int = 0) -> None: ...


@task(max_concurrency=1, concurrency_key="{customer}")
def each(ctx: Context, customer: str = "") -> None: ...


def heap(
    jobs: Scheduler, count: int, *, queue: str, kind: str, lane: str, state: int = 1, worker: int | None = None
) -> None:
    """``count`` rows, due; ``{i}`` in the lane becomes each one's number."""
    numbers = (
        "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :count)"
        if jobs.database.dialect.name == "sqlite"
        else "WITH g AS (SELECT generate_series(1, :count) AS i)"
    )
    write(
        jobs,
        f"{numbers} INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, payload, worker, "
        "claim) "
        "SELECT :state, :queue, replace(:lane, '{i}', CAST(i AS text)), 1, :now - 1000000, :kind, :now, '{}', "
        "CAST(:worker AS bigint), 1 FROM g",
        count=count, state=state, queue=queue, lane=lane, now=jobs.database.now(), kind=kind, worker=worker,
    )  # fmt: skip


def obstruct(jobs: Scheduler, ready: int, keys: int) -> None:
    """An unserved queue, an unknown kind, a kind at its cap, and many full keys, all of them before ``plain``."""
    worker = engine_of(jobs).worker
    heap(jobs, ready, queue="aside", kind="plain", lane="plain")
    heap(jobs, ready, queue="default", kind="mystery", lane="mystery")
    heap(jobs, ready, queue="default", kind="narrow", lane="narrow")
    heap(jobs, 1, queue="default", kind="narrow", lane="narrow", state=5, worker=worker)
    heap(jobs, keys, queue="default", kind="each", lane="each\x1f{i}")
    heap(jobs, keys, queue="default", kind="each", lane="each\x1f{i}", state=5, worker=worker)


class Meter:
    """Counts what the engine's connection reads of the ready index; on SQLite by the steps of its virtual machine."""

    def __init__(self, jobs: Scheduler) -> None:
        self.jobs = jobs
        self.steps = 0
        if jobs.database.dialect.name == "sqlite":
            self.driver.set_progress_handler(self._step, 10)

    @property
    def driver(self) -> Any:
        return engine_of(self.jobs)._conn().connection.dbapi_connection

    def _step(self) -> int:
        self.steps += 10
        return 0

    def read(self) -> float:
        """How many so far."""
        if self.jobs.database.dialect.name == "sqlite":
            return self.steps
        with self.jobs.database.write(engine_of(self.jobs)._conn()) as tx:
            tx.connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        return float(rows(self.jobs, READ)[0].n)


def schedule(jobs: Scheduler, count: int = 2_000) -> None:
    with jobs.batch() as batch:
        for n in range(count):
            batch.task(plain, n)


def cost(jobs: Scheduler) -> float:
    """What the engine reads per task while 2,000 are claimed and finished."""
    schedule(jobs)
    meter = Meter(jobs)
    before, ran = meter.read(), 0
    while ran < 2_000:
        step(jobs)
        ran += run_claimed(jobs)
    return (meter.read() - before) / 2_000


def one_row(jobs: Scheduler) -> float:
    """What finding one lane's first row costs, in what :class:`Meter` counts."""
    if jobs.database.dialect.name == "postgresql":
        return 1.0
    meter = Meter(jobs)
    with jobs.database.write(engine_of(jobs)._conn()) as tx:
        before = meter.read()
        found = lane_heads(tx, most=LANES_PER_SCAN)
    assert len(found) == LANES_PER_SCAN
    return (meter.read() - before) / LANES_PER_SCAN


@pytest.fixture
def undisturbed(dialect: str, clock: FakeClock, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """On PostgreSQL a server of the test's own. While any session there holds a transaction, in whatever database, the
    index's dead rows cannot be forgotten, and are counted each time."""
    if dialect == "sqlite":
        yield request.getfixturevalue("fleet")
        return
    with OwnServer() as server:
        made = Fleet(Database(server.migrated(), dialect), clock)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("ready", "keys"), [(2_000, 1_000), pytest.param(100_000, 10_000, marks=pytest.mark.soak)], ids=["small", "large"]
)
def test_what_may_not_be_claimed_costs_a_claim_nothing(
    undisturbed: Fleet, tell: Callable[[str], None], ready: int, keys: int
) -> None:
    jobs = undisturbed.worker(plain, narrow, each, queues=["default"])
    step(jobs)
    if jobs.database.dialect.name == "postgresql":
        no_autovacuum(jobs)
    schedule(jobs)
    drain(jobs)
    free = cost(jobs)
    obstruct(jobs, ready, keys)
    schedule(jobs, 1)
    while not run_claimed(jobs):  # it finds its way once
        step(jobs)
    obstructed = cost(jobs)
    extra = (obstructed - free) / one_row(jobs)
    tell(f"rows of the ready index read per task claimed: {extra:.2f} more than without it")
    assert extra <= (2 if jobs.database.dialect.name == "postgresql" else 9), "and the task's own"


def test_every_lane_is_found_though_a_cycle_looks_at_a_stretch(fleet: Fleet) -> None:
    jobs = fleet.worker(each)
    with jobs.batch() as batch:
        for n in range(3 * LANES_PER_SCAN):
            batch.task(each, f"c{n:05d}")
            batch.task(each, f"c{n:05d}")
    drain(jobs)
    assert rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE state = 6")[0].n == 6 * LANES_PER_SCAN


def test_a_task_behind_many_full_lanes_is_due_at_its_time(fleet: Fleet) -> None:
    jobs = fleet.worker(plain, each, queues=["default"])
    step(jobs)
    heap(jobs, 3 * LANES_PER_SCAN, queue="default", kind="each", lane="each\x1f{i}")
    heap(
        jobs,
        3 * LANES_PER_SCAN,
        queue="default",
        kind="each",
        lane="each\x1f{i}",
        state=5,
        worker=engine_of(jobs).worker,
    )
    task_id = jobs.task(plain).after(60).schedule()
    drain(jobs)
    assert engine_of(jobs)._next_due == jobs.database.now() + 60_000_000
    fleet.clock.advance(61)
    drain(jobs)
    assert jobs.get_task_status(task_id) == "success"
