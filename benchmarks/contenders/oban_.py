"""oban-py on psycopg with uvloop, as its own command runs it; one queue of 50 jobs at a time. Needs Python 3.12."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import uvloop
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from contenders.calls import Calls
from contenders.collector import forget

CONCURRENCY = 50
BULK = 1_000  # jobs of one statement
ran = 0
started: dict[int, float] = {}


@worker(queue="default")
class Noop:
    async def process(self, job):  # type: ignore[no-untyped-def]
        global ran
        ran += 1
        started.setdefault(job.args["n"], time.time())


async def _pool(url: str) -> AsyncConnectionPool:
    pool = AsyncConnectionPool(url, min_size=4, max_size=20, open=False)
    await pool.open()
    return pool


def _job(n: int):  # type: ignore[no-untyped-def]
    return Noop.new({"n": n, "text": "hello world"})  # type: ignore[attr-defined]


async def _drain(url: str, size: int) -> float:
    pool = await _pool(url)
    await install(pool)
    oban = Oban(pool=pool, queues={"default": CONCURRENCY})
    for at in range(0, size, BULK):
        await oban.enqueue_many(_job(n) for n in range(at, min(at + BULK, size)))
    forget()
    begun = time.perf_counter()
    async with oban:
        while ran < size:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        rate = size / (time.perf_counter() - begun)
    await pool.close()
    return rate


async def _enqueue(url: str, size: int) -> float:
    pool = await _pool(url)
    await install(pool)
    oban = Oban(pool=pool)
    await oban.enqueue(_job(0))
    begun = time.perf_counter()
    for n in range(size):
        await oban.enqueue(_job(n))
    rate = size / (time.perf_counter() - begun)
    await pool.close()
    return rate


async def _batch(url: str, size: int) -> float:
    pool = await _pool(url)
    await install(pool)
    oban = Oban(pool=pool)
    forget()
    begun = time.perf_counter()
    await oban.enqueue_many(_job(n) for n in range(size))
    rate = size / (time.perf_counter() - begun)
    await pool.close()
    return rate


async def _start(url: str, size: int) -> list[float]:
    pool = await _pool(url)
    await install(pool)
    async with Oban(pool=pool, queues={"default": CONCURRENCY}):
        calls = Calls("oban_", url, size)
        while not calls.over:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        found = calls.latencies(started)
    await pool.close()
    return found


def caller(url: str) -> Callable[[int], None]:
    loop = uvloop.new_event_loop()
    pool = loop.run_until_complete(_pool(url))
    oban = Oban(pool=pool)
    return lambda n: loop.run_until_complete(oban.enqueue(_job(n))) and None


def _run(work: Callable[[str, int], Awaitable[object]]) -> Callable[[str, int], object]:
    def run(url: str, size: int) -> object:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work(url, size))  # type: ignore[arg-type]

    return run


WORKS = {
    ("drain", "postgresql"): _run(_drain),
    ("enqueue", "postgresql"): _run(_enqueue),
    ("batch", "postgresql"): _run(_batch),
    ("start", "postgresql"): _run(_start),
}
