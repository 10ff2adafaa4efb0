"""Whatever a handler, a hook or a stored row does wrong ends that attempt, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scheduler import AsyncContext, Context, Scheduler, Task, TaskState, task
from scheduler.engine import slots as pools
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import Runtime
from scheduler.engine.execution.run import execute
from scheduler.model.outcome import Outcome
from scheduler.ports import SystemClock, spawn_thread
from scheduler.testing import drain, engine_of
from support.bench import Step
from support.databases import Database
from support.fleet import Fleet, ends, step, until, write


@task
def add(ctx: Context, a: int, b: int) -> int:
    return a + b


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Odd(Exception):
    status = 10**15

    def __str__(self) -> str:
        return "nul \x00, surrogate \ud800, " + "long " * 1000


class _Own(BaseException):
    pass


RAISED: list[type[BaseException]] = [
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    _Own,
    RecursionError,
    MemoryError,
    StopIteration,
    asyncio.CancelledError,
    _Unprintable,
    _Odd,
]


@task
def explode(ctx: Context, which: int) -> None:
    raise RAISED[which]()


@task
async def explode_async(ctx: AsyncContext, which: int) -> None:
    raise RAISED[which]()


@task
async def explode_beside(ctx: AsyncContext, which: int) -> None:
    async def beside() -> None:
        raise RAISED[which]()

    await asyncio.create_task(beside())


@task
async def calm(ctx: AsyncContext) -> str:
    return "calm"


@pytest.mark.case(7)
@pytest.mark.parametrize("handler", [explode, explode_async])
def test_whatever_a_handler_raises_fails_its_attempt_only(fleet: Fleet, handler: Any) -> None:
    jobs = fleet.worker(handler, add)
    ids = [jobs.task(handler, which).schedule() for which in range(len(RAISED))]
    good = jobs.task(add, 1, 1).schedule()
    drain(jobs)
    assert jobs.result(good, timeout=0) == 2
    for task_id, raised in zip(ids, RAISED, strict=True):
        failed = jobs.get_task(task_id)
        # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
        left = "RuntimeError" if handler is explode_async and raised is StopIteration else raised.__name__
        assert (failed.state, failed.error_class) == (TaskState.DEAD, left)
        assert ends(jobs, task_id) == ["dead"]


@pytest.mark.case(7)
def test_what_a_task_raises_that_a_handler_started_fails_the_attempt_only(fleet: Fleet) -> None:
    """Some of these leave the event loop itself; `drain` raised them."""
    jobs = fleet.worker(explode_beside, calm)
    raised = [KeyboardInterrupt, SystemExit, _Own, MemoryError, asyncio.CancelledError]
    ids = [jobs.task(explode_beside, RAISED.index(one)).schedule() for one in raised]
    good = jobs.task(calm).schedule()
    drain(jobs)
    assert jobs.result(good, timeout=0) == "calm"
    assert [jobs.get_task(i).error_class for i in ids] == [one.__name__ for one in raised]
    assert [ends(jobs, i) for i in ids] == [["dead"]] * len(ids)


@pytest.mark.case(7)
def test_real_threads_and_event_loops_survive_it_too(fleet: Fleet) -> None:
    jobs = fleet.worker(explode, explode_async, add, calm, pools={"medium": (1, 1)})
    jobs.clock = jobs.database.clock = SystemClock()
    jobs.start()
    ids = [jobs.task(kind, n).schedule() for n in range(len(RAISED)) for kind in (explode, explode_async)]
    good = [jobs.task(add, 1, 1).schedule(), jobs.task(calm).schedule()]
    ended = jobs.wait(ids + good, timeout=30)
    assert jobs.stop(drain=10) == []
    assert {ended[i].state for i in ids} == {TaskState.DEAD}
    assert [ended[i].state for i in good] == [TaskState.SUCCESS] * 2


@pytest.mark.case(7)
@pytest.mark.parametrize("raised", [SystemExit, _Own, MemoryError])
def test_whatever_is_raised_around_a_handler_leaves_its_thread_for_the_next(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    jobs = fleet.worker(add)
    bad, good = [jobs.task(add, 1, n).schedule() for n in range(2)]
    step(jobs)
    engine_state = engine_of(jobs).engine_state
    attempts = [engine_state.held[key] for key in sorted(engine_state.held)]
    assert [a.claimed.id for a in attempts] == [bad, good]

    def run(attempt: Attempt, runtime: Runtime) -> Outcome:
        if attempt is attempts[0]:
            raise raised()
        return execute(attempt, runtime)

    monkeypatch.setattr(pools, "execute", run)
    slots = pools.ThreadSlots("medium", 1, engine_state, engine_state.report, spawn_thread)
    slots.submit(attempts, 1)
    until(lambda: len(engine_state.outcomes) == 2)
    slots.close()
    assert [o.end.value for _, o in engine_state.outcomes] == ["dead", "succeeded"]
    step(jobs)
    assert [jobs.get_task_status(i) for i in (bad, good)] == [TaskState.DEAD, TaskState.SUCCESS]


class Hooked(Task):
    hook: str

    def run(self, ctx: Context) -> None:
        raise ValueError("body")

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        raise {"exit": SystemExit(1), "interrupt": KeyboardInterrupt(), "error": OSError("hook")}[self.hook]


class AsyncHooked(Task):
    hook: str

    async def run(self, ctx: AsyncContext) -> None:
        raise ValueError("body")

    async def on_failed(self, ctx: AsyncContext, error: BaseException) -> None:
        raise {"exit": SystemExit(1), "cancel": asyncio.CancelledError(), "error": OSError("hook")}[self.hook]


@pytest.mark.case(7)
@pytest.mark.parametrize(
    "one",
    [
        *(Hooked(h) for h in ("exit", "interrupt", "error")),
        *(AsyncHooked(h) for h in ("exit", "cancel", "error")),
    ],
)
def test_a_hook_that_raises_changes_nothing_of_what_is_recorded(fleet: Fleet, one: Task) -> None:
    jobs = fleet.worker(Hooked, AsyncHooked, add)
    task_id = jobs.task(one).schedule()
    good = jobs.task(add, 1, 1).schedule()
    drain(jobs)
    failed = jobs.get_task(task_id)
    assert (failed.state, failed.error, failed.error_class) == (
        TaskState.DEAD,
        "ValueError: body",
        "ValueError",
    )
    assert jobs.result(good, timeout=0) == 2


@pytest.mark.case(7)
def test_a_row_that_cannot_be_decoded_is_set_aside_with_its_reason(fleet: Fleet) -> None:
    jobs = fleet.worker(add)
    ids = [jobs.task(add, 1, 1).schedule() for _ in range(4)]
    write(jobs, "UPDATE schedd_tasks SET payload = '{\"a\": ' WHERE id = :id", id=ids[0])
    write(jobs, 'UPDATE schedd_tasks SET payload = \'{"a": "x", "b": 1}\' WHERE id = :id', id=ids[1])
    write(jobs, "UPDATE schedd_tasks SET payload = NULL WHERE id = :id", id=ids[2])
    drain(jobs)
    states = [jobs.get_task_status(i) for i in ids]
    assert states == [*[TaskState.DEAD] * 3, TaskState.SUCCESS]
    errors = [jobs.get_last_error(i) or "" for i in ids[:3]]
    assert all(error.startswith("PayloadError: ") for error in errors), errors
    assert "missing" in errors[2]


@pytest.mark.case(7)
def test_a_stored_policy_that_cannot_be_read_ends_the_task_with_that_reason(fleet: Fleet) -> None:
    jobs = fleet.worker(explode)
    task_id = jobs.task(explode, 0).with_automatic_retry().schedule()
    write(jobs, "UPDATE schedd_tasks SET retry = '[]' WHERE id = :id", id=task_id)
    drain(jobs)
    failed = jobs.get_task(task_id)
    assert (failed.state, failed.retry) == (TaskState.DEAD, None)
    assert "not a stored retry policy" in (failed.error or "")


class Old(Task, kind="old", schema_version=2):
    def run(self, ctx: Context) -> None: ...

    @classmethod
    def upgrade(cls, payload: Any, version: int) -> Any:
        raise SystemExit("no")


def test_an_upgrade_that_raises_systemexit_ends_only_its_task(database: Database) -> None:
    with Scheduler(database.url, pools={"medium": (1, 0)}) as jobs:
        jobs.register(Old)
        jobs.register(Step)
        jobs.state = None
        engine = jobs.engine
        spec = jobs.task(Old())._spec
        spec.schema_version = 1
        task = jobs._caller.store([spec])[0]
        assert jobs.wait(task, 10)[task].state == "dead"
        until(lambda: not engine.engine_state.held)  # which follows the commit
        jobs.stop()


class Exits(Task, kind="exits"):
    async def run(self, ctx: Any) -> None:
        import asyncio

        async def inner() -> None:
            raise SystemExit(3)

        await asyncio.gather(inner())


class Fine(Task, kind="fine"):
    async def run(self, ctx: Any) -> str:
        return "fine"


@pytest.mark.case(7)
def test_systemexit_in_a_handlers_own_asyncio_task_leaves_the_loop_alive(database: Database) -> None:
    with Scheduler(database.url) as jobs:
        jobs.register(Exits)
        jobs.register(Fine)
        bad = jobs.task(Exits()).schedule()
        assert jobs.wait(bad, 10)[bad].state == "dead"
        good = jobs.task(Fine()).schedule()
        assert jobs.result(good, 10) == "fine"
