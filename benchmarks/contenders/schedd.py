"""Ours, at its defaults, embedded in one process as threads of it, with the interpreter as the daemon sets it up;
daemons are in schedd_daemons.py.
"""

from __future__ import annotations

import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from contenders.calls import Calls
from contenders.collector import forget
from contenders.graphs import parents_of
from scheduler import AsyncContext, Context, Scheduler, interpreter, task

SLEEP = 0.005  # seconds
BATCH = 5_000  # tasks that one batch of a preparation stores
ran = 0
goal = 0
reached = threading.Event()  # that so many have run
started: dict[int, float] = {}


@task
def noop(ctx: Context, n: int, text: str = "") -> None:
    """Counts, so that the end can be seen without asking the database."""
    global ran
    ran += 1
    if ran == goal:
        reached.set()


@task
async def anoop(ctx: AsyncContext, n: int, text: str = "") -> None:
    """The same as a coroutine: each runs as an asyncio Task of its own."""
    global ran
    ran += 1
    if ran == goal:
        reached.set()


@task
def sleeper(ctx: Context, n: int, text: str = "") -> None:
    """Waits as a request would."""
    global ran
    time.sleep(SLEEP)
    ran += 1  # by several threads, but none loses the interpreter in between


@task
def stamp(ctx: Context, n: int) -> None:
    """Tells when it began."""
    started.setdefault(n, time.time())


def scheduler(url: str, **options: Any) -> Scheduler:
    jobs = Scheduler(url.replace("postgresql://", "postgresql+psycopg://"), auto_migrate=True, **options)
    for kind in (noop, anoop, sleeper, stamp):
        jobs.register(kind)
    return jobs


def as_the_daemon_does() -> None:
    """Set up the interpreter, right before the engine starts."""
    interpreter.tune()
    interpreter.freeze()


def _store(jobs: Scheduler, size: int, kind: Any, wanted: Sequence[Sequence[int]], most: int) -> None:
    made: list[Any] = []
    for start in range(0, size, most):
        with jobs.batch() as batch:
            for n in range(start, min(start + most, size)):
                builder = batch.task(kind, n, "hello world")
                if wanted[n]:
                    builder.depend_on([made[i] for i in wanted[n]])
                made.append(builder)
        made[start:] = batch.ids


def fill(jobs: Scheduler, size: int, kind: Any = noop, parents: int = 0) -> None:
    _store(jobs, size, kind, parents_of(size, parents), BATCH)


def drained(jobs: Scheduler, size: int) -> dict[str, float]:
    """Tasks a second from the first cycle until the last outcome is committed; tasks in a cycle, on average."""
    global goal
    goal = size
    as_the_daemon_does()
    with jobs:
        assert jobs.engine.wait_ready(60)
        begun, already, turns = time.perf_counter(), ran, jobs.engine.cycles
        assert reached.wait(600)  # to look now and then takes the interpreter from the engine: 3 % at each 2 ms
        while jobs.engine.engine_state.held:
            time.sleep(0.0005)
        took = time.perf_counter() - begun
        return {"rate": (size - already) / took, "turn": (size - already) / max(1, jobs.engine.cycles - turns)}


def drain(url: str, size: int) -> dict[str, float]:
    jobs = scheduler(url)
    fill(jobs, size)
    return drained(jobs, size)


def drain_without_rollups(url: str, size: int) -> dict[str, float]:
    jobs = scheduler(url, rollups=False)
    fill(jobs, size)
    return drained(jobs, size)


def drain_with_metrics(url: str, size: int) -> dict[str, float]:
    jobs = scheduler(url, metrics=True)
    fill(jobs, size)
    return drained(jobs, size)


def drain_with_otel(url: str, size: int) -> dict[str, float]:
    """Tracing on, and nothing traced: no task was sent in a trace, none fails, none is slow."""
    jobs = scheduler(url, otel={"ratio": 0, "metrics": False, "endpoint": "http://127.0.0.1:9"})
    fill(jobs, size)
    return drained(jobs, size)


