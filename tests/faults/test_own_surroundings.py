"""What handlers change of their processes is not there any more for the next attempt."""

from __future__ import annotations

from typing import Any

import pytest

from faults import careless
from faults.harness import Fleet, all_ended
from faults.pools import log_of
from scheduler import Scheduler

pytestmark = pytest.mark.faults
OPTIONS = {"worker__processes": "1"}


@pytest.mark.case(101)
def test_a_child_is_as_it_was_for_the_next_attempt(fleet: Fleet, jobs: Scheduler) -> None:
    fleet.daemon(module="faults.careless", **OPTIONS)
    for kind in (careless.Look, careless.Disturb, careless.DisturbByFunction):
        jobs.register(kind)

    def look() -> tuple[int, dict[str, Any]]:
        task_id = jobs.task(careless.Look()).schedule()
        all_ended(jobs)
        text = log_of(jobs, task_id)
        assert "seen by the next one" in text
        assert "and this" in text
        assert jobs.get_task(task_id).error is None
        pid, found = jobs.get_task(task_id).result
        return pid, found

    before = look()
    for task in (careless.Disturb(), careless.Disturb("function"), careless.DisturbByFunction()):
        task_id = jobs.task(task).schedule()  # type: ignore[call-overload]
        all_ended(jobs)
        assert jobs.get_task(task_id).error is None
        assert look() == before
