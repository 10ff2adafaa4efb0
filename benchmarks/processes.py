"""How fast no-op tasks go through the pool of child processes, and how soon a child is there. SQLite, synchronous=FULL.

Each run is a process of its own on a fresh database. The child acknowledges every start before the handler runs, so
that a death blames only what had begun.

  no-op        N tasks with isolation="process", from the first claim to the last commit, children warm
  first        seconds from schedule() to the recorded end of the first task of all: the fork server starts for it
  replaced     seconds to replace a child that was killed, by the end of the next task

    python benchmarks/processes.py [--tasks 10000] [--runs 7] [--processes N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scheduler import Context, Scheduler, Task, interpreter


class Noop(Task, isolation="process"):
    """Does nothing in a child process."""

    n: int = 0

    def run(self, ctx: Context) -> None:
        pass


class Pid(Task, isolation="process"):
    """Tells which process it ran in; ``die``: and ends it."""

    die: bool = False

    def run(self, ctx: Context) -> int:
        if self.die:
            os._exit(1)
        return os.getpid()


def lifetime(jobs: Scheduler, task: Task) -> float:
    """Seconds from scheduling it to its end."""
    task_id = jobs.task(task).schedule()
    jobs.wait([task_id], timeout=60)
    found = jobs.get_task(task_id)
    assert found.finished_at is not None
    return (found.finished_at - found.created_at).total_seconds()


def one(tasks: int, processes: int) -> dict[str, float]:
    """One run in this process."""
    interpreter.tune()  # as schedd does
    with tempfile.TemporaryDirectory(prefix="schedd-bench-", dir=".") as directory:
        jobs = Scheduler(f"sqlite:///{directory}/bench.db", processes=processes)
        jobs.register(Noop)
        jobs.register(Pid)
        with jobs:
            assert jobs.engine.wait_ready(30)
            first = lifetime(jobs, Pid())
            for _ in range(processes):
                jobs.wait([jobs.task(Pid(die=True)).schedule()], timeout=60)
            replaced = lifetime(jobs, Pid())
            with jobs.batch() as batch:
                for _ in range(200):
                    batch.task(Noop())
            jobs.wait(batch.ids, timeout=60)
            with jobs.batch() as batch:
                for n in range(tasks):
                    batch.task(Noop(n))
            begun = time.perf_counter()
            while jobs.engine.engine_state.held or jobs.list_tasks(status="pending", limit=1):
                time.sleep(0.005)
            took = time.perf_counter() - begun
        jobs.close()
    return {"no-op, 1/s": tasks / took, "first, s": first, "replaced, s": replaced}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.tasks, args.processes)))
        return
    print(f"Python {platform.python_version()}, {args.processes} children, {args.tasks} no-ops")
    found: dict[str, list[float]] = {}
    for run in range(args.runs):
        command = [sys.executable, __file__, "--one", "--tasks", str(args.tasks), "--processes", str(args.processes)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for name, value in told.items():
            found.setdefault(name, []).append(value)
        print(f"run {run + 1}", *(f"{name} {value:,.3f}" for name, value in told.items()), flush=True)
    print(f"\n{'':16}{'median':>10}{'min':>10}{'max':>10}")
    for name, values in found.items():
        print(f"{name:16}{statistics.median(values):>10,.3f}{min(values):>10,.3f}{max(values):>10,.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
