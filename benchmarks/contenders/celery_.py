"""celery on Redis: no results, prefork workers on every core that fetch ahead, no gossip, mingle or heartbeat.

A message is acknowledged before its task runs, as celery has it by default: what a crash interrupts is lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from contenders.calls import Calls

URL = os.environ.get("BENCH_REDIS", "redis://")
app = Celery("bench", broker=URL.replace("unix://", "redis+socket://"))
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=50, broker_connection_retry_on_startup=True)


@app.task(name="noop")
def noop(n: int, text: str = "") -> None:
    """Does nothing."""


@app.task(name="stamp")
def stamp(n: int) -> None:
    at = time.time()
    redis.Redis.from_url(URL).hset("stamps", str(n), repr(at))


@contextmanager
def _worker(url: str, *options: str) -> Any:
    command = [sys.executable, "-m", "celery", "-A", "contenders.celery_", "worker", "--loglevel=ERROR"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat", *options]
    here = Path(__file__).parents[1]
    process = subprocess.Popen(
        command,
        cwd=here,
        env={**os.environ, "BENCH_REDIS": url, "C_FORCE_ROOT": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _fill(url: str, size: int) -> float:
    app.conf.broker_url = url.replace("unix://", "redis+socket://")
    noop.delay(0, "hello world")
    begun = time.perf_counter()
    for n in range(size):
        noop.delay(n, "hello world")
    return size / (time.perf_counter() - begun)


def drain(url: str, size: int) -> float:
    _fill(url, size)
    server = redis.Redis.from_url(url)
    with _worker(url):
        while (before := server.llen("celery")) > size:  # the first one marks that it has begun
            time.sleep(0.001)
        begun = time.perf_counter()
        while server.llen("celery") or server.hlen("unacked"):
            time.sleep(0.001)
        return before / (time.perf_counter() - begun)


def enqueue(url: str, size: int) -> float:
    return _fill(url, size)


def caller(url: str) -> Callable[[int], None]:
    app.conf.broker_url = url.replace("unix://", "redis+socket://")
    return lambda n: stamp.delay(n) and None


def start(url: str, size: int) -> list[float]:
    server = redis.Redis.from_url(url)
    with _worker(url):
        app.conf.broker_url = url.replace("unix://", "redis+socket://")
        stamp.delay(-2)
        while not server.hlen("stamps"):
            time.sleep(0.01)
        calls = Calls("celery_", url, size)
        while not calls.over:
            time.sleep(0.05)
        time.sleep(0.5)
        return calls.latencies({int(n): float(at) for n, at in server.hgetall("stamps").items()})


WORKS = {("drain", "redis"): drain, ("enqueue", "redis"): enqueue, ("start", "redis"): start}
