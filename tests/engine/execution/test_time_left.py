"""``ctx.time_left()``: how long a handler may still run."""

from __future__ import annotations

from scheduler import AsyncContext, Context, Scheduler, task
from scheduler.testing import FakeClock, drain
from support.databases import Database, one_database

clock = FakeClock()


@task
def reads(ctx: Context) -> list[float | None]:
    before = ctx.time_left()
    clock.advance(20)
    return [before, ctx.time_left()]


@task
async def reads_async(ctx: AsyncContext) -> float | None:
    return ctx.time_left()


@one_database
def test_what_is_left_of_the_timeout(database: Database) -> None:
    jobs = Scheduler.for_testing(url=database.url, clock=clock)
    jobs.register(reads)
    jobs.register(reads_async)
    bounded, free = jobs.task(reads).timeout(30).schedule(), jobs.task(reads).schedule()
    other = jobs.task(reads_async).timeout(5).schedule()
    drain(jobs)
    assert jobs.result(bounded) == [30.0, 10.0]
    assert jobs.result(free) == [None, None]
    assert jobs.result(other) == 5.0
    jobs.close()
