"""One task, one execution: from schedule() to its result, alone and among many workers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scheduler import Context, Scheduler, TaskState, task
from scheduler.ports import SystemClock
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, ends, run_claimed, step

pytestmark = pytest.mark.both_databases


@task
def add(ctx: Context, a: int, b: int) -> int:
    return a + b


@task
def name(ctx: Context) -> str:
    return str(ctx.state)


def named(fleet: Fleet, who: str) -> Scheduler:
    return fleet.worker(name, state=who)


@pytest.mark.case(1)
def test_schedule_claim_complete(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(add)
    task_id = jobs.task(add, 2, b=3).schedule()
    assert task_id.created
    assert jobs.get_task_status(task_id) is TaskState.SCHEDULED
    with pytest.raises(TimeoutError):
        jobs.result(task_id, timeout=0)
    step(jobs)
    claimed = jobs.get_task(task_id)
    assert (claimed.state, claimed.worker, claimed.attempt) == (TaskState.CLAIMED, engine_of(jobs).worker, 1)
    assert jobs.get_attempts(task_id) == []
    clock.advance(0.25)
    assert drain(jobs) == 1
    done = jobs.get_task(task_id)
    assert (done.state, done.worker, done.result, done.finished_at) == (
        TaskState.SUCCESS,
        None,
        5,
        clock.datetime,
    )
    assert jobs.result(task_id, timeout=0) == 5
    (attempt,) = jobs.get_attempts(task_id)
    assert (attempt.number, attempt.outcome.value, attempt.error) == (1, "succeeded", None)
    assert (attempt.started_at, attempt.finished_at) == (clock.datetime, clock.datetime)
    assert drain(jobs) == 0


@pytest.mark.case(1)
@pytest.mark.parametrize("value", [None, 0, "", [], {"ä": [1.5, None]}, "x" * 5000, "nul \x00 and ☃"])
def test_results_come_back_as_they_were(fleet: Fleet, value: Any) -> None:
    @task
    def give(ctx: Context) -> Any:
        return ctx.state

    jobs = fleet.worker(give, state=value)
    task_id = jobs.task(give).schedule()
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == value
    assert jobs.get_task(task_id).result == value


@pytest.mark.case(1)
def test_a_long_payload_reaches_the_handler_whole(fleet: Fleet) -> None:
    @task
    def measure(ctx: Context, text: str) -> int:
        return len(text)

    jobs = fleet.worker(measure)
    sizes = [1000, 1023, 1024, 1025, 50_000]
    ids = [jobs.task(measure, "é" * size).schedule() for size in sizes]
    drain(jobs)
    assert [jobs.result(i, timeout=0) for i in ids] == sizes


@pytest.mark.case(5)
def test_of_many_workers_one_runs_the_task(fleet: Fleet) -> None:
    workers = [named(fleet, str(n)) for n in range(5)]
    for jobs in workers:
        step(jobs)
    task_id = workers[0].task(name).schedule()
    for jobs in workers:
        step(jobs)
    assert [run_claimed(jobs) for jobs in workers] == [1, 0, 0, 0, 0]
    for jobs in workers:
        drain(jobs)
    assert ends(workers[0], task_id) == ["succeeded"]


@pytest.mark.case(5)
def test_workers_that_really_run_at_once_share_the_work(fleet: Fleet) -> None:
    ran: list[int] = []

    @task
    def count(ctx: Context) -> None:
        ran.append(ctx.id)

    workers = [fleet.worker(count) for _ in range(4)]
    for jobs in workers:
        jobs.clock = jobs.database.clock = SystemClock()
    ids = [workers[0].task(count).schedule() for _ in range(60)]
    for jobs in workers:
        jobs.start()
    workers[0].wait(ids, timeout=30)
    for jobs in workers:
        assert jobs.stop(drain=10) == []
    assert sorted(ran) == ids
    assert all(ends(workers[0], i) == ["succeeded"] for i in ids)


@pytest.mark.case(5)
def test_two_threads_with_stale_views_make_one_claim(fleet: Fleet) -> None:
    workers = [named(fleet, str(n)) for n in range(4)]
    for jobs in workers:
        step(jobs)
    task_id = workers[0].task(name).schedule()
    barrier = threading.Barrier(len(workers))

    def claim(jobs: Scheduler) -> None:
        barrier.wait()
        step(jobs)

    threads = [threading.Thread(target=claim, args=(jobs,)) for jobs in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(run_claimed(jobs) for jobs in workers) == 1
    for jobs in workers:
        step(jobs)
    assert ends(workers[0], task_id) == ["succeeded"]
