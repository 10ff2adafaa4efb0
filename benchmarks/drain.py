"""How fast a daemon's engine drains no-op tasks on SQLite (WAL, synchronous=FULL), against a bare driver loop.

Each run is a process of its own on a fresh database; the kinds of run are interleaved, one of each in turn:

  drain    N no-op tasks, threads, everything at its defaults
  future   the same with 100,000 more tasks of the kind that are due next year
  raw      the spike of this shape: one sqlite3 connection, claim + finish + attempt row, 400 at a time, no engine

    python benchmarks/drain.py [--tasks 20000] [--runs 7] [--future 100000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from scheduler import Context, Scheduler, task

ran = 0


@task
def noop(ctx: Context, n: int, text: str = "") -> None:
    """Counts, so that the end can be seen without asking the database."""
    global ran
    ran += 1


def fill(jobs: Scheduler, count: int, *, later: bool = False) -> None:
    """Schedule ``count`` tasks in batches of 5,000."""
    for start in range(0, count, 5000):
        with jobs.batch() as batch:
            for n in range(start, min(start + 5000, count)):
                builder = batch.task(noop, n, "hello world")
                if later:
                    builder.after(timedelta(days=365))


def drain(directory: str, tasks: int, future: int) -> float:
    """Tasks per second from start() until the last outcome is committed."""
    sys.setswitchinterval(0.001)  # as schedd does
    jobs = Scheduler(f"sqlite:///{directory}/bench.db")
    jobs.register(noop)
    fill(jobs, future, later=True)
    fill(jobs, tasks)
    with jobs:
        assert jobs.engine.wait_ready(30)
        begun = time.perf_counter()
        already = ran
        while ran < tasks or jobs.engine.desk.held:
            time.sleep(0.002)
        took = time.perf_counter() - begun
    counts = dict(_counts(f"{directory}/bench.db"))
    assert counts[6] == tasks, counts
    return (tasks - already) / took


def _counts(path: str) -> list[tuple[int, int]]:
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT state, count(*) FROM schedd_tasks GROUP BY state").fetchall()


def raw(directory: str, tasks: int) -> float:
    """The bare loop: what this machine's SQLite can do with rows of this kind."""
    db = sqlite3.connect(f"{directory}/raw.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.executescript(
        """CREATE TABLE task(id INTEGER PRIMARY KEY, queue TEXT, kind TEXT, payload TEXT, state INTEGER, pool INTEGER,
             run_at INTEGER, attempt INTEGER DEFAULT 0, worker INTEGER, started INTEGER, finished INTEGER, result TEXT);
           CREATE INDEX ready ON task(queue, kind, pool, run_at, id) WHERE state = 1;
           CREATE INDEX held ON task(worker) WHERE state = 2;
           CREATE TABLE attempt(task INTEGER, number INTEGER, worker INTEGER, started INTEGER, finished INTEGER,
             outcome INTEGER, PRIMARY KEY(task, number)) WITHOUT ROWID;"""
    )
    rows = [("default", "noop", '{"n":1,"text":"hello world"}', 1, 1, 0)] * tasks
    db.execute("BEGIN")
    db.executemany("INSERT INTO task(queue, kind, payload, state, pool, run_at) VALUES (?,?,?,?,?,?)", rows)
    db.execute("COMMIT")
    claim = """UPDATE task SET state = 2, worker = 1, attempt = attempt + 1 WHERE id IN (SELECT id FROM task
      WHERE state = 1 AND queue = 'default' AND kind = 'noop' AND pool = 1 AND run_at <= ?
      ORDER BY run_at, id LIMIT 400)
      RETURNING id, kind, payload, attempt"""
    finish = """UPDATE task SET state = 6, worker = NULL, started = j.value->>1, finished = j.value->>2
      FROM json_each(?) j WHERE task.id = j.value->>0 AND task.worker = 1 AND task.state + 0 = 2 RETURNING task.id"""
    record = "INSERT INTO attempt SELECT value->>0, value->>3, 1, value->>1, value->>2, 0 FROM json_each(?)"
    got: list[tuple[int, str, str, int]] = []
    begun = time.perf_counter()
    while True:
        db.execute("BEGIN IMMEDIATE")
        if got:
            now = time.time_ns() // 1000
            done = json.dumps([(r[0], now, now, r[3]) for r in got])
            db.execute(finish, (done,)).fetchall()
            db.execute(record, (done,))
        got = db.execute(claim, (1,)).fetchall()
        db.execute("COMMIT")
        for row in got:
            noop(None, **json.loads(row[2]))
        if not got:
            return tasks / (time.perf_counter() - begun)


def one(kind: str, tasks: int, future: int) -> float:
    """One run in this process."""
    with tempfile.TemporaryDirectory(prefix="schedd-bench-", dir=".") as directory:
        if kind == "raw":
            return raw(directory, tasks)
        return drain(directory, tasks, future if kind == "future" else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--future", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=("drain", "future", "raw"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(one(args.one, args.tasks, args.future))
        return
    kinds = ("raw", "drain", "future")
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, synchronous=FULL, {args.tasks} no-ops")
    for run in range(args.runs + 1):
        for kind in kinds:
            command = [
                sys.executable,
                __file__,
                "--one",
                kind,
                "--tasks",
                str(args.tasks),
                "--future",
                str(args.future),
            ]
            rate = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            if run:  # the first round warms up
                rates[kind].append(rate)
        print(
            "warm-up" if not run else f"run {run}", *(f"{k} {v[-1]:,.0f}/s" for k, v in rates.items() if v), flush=True
        )
    ratios = {
        "drain / raw": [a / b for a, b in zip(rates["drain"], rates["raw"], strict=True)],
        "future / drain": [a / b for a, b in zip(rates["future"], rates["drain"], strict=True)],
    }
    print(f"\n{'':16}{'median':>10}{'min':>10}{'max':>10}")
    for name, values in rates.items():
        print(f"{name + ', 1/s':16}{statistics.median(values):>10,.0f}{min(values):>10,.0f}{max(values):>10,.0f}")
    for name, values in ratios.items():
        print(f"{name:16}{statistics.median(values):>10.2f}{min(values):>10.2f}{max(values):>10.2f}")
    if args.json:
        args.json.write_text(json.dumps({"rates": rates, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
