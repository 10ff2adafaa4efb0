"""huey: no results kept, threads, and no pause between looks at the queue. SQLite: WAL with fsync at each commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from huey import PostgresHuey, SqliteHuey

from contenders.callers import Call, by_count
from contenders.calls import Calls

WORKERS = 2  # more threads were slower here: each takes one task in a transaction of its own
started: dict[int, float] = {}


def _queue(url: str) -> tuple[Any, Any, list[int]]:
    logging.getLogger("huey").setLevel(logging.ERROR)
    queue: Any
    if url.startswith("sqlite"):
        queue = SqliteHuey(filename=url.removeprefix("sqlite:///"), results=False, fsync=True, journal_mode="wal")
    else:
        queue = PostgresHuey(dsn=url, results=False)
    ran: list[int] = []

    @queue.task(name="noop")
    def noop(n: int, text: str = "") -> None:
        started.setdefault(n, time.time())
        ran.append(n)

    return queue, noop, ran


def _consumer(queue: Any) -> Any:
    made = queue.create_consumer(workers=WORKERS, periodic=False, initial_delay=0.001, max_delay=0.01, backoff=1.15)
    made.start()
    return made


def drain(url: str, size: int) -> float:
    queue, noop, ran = _queue(url)
    for n in range(size):
        noop(n, "hello world")
    begun = time.perf_counter()
    consumer = _consumer(queue)
    while len(ran) < size:
        time.sleep(0.002)
    rate = size / (time.perf_counter() - begun)
    consumer.stop(graceful=True)
    return rate


def enqueue(url: str, size: int) -> float:
    _, noop, _ = _queue(url)
    noop(0, "hello world")
    begun = time.perf_counter()
    for n in range(size):
        noop(n, "hello world")
    return size / (time.perf_counter() - begun)


def one_by_one(url: str) -> Call:
    _, noop, _ = _queue(url)

    def call() -> int:
        noop(1, "hello world")
        return 1

    return call


def caller(url: str) -> Callable[[int], None]:
    _, noop, _ = _queue(url)
    return lambda n: noop(n) and None


def start(url: str, size: int) -> list[float]:
    queue, _, _ = _queue(url)
    consumer = _consumer(queue)
    found = Calls("huey_", url, size).latencies(started)
    consumer.stop(graceful=True)
    return found


WORKS = {
    (work, dialect): function
    for work, function in (
        ("drain", drain),
        ("enqueue", enqueue),
        ("start", start),
        ("callers", by_count(_queue, one_by_one)),
    )
    for dialect in ("sqlite", "postgresql")
}
