"""jobs.progress_async: awaited once, or watched to the task's end; and sessions of other makers as connection=."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from scheduler import Context, Scheduler, Task, UnknownTaskError
from scheduler.testing import drain
from support.databases import Database

pytestmark = pytest.mark.both_databases


class Works(Task):
    def run(self, ctx: Context) -> str:
        ctx.report_progress(50, "half")
        ctx.await_event("go")
        return "done"


def make(database: Database) -> Scheduler:
    jobs = Scheduler.for_testing(url=database.url)
    jobs.register(Works)
    return jobs


def test_a_task_is_watched_to_its_end(database: Database) -> None:
    jobs = make(database)
    task_id = jobs.task(Works()).schedule()

    async def watch() -> list[tuple[str, float | None]]:
        assert await jobs.progress_async(task_id) == (None, None)
        seen = []
        async for task in jobs.progress_async(task_id, every=0.01):
            seen.append((str(task.state), task.progress))
            if task.state == "suspended":
                assert await jobs.progress_async(task_id) == (50.0, "half")
                jobs.emit_event("go")
            await asyncio.to_thread(drain, jobs)
        return seen

    assert asyncio.run(watch()) == [("scheduled", None), ("suspended", 50.0), ("success", 50.0)]
    jobs.close()


def test_one_that_is_not_there(database: Database) -> None:
    jobs = make(database)

    async def watch() -> None:
        with pytest.raises(UnknownTaskError):
            await jobs.progress_async(99)
        with pytest.raises(UnknownTaskError):
            async for _ in jobs.progress_async(99):
                pass

    asyncio.run(watch())
    jobs.close()


def test_scoped_sessions_are_sessions(database: Database) -> None:
    jobs, engine = make(database), sa.create_engine(database.url)
    session = scoped_session(sessionmaker(engine))
    jobs.task(Works()).schedule(connection=session)  # type: ignore[arg-type]
    session.rollback()
    stored = jobs.task(Works()).schedule(connection=session)  # type: ignore[arg-type]
    session.commit()
    session.remove()
    engine.dispose()
    assert [one.id for one in jobs.list_tasks()] == [stored]

    async def within() -> int:
        asynchronous = create_async_engine(database.url.replace("sqlite:", "sqlite+aiosqlite:"))
        scoped = async_scoped_session(async_sessionmaker(asynchronous), asyncio.current_task)
        made = await jobs.task(Works()).schedule_async(connection=scoped)  # type: ignore[arg-type]
        await scoped.commit()
        await scoped.remove()
        await asynchronous.dispose()
        return made

    assert asyncio.run(within()) in {one.id for one in jobs.list_tasks()}
    jobs.close()
