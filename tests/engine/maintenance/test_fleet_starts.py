"""Schedules that run at the fleet's start, step by step; tests/faults/test_fleet_starts.py has real daemons."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from scheduler import InvalidScheduleError, Scheduler
from scheduler.model.recurrence import at_start
from scheduler.testing import FakeClock
from support.bench import Step
from support.fleet import Fleet, let_pass, step


@pytest.fixture
def jobs(fleet: Fleet) -> Scheduler:
    """It only stores and looks."""
    made = fleet.worker(Step)
    made.task(Step("boot")).key("boot").at_start().schedule()
    return made


def runs(jobs: Scheduler) -> int:
    return len(jobs.schedules.runs("boot"))


def started(fleet: Fleet) -> Scheduler:
    made = fleet.worker(Step)
    step(made)
    step(made)
    return made


def test_one_that_is_killed_has_to_be_gone_before_the_next_starts(
    fleet: Fleet, clock: FakeClock, jobs: Scheduler
) -> None:
    """A lease says only that its worker lived until a third of it after the last renewal."""
    first = started(fleet)
    assert runs(jobs) == 1
    clock.advance(5)
    second = started(fleet)
    fleet.kill(first)
    let_pass(clock, 60, second)
    assert runs(jobs) == 1, "the first may have lived for 10 s after its last renewal"
    fleet.kill(second)
    clock.advance(15)
    third = started(fleet)
    assert runs(jobs) == 1, "the second still has its lease"
    let_pass(clock, 60, third)
    assert runs(jobs) == 2
    let_pass(clock, 60, third, started(fleet))
    assert runs(jobs) == 2


def test_paused_and_registered_while_the_fleet_lives(fleet: Fleet, clock: FakeClock, jobs: Scheduler) -> None:
    jobs.schedules.pause("boot")
    first = started(fleet)
    clock.advance(1)
    jobs.schedules.resume("boot")
    jobs.task(Step("late")).key("late").at_start().schedule()
    let_pass(clock, 5, first, started(fleet))
    assert runs(jobs) == 0, "that start has passed"
    assert not jobs.schedules.runs("late")
    assert not jobs.schedules.next("boot", 3)


def test_it_has_no_bounds() -> None:
    bounded = at_start().within
    with pytest.raises(InvalidScheduleError, match="neither starts_at nor ends_at"):
        bounded(None, datetime(2030, 1, 1, tzinfo=UTC))
