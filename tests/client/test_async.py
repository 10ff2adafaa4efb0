"""The awaitable methods: they answer as their namesakes, and keep neither the event loop nor its threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from scheduler import (
    ConfigError,
    Context,
    PermanentError,
    Scheduler,
    Task,
    TaskCancelledError,
    TaskFailedError,
    TaskId,
    TaskState,
    UnknownTaskError,
)
from scheduler.client.bulks import Bulks
from scheduler.client.dead_letters import DeadLetters
from scheduler.client.fleet import LiveSettings, Workers
from scheduler.client.schedules import Schedules
from scheduler.client.threads import THREADS
from scheduler.testing import drain
from support.databases import Database


class Double(Task):
    number: int

    def run(self, ctx: Context) -> int:
        if self.number < 0:
            raise PermanentError("below zero")
        return 2 * self.number


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(url=database.url)
    made.register(Double)
    yield made
    made.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncConnection]:
    engine = create_async_engine(url.replace("sqlite://", "sqlite+aiosqlite://"))
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


NOT_AWAITED = {  # what waits for no database, or is left to `async with`
    *(
        "acting",
        "around_run",
        "batch",
        "bulks",
        "dead_letters",
        "ends",
        "for_testing",
        "from_config",
        "is_running",
        "iter_tasks",
    ),
    *("live_settings", "metrics", "on_dead_letter", "on_end", "reconfigure", "recurring", "register", "schedules"),
    *("start", "starting", "stop", "stop_now", "close", "submitter", "task", "workers", "known_sinks"),
    *("engine", "be_worker_of", "start_job", "progress"),
}
AWAITED = sorted({name for name in dir(Scheduler) if name[0] != "_" and not name.endswith("_async")} - NOT_AWAITED)


@pytest.mark.parametrize("name", AWAITED)
def test_each_takes_what_its_namesake_takes(name: str) -> None:
    awaited = getattr(Scheduler, f"{name}_async")
    assert inspect.iscoroutinefunction(awaited)
    assert [*inspect.signature(awaited).parameters] == [*inspect.signature(getattr(Scheduler, name)).parameters]


@pytest.mark.parametrize("part", [Bulks, DeadLetters, LiveSettings, Schedules, Workers])
def test_so_do_those_of_its_parts(part: type) -> None:
    for name in (name for name in dir(part) if name[0] != "_" and not name.endswith("_async") and name != "threads"):
        awaited = getattr(part, f"{name}_async")
        assert [*inspect.signature(awaited).parameters] == [*inspect.signature(getattr(part, name)).parameters]


@pytest.mark.parametrize("name", ["cancel", "uncancel", "retry", "copy", "update"])
def test_the_short_names_are_the_same(name: str) -> None:
    assert getattr(Scheduler, f"{name}_async") is getattr(Scheduler, f"{name}_task_async")


def test_all_tasks_in_a_loop(jobs: Scheduler) -> None:
    async def main() -> list[int]:
        async with jobs.batch() as batch:
            for number in range(250):
                batch.task(Double(number))
        found = [task.id async for task in jobs.iter_tasks_async("Pending", kind="Double", page=60)]
        assert found == sorted(batch.ids, reverse=True)
        return [task.id async for task in jobs.iter_tasks_async("Failed")]

    assert asyncio.run(main()) == []


def test_a_scheduler_in_an_async_with(database: Database) -> None:
    async def main() -> int:
        async with Scheduler(database.url) as jobs:
            jobs.register(Double)
            assert jobs.is_running()
            result: int = await jobs.result_async(await jobs.task(Double(4)).schedule_async(), timeout="30s")
        assert not jobs.is_running()
        return result

    assert asyncio.run(main()) == 8


def test_they_answer_as_their_namesakes(jobs: Scheduler) -> None:
    async def main() -> None:
        good, bad = await jobs.task(Double(2)).schedule_async(), await jobs.task(Double(-1)).schedule_async()
        gone = await jobs.task(Double(3)).after(60).schedule_async()
        assert (await jobs.get_task_async(good)).state is TaskState.SCHEDULED
        with pytest.raises(TimeoutError, match=f"still not ended: {good}"):
            await jobs.wait_async(good, 0)
        await jobs.cancel_async(gone)
        await asyncio.to_thread(drain, jobs)
        assert await jobs.result_async(good) == 4
        with pytest.raises(TaskFailedError, match="below zero"):
            await jobs.result_async(bad, 5)
        with pytest.raises(TaskCancelledError):
            await jobs.result_async(gone, 5)
        with pytest.raises(UnknownTaskError):
            await jobs.result_async(10**9, 5)
        with pytest.raises(ConfigError, match="a task's id"):
            await jobs.wait_async(["x"])  # type: ignore[list-item]
        assert await jobs.wait_async([good, bad, gone]) == jobs.wait([good, bad, gone])
        await jobs.retry_async(bad)
        assert [task.id for task in await jobs.list_tasks_async("scheduled")] == [bad]
        assert [await jobs.emit_event_async("paid", {"n": n}) for n in (1, 2)] == [True, False]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["blocking", "awaiting"])
def test_the_first_of_several(jobs: Scheduler, how: str) -> None:
    later = jobs.task(Double(1)).after(60).schedule()
    first = jobs.task(Double(2)).schedule()

    async def main() -> dict[int, Any]:
        waiting = asyncio.create_task(jobs.wait_async([later, first], 30, first=True))
        await asyncio.to_thread(drain, jobs)
        return dict(await waiting)

    if how == "awaiting":
        assert [*asyncio.run(main())] == [first]
    else:
        with pytest.raises(TimeoutError):
            jobs.wait([later, first], 0, first=True)
        drain(jobs)
        assert [*jobs.wait([later, first], 30, first=True)] == [first]
        assert jobs.wait([], first=True) == {}


def test_any_number_may_wait_and_none_takes_the_loops_threads(jobs: Scheduler) -> None:
    """More callers wait than there are threads, and the program's own thread is taken."""
    taken, released = threading.Event(), threading.Event()

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocked = loop.run_in_executor(None, lambda: (taken.set(), released.wait(60)))
        ids = [await jobs.task(Double(n)).schedule_async() for n in range(2 * THREADS)]
        waiting = [asyncio.create_task(jobs.result_async(i, 60)) for i in ids]
        await asyncio.sleep(0)
        with ThreadPoolExecutor(1) as own:
            await loop.run_in_executor(own, drain, jobs)
        done = await asyncio.gather(*waiting)
        released.set()
        await blocked
        return done

    assert asyncio.run(main()) == [2 * n for n in range(2 * THREADS)]
    assert taken.is_set()


