"""What several coroutines of a handler raise together (an ExceptionGroup) means what its parts mean."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from scheduler import (
    AsyncContext,
    Context,
    PermanentError,
    Retry,
    RetryPolicy,
    Scheduler,
    Snooze,
    Task,
    TaskState,
    task,
)
from scheduler.errors import Cancelled, Collided
from scheduler.testing import FakeClock, drain
from support.fleet import Fleet, ends, rows

pytestmark = [pytest.mark.case(14), pytest.mark.one_is_enough]


@task
def attempt(ctx: Context) -> Any:
    """Raises what the worker's state says next."""
    raise ctx.state.pop(0)


@task
async def together(ctx: AsyncContext) -> None:
    """Each coroutine raises one of what the worker's state says."""

    async def one(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup() as group:
        for error in ctx.state:
            group.create_task(one(error))


def group(*errors: Any) -> BaseExceptionGroup[Any]:
    return BaseExceptionGroup("several", errors)


def worker(fleet: Fleet, *raised: Any) -> Scheduler:
    return fleet.worker(attempt, together, state=list(raised))


def policy(*retry_on: Any, attempts: int = 5) -> RetryPolicy:
    return RetryPolicy(10, 10, max_attempts=attempts, jitter=0, retry_on=retry_on)


def logs(jobs: Scheduler) -> list[Any]:
    return rows(jobs, "SELECT value FROM schedd_task_values WHERE name LIKE 'log:%'")


GONE = PermanentError("gone", status=410)


@pytest.mark.parametrize("raised", [group(GONE), group(ValueError("x"), group(GONE)), group(Snooze(5), GONE)])
def test_one_that_is_permanent_ends_it(fleet: Fleet, raised: BaseException) -> None:
    jobs = worker(fleet, raised)
    task_id = jobs.task(attempt).with_retry(policy()).schedule()
    drain(jobs)
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.error_class, dead.status_code) == (TaskState.DEAD, "PermanentError", 410)
    more = " (and 1 more error)" if len(raised.exceptions) > 1 and "Value" in repr(raised) else ""  # type: ignore[attr-defined]
    assert dead.error == f"PermanentError: gone{more}"


@pytest.mark.parametrize("errors", [[GONE], [ValueError("x"), GONE], [GONE, Retry(after=1)]])
def test_of_a_task_group(fleet: Fleet, errors: list[Exception]) -> None:
    jobs = worker(fleet, *errors)
    task_id = jobs.task(together).with_retry(policy()).schedule()
    drain(jobs)
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.error_class, dead.status_code) == (TaskState.DEAD, "PermanentError", 410)
    # Of errors of schedd's own their text says it all.
    assert any("ExceptionGroup" in row.value for row in logs(jobs)) is (ValueError in map(type, errors))


@pytest.mark.parametrize(
    ("retry_on", "raised", "retried"),
    [
        ((), group(ValueError("x"), OSError("y")), True),
        ((OSError,), group(OSError("x")), True),
        ((OSError,), group(ConnectionError("x"), group(TimeoutError("y"))), True),
        ((OSError,), group(OSError("x"), ValueError("y")), False),
        ((ValueError, "OSError"), group(OSError("x"), ValueError("y")), True),
        ((ExceptionGroup,), group(OSError("x"), ValueError("y")), True),
        ((ExceptionGroup,), group(OSError("x"), GONE), False),
        (("KeyboardInterrupt",), group(KeyboardInterrupt()), True),
        ((OSError,), group(OSError("x"), Retry(after=5)), True),
    ],
)
def test_it_is_retried_if_each_part_is(fleet: Fleet, retry_on: Any, raised: Any, retried: bool) -> None:
    jobs = worker(fleet, raised)
    task_id = jobs.task(attempt).with_retry(policy(*retry_on)).schedule()
    drain(jobs)
    assert jobs.get_task_status(task_id) is (TaskState.RETRY if retried else TaskState.DEAD)


