"""A bench for cases told step by step: schedulers on one database, a clock that stands, tasks that obey."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, PermanentError, Scheduler, Task, TaskState
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database


@dataclass
class Script:
    """``ctx.state`` of the tasks: what ran, in order, and what each name is to do.

    ``handlers``: name -> called with ctx in the task's handler; ``failing``: names that fail for good while in it.
    """

    ran: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    bodies: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def play(self, name: str, ctx: Any) -> Any:
        self.ran.append(name)
        if name in self.bodies:
            return self.bodies[name](ctx)
        if name in self.failing:
            raise PermanentError(f"{name} failed")
        return name


class Step(Task):
    """Does what the script says of its name."""

    name: str

    def run(self, ctx: Context) -> Any:
        return ctx.state.play(self.name, ctx)


class Soft(Step, dead_letter=False):
    """Ends failed instead of dead."""


@dataclass
class Bench:
    database: Database
    clock: FakeClock = field(default_factory=FakeClock)
    script: Script = field(default_factory=Script)
    workers: list[Scheduler] = field(default_factory=list)

    @property
    def jobs(self) -> Scheduler:
        """The first worker, which is the caller, too."""
        return self.workers[0] if self.workers else self.worker()

    def worker(self, **options: Any) -> Scheduler:
        """Another scheduler on the same database: another worker, once it is stepped."""
        made = Scheduler.for_testing(url=self.database.url, clock=self.clock, state=self.script, **options)
        made.register(Step)
        made.register(Soft)
        self.workers.append(made)
        return made

    def step(self, name: str, *parents: int, when: str = "success", otherwise: str | None = None) -> Any:
        """A builder of a Step that depends on these parents."""
        return self.jobs.task(Step(name)).depend_on(list(parents), when=when, otherwise=otherwise)

    def drain(self) -> list[str]:
        """Run all that is due; the names that ran meanwhile, in order."""
        before = len(self.script.ran)
        drain(self.jobs)
        while not self.clock.steps and self._due_in_a_moment():
            time.sleep(0.01)
            drain(self.jobs)
        return self.script.ran[before:]

    def _due_in_a_moment(self) -> bool:
        """Something that another caller made due at once: each measures the server's clock for itself, and on a busy
        machine not quite the same."""
        now = self.jobs.database.now()
        with self.jobs.database.read() as tx:
            found = tx.connection.execute(
                sa.text("SELECT 1 FROM schedd_tasks WHERE state BETWEEN 1 AND 3 AND run_at > :now AND run_at < :soon"),
                {"now": now, "soon": now + 300_000},
            )
            return found.first() is not None

    def advance(self, seconds: float) -> list[str]:
        self.clock.advance(seconds)
        return self.drain()

    def state(self, task_id: int) -> TaskState:
        return self.jobs.get_task_status(task_id)

    def states(self, *ids: int) -> list[str]:
        return [self.state(task_id).value for task_id in ids]

    def ended(self, end: str, kind: type[Step] = Step) -> int:
        """A task that has ended like this, by the ways that lead there."""
        name = f"ends {end}"
        if end == "skipped":
            return int(self.jobs.task(kind(name)).depend_on(self.ended("success"), when="failure").schedule())
        task_id = int(self.jobs.task(kind("ends") if end == "success" else kind(name)).schedule())
        self.end(task_id, end)
        return task_id

    def end(self, task_id: int, end: str) -> None:
        """Let a task that is due end as success, failed or dead (as its kind ends), or cancelled."""
        if end == "cancelled":
            self.jobs.cancel_task(task_id)
            return
        if end in ("failed", "dead"):
            self.script.failing.add(f"ends {end}")
        drain(self.jobs)
        assert self.state(task_id) == end

    def execute(self, sql: str, **bound: Any) -> None:
        """Change the database by hand."""
        with self.jobs.database.write() as tx:
            tx.connection.execute(sa.text(sql), bound)

    def die(self, *names: str, **options: Any) -> list[int]:
        """Dead letters of these names; ``options``: methods of the builder, each with its argument."""
        self.script.failing |= set(names)
        made = []
        for name in names:
            builder = self.step(name)
            for method, value in options.items():
                builder = getattr(builder, method)(value)
            made.append(int(builder.schedule()))
        self.drain()
        assert set(self.states(*made)) <= {"dead"}
        return made

    def close(self) -> None:
        for jobs in self.workers:
            if jobs._engine is not None:
                jobs._engine._drop_connection()
            jobs.database.dispose()


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    made = Bench(database)
    yield made
    made.close()


def at(text: str) -> datetime:
    """``2026-01-01T00:00:00+00:00`` as a datetime."""
    return datetime.fromisoformat(text)


def notify_and_step(jobs: Scheduler) -> float:
    """Take one step of an inline engine that was notified, without running what it claims."""
    engine = engine_of(jobs)
    engine.wake()
    return engine.step()


def run_claimed(jobs: Scheduler) -> None:
    """Run what the last step claimed, without recording it yet."""
    for slots in engine_of(jobs).inline_slots():
        while slots.run_one():
            pass


class Side(threading.Thread):
    """The other side of a race. ``result()`` joins it and returns, or raises, what its work did."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self.entered = threading.Event()
        self.start()
        assert self.entered.wait(10)

    def run(self) -> None:
        self.entered.set()
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(20)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._value


def wait_until_blocked(bench: Bench, side: Side) -> None:
    """On PostgreSQL: until a session waits for a lock. SQLite shows none: its one write lock decides."""
    if not bench.database.is_sqlite:
        assert _blocks_before_it_ends(bench, side), "it did not wait"


def wait_until_blocked_or_ended(bench: Bench, side: Side) -> None:
    """PostgreSQL only: until a session waits for a lock, or the other side has ended without one."""
    _blocks_before_it_ends(bench, side)


def _blocks_before_it_ends(bench: Bench, side: Side) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(2000):
        with bench.jobs.database.read() as tx:
            if tx.connection.exec_driver_sql(waiting).scalar_one():
                return True
        side.join(0.005)
        if not side.is_alive():
            return False
    raise AssertionError("no session waits for a lock")
