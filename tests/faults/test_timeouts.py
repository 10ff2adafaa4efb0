"""Timeouts of handlers that run: what ends them, what does not, and that a retry never runs beside them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from faults.harness import Fleet, all_ended, attempts, history, overlapping, result, state, until
from faults.kinds import Attentive, Deaf, Sleeper, Stubborn, Work
from scheduler import Scheduler, Task
from support.databases import one_database

pytestmark = [pytest.mark.faults, pytest.mark.case(17)]
ONE = {"pools": {"high": (0, 0), "medium": (1, 1), "low": (0, 0)}}
TIMEOUT = 0.75  # of the second attempt, too, which does not wait for it


def test_a_thread_that_asks_its_context_gets_the_timeout(fleet: Fleet, jobs: Scheduler) -> None:
    worker = fleet.worker(options=ONE)
    scheduled = time.monotonic()  # its own account of its start may be late
    task_id = jobs.task(Attentive()).schedule()
    report = worker.expect("timeout", task=task_id)
    assert TIMEOUT <= report["now"] - scheduled < TIMEOUT + 5
    assert f"longer than its timeout of {TIMEOUT:g} s" in report["error"]
    all_ended(jobs)
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    assert attempts(jobs, task_id)[0].error_class == "TaskTimeout"
    assert not list(overlapping(fleet.runs(task_id)))


def test_a_thread_that_does_not_ask_keeps_its_slot_until_it_ends(fleet: Fleet, jobs: Scheduler) -> None:
    task_id = jobs.task(Deaf()).schedule()
    worker = fleet.worker(options=ONE)
    worker.expect("body", task=task_id)
    other = jobs.task(Work()).schedule()
    until(lambda: _overdue(jobs, task_id), "it is overdue")
    assert state(jobs, task_id) == "running"
    assert history(jobs, task_id) == []
    assert state(jobs, other) == "scheduled", "its slot was given away"
    assert not fleet.runs(other)
    worker.open("deaf")
    all_ended(jobs)
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    assert attempts(jobs, task_id)[0].error_class == "TaskTimeout", "it came to its end, but too late"
    first, second = fleet.runs(task_id)
    assert first.end is not None
    assert second.start >= first.end
    assert fleet.runs(other)[0].start >= first.end


def test_an_async_handler_is_ended_where_it_awaits(fleet: Fleet, jobs: Scheduler) -> None:
    fleet.worker(options=ONE)
    scheduled = time.monotonic_ns()
    task_id = jobs.task(Sleeper()).schedule()
    all_ended(jobs)
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    failed = attempts(jobs, task_id)[0]
    assert failed.error_class == "TaskTimeout"
    first, second = fleet.runs(task_id)
    assert TIMEOUT * 1e9 <= (first.end or 0) - scheduled < (TIMEOUT + 5) * 1e9
    assert second.start >= (first.end or 0)


def test_an_async_handler_that_swallows_its_end_is_waited_for(fleet: Fleet, jobs: Scheduler) -> None:
    task_id = jobs.task(Stubborn()).schedule()
    worker = fleet.worker(options=ONE)
    worker.expect("swallowed", task=task_id)
    other = jobs.task(Sleeper()).schedule()
    until(lambda: _overdue(jobs, task_id), "it is overdue")
    assert state(jobs, task_id) == "running"
    assert state(jobs, other) == "scheduled", "its slot was given away"
    worker.open("stubborn")
    all_ended(jobs)
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    assert attempts(jobs, task_id)[0].error_class == "TaskTimeout"
    assert not list(overlapping(fleet.runs(task_id)))


@pytest.mark.parametrize("kind", [Attentive, Deaf, Sleeper, Stubborn])
@one_database
def test_with_slots_to_spare_the_retry_still_never_runs_beside_the_first_handler(
    fleet: Fleet, jobs: Scheduler, kind: type[Task]
) -> None:
    ids = [jobs.task(kind()).schedule() for _ in range(3)]
    worker = fleet.worker()
    for task_id in ids:
        until(lambda: fleet.runs(task_id), "all run")  # noqa: B023
        until(lambda: _overdue(jobs, task_id), "it is overdue")  # noqa: B023
    worker.open("deaf")
    worker.open("stubborn")
    all_ended(jobs)
    for task_id in ids:
        assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
        assert result(jobs, task_id) == 2
        assert len(fleet.runs(task_id)) == 2
        assert not list(overlapping(fleet.runs(task_id)))


def _overdue(jobs: Scheduler, task_id: int) -> bool:
    """Whether it ran for longer than its timeout by the database's own account, or has ended."""
    task = jobs.get_task(task_id)
    if task.state.terminal or task.attempt > 1:
        return True
    started = task.started_at
    return started is not None and datetime.now(UTC) - started > timedelta(seconds=1.5 * TIMEOUT)
