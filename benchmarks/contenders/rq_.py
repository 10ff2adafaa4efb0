"""rq on Redis: no results kept, and the worker that does not fork for each job, which is its fastest."""

from __future__ import annotations

import logging
import time

import redis
from rq import Queue
from rq.worker import SimpleWorker


def noop(n: int, text: str = "") -> None:
    """Does nothing."""


def _fill(queue: Queue, size: int) -> float:
    begun = time.perf_counter()
    for n in range(size):
        queue.enqueue("contenders.rq_.noop", n, "hello world", result_ttl=0)
    return size / (time.perf_counter() - begun)


def drain(url: str, size: int) -> float:
    logging.getLogger("rq").setLevel(logging.ERROR)
    server = redis.Redis.from_url(url)
    queue = Queue(connection=server)
    _fill(queue, size)
    worker = SimpleWorker([queue], connection=server)
    begun = time.perf_counter()
    worker.work(burst=True, logging_level="ERROR")
    assert not queue.count
    return size / (time.perf_counter() - begun)


def enqueue(url: str, size: int) -> float:
    return _fill(Queue(connection=redis.Redis.from_url(url)), size)


WORKS = {("drain", "redis"): drain, ("enqueue", "redis"): enqueue}
