"""What the store is asked for 1,000 tasks: statements and commits, which no machine makes fewer or more.

The bounds are what was counted when they were recorded, and a little room. Raise one only knowing why; lower it where a
change made something cheaper.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, PermanentError, Scheduler, task
from scheduler.model import state as st
from scheduler.model.recurrence import every
from scheduler.model.spec import TaskSpec
from scheduler.store import schedules
from scheduler.store.db import statements as statement
from scheduler.store.db.autocommit import AutocommitPool
from scheduler.store.schedules import ScheduleSpec
from scheduler.store.tasks import enqueue
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database
from support.fleet import let_notifier_work

TASKS = 1000
# work -> (statements, commits) on SQLite, on PostgreSQL. A BEGIN of SQLite's is a statement of ours; a single task's
# INSERT is a transaction by itself, and SQLite takes 1,024 values in one. What runs inline goes in turns of a few
# hundred at most, a graph in layers of 100; the rest of the engine's round is counted, too.
BOUNDS = {
    "single": ((1000, 0), (1000, 0)),
    "batch": ((10, 1), (2, 1)),
    "batch of edges": ((22, 1), (3, 1)),
    "run": ((66, 11), (36, 15)),  # on PostgreSQL mostly two transactions a cycle
    "run a graph": ((175, 25), (105, 25)),
    "fail a chain": ((42, 5), (39, 5)),  # as many as for a chain of ten
    "rest for a minute": ((130, 10), (130, 10)),
    "resume": ((35, 5), (25, 6)),  # 100 tasks
    "fire schedules": ((145, 15), (110, 18)),  # 1,000 schedules, one run of each
}
STEPS = 63  # of an idle engine in a minute: one a second, and for what is due by itself
CALLS = {"sqlite": 18_000, "postgresql": 32_000}  # of functions, Python's and C's, in these steps
WAITERS = 100  # that resume: fewer than elsewhere, for each begins to wait in a cycle of its own
WIDTH = 100  # of a layer of the graph


@task
def noop(ctx: Context, n: int) -> None:
    """Does nothing."""


@task
def waits(ctx: Context, n: int) -> object:
    return ctx.await_event("go")


@task
def fails(ctx: Context) -> None:
    raise PermanentError("no")


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(url=database.url, clock=FakeClock())
    made.register(noop)
    yield made
    made.close()


@pytest.fixture
def counted(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], Counter[str]]:
    """Runs something, and tells what it asked of the store."""
    costs: Counter[str] = Counter()

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            # The notifier sends so often a second, whatever the load.
            if "_notify" not in str(args[1]):
                costs["statements"] += 1
            return function(*args, **options)

        return call

    monkeypatch.setattr(statement, "_raw", counting(statement._raw))
    monkeypatch.setattr(enqueue, "insert", counting(enqueue.insert))
    monkeypatch.setattr(AutocommitPool, "insert", counting(AutocommitPool.insert))
    monkeypatch.setattr(AutocommitPool, "insert_on_server", counting(AutocommitPool.insert_on_server))
    engine = jobs.database.open()

    def executed(*_: object) -> None:
        costs["statements"] += 1

    sa.event.listen(engine, "before_cursor_execute", executed)
    sa.event.listen(engine, "commit", lambda *_: costs.update(["commits"]))

    def run(work: Callable[[], object], *, again: bool = True) -> Counter[str]:
        if again:
            work()  # once before: what is done the first time only does not count
        costs.clear()
        work()
        return Counter(costs)

    return run


def batch(jobs: Scheduler, parents: int = 0) -> None:
    made: list[Any] = []
    with jobs.batch() as open_batch:
        for n in range(TASKS):
            builder = open_batch.task(noop, n)
            if n >= WIDTH:
                builder.depend_on([made[n - WIDTH + i] for i in range(parents)])
            made.append(builder)


def check(costs: Counter[str], work: str, database: Database) -> None:
    statements, commits = BOUNDS[work][0 if database.is_sqlite else 1]
    assert costs["commits"] <= commits, costs
    assert 0 < costs["statements"] <= statements, costs


def test_of_single_tasks(jobs: Scheduler, database: Database, counted: Any) -> None:
    def schedule() -> None:
        for n in range(TASKS):
            jobs.task(noop, n).schedule()

    check(counted(schedule), "single", database)


@pytest.mark.parametrize(("work", "parents"), [("batch", 0), ("batch of edges", 3)])
def test_of_a_batch(jobs: Scheduler, database: Database, counted: Any, work: str, parents: int) -> None:
    check(counted(lambda: batch(jobs, parents)), work, database)


@pytest.mark.parametrize(("work", "parents"), [("run", 0), ("run a graph", 3)])
def test_of_running_them(jobs: Scheduler, database: Database, counted: Any, work: str, parents: int) -> None:
    batch(jobs, parents)
    assert drain(jobs) == TASKS
    batch(jobs, parents)
    check(counted(lambda: drain(jobs), again=False), work, database)


def test_of_rest(jobs: Scheduler, database: Database, counted: Any) -> None:
    """An engine with nothing to do. What its CPU comes to is for benchmarks to say: to wake costs a machine that has
    slept more than all the rest."""
    engine, clock = engine_of(jobs), jobs.database.clock
    let_notifier_work(jobs)
    steps = calls = 0

    def called(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def rest() -> None:
        nonlocal steps, calls
        steps = calls = 0
        until = clock.monotonic() + 60
        while clock.monotonic() < until:
            sys.setprofile(called)
            try:
                pause = engine.step()
            finally:
                sys.setprofile(None)
            steps += 1
            clock.advance(max(0.001, pause))

    check(counted(rest), "rest for a minute", database)
    assert steps <= STEPS
    assert calls <= CALLS[database.dialect]


@pytest.mark.parametrize("length", [10, TASKS])
def test_of_a_chain_that_fails(jobs: Scheduler, database: Database, counted: Any, length: int) -> None:
    """However long it is: a cycle that asked for each of its tasks would outlast its worker's lease."""
    jobs.register(fails)
    with jobs.batch() as open_batch:
        last: Any = open_batch.task(fails)
        for n in range(length):
            last = open_batch.task(noop, n).depend_on([last])
    check(counted(lambda: drain(jobs), again=False), "fail a chain", database)
    tasks = [jobs.get_task(i) for i in open_batch.ids]
    assert {t.state.value for t in tasks[1:]} == {"failed"}
    for parent, child in itertools.pairwise(tasks):
        assert child.error == f"not run: task {parent.id} ended {parent.state}"


