"""How fast a daemon's engine drains no-op tasks on SQLite, against a bare driver loop: the quick one of ``bench.py``.

Each run is a process of its own on a fresh database; the kinds of run are interleaved, one of each in turn:

  raw      one connection that claims and records the same rows, and no engine (contenders/raw.py)
  drain    no-op tasks, threads, everything at its defaults
  future   the same with 100,000 more tasks of the kind that are due next year

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
from datetime import timedelta
from pathlib import Path

import servers
from contenders import raw, schedd

KINDS = ("raw", "drain", "future")


def one(kind: str, tasks: int, future: int) -> float:
    """Tasks a second of one run in this process."""
    with servers.sqlite() as server, servers.fresh(server) as url:
        if kind == "raw":
            return raw.drain(url, tasks)
        jobs = schedd.scheduler(url)
        if kind == "future":
            with jobs.batch() as batch:
                for n in range(future):
                    batch.task(schedd.noop, n, "hello world").after(timedelta(days=365))
        schedd.fill(jobs, tasks)
        return schedd.drained(jobs, tasks)["rate"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--future", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(one(args.one, args.tasks, args.future))
        return
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, synchronous=FULL, {args.tasks} no-ops")
    for run in range(args.runs + 1):
        told = []
        for kind in KINDS:
            sizes = ["--tasks", str(args.tasks), "--future", str(args.future)]
            command = [sys.executable, __file__, "--one", kind, *sizes]
            rate = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            told.append(f"{kind} {rate:,.0f}/s")
            if run:  # the first round warms up
                rates[kind].append(rate)
        print("warm-up" if not run else f"run {run}", *told, flush=True)
    columns = {f"{kind}, 1/s": values for kind, values in rates.items()}
    columns["drain / raw"] = [a / b for a, b in zip(rates["drain"], rates["raw"], strict=True)]
    columns["future / drain"] = [a / b for a, b in zip(rates["future"], rates["drain"], strict=True)]
    print(f"\n{'':16}{'median':>10}{'min':>10}{'max':>10}")
    for name, values in columns.items():
        form = ",.0f" if name.endswith("/s") else ".2f"
        print(f"{name:16}" + "".join(f"{f(values):>10{form}}" for f in (statistics.median, min, max)))
    if args.json:
        args.json.write_text(json.dumps(columns, indent=2) + "\n")


if __name__ == "__main__":
    main()
