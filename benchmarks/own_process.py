"""A start in the caller's own process: milliseconds from the call of schedule() to the first line of the handler, in a
program that runs tasks itself and has a free slot, and of schedule() alone. Beside it one flushed commit: an INSERT of
the same row by the bare driver. A call of each, another one first each time, with a pause between, so that the worker
is idle; ``two commits`` is the same program without direct starts. ``slow disk``: a PostgreSQL whose commits flush for
15 ms and more (commit_delay), two rounds of a fourth of the calls.

    python benchmarks/own_process.py [--calls 400] [--rounds 5] [--databases sqlite,postgresql,slow_disk]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import servers
from contenders.raw import opened
from contenders.schedd import as_the_daemon_does

from scheduler import Context, Scheduler, task

PAUSE = 0.02  # seconds between two calls
_began = threading.Event()
_at: dict[str, float] = {}


@task
def stamp(ctx: Context, n: int, text: str) -> None:
    _at["begun"] = time.perf_counter()
    _began.set()


def _scheduler(url: str) -> Scheduler:
    jobs = Scheduler(url.replace("postgresql://", "postgresql+psycopg://"), auto_migrate=True, metrics=True)
    jobs.register(stamp)
    return jobs


def one_round(server: str, calls: int) -> dict[str, list[float]]:
    """Milliseconds of each call by what was measured."""
    took: dict[str, list[float]] = {}
    with servers.fresh(server) as url, servers.fresh(server) as beside, servers.fresh(server) as other:
        db, row = opened(beside)
        mark = "?" if url.startswith("sqlite") else "%s"
        insert = f"INSERT INTO schedd_tasks ({', '.join(row)}) VALUES ({', '.join([mark] * len(row))})"
        values = tuple(row.values())
        direct, plain = _scheduler(url), _scheduler(other)
        as_the_daemon_does()
        with direct, plain:
            assert direct.engine.wait_ready(60)
            assert plain.engine.wait_ready(60)
            plain.engine.start_here = lambda spec: None
            sides = ("direct", direct), ("two commits", plain), ("commit", None)
            for n in range(calls):
                for name, jobs in (*sides[n % 3 :], *sides[: n % 3]):
                    time.sleep(PAUSE)
                    _began.clear()
                    begun = time.perf_counter()
                    if jobs is None:
                        db.execute(insert, values)
                        took.setdefault(name, []).append((time.perf_counter() - begun) * 1e3)
                        continue
                    jobs.task(stamp, n, "hello world").schedule()
                    stored = time.perf_counter()
                    assert _began.wait(10)
                    took.setdefault(name, []).append((_at["begun"] - begun) * 1e3)
                    took.setdefault(f"{name}, schedule() alone", []).append((stored - begun) * 1e3)
            direct_starts = [f for f in direct.metrics() if f.metric.name.endswith("direct_starts_total")]
            started = sum(sample.value for family in direct_starts for sample in family.samples)
            print(f"{started:.0f} of {calls} calls started directly", flush=True)
    return took


@contextmanager
def slow_disk() -> Iterator[str]:
    """A PostgreSQL whose sessions wait for 15 ms before each flush."""
    slow = "options=-c%20commit_delay%3D15000%20-c%20commit_siblings%3D0"
    with servers.postgresql() as url:
        yield f"{url}{'&' if '?' in url else '?'}{slow}"


SERVERS = {"sqlite": servers.sqlite, "postgresql": servers.postgresql, "slow_disk": slow_disk}


def main(calls: int, rounds: int, databases: Sequence[str]) -> None:
    for name in databases:
        ratios: dict[str, list[float]] = {}
        slow = name == "slow_disk"
        with SERVERS[name]() as server:
            for _ in range(min(rounds, 2) if slow else rounds):
                found = one_round(server, calls // 4 if slow else calls)
                commit = statistics.median(found["commit"])
                for what, spans in sorted(found.items()):
                    p50, p99 = statistics.median(spans), sorted(spans)[int(0.99 * len(spans))]
                    ratios.setdefault(what, []).append(p50 / commit)
                    print(f"{name}: {what}: p50 {p50:.3f} ms, p99 {p99:.3f} ms, {p50 / commit:.2f}", flush=True)
        for what, all_of in ratios.items():
            print(f"{name}: {what}: {statistics.median(all_of):.2f} ({min(all_of):.2f} to {max(all_of):.2f}) commits")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--databases", default="sqlite,postgresql,slow_disk")
    given = parser.parse_args()
    main(given.calls, given.rounds, given.databases.split(","))
