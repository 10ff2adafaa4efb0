"""What a task that an asynchronous handler started raises fails its attempt as anything does, in a child, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from scheduler import AsyncContext, RetryPolicy, Scheduler, Task
from support.databases import Database

pytestmark = [pytest.mark.faults, pytest.mark.case(7)]

AGAIN = RetryPolicy(min_wait=0, max_attempts=2)


async def _leave(error: type[BaseException]) -> None:
    raise error("it had enough")


async def _awaited(error: type[BaseException]) -> None:
    await asyncio.create_task(_leave(error))


async def _gathered(error: type[BaseException]) -> None:
    await asyncio.gather(_leave(error), asyncio.sleep(0))


async def _stopped(error: type[BaseException]) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    await _leave(error)


WAYS: dict[str, Callable[[type[BaseException]], Awaitable[None]]] = {
    "awaited": _awaited,
    "gathered": _gathered,
    "stopped": _stopped,
}
ERRORS: dict[str, type[BaseException]] = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}


class InLoop(Task, retry=AGAIN):
    way: str
    error: str

    async def run(self, ctx: AsyncContext) -> str:
        if ctx.attempt == 1:
            await WAYS[self.way](ERRORS[self.error])
        return "done"


class InChild(InLoop, isolation="process", retry=AGAIN):
    pass


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url, processes=1)
    made.register(InLoop)
    made.register(InChild)
    made.start()
    yield made
    made.stop_now()
    made.close()


@pytest.mark.parametrize("kind", [InLoop, InChild])
def test_what_a_started_task_raises_is_retried_as_the_policy_says(jobs: Scheduler, kind: type[InLoop]) -> None:
    ids = {(way, error): jobs.task(kind(way, error)).schedule() for way in WAYS for error in ERRORS}
    jobs.wait(ids.values(), timeout=60)
    found = {
        named: [(a.outcome.value, a.error_class) for a in jobs.get_attempts(task_id)] for named, task_id in ids.items()
    }
    assert found == {(way, error): [("retried", error), ("succeeded", None)] for way, error in ids}
