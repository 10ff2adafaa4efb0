"""Where a task's microseconds go: CPU time of each stage a task goes through, on SQLite and on PostgreSQL.

  caller    10,000 tasks in one batch: build, encode (payload to checked JSON), rows, insert, commit
  engine    20,000 no-ops drained in threads: claim, decode, run, outcome, finish, commit, hand-off, turn, upkeep
  index     the claims and finishes of the raw loop, claimed by id, with all of schedd's secondary indexes and without
            any: what keeping them up to date costs, which is a part of insert, claim, finish and commit above

Times are the CPU clocks of threads (stages.py), so what waits for a disk or a server counts nothing; PostgreSQL's own
is that of all its processes. "rest" is what belongs to no stage: the threads' loops, the interpreter's switches between
them, the collector. The lowest of --runs is shown for each stage, and the median of the index's, which are differences.

    python benchmarks/cpu_profile.py [--tasks 20000] [--runs 3] [--databases sqlite,postgresql] [--json FILE] [--put]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pages
import servers
from stages import Stages

CALLER = (
    ("scheduler.client.batch:Batch.task", "build"),
    ("scheduler.client.builder:TaskBuilder._finished", "build"),
    ("scheduler.client.batch:Batch.__exit__", "build"),
    ("scheduler.model.registry:Kind.encode", "encode"),
    ("scheduler.store.tasks.enqueue:enqueue", "rows"),
    ("scheduler.store.tasks.enqueue:values_of", "rows"),  # while they are sent
    ("scheduler.store.db.statements:insert", "insert"),
)
ENGINE = (
    ("scheduler.engine.dispatch.cycle:DispatchCycle.run", "turn"),
    ("scheduler.engine.dispatch.lanes:LaneScanner.scan", "claim"),
    ("scheduler.engine.dispatch.planner:ClaimPlanner.plan", "claim"),
    ("scheduler.store.tasks.claim:claim", "claim"),
    ("scheduler.store.tasks.complete:finish", "finish"),
    ("scheduler.engine.dispatch.completion:Completer.finalize", "hand-off"),
    ("scheduler.engine.dispatch.handoff:SlotFeeder.submit", "hand-off"),
    ("scheduler.engine.state:EngineState.report", "hand-off"),
    ("scheduler.engine.execution.run:execute", "outcome"),
    ("scheduler.model.registry:Kind.decode", "decode"),
    ("scheduler.engine.engine:Engine._upkeep", "upkeep"),
)
COMMIT = "scheduler.store.db.database:Database.write"
ORDER = (
    *("build", "encode", "rows", "insert", "commit (caller)"),
    *("claim", "decode", "hand-off", "run", "outcome", "finish", "commit", "turn", "upkeep", "rest"),
    *("server (caller)", "server (engine)", "index upkeep, insert", "index upkeep, claim and finish"),
)
_TICKS = os.sysconf("SC_CLK_TCK")


def server_cpu(url: str) -> float:
    """Microseconds of CPU of a PostgreSQL that has its data here: of all its processes, also of those that ended."""
    if not url.startswith("postgresql"):
        return 0.0
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        (directory,) = connection.execute("SELECT current_setting('data_directory')").fetchone() or ("",)
    try:
        postmaster = int((Path(directory) / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        ticks = 0
        for pid in (str(postmaster), *children):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                # utime and stime; of the postmaster also those of children that have ended
                ticks += sum(int(f) for f in fields[11 : 15 if pid == str(postmaster) else 13])
        return ticks / _TICKS * 1e6
    except (OSError, IndexError):
        return 0.0  # of another machine


def caller(url: str, tasks: int) -> dict[str, float]:
    from contenders.schedd import noop, scheduler

    jobs = scheduler(url)
    stages = Stages()
    for path, stage in CALLER:
        stages.replace(path, stage)
    stages.replace_context(COMMIT, "commit (caller)")
    size = min(tasks, 10_000)
    for measured in (False, True):
        before = server_cpu(url)
        stages.clear()
        with jobs.batch() as batch:
            for n in range(size):
                batch.task(noop, n, "hello world")
        found, _ = stages.read()
        server = server_cpu(url) - before
        if measured and server:
            found["server (caller)"] = server
    return _each(found, size, stages)


def engine(url: str, tasks: int) -> dict[str, float]:
    from contenders import schedd

    jobs = schedd.scheduler(url)
    stages = Stages()
    for path, stage in ENGINE:
        stages.replace(path, stage)
    stages.replace_context(COMMIT, "commit")
    jobs.task(schedd.noop, 0).schedule()
    kind = jobs.registry.get("noop")
    assert kind is not None
    kind.run = stages.counted(kind.run, "run")
    schedd.fill(jobs, tasks)
    schedd.as_the_daemon_does()
    with jobs:
        # From here on, so that the first turns and the threads' start do not count.
        while schedd.ran < tasks // 20:
            time.sleep(0.001)
        before, already = server_cpu(url), schedd.ran
        stages.clear()
        while schedd.ran < tasks or jobs.engine.engine_state.held:
            time.sleep(0.005)
        found, whole = stages.read()
        if before:
            found["server (engine)"] = server_cpu(url) - before
    found["rest"] = whole - sum(found[name] for name in found if name in ORDER and not name.startswith("server"))
    return _each(found, tasks - already, stages)


def _each(found: dict[str, float], tasks: int, stages: Stages) -> dict[str, float]:
    if stages.missing:
        print(f"not there any more: {', '.join(stages.missing)}", file=sys.stderr)
    return {name: took / tasks for name, took in found.items()}


def index(url: str, tasks: int) -> dict[str, float]:
    """The difference that all secondary indexes of the tasks and edges make, to the driver and the server together."""
    with_them, without = ([*_indexed(url, tasks, keep)] for keep in (True, False))
    names = ("index upkeep, insert", "index upkeep, claim and finish")
    return {name: (a - b) / tasks for name, a, b in zip(names, with_them, without, strict=True)}


def _indexed(url: str, tasks: int, keep: bool) -> list[float]:
    from contenders import raw

    url = url if keep else _beside(url)
    db, row = raw.opened(url)
    sqlite = url.startswith("sqlite")
    if not keep:
        listed = (
            "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            if sqlite
            else "SELECT indexname FROM pg_indexes WHERE indexname LIKE 'ix_schedd%' OR indexname LIKE 'ux_schedd%'"
        )
        for (name,) in db.execute(listed).fetchall():
            db.execute(f'DROP INDEX "{name}"')
    spent = []
    steps: tuple[Callable[[], Any], ...] = (
        lambda: raw._FILL["sqlite" if sqlite else "postgresql"](db, row, raw.parents_of(tasks, 0)),
        lambda: _by_id(db, tasks, sqlite=sqlite),
    )
    for step in steps:
        before = server_cpu(url) + time.process_time() * 1e6
        step()
        spent.append(server_cpu(url) + time.process_time() * 1e6 - before)
    db.close()
    return spent


def _by_id(db: Any, tasks: int, *, sqlite: bool) -> None:
    """The raw loop, claiming the next ids."""
    from contenders import raw

    claim = (
        "UPDATE schedd_tasks SET state = 4, worker = 1, claim = claim + 1, attempt = attempt + 1, claimed_at = {at} "
        "WHERE id BETWEEN {low} AND {high}"
    )
    mark = "?" if sqlite else "%s"
    claim = claim.format(at=mark, low=mark, high=mark)
    for first in range(1, tasks + 1, raw.TURN):
        ids = range(first, min(first + raw.TURN, tasks + 1))
        now = time.time_ns() // 1000
        db.execute("BEGIN IMMEDIATE" if sqlite else "BEGIN")
        db.execute(claim, (now, ids[0], ids[-1]))
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE" if sqlite else "BEGIN")
        if sqlite:
            done = [value for i in ids for value in (i, 1, now)]
            db.execute(raw._FINISH.format(rows=raw._values(len(ids), 3)), done)
        else:
            ones = raw._array([1] * len(ids))
            db.execute(raw._PG_FINISH, {"ids": raw._array(ids), "claims": ones, "numbers": ones, "now": now})
        db.execute("COMMIT")


def _beside(url: str) -> str:
    """Another database on the same server, or in the same directory."""
    if url.startswith("sqlite"):
        return url.replace("bench.db", "beside.db")
    import psycopg

    server, _, query = url.partition("?")
    base, _, name = server.rpartition("/")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}_b"')
    return f"{base}/{name}_b?{query}"


PARTS = {"caller": caller, "engine": engine, "index": index}


def main() -> None:
    if len(sys.argv) == 5 and sys.argv[1] == "--one":
        print(json.dumps(PARTS[sys.argv[2]](sys.argv[3], int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--put", action="store_true", help="also put the table into its page")
    args = parser.parse_args()
    databases = args.databases.split(",")
    every: dict[str, dict[str, list[float]]] = {database: {} for database in databases}
    with contextlib.ExitStack() as stack:
        for database in databases:
            server = stack.enter_context({"sqlite": servers.sqlite, "postgresql": servers.postgresql}[database]())
            for _ in range(args.runs):
                for part in PARTS:
                    with servers.fresh(server) as url:
                        command = [sys.executable, __file__, "--one", part, url, str(args.tasks)]
                        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                    for stage, took in json.loads(done.stdout).items():
                        every[database].setdefault(stage, []).append(took)
    found = {
        database: {s: statistics.median(t) if s.startswith("index") else min(t) for s, t in stages.items()}
        for database, stages in every.items()
    }
    lines = ["| stage | " + " | ".join(databases) + " |", "| --- |" + " --- |" * len(databases)]
    stages = [*ORDER, *sorted({stage for each in found.values() for stage in each} - {*ORDER})]
    for stage in stages:
        if any(stage in each for each in found.values()):
            cells = [f"{each[stage]:.1f}" if stage in each else "" for each in found.values()]
            lines.append(f"| {stage} | {' | '.join(cells)} |")
    text = "CPU microseconds a task:\n\n" + "\n".join(lines)
    print(text)
    if args.put:
        pages.put("profile", text)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
