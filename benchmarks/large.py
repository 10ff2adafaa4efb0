"""How costs grow with 100,000,000 ended and 10,000,000 pending tasks on PostgreSQL, as far as the disk holds.

Loads the rows that a program would leave, by ``INSERT … SELECT generate_series``, step by step. At each step everything
is measured there and, in turn, on a small store of the same server: what the machine does besides hits both, and the
ratio says what grew. While it loads, the server does not wait for the disk; while it measures, it does.

    python benchmarks/large.py [--steps 1,10,30,100] [--spare 20] [--rounds 3] [--json FILE]   # millions of ended tasks
    python benchmarks/large.py --table FILE...

``--spare``: GB of the disk to leave free; a step that would not leave them ends the run. ``DATABASE_URL`` names a
server of your own (as a superuser, since its settings are changed), else it is that of ``servers.py``. A database that
has rows already is filled further.

Simplified: no results, edges, checkpoints and rollups; one attempt each; no gaps between rows as updates leave them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import scale
import servers
from click.testing import CliRunner
from contenders import schedd

from scheduler.cli.root import root
from scheduler.model.defaults import RETENTION
from scheduler.store.admin import retention
from scheduler.store.db.migrate import upgrade

CHUNK = 500_000  # ids that are loaded at a time: what is vacuumed next is in memory still
BLOCK = 1_100  # ids: 1,000 ended tasks, 50 due, 50 due in a year
BYTES = 520  # of an ended task with its attempt, indexes included: more than it takes
SMALL = 1.0  # millions of ended tasks in the small store
APART = 700  # microseconds between creations: 100,000,000 in a day
TIMEOUT = 900  # seconds of one measurement
CALLS, BATCHES, DRAINED, LOOKS = 2_000, 20, 5_000, 3  # of each measurement
CPU = ", CPU"  # behind the names of such figures
SETTINGS = {**servers.SETTINGS, "shared_buffers": "2GB"}
LOADING = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_wal_size": "'2GB'",
    "checkpoint_timeout": "'1h'",
}
# What a schedd leaves, of 1,000: 985 successes, 10 dead letters, 5 cancelled; a tenth has a key, another one a
# correlation.
NUMBERS = """
(SELECT i, mod(i, %(block)s) AS n, CAST(%(start)s AS bigint) + i * %(apart)s AS at
 FROM generate_series(CAST(%(low)s AS bigint), CAST(%(high)s AS bigint)) i) numbers
"""
TASKS = f"""
INSERT INTO schedd_tasks (id, state, queue, lane, priority, run_at, kind, claim, attempt, max_attempts, created_at,
  claimed_at, started_at, finished_at, payload, key, held_key, key_until, correlation, result_until,
  error, error_class, fingerprint)
SELECT i, CASE WHEN n < 985 THEN 6 WHEN n < 995 THEN 8 WHEN n < 1000 THEN 9 ELSE 1 END,
  CASE WHEN n < 1000 THEN 'default' WHEN n < 1050 THEN 'due' ELSE 'later' END, kind, 1,
  CASE WHEN n < 1050 THEN at ELSE at + 31536000000000 END, kind,
  ran, ran, 1, at, CASE WHEN ran = 1 THEN at + 1000 END, CASE WHEN ran = 1 THEN at + 2000 END,
  CASE WHEN n < 1000 THEN at + 50000 END, '{{"n":' || i || ',"text":"hello world"}}',
  key, CASE WHEN NOT died THEN key END, CASE WHEN n < 985 AND key IS NOT NULL THEN at + 86400000000 END,
  CASE WHEN mod(n, 10) = 4 THEN 'cart-' || i / 100 END, CASE WHEN n < 985 THEN at + 86400000000 END,
  CASE WHEN died THEN 'ValueError: no such customer' END, CASE WHEN died THEN 'ValueError' END,
  CASE WHEN died THEN 'f' || n END
FROM {NUMBERS}, LATERAL (SELECT CASE WHEN n < 1000 THEN 'kind' || mod(i, 10) ELSE 'noop' END AS kind,
  CASE WHEN n < 995 THEN 1 ELSE 0 END AS ran, n BETWEEN 985 AND 994 AS died,
  CASE WHEN mod(n, 10) = 3 THEN 'order-' || i END AS key) more
"""
ATTEMPTS = f"""
INSERT INTO schedd_attempts (task_id, claim, number, worker, claimed_at, started_at, finished_at, outcome,
  error, error_class, fingerprint)
