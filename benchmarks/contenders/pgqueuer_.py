"""pgqueuer on asyncpg with uvloop, the batch size that was fastest here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from contenders.callers import BATCH as OF_CALLERS
from contenders.callers import Call, by_count
from contenders.calls import Calls
from contenders.collector import forget

BATCH = 100
PAYLOAD = b'{"n":1,"text":"hello world"}'


async def _connect(url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url)
    await Queries.from_asyncpg_connection(connection).install()
    return connection


async def _enqueue_all(connection: asyncpg.Connection, size: int) -> None:
    await Queries.from_asyncpg_connection(connection).enqueue(["noop"] * size, [PAYLOAD] * size, [0] * size)


async def _drain(url: str, size: int) -> float:
    connection = await _connect(url)
    await _enqueue_all(connection, size)
    queue = PgQueuer.from_asyncpg_connection(connection)
    ran = 0

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        nonlocal ran
        ran += 1

    forget()
    begun = time.perf_counter()
    await queue.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    assert ran == size, (ran, size)
    return size / (time.perf_counter() - begun)


async def _enqueue(url: str, size: int) -> float:
    queries = Queries.from_asyncpg_connection(await _connect(url))
    begun = time.perf_counter()
    for _ in range(size):
        await queries.enqueue("noop", PAYLOAD, 0)
    return size / (time.perf_counter() - begun)


async def _batch(url: str, size: int) -> float:
    connection = await _connect(url)
    forget()
    begun = time.perf_counter()
    await _enqueue_all(connection, size)
    return size / (time.perf_counter() - begun)


async def _start(url: str, size: int) -> list[float]:
    queue = PgQueuer.from_asyncpg_connection(await _connect(url))
    started: dict[int, float] = {}

    @queue.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        assert job.payload is not None
        started.setdefault(int(job.payload), time.time())

    working = asyncio.create_task(queue.run(batch_size=BATCH))
    await asyncio.sleep(0.5)
    calls = Calls("pgqueuer_", url, size)
    while not calls.over:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    found = calls.latencies(started)
    queue.shutdown.set()
    await working
    return found


def caller(url: str) -> Callable[[int], None]:
    loop = uvloop.new_event_loop()
    queries = Queries.from_asyncpg_connection(loop.run_until_complete(asyncpg.connect(url)))
    return lambda n: loop.run_until_complete(queries.enqueue("stamp", str(n).encode(), 0)) and None


def _install(url: str) -> None:
    asyncio.run(_connect(url))


def storing(tasks: int) -> Callable[[str], Call]:
    """One after the other, or so many together."""

    def way(url: str) -> Call:
        loop = uvloop.new_event_loop()
        queries = Queries.from_asyncpg_connection(loop.run_until_complete(asyncpg.connect(url)))

        def call() -> int:
            loop.run_until_complete(queries.enqueue(["noop"] * tasks, [PAYLOAD] * tasks, [0] * tasks))
            return tasks

        return call

    return way


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
    ("callers", "postgresql"): by_count(_install, storing(1)),
    ("callers' batches", "postgresql"): by_count(_install, storing(OF_CALLERS)),
}
