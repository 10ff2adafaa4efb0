"""Context variables, of structlog or another, that a handler sets: no other attempt sees them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from faults import careless
from faults.harness import result
from faults.pools import PATIENCE, end, log_of
from scheduler import Scheduler
from support.databases import Database

pytestmark = pytest.mark.faults


@pytest.mark.case(101)
def test_no_attempt_finds_the_context_of_another(database: Database, shared_fork_server: None) -> None:
    jobs = Scheduler(database.url, processes=1, pools={"medium": (1, 2), "low": (0, 0), "high": (0, 0)})
    hows: dict[Any, list[str]] = {
        careless.Bind: ["here", "step", "cpu"],
        careless.ABind: ["here", "step", "thread", "executor"],
    }
    plain = [careless.BindInside(), careless.ABindInside()]
    for kind in (*hows, careless.BindInside, careless.ABindInside, careless.BindInHook):
        jobs.register(kind)
    jobs.start()
    try:
        made = [kind(how) for kind, ways in hows.items() for how in ways]
        tasks = [*made, *plain]
        ids = [jobs.task(task).schedule() for task, _ in itertools.product(tasks, range(3))]
        hooks = [jobs.task(careless.BindInHook()).schedule() for _ in range(3)]
        jobs.wait([*ids, *hooks], timeout=2 * PATIENCE)
        assert [result(jobs, i) for i in ids] == [careless.CLEAN] * len(ids)
        assert all(str(careless.CLEAN) in log_of(jobs, i) for i in hooks)
    finally:
        end(jobs)


def test_calls_of_hooks_for_dead_letters_and_ends_do_not_see_each_other(database: Database) -> None:
    found: list[Any] = []

    def note(_: object) -> None:
        found.append(careless.bind())

    jobs = Scheduler(database.url, on_dead_letter=note)
    jobs.register(careless.BindInHook)
    jobs.start()
    try:
        jobs.on_end(note)
        jobs.wait([jobs.task(careless.BindInHook()).schedule() for _ in range(3)], timeout=PATIENCE)
    finally:
        jobs.close()
    assert found == [careless.CLEAN] * 6
