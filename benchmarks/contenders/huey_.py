"""huey on SQLite: WAL with fsync at each commit, no results kept, threads, and no pause between looks at the queue."""

from __future__ import annotations

import logging
import time
from typing import Any

from huey import SqliteHuey

WORKERS = 2  # more threads were slower here: each takes one task in a transaction of its own


def _queue(url: str) -> tuple[Any, Any, list[int]]:
    logging.getLogger("huey").setLevel(logging.ERROR)
    queue = SqliteHuey(filename=url.removeprefix("sqlite:///"), results=False, fsync=True, journal_mode="wal")
    ran: list[int] = []

    @queue.task()
    def noop(n: int, text: str = "") -> None:
        ran.append(n)

    return queue, noop, ran


def drain(url: str, size: int) -> float:
    queue, noop, ran = _queue(url)
    for n in range(size):
        noop(n, "hello world")
    consumer = queue.create_consumer(workers=WORKERS, periodic=False, initial_delay=0.001, max_delay=0.01, backoff=1.15)
    consumer.start()
    begun, already = time.perf_counter(), len(ran)
    while len(ran) < size:
        time.sleep(0.002)
    rate = (size - already) / (time.perf_counter() - begun)
    consumer.stop(graceful=True)
    return rate


def enqueue(url: str, size: int) -> float:
    _, noop, _ = _queue(url)
    noop(0, "hello world")
    begun = time.perf_counter()
    for n in range(size):
        noop(n, "hello world")
    return size / (time.perf_counter() - begun)


WORKS = {("drain", "sqlite"): drain, ("enqueue", "sqlite"): enqueue}
