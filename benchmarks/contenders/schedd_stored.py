"""Ours behind a million stored tasks, and started with a million due."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from contenders.schedd import drained, fill, noop, scheduler
from scheduler import Scheduler

YEAR = 365 * 86_400 * 1_000_000  # microseconds
NUMBERS = {
    "postgresql": "WITH g(i) AS (SELECT generate_series(1, :count)) ",
    "sqlite": "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :count) ",
}
INSERT = """
INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, payload, max_attempts, {more})
SELECT :state, :queue, 'noop', 1, :run_at, 'noop', :now, :payload, 1, {values} FROM g
"""
ENDED = {  # of tasks that have succeeded
    "claim": "1",
    "attempt": "1",
    "claimed_at": ":now",
    "started_at": ":now",
    "finished_at": ":now",
    "result_until": ":now + 86400000000",
}
ATTEMPTS = """
INSERT INTO schedd_attempts (task_id, claim, number, worker, claimed_at, started_at, finished_at, outcome)
SELECT id, 1, 1, 1, :now, :now, :now, 0 FROM schedd_tasks WHERE state = 6
"""


def store(jobs: Scheduler, count: int, what: str) -> None:
    """A million tasks, say, in one statement: "due", "pending elsewhere" (in a queue that no worker serves here),
    "finished" (with their attempts) or "far-future"."""
    database = jobs.database
    database.open()
    now = database.now()
    queue = "elsewhere" if what == "pending elsewhere" else "default"
    bound: dict[str, Any] = {"count": count, "queue": queue, "now": now, "state": 6 if what == "finished" else 1}
    bound["payload"] = '{"n":1,"text":"hello world"}'
    bound["run_at"] = now + YEAR if what == "far-future" else now
    more = ENDED if what == "finished" else {"claim": "0"}
    with database.write() as tx:
        text = NUMBERS[database.dialect.name] + INSERT.format(more=", ".join(more), values=", ".join(more.values()))
        tx.connection.execute(sa.text(text), bound)
        if what == "finished":
            tx.connection.execute(sa.text(ATTEMPTS), bound)


def settle(jobs: Scheduler, url: str) -> None:
    """Close it, and have everything in its place on the disk: what was stored is not to be paid for by what follows."""
    jobs.close()
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")


def prepare(what: str) -> Any:
    """Fills a database that is then copied for each measurement, and analyses it, as autovacuum does in time."""

    def run(url: str, size: int) -> float:
        jobs = scheduler(url, queues=("default",))
        if what != "empty":
            store(jobs, size, what)
        jobs.database.open()
        settle(jobs, url)
        return 0.0

    return run


def drain(url: str, size: int) -> float:
    """Tasks a second of ``size`` no-ops on what is stored already."""
    jobs = scheduler(url, queues=("default",))
    fill(jobs, size)
    return drained(jobs, size)["rate"]


def restart(url: str, size: int) -> dict[str, float]:
    """Seconds from the first line after the imports until the first handler runs, and the most memory (MiB) by the time
    that ``size`` tasks of the backlog have run."""
    from contenders import schedd

    begun = time.perf_counter()
    first = 0.0
    jobs = Scheduler(url.replace("postgresql://", "postgresql+psycopg://"), auto_migrate=True)
    jobs.register(noop)
    schedd.as_the_daemon_does()
    with jobs:
        while schedd.ran < size:
            if not first and schedd.ran:
                first = time.perf_counter() - begun
            time.sleep(0.0005)
        memory = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"first": first or time.perf_counter() - begun, "memory": int(memory.split()[1]) / 1024}


BACKLOGS = ("empty", "pending elsewhere", "finished", "far-future")
_BACKLOG = dict.fromkeys(BACKLOGS, drain)
WORKS: dict[tuple[str, str], Any] = {
    (work, dialect): functions
    for work, functions in (("backlog", _BACKLOG), ("restart", {"": restart}))
    for dialect in ("sqlite", "postgresql")
}
PREPARED = {("backlog", what): prepare(what) for what in BACKLOGS} | {("restart", ""): prepare("due")}
