"""How long reads of pages take beside a million tasks: ``python benchmarks/million.py [URL]``, else a new SQLite file.

The database must be empty. Prints milliseconds: the median and the 95th percentile of some calls, each in a transaction
of its own.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from scheduler import Context, Scheduler, TaskState, task
from scheduler.model.rollup import HOUR, Cell, Measure, bucket_of
from scheduler.operations import stored_bulks
from scheduler.ports import SECOND
from scheduler.store import rollups
from scheduler.store.db.tx import Tx
from scheduler.store.read import audit, past, schedules
from scheduler.store.read.choose import TaskFilter
from scheduler.store.read.compare import last_good
from scheduler.store.read.dead_causes import causes
from scheduler.store.read.estimate import graph_estimate
from scheduler.store.read.forecast import forecast
from scheduler.store.read.graph import graph, newest_graphs
from scheduler.store.read.status import status
from scheduler.store.read.tasks import list_tasks


@task
def work(ctx: Context) -> None:
    """Of every kind; none is run."""


TASKS = 1_000_000
DAY = 86_400 * SECOND
SERIES = {
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT :low UNION ALL SELECT i + 1 FROM s WHERE i < :high) SELECT i FROM s) s",
    "postgresql": "(SELECT i FROM generate_series(CAST(:low AS bigint), CAST(:high AS bigint)) i) s",
}
# 90 % succeeded, 4 % dead, 1 % failed, 4 % scheduled, 1 % waiting; ten kinds, four queues; a day of work.
_STATE = (
    "CASE WHEN i % 100 < 90 THEN 6 WHEN i % 100 < 94 THEN 8 WHEN i % 100 < 95 THEN 7 "
    "WHEN i % 100 < 99 THEN 1 ELSE 0 END"
)
_KIND = "'Kind' || (i / 100 % 10)"
_AT = ":start + i * 86400"  # one each 86.4 ms


def fill(jobs: Scheduler) -> None:
    """Store the million, 100,000 in a transaction."""
    for low in range(1, TASKS, 100_000):
        with jobs.database.write() as tx:
            bound = {"low": low, "high": low + 99_999, "start": tx.now - DAY}
            series = SERIES[tx.dialect.name]
            tx.run(
                "INSERT INTO schedd_tasks (id, kind, state, queue, lane, priority, run_at, unmet, created_at, "
                "claimed_at, started_at, finished_at, payload, attempt, claim, correlation, schedule, slot, "
                f"fingerprint) SELECT i, {_KIND}, {_STATE}, 'queue' || (i % 4), {_KIND}, 1, {_AT}, "
                f"CASE WHEN i % 100 = 99 THEN 1 ELSE 0 END, {_AT}, {_AT}, {_AT}, "
                f"CASE WHEN i % 100 < 95 THEN {_AT} + 500000 END, '{{\"n\": 1}}', 1, 1, 'order-' || (i / 10), "
                f"CASE WHEN i % 50 = 0 THEN 'nightly-' || (i / 50 % 20) END, CASE WHEN i % 50 = 0 THEN i END, "
                f"CASE WHEN i % 100 BETWEEN 90 AND 93 THEN 'f' || (i % 7) END FROM {series}",
                **bound,
            )
            tx.run(
                "INSERT INTO schedd_attempts "
                "(task_id, claim, number, worker, claimed_at, started_at, finished_at, outcome) "
                f"SELECT i, 1, 1, 1, {_AT}, {_AT}, {_AT} + 500000, CASE WHEN i % 100 < 90 THEN 0 ELSE 3 END "
                f"FROM {series} WHERE i % 100 < 95",
                **bound,
            )
            tx.run(  # graphs of ten: a chain of nine below the first
                "INSERT INTO schedd_edges (parent, child, on_end, otherwise, ok) "
                f"SELECT i - 1, i, 0, 0, 1 FROM {series} WHERE i / 10 % 10 = 9 AND i % 10 > 0",
                **bound,
            )
            tx.run(
                "INSERT INTO schedd_audit (at, action, actor, via, task_id, detail) "
                f"SELECT {_AT}, 'retry', 'ada', 'cli', i, '{{}}' FROM {series} WHERE i % 10 = 5",
                **bound,
            )
    with jobs.database.write() as tx:
        start = (tx.now - 7 * DAY) // (HOUR * SECOND) * HOUR * SECOND
        cells = [
            Cell(HOUR, start + hour * HOUR * SECOND, f"Kind{kind}", "queue0", 0, measure, bucket_of(us), 500, 500 * us)
            for hour in range(7 * 24)
            for kind in range(10)
            for measure in (int(Measure.RUN), int(Measure.WAIT))
            for us in (250_000, 500_000, 900_000)
        ]
        rollups.add(tx, sorted(cells))
        if tx.dialect.name == "postgresql":
            tx.run("SELECT setval(pg_get_serial_sequence('schedd_tasks', 'id'), 1000001)")
    for number in range(200):
        jobs.task("Kind1", {}).key(f"every-{number}").cron(f"{number % 60} * * * *").schedule()


def timed(jobs: Scheduler, name: str, work: Callable[[Tx], Any], times: int = 40) -> None:
    """Print how long it takes."""
    found = []
    for _ in range(times):
        with jobs.database.read() as tx:
            begin = time.perf_counter()
            work(tx)
            found.append((time.perf_counter() - begin) * 1000)
    found.sort()
    print(f"{name:34} {statistics.median(found):8.1f} {found[int(len(found) * 0.95)]:8.1f}", flush=True)


def main(url: str) -> None:
    """Fill the database and read it."""
    jobs = Scheduler(url, auto_migrate=True)
    for number in range(10):
        jobs.register(work, kind=f"Kind{number}")
    begin = time.perf_counter()
    fill(jobs)
    print(f"filled in {time.perf_counter() - begin:.0f} s; ms, median and p95:")
    if not url.startswith("sqlite"):
        with jobs.database.alone() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")  # as the server does by itself some minutes later
    pick = random.Random(5)
    some = [pick.randrange(1, TASKS) for _ in range(100)]
    dead = {"states": [TaskState.DEAD]}

    def one() -> int:
        return pick.choice(some)

    timed(jobs, "list: newest 100", lambda tx: list_tasks(tx))
    timed(jobs, "list: dead", lambda tx: list_tasks(tx, **dead))  # type: ignore[arg-type]
    timed(jobs, "list: dead of a kind", lambda tx: list_tasks(tx, kind="Kind3", **dead))  # type: ignore[arg-type]
    timed(jobs, "list: a kind and queue, deep", lambda tx: list_tasks(tx, kind="Kind3", queue="queue1", cursor=500_000))
    timed(jobs, "list: a correlation", lambda tx: list_tasks(tx, correlation=f"order-{one() // 10}"))
    timed(jobs, "status", status)
    timed(jobs, "status, as the first page has it", lambda tx: status(tx, 20_000))
    timed(jobs, "causes of dead letters", lambda tx: causes(tx, kept=30 * DAY, within=2 * DAY))
    timed(jobs, "status an hour ago, of 2,000", lambda tx: past.status_at(tx, tx.now - 3600 * SECOND))
    timed(jobs, "states of 100 tasks at a time", lambda tx: past.states_at(tx, some, tx.now - SECOND))
    timed(jobs, "timeline of a task", lambda tx: past.timeline(tx, one()))
    timed(jobs, "last good run of a schedule", lambda tx: last_good(tx, one() // 50 * 50 + 50))
    timed(jobs, "last good task of a kind", lambda tx: last_good(tx, one() // 50 * 50 + 1))
    timed(jobs, "graph of ten", lambda tx: graph(tx, one() // 100 * 100 + 95))
    timed(jobs, "newest graphs", newest_graphs)
    timed(jobs, "estimate of a graph", lambda tx: graph_estimate(tx, graph(tx, one() // 100 * 100 + 95)))
    timed(jobs, "forecast of 200 schedules", forecast)
    timed(jobs, "runs of a schedule", lambda tx: schedules.runs(tx, "nightly-3", 30), 10)
    timed(jobs, "audit: newest 100", lambda tx: audit.entries(tx, audit.AuditFilter(), 100))
    timed(jobs, "audit: of one who did little", lambda tx: audit.entries(tx, audit.AuditFilter(actor="bob"), 100))
    begin = time.perf_counter()
    plan = stored_bulks.plan(jobs.desk, "retry", TaskFilter(kinds=("Kind3",)))
    print(f"plan of a bulk of {len(plan.ids)}: {(time.perf_counter() - begin) * 1000:.0f} ms")
    jobs.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(f"sqlite:///{directory}/jobs.db")
