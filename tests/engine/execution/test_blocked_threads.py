"""Handlers that block in threads keep no other handler from its context, nor from threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import AsyncContext, Scheduler, task
from support.databases import Database

pytestmark = pytest.mark.case(80)
PATIENCE = 30.0
SLOTS = 13
gate = threading.Event()
blocked = threading.Semaphore(0)
freed: list[bool] = []


def block() -> None:
    blocked.release()
    in_time = gate.wait(PATIENCE)
    freed.append(in_time)


@task
async def blocks(ctx: AsyncContext, threads: int) -> None:
    await asyncio.gather(*(asyncio.to_thread(block) for _ in range(threads)))


@task
async def blocks_in_steps(ctx: AsyncContext, steps: int) -> None:
    await asyncio.gather(*(ctx.step(f"blocks-{n}", block) for n in range(steps)))


@task
async def parent(ctx: AsyncContext) -> str:
    return "answered"


async def double(n: int) -> int:
    return 2 * n


@task
async def uses_its_context(ctx: AsyncContext) -> Any:
    results = list((await ctx.results()).values())
    doubled = await ctx.step("double", double, 21)
    return [*results, doubled, await ctx.dependency_failures()]


@task
async def uses_a_step_in_a_thread(ctx: AsyncContext) -> Any:
    return await ctx.step("in a thread", int, "7")


@task
async def uses_a_thread(ctx: AsyncContext) -> Any:
    return await asyncio.to_thread(int, "7")


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    gate.clear()
    freed.clear()
    made = Scheduler(database.url, pools={"high": (0, 0), "medium": (1, SLOTS), "low": (0, 0)})
    for kind in (blocks, blocks_in_steps, parent, uses_its_context, uses_a_step_in_a_thread, uses_a_thread):
        made.register(kind)
    with made:
        yield made
        gate.set()
    made.close()


def wait_for_blocked(count: int) -> None:
    for _ in range(count):
        assert blocked.acquire(timeout=PATIENCE)


@pytest.mark.parametrize("kind", [blocks, blocks_in_steps])
def test_one_that_blocks_all_threads_keeps_no_other_from_its_context(jobs: Scheduler, kind: Any) -> None:
    jobs.task(kind, SLOTS).schedule()
    wait_for_blocked(SLOTS)
    first = jobs.task(parent).schedule()
    made = jobs.task(uses_its_context).depend_on(first).schedule()
    assert jobs.result(made, timeout=PATIENCE) == ["answered", 42, {}]
    other = uses_a_step_in_a_thread if kind is blocks else uses_a_thread
    assert jobs.result(jobs.task(other).schedule(), timeout=PATIENCE) == 7
    assert not freed, "all of them block"


def test_as_many_threads_as_slots(jobs: Scheduler) -> None:
    for _ in range(SLOTS - 1):
        jobs.task(blocks, 1).schedule()
    wait_for_blocked(SLOTS - 1)
    assert jobs.result(jobs.task(uses_a_thread).schedule(), timeout=PATIENCE) == 7
    assert not freed
