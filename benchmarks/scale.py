"""What a million to a thousand million tasks a day need, from costs that this run measures: a model, not a load test.

Measured on the PostgreSQL of ``servers.py`` (fsync on): CPU time of the server and of the programs, bytes of WAL and
commits for each task that is stored and run, and bytes on the disk for each task that is kept. The rest is arithmetic:
:func:`needs` has every formula. CPU times hardly depend on other load; the model has no figure that is a wall time.

    python benchmarks/scale.py [--tasks 20000] [--runs 5] [--put]        # --put: into docs/explanation/scale.md

Each figure is the median of the runs.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg
import servers
from contenders import schedd

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "scale.md"
BEGIN, END = "<!-- scale: begin -->\n", "<!-- scale: end -->"
BATCH = 1000
DAYS = (10**6, 10**7, 10**8, 10**9)  # tasks a day
PEAK = 5.0  # the busiest minute of a day by its mean
BUSY = 0.6  # of a server's cores: above that queues in it grow quickly
CORES = 16  # of one server of PostgreSQL
KEPT = 1.0  # days that an ended task is kept with its attempt
TICKS = os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Of one task: microseconds of CPU in the server and in the programs, bytes of WAL, commits."""

    server: float
    program: float
    wal: float
    commits: float


class Costs(NamedTuple):
    """``single``: stored by a call of its own; ``batch``: among 1,000; ``run``: claimed, run and recorded. ``kept``:
    bytes on the disk, indexes included, of an ended task."""

    single: Cost
    batch: Cost
    run: Cost
    kept: float


class Needs(NamedTuple):
    """What so many tasks a day need at their peak."""

    rate: float  # tasks a second, at the peak
    server_cores: float
    daemons: int
    connections: int
    wal: float  # MB a second
    disk: float  # GB
    cells: int


def needs(costs: Costs, a_day: float, *, batches: bool) -> Needs:
    """The formulas. ``batches``: tasks are stored by the thousand, else one by one."""
    rate = PEAK * a_day / 86_400
    store = costs.batch if batches else costs.single
    cores = rate * (store.server + costs.run.server) / 1e6
    daemons = max(1, math.ceil(rate * costs.run.program / 1e6 / BUSY))  # one core each: an engine is one interpreter
    return Needs(
        rate=rate,
        server_cores=cores,
        daemons=daemons,
        connections=3 * daemons,  # its cycles, its listener, and its ends under load
        wal=rate * (store.wal + costs.run.wal) / 1e6,
        disk=a_day * KEPT * costs.kept / 1e9,
        cells=max(1, math.ceil(cores / (BUSY * CORES))),
    )


def measured(tasks: int) -> Costs:
    """Costs of so many tasks, on a fresh database."""
    with servers.postgresql() as server, servers.fresh(server) as url:
        jobs = schedd.scheduler(url)
        schedd.fill(jobs, BATCH)
        schedd.drained(jobs, BATCH)  # plans and pages are warm
        with psycopg.connect(url, autocommit=True) as watch:
            few = max(BATCH, tasks // 10)

            def one_by_one() -> None:
                for n in range(few):
                    jobs.task(schedd.noop, n, "hello world").schedule()

            def in_batches() -> None:
                for _ in range(tasks // BATCH):
                    with jobs.batch() as batch:
                        for n in range(BATCH):
                            batch.task(schedd.noop, n, "hello world")

            before = _size(watch)
            single = _cost(watch, few, one_by_one)
            batch = _cost(watch, tasks, in_batches)
            run = _cost(watch, tasks + few, lambda: schedd.drained(jobs, tasks + few))
            return Costs(single, batch, run, (_size(watch) - before) / (tasks + few))


def medians(runs: Sequence[Costs]) -> Costs:
    """Of each figure."""

    def cost(name: str) -> Cost:
        return Cost(*(median(column) for column in zip(*(getattr(run, name) for run in runs), strict=True)))

    return Costs(cost("single"), cost("batch"), cost("run"), median(run.kept for run in runs))


def _cost(watch: psycopg.Connection, tasks: int, work: Callable[[], object]) -> Cost:
    before = _counters(watch)
    work()
    server, program, wal, commits = (b - a for a, b in zip(before, _counters(watch), strict=True))
    return Cost(server / tasks * 1e6, program / tasks * 1e6, wal / tasks, commits / tasks)


def _counters(watch: psycopg.Connection) -> tuple[float, float, float, float]:
    watch.execute("SELECT pg_stat_clear_snapshot(), pg_stat_force_next_flush()")
    row = watch.execute(
        "SELECT pg_current_wal_insert_lsn() - CAST('0/0' AS pg_lsn), xact_commit FROM pg_stat_database "
        "WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    own = resource.getrusage(resource.RUSAGE_SELF)
    return _server_cpu(watch.info.backend_pid), own.ru_utime + own.ru_stime, float(row[0]), float(row[1])


def _server_cpu(backend: int) -> float:
    """Seconds of all processes of the server, ended ones included."""
    postmaster = int(_stat(backend)[1])
    while True:
        ended = _stat(postmaster)[13:15]  # of its ended children
        times: list[str] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(FileNotFoundError, ProcessLookupError):
                    stat = _stat(int(entry.name))
                    if int(stat[1]) == postmaster or int(entry.name) == postmaster:
                        times += stat[11:13]
        if _stat(postmaster)[13:15] == ended:  # else one has ended meanwhile, and counts twice or not at all
            return sum(map(int, [*ended, *times])) / TICKS


def _stat(pid: int) -> list[str]:
    """Fields of proc(5) from ``state`` on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _size(watch: psycopg.Connection) -> int:
    row = watch.execute(
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'schedd_%'"
    ).fetchone()
    assert row is not None
    return int(row[0])


def table(costs: Costs) -> str:
    """The costs and what follows from them, as Markdown."""
    lines = ["| of one task | server, µs | program, µs | WAL, bytes | commits |", "| --- | --- | --- | --- | --- |"]
    for name, cost in (("stored alone", costs.single), ("stored in a batch of 1,000", costs.batch), ("run", costs.run)):
        lines.append(f"| {name} | {cost.server:.0f} | {cost.program:.0f} | {cost.wal:,.0f} | {cost.commits:.3f} |")
    lines += [
        "",
        f"An ended task with its attempt takes {costs.kept:,.0f} bytes, indexes included.",
        "",
        "| tasks a day | stored | peak, /s | server cores | daemons | connections | WAL, MB/s | disk, GB | cells |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for a_day in DAYS:
        for batches in (False, True):
            n = needs(costs, a_day, batches=batches)
            how = "in batches" if batches else "alone"
            lines.append(
                f"| {a_day:,} | {how} | {n.rate:,.0f} | {n.server_cores:.1f} | {n.daemons} | {n.connections} "
                f"| {n.wal:.1f} | {n.disk:,.1f} | {n.cells} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--put", action="store_true")
    args = parser.parse_args()
    shown = table(medians([measured(args.tasks) for _ in range(args.runs)]))
    sys.stdout.write(shown)
    if args.put:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + BEGIN + shown + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
