"""The cost and the effect of fairness keys: CPU time of a task over the number of keys, and what one customer's backlog
costs the others.

  curve    no-ops drained in threads, all stored before: without keys, and with 1, 10, … 5,000 keys, interleaved. CPU
           time of the process, the lowest and the median of --rounds, in microseconds a task
  shares   starts of three keys with weights 1, 2 and 5 among the first 1,000, by one daemon's engine and by two
  waits    ten customers, one with 99 % of the tasks, of 5 ms each on 8 threads: p95 of the others' waits beside it, and
           without it

    python benchmarks/fairness.py [--tasks 10000] [--rounds 5] [--databases sqlite,postgresql] [curve shares waits]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence

import servers

from scheduler import Context, Scheduler, task

KEYS = (0, 1, 10, 100, 1000, 5000)
_starts: list[tuple[float, str]] = []


@task
def nothing(ctx: Context) -> None: ...


@task
def work(ctx: Context, customer: str) -> None:
    _starts.append((time.monotonic(), customer))
    time.sleep(0.005)


@task
def quick(ctx: Context, customer: str) -> None:
    _starts.append((time.monotonic(), customer))


def made(url: str) -> Scheduler:
    jobs = Scheduler(url=url, auto_migrate=True, pools={"medium": (8, 0)})
    for kind in (nothing, work, quick):
        jobs.register(kind)
    return jobs


def ended(jobs: Scheduler) -> None:
    while jobs.list_tasks(("scheduled", "claimed", "running"), limit=1):
        time.sleep(0.1)


def curve(url: str, tasks: int, rounds: int) -> None:
    found: dict[int, list[float]] = {keys: [] for keys in KEYS}
    for _ in range(rounds):
        for keys in KEYS:
            jobs = made(url)
            with jobs.batch() as batch:
                for n in range(tasks):
                    builder = batch.task(nothing)
                    if keys:
                        builder.fairness_key(f"customer {n % keys}")
            before = time.process_time()
            jobs.start()
            ended(jobs)
            found[keys].append(1e6 * (time.process_time() - before) / tasks)
            jobs.close()
    for keys, costs in found.items():
        print(
            f"{keys or 'no':>6} keys: {min(costs):6.1f} lowest, {statistics.median(costs):6.1f} median µs of CPU a task"
        )


def shares(url: str, workers: int) -> None:
    weights = {"a": 1, "b": 2, "c": 5}
    fleet = [made(url) for _ in range(workers)]
    with fleet[0].batch() as batch:
        for customer, weight in weights.items():
            for _ in range(2000):
                batch.task(quick, customer).fairness_key(customer).fairness_weight(weight)
    _starts.clear()
    for jobs in fleet:
        jobs.start()
    while len(_starts) < 1000:
        time.sleep(0.005)
    counted = Counter(customer for _, customer in sorted(_starts)[:1000])
    for jobs in fleet:
        jobs.close()
    print(f"{workers} workers: {dict(sorted(counted.items()))} of 1,000; due 125, 250, 625")


def waits(url: str, *, small: int = 4) -> None:
    """The others have ``small`` tasks each; the big one 99 % of all."""
    p95: dict[str, float] = {}
    for name, big in (("alone", 0), ("beside", 99 * 9 * small)):
        jobs = made(url)
        with jobs.batch() as batch:
            for _ in range(200):
                batch.task(nothing)
        jobs.start()
        ended(jobs)
        jobs.stop_now()
        with jobs.batch() as batch:
            for _ in range(big):
                batch.task(work, "big").fairness_key("big")
            for customer in (f"small {n}" for n in range(9)):
                for _ in range(small):
                    batch.task(work, customer).fairness_key(customer)
        _starts.clear()
        began = time.monotonic()
        jobs.start()
        while sum(customer != "big" for _, customer in _starts) < 9 * small:
            time.sleep(0.005)
        waited = sorted(at - began for at, customer in _starts if customer != "big")
        p95[name] = waited[int(0.95 * len(waited))]
        jobs.cancel_tasks(kind="work")
        jobs.close()
    ratio = p95["beside"] / p95["alone"]
    print(f"{small} tasks each: p95 {p95['alone']:.3f} s alone, {p95['beside']:.3f} s beside: {ratio:.2f}")


def main(parts: Sequence[str], tasks: int, rounds: int, databases: Sequence[str]) -> None:
    for name in databases:
        print(name, flush=True)
        with getattr(servers, name)() as server, servers.fresh(server) as url:
            for part in parts or ("curve", "shares", "waits"):
                if part == "curve":
                    curve(url, tasks, rounds)
                elif part == "shares":
                    shares(url, 1)
                    shares(url, 2)
                else:
                    waits(url, small=4)
                    waits(url, small=40)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=("curve", "shares", "waits", []))
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--databases", default="sqlite,postgresql")
    given = parser.parse_args()
    main(given.parts, given.tasks, given.rounds, given.databases.split(","))
