"""How fast one, two and three daemons drain no-op tasks from one database, in one interleaved run.

PostgreSQL of the test suite with fsync on, or a SQLite file. Daemons are real ones, at their defaults. The time goes
from the first claim to the last recorded end, as the database has them; tasks are inserted when all daemons are ready.

    python benchmarks/fleet.py [--tasks 100000] [--runs 5] [--most 3] [--sqlite] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import sqlalchemy as sa

from scheduler.ports import SystemClock
from scheduler.store import migrate
from scheduler.store.database import Database
from scheduler.store.doorbell import make_bell
from support.own_server import OwnServer

MODULE = """
from scheduler import task

@task
def noop(ctx, n=0): ...
"""
INSERT = """
INSERT INTO schedd_tasks (state, queue, lane, pool, run_at, kind, created_at, payload)
SELECT 1, 'default', 'noop', 1, :now, 'noop', :now, '{}' FROM g
"""
NUMBERS = {
    "postgresql": "WITH g AS (SELECT generate_series(1, :count)) ",
    "sqlite": "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :count) ",
}


def start(directory: Path, url: str) -> subprocess.Popen[str]:
    """A daemon, once it is ready."""
    environment = {"SCHEDD_STORE__URL": url, "SCHEDD_TASKS__MODULES": "bench_tasks", "SCHEDD_TASKS__PATH": "."}
    made = subprocess.Popen(
        [sys.executable, "-m", "scheduler.daemon"],
        cwd=directory,
        env={**os.environ, **environment, "SCHEDD_LOG__FORMAT": "json"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert made.stderr is not None
    for line in made.stderr:
        if '"event":"ready"' in line:
            return made
    raise SystemExit("the daemon did not start")


def one(directory: Path, url: str, daemons: int, tasks: int) -> float:
    """Tasks per second of one run on a fresh database."""
    migrate.upgrade(url)
    database = Database(url, SystemClock())
    running = [start(directory, url) for _ in range(daemons)]
    try:
        with database.write() as connection:
            bound = {"now": database.now(), "count": tasks}
            connection.execute(sa.text(NUMBERS[database.dialect.name] + INSERT), bound)
        bell = make_bell(database)
        bell.ring()
        count = sa.text("SELECT count(*) FROM schedd_tasks WHERE state >= 1 AND state <= 5")
        while True:
            time.sleep(0.2)
            with database.read() as connection:
                if not connection.execute(count).scalar():
                    break
        bell.close()
        with database.read() as connection:
            ends = "SELECT min(claimed_at), max(finished_at), count(*) FROM schedd_attempts"
            first, last, done = connection.execute(sa.text(ends)).one()
        assert done == tasks, f"{done} attempts of {tasks} tasks"
        return float(tasks / ((last - first) / 1e6))
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(30)
        database.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rates: dict[int, list[float]] = {n: [] for n in range(1, args.most + 1)}
    with tempfile.TemporaryDirectory(prefix="schedd-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "bench_tasks.py").write_text(MODULE)
        server = None if args.sqlite else OwnServer(directory, fsync="on", full_page_writes="on")
        try:
            for run in range(args.runs):
                for daemons in rates:
                    if server is None:
                        url = f"sqlite:///{directory}/{run}-{daemons}.db"
                    else:
                        url = server.url(f"bench{run}_{daemons}")
                        server.sql(f"CREATE DATABASE bench{run}_{daemons}")
                    rates[daemons].append(one(directory, url, daemons, args.tasks))
                told = "  ".join(f"{n}: {values[-1]:,.0f}/s" for n, values in rates.items())
                print(f"run {run + 1}  {told}", flush=True)
        finally:
            if server is not None:
                server.close()
    print(f"\n{'daemons':8}{'median':>10}{'min':>10}{'max':>10}")
    for n, values in rates.items():
        print(f"{n:<8}{statistics.median(values):>10,.0f}{min(values):>10,.0f}{max(values):>10,.0f}")
    if args.json:
        args.json.write_text(json.dumps(rates, indent=2) + "\n")


if __name__ == "__main__":
    main()
