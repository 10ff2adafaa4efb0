"""The level of the line that says how an attempt ended."""

from __future__ import annotations

import logging

import pytest

from scheduler import Context, PermanentError, RetryPolicy, task
from scheduler.testing import drain
from support.fleet import Fleet


@task(kind="flaky", retry=RetryPolicy(min_wait=1, max_attempts=2))
def flaky(ctx: Context, bad: bool) -> None:
    if bad:
        raise ValueError("no")


@task(kind="final", dead_letter=False)
def final(ctx: Context) -> None:
    raise PermanentError("never")


def levels(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    found = [
        (r.getMessage().partition(":")[0], r.levelname) for r in caplog.records if r.getMessage().startswith("attempt ")
    ]
    caplog.clear()
    return found


def test_a_dead_task_is_an_error_and_a_retry_a_warning(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "scheduler.engine")
    jobs = fleet.worker(flaky, final)
    jobs.task(flaky, True).schedule()
    drain(jobs)
    assert levels(caplog) == [("attempt retried", "WARNING")]
    fleet.clock.advance(10)
    drain(jobs)
    assert levels(caplog) == [("attempt dead", "ERROR")]
    jobs.task(final).schedule()
    drain(jobs)
    assert levels(caplog) == [("attempt failed", "ERROR")]
    jobs.task(flaky, False).schedule()
    drain(jobs)
    assert levels(caplog) == [("attempt succeeded", "DEBUG")]


def test_every_attempt_is_a_line_if_asked_for(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scheduler.engine")
    jobs = fleet.worker(flaky, log_attempts="all")
    jobs.task(flaky, False).schedule()
    drain(jobs)
    assert levels(caplog) == [("attempt succeeded", "INFO")]
