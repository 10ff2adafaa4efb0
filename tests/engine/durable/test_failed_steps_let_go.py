"""What a failed attempt held is freed when it has ended, not when the collector comes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import AsyncContext, Context, Scheduler, Task
from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.execution.offload import wait_for, wait_for_async
from support.databases import Database, one_database
from support.fleet import until

held: list[weakref.ref[Any]] = []


class Big:
    """Stands for forty megabytes."""


def fail() -> None:
    big = Big()
    held.append(weakref.ref(big))
    raise ValueError("no")


async def fail_later() -> None:
    await asyncio.sleep(0)
    fail()


class Thread(Task):
    how: str

    def run(self, ctx: Context) -> None:
        fail() if self.how == "plain" else ctx.step("fail", fail)


class Coroutine(Task):
    how: str

    async def run(self, ctx: AsyncContext) -> None:
        if self.how == "plain":
            fail()
        elif self.how == "thread":
            await asyncio.to_thread(fail)
        elif self.how == "kept":
            ctx.wait_until(fail_later())
        else:
            await ctx.step("fail", fail if self.how == "step" else fail_later)


class Transaction(Task):
    how: str

    async def run(self, ctx: AsyncContext) -> None:
        async with ctx.transaction() as tx:
            await tx.run(lambda _: fail())


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    for kind in (Thread, Coroutine, Transaction):
        made.register(kind)
    made.start()
    yield made
    made.stop_now()
    made.close()


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    held.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_failed_function_of_a_child_lets_go_too() -> None:
    class Error(Exception):
        """Can be referred to weakly."""

    def failed() -> CpuFuture[Any]:
        future: CpuFuture[Any] = CpuFuture()
        error = Error()
        future.set_exception(error)
        held.append(weakref.ref(error))
        return future

    async def awaits() -> None:
        with contextlib.suppress(Error):
            await wait_for_async(failed())

    with contextlib.suppress(Error):
        wait_for(failed(), lambda: None)
    asyncio.run(awaits())
    assert [one() for one in held] == [None, None]


@pytest.mark.parametrize(
    "task",
    [
        *(Thread(how) for how in ("plain", "step")),
        *(Coroutine(how) for how in ("plain", "thread", "step", "async step", "kept")),
        Transaction("run"),
    ],
    ids=lambda one: f"{type(one).__name__} {one.how}",
)
@one_database
def test_a_failed_attempt_lets_go_of_what_it_held(jobs: Scheduler, task: Any) -> None:
    jobs.wait([jobs.task(task).schedule()], timeout=20.0)
    assert len(held) == 1
    until(lambda: held[0]() is None, 2.0)
