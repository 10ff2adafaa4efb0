"""DBOS: a queue of no-op workflows, on SQLite and on PostgreSQL."""

from __future__ import annotations

import logging
import sqlite3
import sys
import time
from typing import Any

from dbos import DBOS, DBOSConfig, Queue

CONCURRENCY = 50


def _launch(url: str) -> tuple[Any, Queue, list[int]]:
    logging.getLogger("dbos").setLevel(logging.ERROR)
    config: DBOSConfig = {"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False}
    DBOS(config=config)
    ran: list[int] = []

    @DBOS.workflow(name="noop")
    def noop(n: int, text: str = "") -> None:
        ran.append(n)

    DBOS.launch()
    return noop, DBOS.register_queue("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=0.01), ran


def drain(url: str, size: int) -> float:
    noop, queue, ran = _launch(url)
    begun = time.perf_counter()
    handles = [queue.enqueue(noop, n, "hello world") for n in range(size)]
    already, started = len(ran), time.perf_counter()
    while len(ran) < size:
        time.sleep(0.002)
    assert len(handles) == size
    # Its workers begin while the queue is filled; what counts is the better of both readings.
    return max(size / (time.perf_counter() - begun), (size - already) / (time.perf_counter() - started))


def enqueue(url: str, size: int) -> float:
    noop, queue, _ = _launch(url)
    begun = time.perf_counter()
    for n in range(size):
        queue.enqueue(noop, n, "hello world")
    return size / (time.perf_counter() - begun)


# From Python 3.12 on its tables need a function that came with SQLite 3.42.
_ABLE = sys.version_info < (3, 12) or sqlite3.sqlite_version_info >= (3, 42)
_DATABASES = ("sqlite", "postgresql") if _ABLE else ("postgresql",)
WORKS = {(w, d): f for w, f in (("drain", drain), ("enqueue", enqueue)) for d in _DATABASES}