SELECT i, 1, 1, 1, at + 1000, at + 2000, at + 50000, CASE WHEN n < 985 THEN 0 ELSE 3 END,
  CASE WHEN n >= 985 THEN 'ValueError: no such customer' END, CASE WHEN n >= 985 THEN 'ValueError' END,
  CASE WHEN n >= 985 THEN 'f' || n END
FROM {NUMBERS} WHERE n < 995
"""
# Exact after a VACUUM.
ENDED = """
SELECT CAST(sum(reltuples) AS bigint) FROM pg_class
WHERE relname IN ('ix_schedd_tasks_succeeded', 'ix_schedd_tasks_done')
"""
OLDEST = "SELECT min(created_at - id * %(apart)s) FROM (SELECT * FROM schedd_tasks ORDER BY id LIMIT 1) t"
DAY = 86_400_000_000  # microseconds


@contextmanager
def server() -> Iterator[str]:
    """The URL of a server, see the module."""
    with servers.postgresql(SETTINGS) as url:
        yield url


def database(server: str, name: str) -> str:
    """The URL of the database of that name, made if it is not there."""
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
            connection.execute(f'CREATE DATABASE "{name}"')
    upgrade(url.replace("postgresql://", "postgresql+psycopg://"))
    return url


def tune(server: str, settings: dict[str, str], *, loading: bool) -> None:
    """Put the settings in force, or the usual ones again."""
    with psycopg.connect(server, autocommit=True) as connection:
        for name, value in settings.items():
            connection.execute(f"ALTER SYSTEM {f'SET {name} = {value}' if loading else f'RESET {name}'}")
        connection.execute("SELECT pg_reload_conf()")


def load(url: str, millions: float, spare: float) -> tuple[int, float]:
    """Fill the database up to so many millions of ended tasks and a tenth as many pending ones, as far as the disk
    holds. Returns how many ended tasks there are then, and the seconds that it took."""
    begun = time.monotonic()
    goal = round(millions * 1000) * BLOCK
    with (
        psycopg.connect(url, autocommit=True) as connection,
        psycopg.connect(url, autocommit=True) as other,
        ThreadPoolExecutor(1) as beside,
    ):
        for one in (connection, other):
            one.execute("SET synchronous_commit = off")
            one.execute("SET vacuum_buffer_usage_limit = 0")  # what was just written is in memory
        low = (_value(connection, "SELECT max(id) FROM schedd_tasks") or -1) + 1
        bound = {"block": BLOCK, "apart": APART}
        bound["start"] = _value(connection, OLDEST, bound) or time.time_ns() // 1000 - DAY
        connection.execute("ALTER TABLE schedd_tasks SET (fillfactor = 100)")
        pending: Future[None] | None = None
        while low < goal:
            high = min(low + CHUNK, goal) - 1
            if _free() - (high - low) * BYTES / 1e9 < spare:
                print(f"{_free():.1f} GB of the disk are left, so the load ends here", flush=True)
                break
            bound = {**bound, "low": low, "high": high}
            connection.execute(TASKS, bound)
            if pending is not None:
                pending.result()
            pending = beside.submit(_attempts, other, bound)
            low = high + 1
            print(f"{low:>12,} ids {time.monotonic() - begun:6.0f} s {_free():6.1f} GB free", flush=True)
        if pending is not None:
            pending.result()
        connection.execute("SELECT setval(pg_get_serial_sequence('schedd_tasks', 'id'), %s)", (low,))
        connection.execute("ALTER TABLE schedd_tasks SET (fillfactor = 70)")
        connection.execute("VACUUM (ANALYZE) schedd_tasks")
        connection.execute("VACUUM (ANALYZE) schedd_attempts")
        connection.execute("CHECKPOINT")
        return _value(connection, ENDED) or 0, time.monotonic() - begun


def _attempts(connection: psycopg.Connection, bound: dict[str, int]) -> None:
    connection.execute(ATTEMPTS, bound)
    connection.execute("VACUUM (SKIP_LOCKED) schedd_tasks")
    connection.execute("VACUUM (SKIP_LOCKED) schedd_attempts")


def _value(connection: psycopg.Connection, sql: str, bound: dict[str, int] | None = None) -> int | None:
    row = connection.execute(sql, bound).fetchone()
    assert row is not None
    return row[0]


def _free() -> float:
    return shutil.disk_usage(servers.PLACE).free / 1e9


@contextmanager
def _counted(url: str, found: dict[str, float], name: str, unit: float = 1.0) -> Iterator[None]:
    """Note seconds, and those of CPU in the server and in this program, by ``unit``."""
    with psycopg.connect(url, autocommit=True) as watch:
        before = sum(scale._counters(watch)[:2])
        begun = time.perf_counter()
        yield
        found[name] = (time.perf_counter() - begun) / unit
        found[name + CPU] = (sum(scale._counters(watch)[:2]) - before) / unit


def stored(url: str) -> dict[str, float]:
    """Of one task: a call of its own, and among a batch of 1,000."""
    jobs, found = schedd.scheduler(url), {}
    jobs.task(schedd.noop, 0, "hello world").schedule()
    with _counted(url, found, "schedule()", CALLS):
        for n in range(CALLS):
            jobs.task(schedd.noop, n, "hello world").queue("stored").schedule()
    with _counted(url, found, "task of a batch of 1,000", BATCHES * 1000):
        for _ in range(BATCHES):
            with jobs.batch() as batch:
                for n in range(1000):
                    batch.task(schedd.noop, n, "hello world").queue("stored")
    return found


def drained(url: str) -> dict[str, float]:
    """Of one task: claimed, run and recorded, where others are due in a year, and then from a backlog that is due. With
    it the start of an engine: seconds from its making to the first line of the first handler, and MiB at the end."""
    found: dict[str, float] = {}
    jobs = schedd.scheduler(url, queues=("later",))
    with jobs.batch() as batch:
        for n in range(DRAINED):
            batch.task(schedd.noop, n, "hello world").queue("later")
    with _counted(url, found, "run, beside tasks due in a year", DRAINED):
        schedd.drained(jobs, DRAINED)
    begun, before = time.perf_counter(), schedd.ran
    jobs = schedd.scheduler(url, queues=("due",))
    with jobs:
        while schedd.ran == before:
            time.sleep(0.0005)
        found["start to the first handler, s"] = time.perf_counter() - begun
        with _counted(url, found, "run, from a backlog", DRAINED):
            goal = schedd.ran + DRAINED
            while schedd.ran < goal:
                time.sleep(0.001)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return found | {"memory at its peak, MiB": int(peak.split()[1]) / 1024}


def looked(url: str) -> dict[str, float]:
    """Commands of ``schedctl``, without the start of the interpreter."""
    middle = "SELECT id FROM schedd_tasks WHERE id >= (SELECT max(id) / 2 FROM schedd_tasks) ORDER BY id LIMIT 1"
    with psycopg.connect(url) as connection:
        first = ((_value(connection, middle) or 0) // BLOCK + 1) * BLOCK
    ended, later = first + 3, first + 1060  # the first has a key
    commands = {
        "status": "status",
        "list": "list",
        "list --status dead": "list --status dead",
        "list --status success --kind": "list --status success --kind kind3",
        "list --status dead --kind": "list --status dead --kind kind7",
        "list --key": f"list --key order-{ended}",
        "list --correlation": f"list --correlation cart-{ended // 100}",
        "list --since 1h": "list --since 1h",
        "show": f"show {ended}",
        "why (due in a year)": f"why {later}",
        "dlq list": "dlq list",
        "top --once": "top --once",
        "metrics": "metrics",
        "stats": "stats",
    }
    found: dict[str, float] = {}
    for name, command in commands.items():
        for _ in range(LOOKS):  # the last one counts: what it reads is in memory, as it is on a store in use
            _schedctl(url, command, found, name)
    return found


def checked(url: str) -> dict[str, float]:
    """Commands that read everything."""
    found: dict[str, float] = {}
    for command in ("doctor", "gc --dry-run"):
        _schedctl(url, f"{command} --timeout 1h", found, command)
    return found


def _schedctl(url: str, command: str, found: dict[str, float], name: str) -> None:
    environment = {"SCHEDD_STORE__URL": url.replace("postgresql://", "postgresql+psycopg://")}
    with _counted(url, found, f"schedctl {name}"):
        done = CliRunner(env=environment).invoke(root, command.split())
    if done.exit_code not in (0, 1):
        raise RuntimeError(f"{command}: {done.output}")


def removed(url: str) -> dict[str, float]:
    """Of one task that retention removes: the oldest successes."""
    jobs, found = schedd.scheduler(url), {}
    database = jobs.database
    database.open()
    with psycopg.connect(url) as connection:
        (oldest,) = connection.execute(
            "SELECT max(f) FROM (SELECT finished_at AS f FROM schedd_tasks WHERE state = 6 AND kept_until IS NULL "
            f"ORDER BY finished_at LIMIT {BATCHES * retention.BATCH}) t"
        ).fetchone() or (0,)
    count = 0
    with _counted(url, found, "removed by retention", BATCHES * retention.BATCH):
        while count < BATCHES * retention.BATCH:
            with database.write() as tx:
                kept = (tx.now - oldest) / 1e6
                done = retention.purge_batch(tx, {**RETENTION, "success": kept, "results": kept, "failed": 9e9})
                count += done.tasks
                if not done.more:
                    break
    if count < BATCHES * retention.BATCH - 1:
        raise RuntimeError(f"only {count} tasks were removed")
    return found


PARTS = {function.__name__: function for function in (stored, drained, looked, removed, checked)}


def sizes(url: str) -> dict[str, float]:
    """MB of the tables and their indexes."""
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT relname, pg_relation_size(oid) FROM pg_class WHERE relkind IN ('r', 'i') "
            "AND relname LIKE '%schedd_%' AND pg_relation_size(oid) > 1000000 ORDER BY 2 DESC"
        )
        return {str(name): size / 1e6 for name, size in rows}


def measured(urls: dict[str, str], parts: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Medians of all that the parts measure, by store: rounds in turn."""
    found: dict[str, dict[str, list[float]]] = {who: {} for who in urls}
    for _ in range(rounds):
        for part in parts:
            for who, url in urls.items():
                command = [sys.executable, __file__, "--one", part, url]
                try:
                    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT)
                except subprocess.SubprocessError as error:
                    print(f"{part} of the {who} store: {error}", flush=True)
                    continue
                for name, value in json.loads(done.stdout).items():
                    found[who].setdefault(name, []).append(value)
    return {who: {name: median(values) for name, values in of.items()} for who, of in found.items()}


