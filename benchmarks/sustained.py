"""What has to keep up for as long as a daemon runs: schedules of a second, waiters of one event, chains, retention.

One engine in this process, everything at its defaults, PostgreSQL with fsync on. Besides seconds it prints CPU seconds
of this process and commits of the server, which another program on this machine does not change much.

    python benchmarks/sustained.py [--works schedules,waiters,chain,retention] [--databases sqlite,postgresql]
        [--schedules 1000] [--seconds 20] [--waiters 3000] [--links 3000] [--old 200000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import servers
import sqlalchemy as sa

from scheduler import AsyncContext, Context, Scheduler, interpreter, task

WORKS = ("schedules", "waiters", "async waiters", "chain", "retention")
_lock = threading.Lock()
_seen: list[float] = []
_goal = 0
_reached = threading.Event()


def _count(value: float) -> None:
    with _lock:
        _seen.append(value)
        if len(_seen) == _goal:
            _reached.set()


@task
def tick(ctx: Context, n: int) -> None:
    """Tells how late it began."""
    assert ctx.slot is not None
    _count(time.time() - ctx.slot.timestamp())


@task
def waits(ctx: Context, n: int) -> None:
    """Ends once the event is there."""
    ctx.await_event("go")
    _count(time.time())


@task
async def awaits(ctx: AsyncContext, n: int) -> None:
    """The same as a coroutine."""
    await ctx.await_event("go")
    _count(time.time())


@task
def link(ctx: Context, n: int) -> None:
    """One of a chain."""
    _count(time.time())


KINDS = (tick, waits, awaits, link)


class Measured:
    """Seconds and CPU seconds of a block, and what the server counted meanwhile."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.told: dict[str, Any] = {}

    def _commits(self) -> int:
        if not self._url.startswith("postgresql"):
            return 0
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            row = connection.execute(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        return int(row[0]) if row else 0

    def __enter__(self) -> Measured:
        self._at, self._cpu, self._before = time.perf_counter(), time.process_time(), self._commits()
        return self

    def __exit__(self, *_: object) -> None:
        self.told["seconds"] = time.perf_counter() - self._at
        self.told["cpu"] = time.process_time() - self._cpu
        self.told["commits"] = self._commits() - self._before


def _expect(count: int) -> None:
    global _goal
    _seen.clear()
    _reached.clear()
    _goal = count


def _scheduler(url: str, **options: Any) -> Scheduler:
    jobs = Scheduler(url.replace("postgresql://", "postgresql+psycopg://"), auto_migrate=True, **options)
    for kind in KINDS:
        jobs.register(kind)
    interpreter.tune()
    interpreter.freeze()
    return jobs


def _settled(jobs: Scheduler) -> None:
    while jobs.engine.engine_state.held:
        time.sleep(0.001)


def schedules(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """So many schedules of a second each, for so long."""
    jobs = _scheduler(url)
    for n in range(args.schedules):
        jobs.task(tick, n).key(f"s{n}").every(1).schedule()
    _expect(0)
    with jobs:
        assert jobs.engine.wait_ready(60)
        time.sleep(2)
        with _lock:
            _seen.clear()
        with Measured(url) as measured:
            time.sleep(args.seconds)
        with _lock:
            late = sorted(_seen)
        with jobs.database.read() as tx:
            made = int(tx.connection.execute(sa.text("SELECT count(*) FROM schedd_tasks")).scalar_one())
    rate = len(late) / measured.told["seconds"]
    late = late or [float("inf")]
    return {
        "runs/s": rate,
        "late p50": statistics.median(late),
        "late p99": late[int(0.99 * (len(late) - 1))],
        "late max": late[-1],
        "made": made,
        **measured.told,
    }


def _waiters(url: str, kind: Any, count: int) -> dict[str, Any]:
    jobs = _scheduler(url)
    with jobs.batch() as batch:
        for n in range(count):
            batch.task(kind, n)
    _expect(count)
    with jobs:
        assert jobs.engine.wait_ready(60)
        with Measured(url) as before:
            while len(jobs.list_tasks("suspended", limit=count)) < count:
                time.sleep(0.1)
        with Measured(url) as measured:
            jobs.emit_event("go")
            assert _reached.wait(600)
            _settled(jobs)
    told = measured.told
    return {"ended/s": count / told["seconds"], "suspended s": before.told["seconds"], **told}


def waiters(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Handlers in threads that all wait for one event."""
    return _waiters(url, waits, args.waiters)


def async_waiters(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """The same as coroutines."""
    return _waiters(url, awaits, args.waiters)


def chain(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Each link waits for the one before."""
    jobs = _scheduler(url)
    last: Any = None
    with jobs.batch() as batch:
        for n in range(args.links):
            builder = batch.task(link, n)
            if last is not None:
                builder.depend_on([last])
            last = builder
    _expect(args.links)
    with jobs:
        with Measured(url) as measured:
            assert _reached.wait(600)
            _settled(jobs)
        turns = jobs.engine.cycles
    return {"links/s": args.links / measured.told["seconds"], "turns": turns, **measured.told}


def retention(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Successes that are over, beside an engine that has nothing else to do, then beside one that drains as many."""
    jobs = _scheduler(url, retention={"success": 0})
    with jobs.batch() as batch:
        for n in range(args.old):
            batch.task(link, n)
    _expect(args.old)
    with jobs:
        assert _reached.wait(600)
        _settled(jobs)
    then = jobs.database.now() - round(timedelta(days=9).total_seconds()) * 1_000_000
    with jobs.database.write() as tx:
        tx.connection.execute(
            sa.text("UPDATE schedd_tasks SET finished_at = :then, result_until = NULL, key_until = NULL"),
            {"then": then},
        )
    jobs.close()
    jobs = _scheduler(url, retention={"success": 3600})

    def left() -> int:
        with jobs.database.read() as tx:
            return int(
                tx.connection.execute(
                    sa.text("SELECT count(*) FROM schedd_tasks WHERE finished_at = :then"), {"then": then}
                ).scalar_one()
            )

    with jobs:
        assert jobs.engine.wait_ready(60)
        jobs.engine.periodic.timers.bring_forward("sweep")  # the first look is a minute after the start
        before = left()
        with Measured(url) as measured:
            time.sleep(args.seconds / 4)
        alone = before - left()
        _expect(args.old // 4)
        with jobs.batch() as batch:
            for n in range(args.old // 4):
                batch.task(link, n)
        before = left()
        with Measured(url) as beside:
            assert _reached.wait(600)
            _settled(jobs)
        removed = before - left()
    return {
        "removed/s": alone / measured.told["seconds"],
        "drained/s": args.old // 4 / beside.told["seconds"],
        "removed/s beside": removed / beside.told["seconds"],
        "left": left(),
        **measured.told,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--waiters", type=int, default=3000)
    parser.add_argument("--links", type=int, default=3000)
    parser.add_argument("--old", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    told: list[dict[str, Any]] = []
    for database in args.databases.split(","):
        with getattr(servers, database)() as server:
            for work in args.works.split(","):
                with servers.fresh(server) as url:
                    found = globals()[work.replace(" ", "_")](url, args)
                told.append({"work": work, "database": database, **found})
                print(
                    f"{work}, {database}:",
                    ", ".join(f"{k} {v:,.3g}" if isinstance(v, float) else f"{k} {v:,}" for k, v in found.items()),
                    flush=True,
                )
    if args.json:
        args.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