@pytest.mark.case(89)
def test_of_resuming(jobs: Scheduler, database: Database, counted: Any) -> None:
    """Handlers in threads that one event wakes: what they go on from comes with their claims."""
    jobs.register(waits)
    with jobs.batch() as open_batch:
        for n in range(WAITERS):
            open_batch.task(waits, n)
    assert drain(jobs) == WAITERS

    def resume() -> None:
        jobs.emit_event("go", "on")
        assert drain(jobs) == WAITERS

    check(counted(resume, again=False), "resume", database)
    assert [jobs.result(i, 0) for i in open_batch.ids[::50]] == ["on"] * len(open_batch.ids[::50])
    with jobs.database.read() as tx:
        made = "SELECT count(*), count(DISTINCT task_id) FROM schedd_checkpoints WHERE name = '$event:go'"
        assert tuple(tx.connection.execute(sa.text(made)).one()) == (WAITERS, WAITERS)
        assert tx.connection.execute(sa.text("SELECT count(*) FROM schedd_waits")).scalar_one() == 0


@pytest.mark.case(88)
def test_of_firing_schedules(jobs: Scheduler, database: Database, counted: Any) -> None:
    """A thousand schedules of a second each: so many runs a second, none of them late, each once."""
    clock, spec = jobs.database.clock, TaskSpec("noop", '{"n":1}', "noop")
    with jobs.database.write() as tx:
        for n in range(TASKS):
            schedule = ScheduleSpec(f"s{n:03}", every(1), spec)
            schedules.register(tx, schedule)

    def second() -> None:
        clock.advance(1)
        assert drain(jobs) == TASKS

    check(counted(second), "fire schedules", database)
    with jobs.database.read() as tx:
        columns = "count(*), count(DISTINCT schedule), count(DISTINCT slot), max(started_at - slot), max(attempt)"
        made = tx.connection.execute(sa.text(f"SELECT {columns} FROM schedd_tasks WHERE state = {st.SUCCESS}")).one()
    assert tuple(made) == (2 * TASKS, TASKS, 2, 0, 1)
