"""How tables and indexes grow while millions of tasks go through a queue that always holds about a thousand.

PostgreSQL of the test suite (without fsync), autovacuum as it comes but looking every 10 s, successes kept for 30 s:
so what is left at the end is what churn leaves. With ``--snapshot`` another session holds an old snapshot open in the
second half, as a forgotten psql does: no row that dies meanwhile can be removed until it ends.

    python benchmarks/growth.py [--tasks 2000000] [--queue 1000] [--snapshot] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import psycopg

from scheduler import Context, Scheduler, interpreter, task
from scheduler.store.db.notifier import make_notifier
from support.own_server import OwnServer

READ = """
SELECT (SELECT count(*) FROM schedd_tasks), pg_relation_size('schedd_tasks'), pg_relation_size('schedd_tasks_pkey'),
  pg_relation_size('ix_schedd_tasks_ready'), pg_relation_size('ix_schedd_tasks_held'),
  pg_relation_size('ix_schedd_tasks_succeeded'), pg_total_relation_size('schedd_attempts'),
  pg_total_relation_size('schedd_outcomes'), pg_database_size('jobs'),
  (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'schedd_tasks')
"""
INSERT = """
INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, payload, result_ttl)
SELECT 1, 'default', 'noop', 1, %(now)s, 'noop', %(now)s, '{"n":1}', 1000000 FROM generate_series(1, %(count)s)
"""
NAMES = ("rows", "tasks", "pkey", "ready", "held", "succeeded", "attempts", "outcomes", "database", "dead")
_ran = 0


@task
def noop(ctx: Context, n: int) -> None:
    """Counts, so that the queue can be kept steady without asking the database."""
    global _ran
    _ran += 1


class Feeder(threading.Thread):
    """Keeps about ``queue`` tasks in front of the workers until ``tasks`` were made, in the cheapest way there is."""

    def __init__(self, jobs: Scheduler, server: OwnServer, tasks: int, queue: int) -> None:
        super().__init__(daemon=True)
        self.tasks, self.queue = tasks, queue
        self.notifier = make_notifier(jobs.database)
        self.connection = psycopg.connect(host=str(server.data), user="postgres", dbname="jobs", autocommit=True)
        self.made = 0

    def run(self) -> None:
        step = max(1, self.queue // 2)
        while self.made < self.tasks:
            if self.made - _ran > self.queue - step:
                time.sleep(0.001)
                continue
            now = time.time_ns() // 1000
            self.connection.execute(INSERT, {"now": now, "count": min(step, self.tasks - self.made)})
            self.notifier.notify()
            self.made += step
        self.connection.close()
        self.notifier.close()


def sizes(server: OwnServer) -> dict[str, int]:
    """Bytes of the tables and indexes, rows and dead rows."""
    (row,) = server.sql(READ, "jobs")
    return dict(zip(NAMES, row, strict=True))


def show(at: int, seconds: float, rate: float, found: dict[str, int]) -> None:
    mib = {name: value / 2**20 for name, value in found.items() if name not in ("rows", "dead")}
    print(
        f"{at:>9,} tasks {seconds:6.0f} s {rate:8,.0f}/s  rows {found['rows']:>9,} dead {found['dead']:>9,}  MiB: "
        + "  ".join(f"{name} {value:.1f}" for name, value in mib.items()),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2_000_000)
    parser.add_argument("--queue", type=int, default=1_000)
    parser.add_argument("--looks", type=int, default=10, help="how often sizes are looked at")
    parser.add_argument("--keep", type=float, default=30.0, help="seconds that successes are kept")
    parser.add_argument("--snapshot", action="store_true", help="an old snapshot is held open in the second half")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    interpreter.tune()  # as schedd does
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="schedd-bench-") as directory:
        Path(directory).chmod(0o755)
        with OwnServer(Path(directory), full_page_writes="on", autovacuum_naptime="10s") as server:
            _measure(args, server, told)
    if args.json:
        args.json.write_text(json.dumps(told, indent=2) + "\n")


def _measure(args: argparse.Namespace, server: OwnServer, told: list[dict[str, Any]]) -> None:
    url = server.migrated()
    jobs = Scheduler(url, retention={"success": args.keep})
    jobs.register(noop)
    holder: psycopg.Connection[Any] | None = None
    with jobs:
        feeder = Feeder(jobs, server, args.tasks, args.queue)
        begun = last = time.monotonic()
        feeder.start()
        before = 0
        for look in range(1, args.looks + 1):
            while _ran < args.tasks * look // args.looks:
                time.sleep(0.02)
            now = time.monotonic()
            found = sizes(server)
            show(_ran, now - begun, (_ran - before) / (now - last), found)
            told.append({"ran": _ran, "seconds": now - begun, "rate": (_ran - before) / (now - last), **found})
            before, last = _ran, time.monotonic()
            if args.snapshot and look == args.looks // 2:
                holder = psycopg.connect(host=str(server.data), user="postgres", dbname="jobs")
                holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                holder.execute("SELECT count(*) FROM schedd_kinds")
                print("an old snapshot is held open from here on", flush=True)
        if holder is not None:
            holder.close()
            print("the snapshot has ended", flush=True)
        time.sleep(args.keep + 75)  # retention and autovacuum catch up
        found = sizes(server)
        show(_ran, time.monotonic() - begun, 0.0, found)
        told.append({"ran": _ran, "after": True, **found})


if __name__ == "__main__":
    main()
