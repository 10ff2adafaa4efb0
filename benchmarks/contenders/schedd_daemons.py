"""Ours as real daemons, at their defaults: one, two and three on one database, and one that has nothing to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa

from contenders.schedd import scheduler
from contenders.schedd_stored import store
from scheduler.store.db.notifier import make_notifier

MODULE = """
from scheduler import task

@task
def noop(ctx, n=0, text=""): ...
"""
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def daemon(directory: Path, url: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon, once it is ready."""
    url = url.replace("postgresql://", "postgresql+psycopg://")
    environment = {"SCHEDD_STORE__URL": url, "SCHEDD_TASKS__MODULES": "bench_tasks", "SCHEDD_TASKS__PATH": "."}
    made = subprocess.Popen(
        [sys.executable, "-m", "scheduler.daemon"],
        cwd=directory,
        env={**os.environ, **environment, "SCHEDD_LOG__FORMAT": "json"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert made.stderr is not None
        told = []
        for line in made.stderr:
            told.append(line)
            if '"event":"ready"' in line:
                break
        else:
            raise RuntimeError(f"the daemon did not start: {''.join(told)[-600:]}")
        yield made
    finally:
        made.send_signal(signal.SIGTERM)
        made.wait(30)


@contextmanager
def running(url: str, daemons: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many daemons, ready."""
    with TemporaryDirectory(prefix="sb") as name, ExitStack() as stack:
        (Path(name) / "bench_tasks.py").write_text(MODULE)
        scheduler(url).database.open()  # creates and migrates it
        yield [stack.enter_context(daemon(Path(name), url)) for _ in range(daemons)]


def fleet(daemons: int) -> Callable[[str, int], float]:
    """Tasks a second of so many daemons from the first claim to the last recorded end, as the database has them; the
    tasks are inserted when all daemons are ready."""

    def run(url: str, size: int) -> float:
        jobs = scheduler(url)
        with running(url, daemons):
            store(jobs, size, "due")
            notifier = make_notifier(jobs.database)
            notifier.notify()
            left = sa.text("SELECT EXISTS (SELECT 1 FROM schedd_tasks WHERE state >= 1 AND state <= 5)")
            while True:
                time.sleep(0.1)
                with jobs.database.read() as tx:
                    if not tx.connection.execute(left).scalar():
                        break
            notifier.close()
            with jobs.database.read() as tx:
                ends = "SELECT min(claimed_at), max(finished_at), count(*) FROM schedd_attempts"
                first, last, done = tx.connection.execute(sa.text(ends)).one()
        assert done == size, f"{done} attempts of {size} tasks"
        return float(size / ((last - first) / 1e6))

    return run


def _cpu(pid: int) -> float:
    """Seconds of CPU of a process and of those it has started and that live."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / _TICKS + sum(_cpu(int(child)) for child in children)


def idle(url: str, size: int) -> float:
    """Per cent of a core that a daemon with nothing to do takes over ``size`` seconds."""
    with running(url, 1) as (process,):
        time.sleep(3)
        begun, before = time.monotonic(), _cpu(process.pid)
        time.sleep(size)
        return 100 * (_cpu(process.pid) - before) / (time.monotonic() - begun)


_FLEET = {f"{n} daemon{'s' if n > 1 else ''}": fleet(n) for n in (1, 2, 3)}
WORKS = {
    (work, dialect): functions
    for work, functions in (("fleet", _FLEET), ("idle", {"": idle}))
    for dialect in ("sqlite", "postgresql")
}
