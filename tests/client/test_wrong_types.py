"""What a program asks with values of another sort is refused in one sentence, on both databases the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler import (
    AsyncContext,
    ConfigError,
    RetryPolicy,
    Scheduler,
    Task,
    UnknownDependencyError,
    UnknownScheduleError,
    UnknownTaskError,
)
from scheduler.client.schedules import Schedules
from support.bench import Bench

IDS: list[Callable[[Scheduler, Any], Any]] = [
    lambda jobs, given: jobs.get_task(given),
    lambda jobs, given: jobs.get_attempts(given),
    lambda jobs, given: jobs.get_dependents(given),
    lambda jobs, given: jobs.get_task_dependencies(given),
    lambda jobs, given: jobs.result(given, timeout=0),
    lambda jobs, given: jobs.wait([given], timeout=0),
    lambda jobs, given: jobs.cancel_task(given),
    lambda jobs, given: jobs.retry_task(given),
    lambda jobs, given: jobs.add_dependency(given, 1),
    lambda jobs, given: jobs.set_retry_policy(given, RetryPolicy()),
    lambda jobs, given: jobs.check_for_cycles(given),
    lambda jobs, given: jobs.dead_letters.get(given),
    lambda jobs, given: jobs.dead_letters.replay(given),
]


@pytest.mark.case(23)
def test_ids_that_are_none(bench: Bench) -> None:
    for call in IDS:
        for given in (2**70, 10**5000, -1, 0):
            with pytest.raises(UnknownTaskError):
                call(bench.jobs, given)
        for given in ("1", None, True, 1.0):
            with pytest.raises(ConfigError, match="a task's id is the number that schedule"):
                call(bench.jobs, given)
    with pytest.raises(UnknownDependencyError):
        bench.jobs.add_dependency(1, 2**70)
    with pytest.raises(UnknownDependencyError, match="of more than 38 digits"):
        bench.jobs.add_dependency(1, 10**5000)


@pytest.mark.parametrize(
    ("says", "call"),
    [
        ("key must be a text, not 5", lambda jobs: jobs.list_tasks(key=5)),
        ("kind must be a text", lambda jobs: jobs.list_tasks(kind="a\0b")),
        ("subject must be a text", lambda jobs: jobs.list_tasks(subject="\ud800")),
        ("limit must be a whole number from 0, not -1", lambda jobs: jobs.list_tasks(limit=-1)),
        ("limit must be a whole number from 0", lambda jobs: jobs.list_tasks(limit=2**70)),
        ("cursor must be a whole number from 0", lambda jobs: jobs.list_tasks(cursor="1")),
        ("key must be a text, not 5", lambda jobs: jobs.retry_failed(key=5)),
        ("kind must be a text, not 5", lambda jobs: jobs.dead_letters.list(kind=5)),
        ("fingerprint must be a text", lambda jobs: jobs.dead_letters.replay_all(fingerprint="\0")),
        ("limit must be a whole number from 1", lambda jobs: jobs.dead_letters.list(limit=2**70)),
        ("limit must be a whole number from 1 to 100000", lambda jobs: jobs.audit(limit=10**9)),
        *(
            ("n must be a whole number from 1 to 100000", lambda jobs, n=n: jobs.schedules.next("tick", n))
            for n in (10**9, 2**70, 0, -1, 2.0, "3", True, None)
        ),
        *(
            (r"must be a .* from [01]( to 100000)?, not a number of thousands of digits", call)
            for call in (
                lambda jobs: jobs.list_tasks(limit=10**5000),
                lambda jobs: jobs.dead_letters.list(limit=10**5000),
                lambda jobs: jobs.schedules.next("tick", 10**5000),
                lambda jobs: jobs.audit(10**5000),
                lambda jobs: jobs.cleanup_completed_tasks(10**5000),
            )
        ),
        ("older_than_hours must be a number of hours", lambda jobs: jobs.cleanup_completed_tasks(float("nan"))),
        ("older_than_hours must be a number of hours", lambda jobs: jobs.cleanup_completed_tasks(1e300)),
        ("older_than_hours must be a number of hours", lambda jobs: jobs.cleanup_events("1")),
        *(
            ("hours must be a number above 0", lambda jobs, hours=hours: jobs.forecast(hours))
            for hours in ("24", None, True, float("nan"), 10**5000)
        ),
        ("there is no state 5; there are", lambda jobs: jobs.list_tasks(5)),
        ("there is no state 5; there are", lambda jobs: jobs.list_tasks(status=5)),
        ("there is no state None; there are", lambda jobs: jobs.cleanup_tasks(None, 1)),
        ("a filter is a text, not 5", lambda jobs: jobs.dead_letters.list(5)),
        ("a task's id is the number that schedule", lambda jobs: jobs.wait(None, timeout=0)),
        ("task must be a whole number from 1", lambda jobs: jobs.audit(2**63)),
        ("a task.s id is the number that schedule", lambda jobs: jobs.dead_letters.audit("1")),
        ("cursor must be a whole number from 1", lambda jobs: jobs.audit(cursor=2**63)),
        ("by must be a text", lambda jobs: jobs.audit(by="\0")),
        ("subject must be a text", lambda jobs: jobs.audit(subject="\ud800")),
    ],
)
def test_what_else_does_not_fit(bench: Bench, says: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match=says):
        call(bench.jobs)


SCHEDULES: list[Callable[[Schedules, Any], Any]] = [
    lambda schedules, given: schedules.get(given),
    lambda schedules, given: schedules.pause(given),
    lambda schedules, given: schedules.resume(given),
    lambda schedules, given: schedules.trigger(given),
    lambda schedules, given: schedules.next(given),
    lambda schedules, given: schedules.runs(given),
    lambda schedules, given: schedules.backfill(given, datetime(2026, 1, 1, tzinfo=UTC)),
    lambda schedules, given: schedules.cancel(given),
    lambda schedules, given: schedules.cancel("nosuch", run="a\0b"),
    lambda schedules, given: schedules.delete(given),
]


@pytest.mark.both_databases
def test_names_that_no_schedule_can_have(bench: Bench) -> None:
    for call in SCHEDULES:
        for given in ("nosuch", "", "a\0b", "\ud800", "n" * 10_000, None, 2**70):
            with pytest.raises(UnknownScheduleError):
                call(bench.jobs.schedules, given)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapped


class Wrapped(Task):
    @plain
    async def run(self, ctx: AsyncContext) -> None: ...


def test_an_async_handler_behind_a_plain_decorator_says_so(bench: Bench) -> None:
    bench.jobs.register(Wrapped)
    task_id = bench.jobs.task(Wrapped()).schedule()
    bench.drain()
    assert bench.state(task_id) == "dead"
    assert "let the decorator's function be async, too" in str(bench.jobs.get_last_error(task_id))
