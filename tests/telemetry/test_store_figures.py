"""Figures of the store as metrics."""

from __future__ import annotations

from datetime import timedelta

import pytest

from scheduler import Context, PermanentError, Scheduler, task
from scheduler.model.capacity import Scale
from scheduler.ports import SECOND
from scheduler.store import placements, worker_jobs
from scheduler.store.read import figures
from scheduler.telemetry.metrics import Metric
from scheduler.telemetry.store_figures import (
    DATABASE_BYTES,
    DEAD_LETTERS,
    DEAD_LETTERS_EXPIRING,
    EXECUTOR_WORKERS,
    EXECUTOR_WORKERS_WANTED,
    OLDEST_DEAD_LETTER_AGE,
    OLDEST_READY_AGE,
    PAUSES,
    PROBLEMS,
    READY_TASKS,
    SCHEDULE_LATENESS,
    SCHEDULES,
    STORE_METRICS,
    STUCK,
    SUSPENDED_TASKS,
    TASKS,
    UNDECIDED_EDGES,
    WORKERS,
    read_figures,
)
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import Bench
from support.fleet import Fleet, step

pytestmark = pytest.mark.both_databases

DAY = 86_400


@task(kind="works")
def works(ctx: Context, bad: bool = False) -> None:
    if bad:
        raise PermanentError("no")


@task(kind="sleeps")
def sleeps(ctx: Context) -> None:
    ctx.sleep_for(3600)


def read(jobs: Scheduler, **given: float) -> dict[str, dict[tuple[str, ...], float]]:
    """The figures by name and labels, without those that are 0."""
    with jobs.database.read() as tx:
        found = read_figures(tx, **given)
    assert [family.metric for family in found] == list(STORE_METRICS)
    return {f.metric.name: {s.labels: s.value for s in f.samples if s.value} for f in found}


def value(found: dict[str, dict[tuple[str, ...], float]], metric: Metric) -> dict[tuple[str, ...], float]:
    return found[metric.name]


def test_an_empty_store(fleet: Fleet) -> None:
    jobs = fleet.worker(works)
    with jobs.database.read() as tx:
        found = {family.metric: family for family in read_figures(tx)}
    assert {s.labels[0] for s in found[STUCK].samples} == set(PROBLEMS)
    assert all(s.value == 0 for s in found[STUCK].samples)
    assert {s.labels[0]: s.value for s in found[WORKERS].samples} == {"live": 0, "draining": 0, "lost": 0, "gone": 0}
    (size,) = found[DATABASE_BYTES].samples
    assert size.value > 10_000
    has_wal = {metric.name for metric in STORE_METRICS if not found[metric].samples} & {"schedd_wal_bytes"}
    assert bool(has_wal) is not fleet.database.is_sqlite