def test_what_is_stored_is_the_part_that_decided(fleet: Fleet) -> None:
    jobs = worker(fleet, group(OSError("x"), group(ValueError("y"), KeyError("z"))))
    task_id = jobs.task(attempt).with_retry(policy(OSError)).schedule()
    drain(jobs)
    dead = jobs.get_task(task_id)
    assert (dead.error, dead.error_class) == ("ValueError: y (and 2 more errors)", "ValueError")


@pytest.mark.parametrize(
    ("raised", "seconds"),
    [
        (group(Retry(after=3)), 3),
        (group(Retry(after=3), Retry(after=timedelta(minutes=1)), Retry(after=5)), 60),
        (group(Retry(after=3), OSError("x")), 10),
        (group(Retry(after=30), OSError("x"), Snooze(90)), 30),
    ],
)
def test_it_waits_for_as_long_as_the_longest_wait(
    fleet: Fleet, clock: FakeClock, raised: BaseException, seconds: int
) -> None:
    jobs = worker(fleet, raised)
    task_id = jobs.task(attempt).with_retry(policy()).schedule()
    drain(jobs)
    found = jobs.get_task(task_id)
    assert (found.state, found.attempts_used) == (TaskState.RETRY, 1)
    assert found.run_at == clock.datetime + timedelta(seconds=seconds)


def test_with_no_policy_a_retry_beside_an_error_does_not_save_it(fleet: Fleet) -> None:
    jobs = worker(fleet, group(Retry(after=3), OSError("x")))
    task_id = jobs.task(attempt).schedule()
    drain(jobs)
    assert jobs.get_task_status(task_id) is TaskState.DEAD


@pytest.mark.parametrize(
    ("raised", "seconds"),
    [
        (group(Snooze(30)), 30),
        (group(Snooze(30), group(Snooze(60))), 60),
        (group(Snooze(30), Collided("x")), 30),
    ],
)
def test_snoozes_only_use_no_attempt(fleet: Fleet, clock: FakeClock, raised: BaseException, seconds: int) -> None:
    jobs = worker(fleet, raised)
    task_id = jobs.task(attempt).schedule()
    drain(jobs)
    found = jobs.get_task(task_id)
    assert (found.state, found.attempts_used, found.error) == (TaskState.SCHEDULED, 0, None)
    assert found.run_at == clock.datetime + timedelta(seconds=seconds)
    assert ends(jobs, task_id) == ["snoozed"]


def test_a_snooze_beside_an_error_is_an_attempt(fleet: Fleet) -> None:
    """Or an error that comes every time would never be told."""
    jobs = worker(fleet, group(Snooze(30), Collided("x"), ValueError("no")))
    task_id = jobs.task(attempt).schedule()
    drain(jobs)
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.error) == (TaskState.DEAD, "ValueError: no")


def test_a_wait_that_makes_no_sense_ends_it(fleet: Fleet) -> None:
    jobs = worker(fleet, group(Snooze(-1), Snooze(1)), group(Retry(after="soon"), Retry(after=1)))
    ids = [jobs.task(attempt).with_retry(policy()).schedule() for _ in range(2)]
    drain(jobs)
    assert {jobs.get_task(i).error_class for i in ids} == {"ConfigError"}


def test_cancelled_is_cancelled(fleet: Fleet) -> None:
    jobs = worker(fleet, group(Cancelled("x")))
    task_id = jobs.task(attempt).schedule()
    drain(jobs)
    assert jobs.get_task_status(task_id) is TaskState.CANCELLED


def test_hooks_get_what_was_raised(fleet: Fleet) -> None:
    received: list[BaseException] = []

    class Hooked(Task):
        async def run(self, ctx: AsyncContext) -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(raises())

        def on_failed(self, ctx: AsyncContext, error: BaseException) -> None:
            received.append(error)

    async def raises() -> None:
        raise GONE

    jobs = fleet.worker(Hooked)
    jobs.task(Hooked()).schedule()
    drain(jobs)
    (error,) = received
    assert isinstance(error, ExceptionGroup)
    assert error.exceptions == (GONE,)
