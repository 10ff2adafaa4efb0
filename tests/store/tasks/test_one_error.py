"""What a task keeps of its last error: text, class, fingerprint and status are all of the same one."""

from __future__ import annotations

import pytest

from scheduler import Context, Retry, RetryPolicy, Scheduler, TaskState, task
from scheduler.client.info import TaskInfo
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.state import DEAD
from scheduler.store import reaper
from scheduler.store.tasks import deadlines, stalls
from scheduler.store.tasks.complete import finish
from scheduler.testing import FakeClock
from support.fleet import Fleet, rows, run_claimed, step

AGAIN = RetryPolicy(min_wait=0, max_wait=0, max_attempts=3, jitter=0, strategy="fixed")


@task(retry=AGAIN)
def asks(ctx: Context) -> None:
    raise Retry(reason="away", status=503)


@pytest.fixture
def jobs(fleet: Fleet) -> Scheduler:
    return fleet.worker(asks)


def failed_once(jobs: Scheduler, **options: float) -> int:
    """A task whose first attempt has failed, and which is claimed again."""
    builder = jobs.task(asks)
    for name, value in options.items():
        getattr(builder, name)(value)
    task_id = builder.schedule()
    step(jobs)
    run_claimed(jobs)
    step(jobs)
    known = jobs.get_task(task_id)
    assert known.state is TaskState.CLAIMED
    assert (known.error_class, known.status_code) == ("Retry", 503)
    assert known.fingerprint is not None
    return task_id


def held(jobs: Scheduler, task_id: int) -> tuple[int, int, int]:
    """Its worker, its claim, and the number of its attempt."""
    (row,) = rows(jobs, "SELECT worker, claim, attempt FROM schedd_tasks WHERE id = :id", id=task_id)
    return row[0], row[1], row[2]


def of_error(task: TaskInfo) -> tuple[str | None, str | None, int | None]:
    return task.error_class, task.fingerprint, task.status_code


def test_of_a_stall_in_the_last_attempt(jobs: Scheduler, clock: FakeClock) -> None:
    task_id = failed_once(jobs)
    for _ in range(2):
        step(jobs)
        worker, claim, _ = held(jobs, task_id)
        with jobs.database.write() as tx:
            stalls.reclaim(tx, worker, [(task_id, claim, clock.now(), "stalled")])
    found = jobs.get_task(task_id)
    assert (found.state, *of_error(found)) == (TaskState.DEAD, "Stalled", None, None)


def test_of_a_worker_that_died_in_the_last_attempt(fleet: Fleet, jobs: Scheduler, clock: FakeClock) -> None:
    task_id = failed_once(jobs)
    with jobs.database.write() as tx:
        tx.run("UPDATE schedd_tasks SET attempt = 3, state = 5 WHERE id = :id", id=task_id)
    clock.advance(3600)
    with jobs.database.write() as tx:
        (one,) = reaper.reap(tx)
    assert one.spent == (task_id,)
    found = jobs.get_task(task_id)
    assert (found.state, *of_error(found)) == (TaskState.DEAD, "WorkerDied", None, None)


def dies(jobs: Scheduler, task_id: int, failure: Failure, now: int) -> None:
    """Record that its attempt has ended so, for good."""
    worker, claim, number = held(jobs, task_id)
    end = Outcome(task_id, claim, number, AttemptEnd.DEAD, DEAD, now, now, now, failure=failure)
    with jobs.database.write() as tx:
        finish(tx, worker, [end])


def test_of_an_error_that_has_no_fingerprint(jobs: Scheduler, clock: FakeClock) -> None:
    task_id = failed_once(jobs)
    dies(jobs, task_id, Failure("its process died", "ProcessDied"), clock.now())
    found = jobs.get_task(task_id)
    assert (found.state, *of_error(found)) == (TaskState.DEAD, "ProcessDied", None, None)


def test_of_the_reason_of_a_cancel(jobs: Scheduler, clock: FakeClock) -> None:
    task_id = failed_once(jobs, max_duration=60)
    clock.advance(61)
    with jobs.database.write() as tx:
        assert list(deadlines.apply(tx).requested) == [task_id]
    dies(jobs, task_id, Failure("OSError: away", "OSError", "0123456789ab", 503), clock.now())
    found = jobs.get_task(task_id)
    assert (found.state, *of_error(found)) == (TaskState.CANCELLED, "MaxDurationExceeded", None, None)
