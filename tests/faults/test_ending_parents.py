"""Children that come to be at the moment in which their parents end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from scheduler import Context, Scheduler, task
from support.databases import Database
from support.fleet import rows

pytestmark = [pytest.mark.faults, pytest.mark.case(33)]
CALLERS = 3


@task
def quickly(ctx: Context) -> None:
    time.sleep(0.002)  # about as long as until the child's call


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.soak)], ids=["short", "long"])
def test_no_child_is_left_waiting(database: Database, seconds: float, tell: Callable[[str], None]) -> None:
    jobs = Scheduler(database.url)
    callers = [Scheduler(database.url) for _ in range(CALLERS)]
    for each in (jobs, *callers):
        each.register(quickly)
    children: list[int] = []
    until = time.monotonic() + seconds

    def call(caller: Scheduler) -> None:
        while time.monotonic() < until:
            parent = caller.task(quickly).schedule()
            children.append(caller.task(quickly).depend_on(parent).schedule())

    with jobs:
        threads = [threading.Thread(target=call, args=(caller,)) for caller in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        jobs.wait(children, timeout=30)
        ended = rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE state = 6")[0].n
    for caller in callers:
        caller.close()
    assert children
    assert ended == 2 * len(children)
    tell(f"{len(children):,} children, each run")