def drain_with_alerts(url: str, size: int) -> dict[str, float]:
    """Beside it the rules are evaluated once, in another thread: a daemon does that each 15 seconds."""
    from scheduler.alerts.service import AlertService
    from scheduler.config.alerts import Alerts
    from scheduler.config.model import Config, StoreSection

    jobs = scheduler(url)
    fill(jobs, size)
    store = StoreSection(url=jobs.database.url.render_as_string(hide_password=False))
    service = AlertService(Config(store=store, alerts=Alerts(enabled=True)))
    service.start()
    try:
        return drained(jobs, size)
    finally:
        service.stop()


def drain_async(url: str, size: int) -> dict[str, float]:
    jobs = scheduler(url)
    fill(jobs, size, anoop)
    return drained(jobs, size)


def dag(url: str, size: int) -> dict[str, float]:
    jobs = scheduler(url)
    fill(jobs, size, parents=3)
    return drained(jobs, size)


def enqueue(url: str, size: int) -> float:
    jobs = scheduler(url)
    jobs.task(noop, 0, "hello world").schedule()
    begun = time.perf_counter()
    for n in range(size):
        jobs.task(noop, n, "hello world").schedule()
    return size / (time.perf_counter() - begun)


def batch(url: str, size: int) -> float:
    return _batch(url, size, 0)


def batch_of_edges(url: str, size: int) -> float:
    return _batch(url, size, 3)


def _batch(url: str, size: int, parents: int) -> float:
    jobs = scheduler(url)
    jobs.task(noop, 0, "hello world").schedule()
    wanted = parents_of(size, parents)
    forget()
    begun = time.perf_counter()
    _store(jobs, size, noop, wanted, size)
    return size / (time.perf_counter() - begun)


def caller(url: str) -> Callable[[int], None]:
    jobs = scheduler(url)
    return lambda n: jobs.task(stamp, n).schedule() and None


def start(url: str, size: int) -> list[float]:
    """Milliseconds from the call of schedule() in another process to the first line of the handler, worker idle."""
    jobs = scheduler(url)
    as_the_daemon_does()
    with jobs:
        assert jobs.engine.wait_ready(60)
        return Calls("schedd", url, size).latencies(started)


def enqueue_beside(url: str, size: int) -> dict[str, Any]:
    """Milliseconds of each schedule() in another process, one right after the other, while ``size`` tasks drain."""
    jobs = scheduler(url)
    fill(jobs, size)
    here = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {here!r}); from contenders.schedd import beside; beside({url!r})"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None
    assert other.stdout is not None
    assert other.stdout.readline() == "ready\n"
    as_the_daemon_does()
    with jobs:
        assert jobs.engine.wait_ready(60)
        other.stdin.write("go\n")
        other.stdin.flush()
        while ran < size:
            time.sleep(0.002)
        told, _ = other.communicate("stop\n", timeout=60)
    *took, failed = told.splitlines()
    return {"ms": [float(ms) for ms in took], "failed": int(failed)}


def beside(url: str) -> None:
    """The other process: schedules one by one from "go" to "stop"; prints how long each took and how many failed."""
    jobs = scheduler(url)
    jobs.task(noop, -1, "hello world").schedule()
    print("ready", flush=True)
    sys.stdin.readline()
    took, failed = [], 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        begun = time.perf_counter()
        try:
            jobs.task(noop, -1, "hello world").schedule()
        except Exception as error:
            failed += 1
            print(error, file=sys.stderr)
        took.append((time.perf_counter() - begun) * 1000)
    print(*took, failed, sep="\n")


_ALL: dict[str, Any] = {
    "drain": {
        "": drain,
        "async": drain_async,
        "no rollups": drain_without_rollups,
        "metrics": drain_with_metrics,
        "otel": drain_with_otel,
        "alerts": drain_with_alerts,
    },
    "dag 5,000": dag,
    "dag 100,000": dag,
    "enqueue": enqueue,
    "enqueue beside a drain": enqueue_beside,
    "batch": batch,
    "batch of edges": batch_of_edges,
    "start": start,
}
WORKS = {(work, dialect): function for work, function in _ALL.items() for dialect in ("sqlite", "postgresql")}
