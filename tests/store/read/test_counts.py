"""Counting tasks by state without looking at all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.store.read.counts import about, by_state
from scheduler.testing import FakeClock, drain
from support.bench import Bench, Step
from support.databases import Database


@task
def noop(ctx: Context, n: int = 0) -> None:
    """Does nothing."""


def test_a_count_stops_where_it_is_told_to(database: Database) -> None:
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(noop)
    with jobs.database.read() as connection:
        assert about(connection, 3) == ({}, False)
    for _ in range(2):
        jobs.task(noop).schedule()
    drain(jobs)
    parents = [jobs.task(noop).schedule() for _ in range(4)]
    jobs.task(noop).depend_on(parents).schedule()
    with jobs.database.read() as connection:
        assert by_state(connection) == {"waiting": 1, "scheduled": 4, "success": 2}
        assert about(connection, 5) == (by_state(connection), False)
        assert about(connection, 3) == ({"waiting": 1, "scheduled": 3, "success": 2}, True)
        assert about(connection, 2) == ({"waiting": 1, "scheduled": 2, "success": 2}, True)


def statements_of(bench: Bench, work: Callable[[], object]) -> int:
    """How many statements a caller's work takes."""
    seen: list[object] = []

    def before(*given: Any) -> None:
        seen.append(given)

    engine = bench.jobs.database.open()
    sa.event.listen(engine, "before_cursor_execute", before)
    work()
    sa.event.remove(engine, "before_cursor_execute", before)
    return len(seen)


def test_one_look_at_many_tasks_is_one_statement(bench: Bench) -> None:
    with bench.jobs.batch() as batch:
        for i in range(100):
            batch.task(Step(f"task{i}"))

    def looks() -> None:
        with pytest.raises(TimeoutError):
            bench.jobs.wait(batch.ids, 0)

    assert statements_of(bench, looks) < 10
    bench.drain()
    assert {task.state.value for task in bench.jobs.wait(batch.ids, 0).values()} == {"success"}
