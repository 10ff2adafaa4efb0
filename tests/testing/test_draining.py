"""scheduler.testing: drain() of a queue, a kind, a task; errors that come out; tasks that run as they are stored."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import AsyncContext, Context, PermanentError, Retry, RetryPolicy, Scheduler, Snooze, Task, TaskState
from scheduler.errors import ConfigError, TaskFailedError, UnknownTaskError, UnregisteredKindError
from scheduler.model.priority import PriorityName
from scheduler.testing import FakeClock, drain, inline
from support.databases import Database


class Plain(Task):
    name: str = "a"

    def run(self, ctx: Context) -> str:
        return self.name


class Other(Task):
    async def run(self, ctx: AsyncContext) -> str:
        return "other"


class Fails(Task, retry=RetryPolicy(min_wait=10, jitter=0, max_attempts=2)):
    what: str = "error"

    def run(self, ctx: Context) -> Any:
        if self.what == "retry":
            raise Retry(after=5)
        if self.what == "snooze":
            raise Snooze(5)
        if self.what == "for good":
            raise PermanentError("no")
        if self.what == "no json":
            return object()
        raise KeyError("here")


class FailsAsync(Task):
    async def run(self, ctx: AsyncContext) -> Any:
        raise KeyError("here")


class Parent(Task):
    def run(self, ctx: Context) -> Any:
        return ctx.await_task(ctx.spawn(Plain("child")))


class Stores(Task):
    def run(self, ctx: Context) -> str:
        assert isinstance(ctx.state, list)
        jobs: Scheduler = ctx.state[0]
        child = jobs.task(Plain("later")).schedule()
        return str(jobs.get_task_status(child))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def jobs(database: Database, clock: FakeClock) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(clock, url=database.url, state=[])
    made.state.append(made)
    for kind in (Plain, Other, Fails, FailsAsync, Parent, Stores):
        made.register(kind)
    yield made
    made.close()


class Ranked(Task, ranked=True):
    level: int

    def run(self, ctx: Context) -> None:
        ctx.state.append(self.level)
        ctx.state[1].advance(0.11)  # ten of them: longer than a worker keeps what it has not begun


def test_the_highest_priority_runs_first_however_slowly(database: Database, clock: FakeClock) -> None:
    jobs = Scheduler.for_testing(clock, url=database.url, state=["levels", clock])
    jobs.register(Ranked)
    for level in range(30):
        name: PriorityName = "low" if level < 10 else "medium" if level < 20 else "high"
        jobs.task(Ranked(level)).priority(name).rank(level).schedule()
    assert drain(jobs) == 30
    assert jobs.state[2:] == list(reversed(range(30)))
    jobs.close()


def test_a_queue_and_a_kind_by_themselves(jobs: Scheduler) -> None:
    mail = [jobs.task(Plain()).queue("mail").schedule() for _ in range(3)]
    other, here = jobs.task(Other()).queue("mail").schedule(), jobs.task(Plain()).schedule()

    assert drain(jobs, queue="mail", kind=Plain) == 3
    assert {jobs.get_task_status(one) for one in mail} == {TaskState.SUCCESS}
    assert [jobs.get_task_status(one) for one in (other, here)] == [TaskState.SCHEDULED] * 2
    assert drain(jobs, queue="mail") == 1
    assert drain(jobs, kind="Other") == 0
    assert drain(jobs) == 1


def test_one_task_among_many_of_its_lane(jobs: Scheduler, clock: FakeClock) -> None:
    before = [jobs.task(Plain()).schedule() for _ in range(120)]
    wanted = jobs.task(Plain("wanted")).schedule()
    later = jobs.task(Fails()).after(60).schedule()

    assert drain(jobs, task=wanted) == 1
    assert jobs.result(wanted, timeout=0) == "wanted"
    assert {jobs.get_task_status(one) for one in before} == {TaskState.SCHEDULED}
    assert drain(jobs, task=wanted) == 0
    assert drain(jobs, task=later) == 0
    clock.advance(60)
    assert drain(jobs, task=later) == 1
    assert jobs.get_task_status(later) is TaskState.RETRY
    clock.advance(10)
    assert drain(jobs, task=later) == 1
    assert jobs.get_task_status(later) is TaskState.DEAD
    assert [one.number for one in jobs.get_attempts(later)] == [1, 2]
    assert drain(jobs) == 120


def test_one_task_does_not_run_what_it_waits_for(jobs: Scheduler) -> None:
    parent = jobs.task(Parent()).schedule()
    assert drain(jobs, task=parent) == 1
    assert jobs.get_task_status(parent) is TaskState.SUSPENDED
    assert drain(jobs, kind=Plain) == 1
    assert drain(jobs, task=parent) == 1
    assert jobs.result(parent, timeout=0) == "child"


def test_a_pause_holds_for_one_task_too(jobs: Scheduler) -> None:
    held = jobs.task(Plain()).schedule()
    jobs.pause(kind="Plain")
    assert drain(jobs, task=held) == 0
    jobs.resume(kind="Plain")
    assert drain(jobs, task=held) == 1


def test_what_drain_is_given_must_be_there(jobs: Scheduler) -> None:
    with pytest.raises(UnknownTaskError):
        drain(jobs, task=99)
    with pytest.raises(UnregisteredKindError):
        drain(jobs, kind="Plian")
    with pytest.raises(ConfigError, match="not both"):
        drain(jobs, task=1, queue="mail")


@pytest.mark.parametrize("kind", [Fails, FailsAsync])
def test_errors_come_out_with_their_tracebacks(jobs: Scheduler, kind: type[Task]) -> None:
    failing = jobs.task(kind()).schedule()
    waiting = [jobs.task(Plain()).schedule() for _ in range(5)]
    with pytest.raises(KeyError) as caught:
        drain(jobs, raise_errors=True)
    assert traceback.extract_tb(caught.tb)[-1].name == "run"
    assert f"task {failing} ({kind.__name__}), attempt 1" in caught.value.__notes__[0]
    assert jobs.get_task_status(failing) is (TaskState.RETRY if kind is Fails else TaskState.DEAD)
    drain(jobs, raise_errors=True)
    assert {jobs.get_task_status(id) for id in waiting} == {TaskState.SUCCESS}
    assert {jobs.get_task(id).attempt for id in waiting} == {1}  # what was claimed with it has used none


def test_errors_are_the_handlers_own_only(jobs: Scheduler) -> None:
    for what in ("retry", "snooze"):
        jobs.task(Fails(what)).schedule()
    assert drain(jobs, raise_errors=True) == 2
    jobs.task(Fails("for good")).schedule()
    with pytest.raises(PermanentError, match="no"):
        drain(jobs, raise_errors=True)
    jobs.task(Fails("no json")).schedule()
    with pytest.raises(TaskFailedError, match="not JSON"):
        drain(jobs, raise_errors=True)
    jobs.task(Fails()).schedule()
    assert drain(jobs) == 1  # as before


def test_what_surrounds_runs_still_does(database: Database) -> None:
    seen: list[str] = []

    class Around:
        def __init__(self, ctx: Any) -> None: ...
        def __enter__(self) -> None:
            seen.append("before")

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            seen.append(f"after {error!r}")

    jobs = Scheduler.for_testing(url=database.url, around_run=Around)
    jobs.register(Fails)
    jobs.task(Fails()).schedule()
    with pytest.raises(KeyError):
        drain(jobs, raise_errors=True)
    jobs.task(Fails()).schedule()
    drain(jobs)
    assert seen == ["before", "after KeyError('here')"] * 2
    jobs.close()


def test_inline_runs_what_is_stored(jobs: Scheduler, clock: FakeClock) -> None:
    with inline(jobs):
        assert jobs.result(jobs.task(Plain("now")).schedule(), timeout=0) == "now"
        assert jobs.result(jobs.task(Other()).schedule(), timeout=0) == "other"
        assert jobs.result(jobs.task(Parent()).schedule(), timeout=0) == "child"
        with jobs.batch() as batch:
            first = batch.task(Plain("first"))
            batch.task(Plain("second")).depend_on([first])
        assert [jobs.result(one, timeout=0) for one in batch.ids] == ["first", "second"]
        later = jobs.task(Plain("later")).after(60).schedule()
        assert jobs.get_task_status(later) is TaskState.SCHEDULED
        clock.advance(60)
        assert jobs.result(jobs.task(Stores()).schedule(), timeout=0) == "scheduled"
        assert jobs.get_task_status(later) is TaskState.SUCCESS
        assert {one.state for one in jobs.list_tasks(kind="Plain")} == {TaskState.SUCCESS}
    waiting = jobs.task(Plain()).schedule()
    assert jobs.get_task_status(waiting) is TaskState.SCHEDULED


def test_inline_raises_errors_where_asked(jobs: Scheduler) -> None:
    with inline(jobs):
        assert jobs.get_task_status(jobs.task(Fails()).schedule()) is TaskState.RETRY
    with inline(jobs, raise_errors=True), pytest.raises(KeyError):
        jobs.task(Fails()).schedule()


def test_inline_in_an_event_loop(jobs: Scheduler) -> None:
    async def program() -> list[Any]:
        with inline(jobs):
            ids = [await jobs.task(kind()).schedule_async() for kind in (Plain, Other)]
            ids += [jobs.task(kind()).schedule() for kind in (Plain, Other)]
            return [await jobs.result_async(one, timeout=0) for one in ids]

    assert asyncio.run(program()) == ["a", "other"] * 2


def test_inline_leaves_the_callers_transaction_alone(jobs: Scheduler, database: Database) -> None:
    engine = sa.create_engine(database.url)
    with inline(jobs):
        with engine.begin() as connection:
            stored = jobs.task(Plain()).schedule(connection=connection)
        assert drain(jobs) == 1
    assert jobs.result(stored, timeout=0) == "a"
    engine.dispose()


def test_a_scheduler_that_always_runs_inline() -> None:
    jobs = Scheduler.for_testing(inline=True, raise_errors=True)
    jobs.register(Plain)
    jobs.register(Fails)
    assert jobs.result(jobs.task(Plain()).schedule(), timeout=0) == "a"
    with pytest.raises(KeyError):
        jobs.task(Fails()).schedule()
    jobs.close()
    with pytest.raises(ConfigError, match="inline=True"):
        Scheduler.for_testing(raise_errors=True)