def test_tasks_queues_and_what_is_dead(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(works, sleeps)
    jobs.task(works, bad=True).schedule()
    jobs.task(sleeps).schedule()
    drain(jobs)
    clock.advance(100)
    parent = jobs.task(works).queue("mail").schedule()
    jobs.task(works).queue("mail").schedule()
    jobs.task(works).depend_on(parent).schedule()
    jobs.task(works).queue("later").after(timedelta(hours=1)).schedule()
    clock.advance(20)
    found = read(jobs)
    assert value(found, TASKS) == {("scheduled",): 3, ("waiting",): 1, ("suspended",): 1, ("dead",): 1}
    assert value(found, READY_TASKS) == {("mail", "medium"): 2}
    assert value(found, OLDEST_READY_AGE) == {("mail", "medium"): 20}
    assert value(found, DEAD_LETTERS) == {("works",): 1}
    assert value(found, OLDEST_DEAD_LETTER_AGE) == {("works",): 120}
    assert value(found, DEAD_LETTERS_EXPIRING) == {}
    assert value(found, SUSPENDED_TASKS) == {(): 1}
    assert value(found, UNDECIDED_EDGES) == {(): 1}
    assert value(read(jobs, dead_retention=200, expiry=DAY), DEAD_LETTERS_EXPIRING) == {("works",): 1}
    assert value(read(jobs, dead_retention=300, expiry=DAY), DEAD_LETTERS_EXPIRING) == {}


def test_what_is_gone_has_no_series(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(works)
    (dead,) = [jobs.task(works, bad=True).schedule()]
    drain(jobs)
    jobs.task(works).queue("mail").schedule()
    jobs.task(works).daily_at(3, 0).key("nightly").schedule()
    found = read(jobs)
    assert value(found, DEAD_LETTERS).keys() == {("works",)}
    assert value(found, SCHEDULES) == {("active",): 1}
    clock.advance(2 * DAY)
    assert value(read(jobs), SCHEDULE_LATENESS).keys() == {("nightly",)}
    assert value(read(jobs), STUCK)["schedule",] == 1
    fleet.kill(jobs)
    other = fleet.worker(works)
    assert value(read(other), WORKERS) == {("lost",): 1}
    other.schedules.delete("nightly")
    other.dead_letters.purge(int(dead))
    for _ in range(8):
        drain(other)
        clock.advance(9)
    found = read(other)
    assert value(found, WORKERS) == {("live",): 1}
    for metric in (DEAD_LETTERS, READY_TASKS, SCHEDULE_LATENESS, SCHEDULES):
        assert value(found, metric) == {}, metric


def test_workers_that_executors_start(fleet: Fleet) -> None:
    jobs = fleet.worker(works)
    assert value(read(jobs), EXECUTOR_WORKERS) == {}
    with jobs.database.write() as tx:
        placements.take_lease(tx, "slurm", "a daemon", DAY * SECOND)
        gpu = placements.take_lease(tx, "gpu", "a daemon", DAY * SECOND, ["big"], Scale(wanted=3, most=4))
        assert gpu is not None
        assert worker_jobs.reserve(tx, "gpu", "a daemon", 3, 4, "5005a013") == 3
        for job in [one.name for one in worker_jobs.open_workers(tx, "gpu")][:2]:
            assert worker_jobs.attach(tx, job, "", again=False)
    found = read(jobs)
    assert value(found, EXECUTOR_WORKERS) == {("gpu", "pending"): 1, ("gpu", "running"): 2}
    assert value(found, EXECUTOR_WORKERS_WANTED) == {("gpu",): 3}


def test_problems_are_named_as_status_names_them(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(works)
    jobs.task(works).schedule()
    jobs.pause(kind="other")
    clock.advance(5)
    assert value(read(jobs), STUCK) == {("unserved",): 1}
    assert value(read(jobs), PAUSES) == {(): 1}
    step(jobs)
    fleet.kill(jobs)
    clock.advance(60)
    other = fleet.worker(works)
    assert value(read(other), STUCK)["lease",] == 1


def test_many_queues_and_schedules_are_bounded(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MAX_QUEUES", 3)
    jobs = fleet.worker(works)
    for number in range(5):
        jobs.task(works).queue(f"q{number}").schedule()
        clock.advance(1)
    assert value(read(jobs), OLDEST_READY_AGE) == {("q0", "medium"): 5, ("q1", "medium"): 4, ("q2", "medium"): 3}


@pytest.mark.case(102)
def test_a_queue_that_is_empty_is_at_zero_not_gone(bench: Bench) -> None:
    """A panel would say "no data", and an alert would never hear of its end."""
    bench.step("x").queue("mail").schedule()
    bench.drain()
    engine_of(bench.jobs).write_rollups()
    for seconds in (0, 5 * 3600):
        bench.clock.advance(seconds)
        with bench.jobs.database.read() as tx:
            samples = {f.metric: {s.labels: s.value for s in f.samples} for f in read_figures(tx)}
        assert samples[READY_TASKS]["mail", "medium"] == 0
        assert samples[OLDEST_READY_AGE]["mail", "medium"] == 0