def test_the_loop_goes_on_meanwhile(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, seen = threading.Event(), threading.Event()
    look: Callable[[int], Any] = jobs.get_task

    def slow(task_id: int) -> Any:
        entered.set()
        assert seen.wait(60), "the event loop waits for the database"
        return look(task_id)

    async def main() -> None:
        task_id = await jobs.task(Double(1)).schedule_async()
        monkeypatch.setattr(jobs, "get_task", slow, raising=False)
        reading = asyncio.create_task(jobs.get_task_async(task_id))
        while not entered.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0)
        seen.set()
        assert (await reading).id == task_id

    asyncio.run(main())


def test_who_is_cancelled_no_longer_waits(jobs: Scheduler) -> None:
    async def main() -> None:
        waiting = asyncio.create_task(jobs.result_async(await jobs.task(Double(1)).schedule_async()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())


def test_its_threads_come_back_after_close_and_fork(jobs: Scheduler) -> None:
    async def main() -> int:
        return await jobs.task(Double(1)).schedule_async()

    ids = [asyncio.run(main())]
    jobs.close()
    ids.append(asyncio.run(main()))
    jobs.threads._pid = -1  # as in a child process, which has none of the parent's threads
    ids.append(asyncio.run(main()))
    assert len({*ids}) == 3


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_task_goes_with_the_callers_asynchronous_transaction(jobs: Scheduler, database: Database, ends: str) -> None:
    parent = jobs.task(Double(1)).schedule()

    async def main() -> list[int]:
        async with connected(database.url) as connection:
            await connection.execute(sa.text("CREATE TABLE own (name TEXT)"))
            await connection.commit()
            session = AsyncSession(connection)
            await session.execute(sa.text("INSERT INTO own VALUES ('a')"))
            made = [await jobs.task(Double(2)).schedule_async(session)]
            made.append(await jobs.task(Double(3)).key("k").depend_on([parent, made[0]]).schedule_async(connection))
            async with jobs.batch(connection=session) as batch:
                first = batch.task(Double(4))
                batch.task(Double(5)).depend_on(first)
            await (session.commit() if ends == "commit" else session.rollback())
            rows = await connection.execute(sa.text("SELECT count(*) FROM own"))
            assert rows.scalar_one() == (1 if ends == "commit" else 0)
            return [*made, *batch.ids]

    ids = asyncio.run(main())
    assert sorted(task.id for task in jobs.list_tasks()) == sorted([parent, *(ids if ends == "commit" else [])])
    drain(jobs)
    if ends == "commit":
        assert [jobs.result(i, 0) for i in ids] == [4, 6, 8, 10]


def test_a_batch_without_a_connection_is_awaited_too(jobs: Scheduler) -> None:
    async def main() -> list[int]:
        async with jobs.batch() as batch:
            batch.task(Double(1)).depend_on(batch.task(Double(2)))
        with suppress(ZeroDivisionError):
            async with jobs.batch() as other:
                other.task(Double(9))
                raise ZeroDivisionError
        return [*batch.ids]

    ids = asyncio.run(main())
    assert sorted(task.id for task in jobs.list_tasks()) == sorted(ids)


def test_a_connection_of_the_other_sort_is_refused(jobs: Scheduler, database: Database) -> None:
    async def main() -> None:
        async with connected(database.url) as connection:
            with pytest.raises(ConfigError, match=r"not AsyncSession; schedule_async\(\) and `async with` take that"):
                jobs.task(Double(1)).schedule(AsyncSession(connection))  # type: ignore[arg-type]
        engine = sa.create_engine(database.url)
        with engine.connect() as plain, pytest.raises(ConfigError, match=r"takes an AsyncSession .* not Connection"):
            await jobs.task(Double(1)).schedule_async(plain)  # type: ignore[arg-type]
        engine.dispose()

    asyncio.run(main())
    assert jobs.list_tasks() == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"], indirect=True)
def test_a_callers_driver_is_asked_as_sqlalchemy_asks_it(jobs: Scheduler, database: Database) -> None:
    """For what is recorded of who stores a task, and what a replacement that ends at once lets go."""
    gone = jobs.task(Double(1)).schedule()
    jobs.cancel_task(gone)
    held = jobs.task(Double(2)).key("held").schedule()
    child = jobs.task(Double(3)).depend_on(held, when="finished").schedule()

    async def main() -> TaskId:
        async with connected(database.url) as connection:
            with jobs.acting("ada"):
                made = await jobs.task(Double(4)).schedule_async(connection=connection)
            replaced = jobs.task(Double(5)).key("held", "replace").depend_on(gone)
            assert await replaced.schedule_async(connection=connection) == held
            await connection.commit()
        return made

    made = asyncio.run(main())
    assert [entry.actor for entry in jobs.audit(made)] == ["ada"]
    assert jobs.get_task(held).state is TaskState.FAILED
    assert jobs.get_task(child).state is TaskState.SCHEDULED
