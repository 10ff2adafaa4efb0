"""What handlers change of their processes is not there any more for the next attempt."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from faults import careless
from faults.harness import Fleet, all_ended, until
from faults.pools import log_of
from scheduler import Scheduler
from support.databases import one_database

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
    time.sleep(1.6)  # until what it had set to end its process would have
    assert look() == before


@pytest.mark.case(101)
@pytest.mark.parametrize("how", ["dictConfig", "basicConfig", "disable", "disabled"])
@one_database
def test_the_daemons_log_goes_on_whatever_sets_up_logging(fleet: Fleet, jobs: Scheduler, how: str) -> None:
    daemon = fleet.daemon(module="faults.careless", **OPTIONS)
    for kind in (careless.SetsUpLogging, careless.Fails):
        jobs.register(kind)
    jobs.task(careless.SetsUpLogging(how)).schedule()
    all_ended(jobs)
    failed = jobs.task(careless.Fails()).schedule()
    all_ended(jobs)
    (line,) = until(lambda: daemon.lines("attempt dead"), "its end is in the log")
    found = json.loads(line)
    assert (found["event"], found["task"], found["kind"]) == ("attempt dead", failed, "Fails")
    assert len(daemon.lines("has set up logging")) == 1
    assert "still captured" in log_of(jobs, failed)
    assert "bare " not in daemon.text()
