"""Handlers share an event loop: what one does to it is not to reach the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from scheduler import AsyncContext, Scheduler, task
from support.databases import Database

pytestmark = pytest.mark.case(1)
PATIENCE = 30.0
mine: ContextVar[str] = ContextVar("mine", default="nobody's")


@task
async def cancels_all(ctx: AsyncContext) -> int:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    return len(others)


@task
async def bystander(ctx: AsyncContext) -> str:
    return "ran"


@task
async def sets(ctx: AsyncContext, name: str) -> str:
    before = mine.get()
    mine.set(name)
    await asyncio.sleep(0)
    return before + mine.get()


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url, pools={"high": (0, 0), "medium": (0, 2), "low": (0, 0)})
    for kind in (cancels_all, bystander, sets):
        made.register(kind)
    yield made
    made.close()


def test_who_cancels_all_of_them_reaches_none_that_has_not_begun(jobs: Scheduler) -> None:
    """It would end without having run: nobody knew that it had, and its slot stayed taken."""
    with jobs.batch() as batch:
        batch.task(cancels_all)
        for _ in range(5):
            batch.task(bystander)
    first, *others = batch.ids
    with jobs:
        assert jobs.result(first, timeout=PATIENCE) == 1
        assert [jobs.result(i, timeout=PATIENCE) for i in others] == ["ran"] * 5


def test_each_has_context_variables_of_its_own(jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        for n in range(40):
            batch.task(sets, f" {n}")
    with jobs:
        told = [jobs.result(i, timeout=PATIENCE) for i in batch.ids]
    assert told == [f"nobody's {n}" for n in range(40)]
