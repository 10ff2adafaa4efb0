"""Ours, at its defaults."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scheduler import AsyncContext, Context, Scheduler, task

ran = 0
started: dict[int, float] = {}


@task
def noop(ctx: Context, n: int, text: str = "") -> None:
    """Counts, so that the end can be seen without asking the database."""
    global ran
    ran += 1


@task
async def anoop(ctx: AsyncContext, n: int, text: str = "") -> None:
    """The same as a coroutine: each runs as an asyncio Task of its own."""
    global ran
    ran += 1


@task(priority="high")
def stamp(ctx: Context, n: int) -> None:
    """Tells when it began."""
    started[n] = time.time()


def scheduler(url: str, **options: Any) -> Scheduler:
    jobs = Scheduler(url.replace("postgresql://", "postgresql+psycopg://"), **options)
    jobs.database.auto_migrate = True
    for kind in (noop, anoop, stamp):
        jobs.register(kind)
    return jobs


def fill(jobs: Scheduler, size: int, kind: Any = noop, parents: int = 0, width: int = 100) -> None:
    """Batches of 5,000; with ``parents``, in layers of ``width``, each task below so many of the layer above."""
    rng = random.Random(1)
    made: list[Any] = []
    for start in range(0, size, 5000):
        with jobs.batch() as batch:
            for n in range(start, min(start + 5000, size)):
                builder = batch.task(kind, n, "hello world")
                if parents and n >= width:
                    above = (n // width - 1) * width
                    builder.depend_on([made[i] for i in rng.sample(range(above, above + width), parents)])
                made.append(builder)
        made[start:] = batch.ids


def _drained(jobs: Scheduler, size: int) -> float:
    """Tasks per second from the first turn until the last outcome is committed."""
    sys.setswitchinterval(0.001)  # as schedd does
    with jobs:
        assert jobs.engine.wait_ready(60)
        begun, already = time.perf_counter(), ran
        while ran < size or jobs.engine.desk.held:
            time.sleep(0.002)
        return (size - already) / (time.perf_counter() - begun)


def drain(url: str, size: int) -> float:
    jobs = scheduler(url)
    fill(jobs, size)
    return _drained(jobs, size)


def drain_async(url: str, size: int) -> float:
    jobs = scheduler(url)
    fill(jobs, size, anoop)
    return _drained(jobs, size)


def dag(url: str, size: int) -> float:
    jobs = scheduler(url)
    fill(jobs, size, parents=3)
    return _drained(jobs, size)


def enqueue(url: str, size: int) -> float:
    jobs = scheduler(url)
    jobs.task(noop, 0, "hello world").schedule()
    begun = time.perf_counter()
    for n in range(size):
        jobs.task(noop, n, "hello world").schedule()
    return size / (time.perf_counter() - begun)


def batch(url: str, size: int) -> float:
    jobs = scheduler(url)
    jobs.task(noop, 0, "hello world").schedule()
    begun = time.perf_counter()
    with jobs.batch() as made:
        for n in range(size):
            made.task(noop, n, "hello world")
    return size / (time.perf_counter() - begun)


def batch_edges(url: str, size: int) -> float:
    jobs = scheduler(url)
    jobs.task(noop, 0, "hello world").schedule()
    rng = random.Random(1)
    builders: list[Any] = []
    begun = time.perf_counter()
    with jobs.batch() as made:
        for n in range(size):
            builder = made.task(noop, n, "hello world")
            if n >= 100:
                above = (n // 100 - 1) * 100
                builder.depend_on([builders[i] for i in rng.sample(range(above, above + 100), 3)])
            builders.append(builder)
    return size / (time.perf_counter() - begun)


_CALLER = """
import sys, time
sys.path.insert(0, {path!r})
from contenders.schedd import scheduler, stamp
jobs = scheduler({url!r})
jobs.database.open()
for n in range({size}):
    time.sleep(0.02)
    begun = time.time()
    jobs.task(stamp, n).schedule()
    print(n, begun, flush=True)
"""


def start(url: str, size: int) -> list[float]:
    """Milliseconds from the call of schedule() in another process to the first line of the body, worker idle."""
    sys.setswitchinterval(0.001)
    jobs = scheduler(url)
    with jobs:
        assert jobs.engine.wait_ready(60)
        code = _CALLER.format(path=str(Path(__file__).parents[1]), url=url, size=size)
        told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        called = {int(n): float(at) for n, at in (line.split() for line in told.splitlines())}
        deadline = time.monotonic() + 10
        while len(started) < size and time.monotonic() < deadline:
            time.sleep(0.01)
    return [(started[n] - at) * 1000 for n, at in called.items()]


_ALL = {
    "drain": drain,
    "drain async": drain_async,
    "dag": dag,
    "enqueue": enqueue,
    "batch": batch,
    "batch of edges": batch_edges,
    "start": start,
}
WORKS = {(work, dialect): function for work, function in _ALL.items() for dialect in ("sqlite", "postgresql")}
