"""Handlers that wait for tasks: in their slots they are refused, with what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import AsyncContext, ConfigError, Context, Scheduler, Task, task
from scheduler.testing import drain
from support.databases import Database

PATIENCE = 20.0
jobs: Scheduler
elsewhere: Scheduler


@task
def child(ctx: Context) -> int:
    return 5


def first() -> int:
    """One that has not ended, whenever it is looked at."""
    return jobs.task(child).after(3600).schedule()


WAITS: dict[str, Callable[[], Any]] = {
    "result": lambda: jobs.result(first()),
    "result in time": lambda: jobs.result(first(), timeout=60),
    "wait": lambda: jobs.wait([first()]),
    "wait for one": lambda: jobs.wait([first(), first()], first=True),
    "drain": lambda: drain(jobs),
}
AWAITS: dict[str, Callable[[], Any]] = {
    "result": lambda: jobs.result_async(first()),
    "wait": lambda: jobs.wait_async([first()], timeout=60),
}


class Waits(Task):
    how: str

    def run(self, ctx: Context) -> Any:
        return WAITS[self.how]()


class Awaits(Task):
    how: str

    async def run(self, ctx: AsyncContext) -> Any:
        return await AWAITS[self.how]()


class WaitsInHook(Task):
    def run(self, ctx: Context) -> None:
        raise ValueError("no")

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        try:
            jobs.result(first())
        except ConfigError as refused:
            ctx.capture(str(refused))
            raise


class LooksOnly(Task):
    """What has ended is told at once, and what has not, too; and a task of another store may be waited for."""

    ended: int

    def run(self, ctx: Context) -> list[Any]:
        with pytest.raises(TimeoutError):
            jobs.result(ctx.id, timeout=0)
        other = elsewhere.result(elsewhere.task(child).schedule(), timeout=PATIENCE)
        return [jobs.result(self.ended), other]


class Stops(Task):
    def run(self, ctx: Context) -> list[int]:
        return jobs.stop()


@pytest.fixture(autouse=True)
def running(database: Database, tmp_path: Any) -> Iterator[None]:
    global jobs, elsewhere
    jobs = Scheduler(database.url, pools={"high": (0, 0), "medium": (1, 1), "low": (0, 0)})
    elsewhere = Scheduler(f"sqlite:///{tmp_path}/other.db")
    for made in (jobs, elsewhere):
        for kind in (child, Waits, Awaits, WaitsInHook, LooksOnly, Stops):
            made.register(kind)
        made.start()
    yield
    for made in (jobs, elsewhere):
        made.stop_now()
        made.close()


def error_of(task_id: int) -> str:
    jobs.wait([task_id], timeout=PATIENCE)
    return str(jobs.get_task(task_id).error)


def test_a_handler_that_would_wait_is_refused_with_the_remedy() -> None:
    made = [*(Waits(how) for how in WAITS), *(Awaits(how) for how in AWAITS)]
    for one in made:
        error = error_of(jobs.task(one).schedule())  # type: ignore[arg-type]
        assert error.startswith("ConfigError: "), one
        assert "ctx.await_task(" in error, one
    hooked = jobs.task(WaitsInHook()).schedule()
    jobs.wait([hooked], timeout=PATIENCE)


def test_what_need_not_wait_is_answered() -> None:
    ended = jobs.task(child).schedule()
    jobs.wait([ended], timeout=PATIENCE)
    assert jobs.result(jobs.task(LooksOnly(ended)).schedule(), timeout=PATIENCE) == [5, 5]


def test_a_handler_that_stops_its_own_scheduler_does_not_wait_for_itself() -> None:
    stopping = jobs.task(Stops()).schedule()
    with jobs.database.read():  # it is open
        pass
    jobs.wait([stopping], timeout=PATIENCE)
    assert jobs.get_task(stopping).result == [stopping]
