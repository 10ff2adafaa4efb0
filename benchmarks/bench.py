"""Everything side by side in one run: schedd, the raw limit and its peers, on SQLite and PostgreSQL. ``make bench``.

Each measurement is a process of its own on a fresh database; in each round every contender does every work once, so
that what the machine does besides hits all of them. The first round warms up. SQLite with synchronous=FULL; PostgreSQL
with fsync and synchronous_commit on (see contenders/ for how each peer is set up, servers.py for the server;
DATABASE_URL names one of your own). Peers come with ``pip install -e '.[bench]'``; those that are missing are named.

    python benchmarks/bench.py [--runs 5] [--works drain,enqueue] [--dialects sqlite] [--who schedd,raw] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import platform
import sqlite3
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import servers

CONTENDERS = {
    "schedd": "contenders.schedd",
    "raw": "contenders.raw",
    "huey": "contenders.huey_",
    "pgqueuer": "contenders.pgqueuer_",
    "procrastinate": "contenders.procrastinate_",
    "dbos": "contenders.dbos_",
}
SIZES = {
    "drain": 20_000,
    "drain async": 20_000,
    "dag": 5_000,
    "enqueue": 2_000,
    "batch": 10_000,
    "batch of edges": 10_000,
    "start": 100,
}
SMALLER = {
    ("dbos", "drain"): 1_000,
    ("dbos", "enqueue"): 500,
    ("procrastinate", "drain"): 2_000,
    ("huey", "drain"): 5_000,
}
DIALECTS = ("sqlite", "postgresql")
AGAINST = {"drain async": "drain"}  # what else of schedd's own a work is compared with

Results = dict[tuple[str, str], dict[str, list[Any]]]  # (work, dialect) -> contender -> a value a round


def works_of(who: str) -> dict[tuple[str, str], Any]:
    """What a contender can do; nothing if it is not installed."""
    try:
        return dict(importlib.import_module(CONTENDERS[who]).WORKS)
    except ModuleNotFoundError as error:
        print(f"{who}: not installed ({error.name})", file=sys.stderr)
        return {}


def measure(who: str, work: str, server: str | None) -> Any:
    """One measurement in a process of its own; None if it failed, which is told."""
    size = SMALLER.get((who, work), SIZES[work])
    with servers.fresh(server) as url:
        command = [sys.executable, __file__, "--one", who, work, url, str(size)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        except subprocess.TimeoutExpired:
            print(f"{who}, {work}: not ready after 300 s", file=sys.stderr)
            return None
    if done.returncode:
        print(f"{who}, {work}: {done.stderr.strip()[-600:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def run(runs: int, works: list[str], dialects: list[str], contenders: list[str]) -> Results:
    able = {who: works_of(who) for who in contenders}
    results: Results = defaultdict(lambda: defaultdict(list))
    with contextlib.ExitStack() as stack:
        urls: dict[str, str | None] = {"sqlite": None}
        if "postgresql" in dialects:
            urls["postgresql"] = stack.enter_context(servers.postgresql())
            print(servers.settings(str(urls["postgresql"])))
        for round_ in range(runs + 1):
            for dialect in dialects:
                for work in works:
                    for who in contenders:
                        if (work, dialect) not in able[who]:
                            continue
                        value = measure(who, work, urls[dialect])
                        if round_ and value is not None:
                            results[work, dialect][who].append(value)
            print(f"round {round_} of {runs}" if round_ else "warmed up", file=sys.stderr, flush=True)
    return results


def _spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def _ratio(ours: list[float], theirs: list[float]) -> str:
    return _spread([a / b for a, b in zip(ours, theirs, strict=False)], 2)


def table(results: Results) -> str:
    """Markdown: medians with least and most; ratios are schedd's rate by the other one's of the same round."""
    lines = ["| work | database | who | a second | schedd's by it |", "| --- | --- | --- | --- | --- |"]
    for (work, dialect), by_who in results.items():
        ours = by_who.get("schedd")
        for who, values in by_who.items():
            if work == "start":
                every = sorted(ms for one in values for ms in one)
                p50, p99 = statistics.median(every), every[int(len(every) * 0.99)]
                lines.append(f"| call to start | {dialect} | {who} | p50 {p50:.2f} ms, p99 {p99:.2f} ms | |")
                continue
            ratio = "" if who == "schedd" or not ours else _ratio(ours, values)
            if who == "schedd" and (other := results.get((AGAINST.get(work, ""), dialect))):
                ratio = f"by its {AGAINST[work]}: {_ratio(values, other['schedd'])}"
            lines.append(f"| {work} | {dialect} | {who} | {_spread(values, 0)} | {ratio} |")
    return "\n".join(lines)


def versions(contenders: list[str]) -> str:
    found = []
    for who in contenders:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{who} {importlib.metadata.version(who)}")
    return f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {', '.join(found)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--works", default=",".join(SIZES))
    parser.add_argument("--dialects", default=",".join(DIALECTS))
    parser.add_argument("--who", default=",".join(CONTENDERS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        who, work, url, size = args.one
        dialect = "sqlite" if url.startswith("sqlite") else "postgresql"
        print(json.dumps(works_of(who)[work, dialect](url, int(size))))
        return
    contenders = args.who.split(",")
    print(versions(contenders))
    results = run(args.runs, args.works.split(","), args.dialects.split(","), contenders)
    print(f"\n{table(results)}")
    if args.json:
        flat = {f"{work}, {dialect}": by_who for (work, dialect), by_who in results.items()}
        args.json.write_text(json.dumps(flat, indent=2) + "\n")


if __name__ == "__main__":
    main()
