"""Cancels that come too late, and handlers that end too late for them."""

from __future__ import annotations

import pytest

from support.bench import Bench, notify_and_step, run_claimed


@pytest.mark.case(37, 48)
def test_cancelling_an_ended_task_takes_nothing_along(bench: Bench) -> None:
    parent = bench.ended("success")
    child = bench.step("child", parent).after(60).schedule()
    done = bench.jobs.cancel_task(parent, cascade=True)
    assert done.finished
    assert done.affected == ()
    assert bench.state(child) == "scheduled"


@pytest.mark.case(48, 49)
def test_what_a_cancelled_handler_returned_is_no_success(bench: Bench) -> None:
    """So that a task has one success in its history, also when it is retried after the cancel."""
    task_id = int(bench.step("late").schedule())
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)
    bench.jobs.cancel_task(task_id)
    bench.drain()
    assert bench.state(task_id) == "cancelled"
    bench.jobs.retry_task(task_id)
    bench.drain()
    assert [a.outcome for a in bench.jobs.get_attempts(task_id)] == ["cancelled", "succeeded"]
