"""Several schedulers on one database, driven step by step under one clock that only the test moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.store.db.dialect import prepared
from scheduler.testing import FakeClock, engine_of
from support.databases import Database


class Fleet:
    """Makes schedulers on the test's database; each is a worker of its own once it is stepped."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        self.database = database
        self.clock = clock
        self._made: list[Scheduler] = []

    def worker(self, *types: Any, **options: Any) -> Scheduler:
        """A scheduler with these task types registered."""
        made = Scheduler.for_testing(url=self.database.url, clock=self.clock, **options)
        for one in types:
            made.register(one)
        self._made.append(made)
        return made

    def kill(self, jobs: Scheduler) -> None:
        """This worker is gone without a goodbye: its connections are closed, its row and claims stay."""
        if jobs._engine is not None and jobs._engine.inline:
            jobs._engine._drop_connection()
            jobs._engine = None
        jobs.close()

    def close(self) -> None:
        for jobs in self._made:
            self.kill(jobs)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def fleet(database: Database, clock: FakeClock) -> Iterator[Fleet]:
    made = Fleet(database, clock)
    yield made
    made.close()


def until(over: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not over():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def step(jobs: Scheduler) -> None:
    """One step of the engine as after a notification: due maintenance and a cycle, but no handler runs."""
    engine = engine_of(jobs)
    engine.wake()
    engine.step()


def let_notifier_work(jobs: Scheduler) -> None:
    """As if this inline engine had a notifier: without one it polls ten times as often."""
    engine_of(jobs).notifier.works = True  # type: ignore[misc]


def run_claimed(jobs: Scheduler) -> int:
    """Run what this worker has claimed, without letting it take another cycle. Returns how many handlers ran."""
    ran = 0
    for slots in engine_of(jobs).inline_slots():
        while slots.run_one():
            ran += 1
    return ran


def rows(jobs: Scheduler, sql: str, **bound: Any) -> list[sa.Row[Any]]:
    """What the database says, for what no public call shows."""
    with jobs.database.read() as tx:
        return list(tx.connection.execute(prepared(sql), bound).fetchall())


def write(jobs: Scheduler, sql: str, **bound: Any) -> None:
    with jobs.database.write() as tx:
        tx.connection.execute(prepared(sql), bound)


@contextmanager
def ledger(jobs: Scheduler) -> Iterator[None]:
    """A table of the test's own, ``ledger``, into which handlers write entries; the scheduler runs."""
    write(jobs, "DROP TABLE IF EXISTS ledger")
    write(jobs, "CREATE TABLE ledger (entry varchar(100) NOT NULL)")
    jobs.start()
    yield
    jobs.stop_now()
    write(jobs, "DROP TABLE ledger")
    jobs.close()


def no_autovacuum(jobs: Scheduler) -> None:
    """Not of other tables either: its snapshot keeps claims from forgetting the index's dead rows, and they are counted
    each time."""
    for (table,) in rows(jobs, "SELECT relname FROM pg_stat_user_tables WHERE schemaname = 'public'"):
        write(jobs, f"ALTER TABLE {table} SET (autovacuum_enabled = off)")


def ends(jobs: Scheduler, task_id: int) -> list[str]:
    """How the attempts of a task ended, in order."""
    return [attempt.outcome.value for attempt in jobs.get_attempts(task_id)]


def let_pass(clock: FakeClock, seconds: float, *jobs: Scheduler) -> None:
    """Time goes by; these workers take a step at least every five seconds, all others stand still.

    A worker that did not get round to renewing its own lease for long gives the others time before it reaps.
    """
    while seconds > 0:
        one = min(5.0, seconds)
        clock.advance(one)
        seconds -= one
        for each in jobs:
            step(each)
