"""absurd: its schema from absurdctl, its asynchronous worker with claims of 50, and hardly a pause between looks."""

from __future__ import annotations

import asyncio
import time

import absurdctl
import psycopg
from absurd_sdk import Absurd, AsyncAbsurd

CONCURRENCY = 50


def _install(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(absurdctl.BUNDLED_SCHEMA_SQL, prepare=False)
    client = Absurd(url)
    client.create_queue("default")
    client.close()


def _spawn(connection: psycopg.Connection, size: int) -> None:
    client = Absurd(connection)
    for n in range(size):
        client.spawn("noop", {"n": n, "text": "hello world"}, queue="default")


def drain(url: str, size: int) -> float:
    _install(url)
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction():
        _spawn(connection, size)

    async def work() -> float:
        app = AsyncAbsurd(url)
        ran = 0

        @app.register_task(name="noop")
        async def noop(params, ctx) -> None:  # type: ignore[no-untyped-def]
            nonlocal ran
            ran += 1

        begun = time.perf_counter()
        working = asyncio.create_task(app.start_worker(concurrency=CONCURRENCY, poll_interval=0.01))
        while ran < size:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        rate = size / (time.perf_counter() - begun)
        app.stop_worker()
        await working
        await app.close()
        return rate

    return asyncio.run(work())


def enqueue(url: str, size: int) -> float:
    _install(url)
    with psycopg.connect(url, autocommit=True) as connection:
        begun = time.perf_counter()
        _spawn(connection, size)
        return size / (time.perf_counter() - begun)


WORKS = {("drain", "postgresql"): drain, ("enqueue", "postgresql"): enqueue}