def table(told: Sequence[dict[str, Any]]) -> str:
    """Each cost by CPU time, of the programs and the server together. ``×``: by that of the small store, CPU time and
    time."""
    heads = [f"{step['ended']:,} | CPU × | time ×" for step in told]
    lines = [f"| CPU time, ms | {SMALL * 1e6:,.0f} | {' | '.join(heads)} |", "| --- " * (2 + 3 * len(told)) + "|"]
    for name in told[-1]["small"]:
        if name.endswith(CPU):
            continue
        key, by = (name + CPU, 1000) if name + CPU in told[-1]["small"] else (name, 1)
        cells = [f"{told[-1]['small'][key] * by:,.3g}"]
        for step in told:
            if name not in step["large"]:
                cells += ["", "", ""]
                continue
            time_ratio, ratio = (step["large"][one] / step["small"][one] for one in (name, key))
            cells += [f"{step['large'][key] * by:,.3g}", f"{ratio:.2f}" if key != name else "", f"{time_ratio:.2f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "| MB | " + " | ".join(f"{step['ended']:,}" for step in told) + " |",
        "| --- " * (1 + len(told)) + "|",
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{step['MB'].get(name, 0):,.0f}" for step in told) + " |"
        for name in told[-1]["MB"]
    ]
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(PARTS[sys.argv[2]](sys.argv[3])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="1,10,30,100", help="millions of ended tasks")
    parser.add_argument("--spare", type=float, default=20.0, help="GB of the disk to leave free")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", help="only print the table of earlier runs' JSON")
    args = parser.parse_args()
    told: list[dict[str, Any]] = []
    if args.table:
        print(table([step for file in args.table for step in json.loads(file.read_text())]))
        return
    with server() as at:
        urls = {who: database(at, who) for who in ("small", "large")}
        for who, millions in (("small", SMALL), *(("large", float(step)) for step in args.steps.split(","))):
            tune(at, LOADING, loading=True)
            ended, took = load(urls[who], millions, args.spare)
            tune(at, LOADING, loading=False)
            if who == "small":
                continue
            by_store = measured(urls, args.parts.split(","), args.rounds)
            told.append({"ended": ended, "loaded": took, "MB": sizes(urls["large"]), **by_store})
            print(json.dumps(told[-1], indent=1), flush=True)
            if args.json:
                args.json.write_text(json.dumps(told, indent=1) + "\n")
            if ended < 0.99 * millions * 1e6:  # some were removed
                break
    print(table(told))


if __name__ == "__main__":
    main()
