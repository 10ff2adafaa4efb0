"""Counting tasks by state without looking at all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.store.read.counts import about, pools
from scheduler.store.read.status import status
from scheduler.store.read.top import top
from scheduler.store.tasks.claim import lane_heads
from scheduler.testing import FakeClock, drain
from support.bench import Bench, Step
from support.databases import Database


@task
def noop(ctx: Context, n: int = 0) -> None:
    """Does nothing."""


def test_a_count_stops_at_its_limit(database: Database) -> None:
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(noop)
    with jobs.database.read() as tx:
        assert about(tx, 3) == ({}, frozenset())
    for _ in range(2):
        jobs.task(noop).schedule()
    drain(jobs)
    parents = [jobs.task(noop).schedule() for _ in range(4)]
    jobs.task(noop).depend_on(parents).schedule()
    with jobs.database.read() as tx:
        assert about(tx, 5) == ({"waiting": 1, "scheduled": 4, "success": 2}, frozenset())
        assert about(tx, 3) == ({"waiting": 1, "scheduled": 3, "success": 2}, {"scheduled"})
        assert about(tx, 2) == ({"waiting": 1, "scheduled": 2, "success": 2}, {"scheduled", "success"})


def test_each_state_without_success_is_counted_by_itself(database: Database) -> None:
    """A crowd of failures hides no dead letter, although both are in one index."""
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(noop)
    with jobs.batch() as batch:
        for _ in range(7):
            batch.task(noop)
    with jobs.database.write() as tx:
        for state, ids in ((7, batch.ids[:4]), (8, batch.ids[4:5]), (10, batch.ids[5:])):
            tx.connection.execute(
                sa.text(
                    f"UPDATE schedd_tasks SET state = {state}, finished_at = 1 WHERE id IN ({', '.join(map(str, ids))})"
                )
            )
    with jobs.database.read() as tx:
        found, capped = about(tx, 3)
    assert (found, capped) == ({"failed": 3, "dead": 1, "skipped": 2}, {"failed"})


def test_ready_tasks_are_counted_by_pool(database: Database) -> None:
    clock = FakeClock()
    jobs = Scheduler.for_testing(url=database.url, clock=clock)
    jobs.register(noop)
    for queue in "ab":
        for seconds in (0, 0, 60):
            jobs.task(noop).queue(queue).after(seconds).schedule()
    jobs.task(noop).priority("low").schedule()
    with jobs.database.read() as tx:
        every, some = (pools(tx.at(clock.now()), lane_heads(tx), most) for most in (100, 4))
    assert every == ({1: 4, 2: 1}, {1: 2, 2: 0}, False)
    assert (sum(some.due.values()) + sum(some.later.values()), some.capped) == (5, True)


def test_no_count_walks_the_table(bench: Bench) -> None:
    """Neither the status nor what runs reads more rows than the bound: each of their counts is limited in an index."""
    seen: list[str] = []
    engine = bench.jobs.database.open()
    sa.event.listen(engine, "before_cursor_execute", lambda *given: seen.append(given[2]))
    bench.step("one").schedule()
    with bench.jobs.database.read() as tx:
        status(tx)
        top(tx, 10)
    counts = [sql for sql in seen if "count(*)" in sql and "schedd_tasks" in sql]
    assert counts
    assert all("LIMIT" in sql or "state >= 4 AND state <= 5" in sql for sql in counts), counts


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


def test_a_crowd_that_is_scheduled_hides_no_retry(database: Database) -> None:
    """Nor do retries hide what is scheduled, although all are in one index."""
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(noop)
    with jobs.batch() as batch:
        for _ in range(12):
            batch.task(noop)
    with jobs.database.write() as tx:
        for state, ids in ((2, batch.ids[9:11]), (3, batch.ids[11:])):
            tx.connection.execute(
                sa.text(f"UPDATE schedd_tasks SET state = {state} WHERE id IN ({', '.join(map(str, ids))})")
            )
    with jobs.database.read() as tx:
        assert about(tx, 5) == ({"scheduled": 5, "retry": 2, "suspended": 1}, {"scheduled"})
        assert about(tx, 100) == ({"scheduled": 9, "retry": 2, "suspended": 1}, frozenset())
    with jobs.database.write() as tx:
        tx.connection.execute(sa.text(f"UPDATE schedd_tasks SET state = 2 WHERE id <> {int(batch.ids[0])}"))
    with jobs.database.read() as tx:
        assert about(tx, 11) == ({"scheduled": 1, "retry": 11}, {"retry"})
