"""procrastinate on psycopg, one worker with 50 jobs at a time, jobs deleted when they succeed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import procrastinate

from contenders.collector import forget

CONCURRENCY = 50


async def _open(url: str) -> tuple[procrastinate.App, procrastinate.tasks.Task, list[int]]:  # type: ignore[type-arg]
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=20))
    ran: list[int] = []

    @app.task(name="noop")
    async def noop(n: int, text: str = "") -> None:
        ran.append(n)

    await app.open_async()
    await app.schema_manager.apply_schema_async()
    return app, noop, ran


async def _drain(url: str, size: int) -> float:
    app, noop, ran = await _open(url)
    await noop.batch_defer_async(*({"n": n, "text": "hello world"} for n in range(size)))
    forget()
    begun = time.perf_counter()
    await app.run_worker_async(
        wait=False, concurrency=CONCURRENCY, delete_jobs="successful", install_signal_handlers=False
    )
    rate = size / (time.perf_counter() - begun)
    assert len(ran) == size
    await app.close_async()
    return rate


async def _enqueue(url: str, size: int) -> float:
    app, noop, _ = await _open(url)
    begun = time.perf_counter()
    for n in range(size):
        await noop.defer_async(n=n, text="hello world")
    rate = size / (time.perf_counter() - begun)
    await app.close_async()
    return rate


async def _batch(url: str, size: int) -> float:
    app, noop, _ = await _open(url)
    forget()
    begun = time.perf_counter()
    await noop.batch_defer_async(*({"n": n, "text": "hello world"} for n in range(size)))
    rate = size / (time.perf_counter() - begun)
    await app.close_async()
    return rate


def _run(work: Callable[[str, int], Awaitable[float]]) -> Callable[[str, int], float]:
    def run(url: str, size: int) -> float:
        return asyncio.run(work(url, size))  # type: ignore[arg-type]

    return run


WORKS = {
    ("drain", "postgresql"): _run(_drain),
    ("enqueue", "postgresql"): _run(_enqueue),
    ("batch", "postgresql"): _run(_batch),
}
