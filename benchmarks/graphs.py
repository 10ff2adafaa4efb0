"""The times of graphs when short ones go first: a mix of published workflows (workflows.py) that come at random
times, on one engine whose slots are busy for nine tenths of the time, in both orders by turns.

Tasks are coroutines that sleep for --scale times as long as the workflow's tasks take. A first run of the mix tells how
long its kinds take; then each seed is run in turn and short first, both on databases that know that. Of each run: the
time of a graph from its coming to its last end, its slowdown, which is that time over what the graph would take with
all slots to itself, and the time until all have ended. A daemon claims 0.1 s of work ahead, which is little beside
tasks of minutes; here it claims next to nothing, as a quick kind would have its way otherwise.

  drain    all graphs come at once, and their tasks do nothing: how long it takes until all have ended, and its CPU
           time, which is what the order costs

    make bench BENCH_ARGS="graphs [--graphs 70] [--seeds 1,2,3,4] [--databases sqlite,postgresql] [mix drain]"
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import NamedTuple

import servers
from workflows import SECONDS, Graph, mix

from scheduler import Context, Scheduler, TaskBuilder, task
from scheduler.model.task import TaskFunction

LOAD = 0.9
AHEAD = 0.1  # seconds of work that a daemon claims ahead
ORDERS = ("in-turn", "short-first")
_left: list[int] = []  # tasks of each graph that have not ended
_ended: list[float] = []  # when each graph had


class Times(NamedTuple):
    """Of one run: mean and 95th percentile of the graphs' times, mean and worst slowdown, the longest time, the time of
    the whole, and the process's CPU time."""

    mean: float
    p95: float
    slowdown: float
    worst_slowdown: float
    longest: float
    whole: float
    cpu: float


def kind_of(name: str) -> TaskFunction[[int, float], None]:
    async def run(ctx: Context, graph: int, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        _left[graph] -= 1
        if not _left[graph]:
            _ended[graph] = time.monotonic()

    run.__name__ = run.__qualname__ = name
    return task(run)


KINDS = {name: kind_of(name) for name in SECONDS}


def made(url: str, slots: int, order: str, ahead: float) -> Scheduler:
    jobs = Scheduler(
        url=url, auto_migrate=True, pools={"medium": (0, slots), "high": (0, 0), "low": (0, 0)}, graphs=order
    )
    jobs._options = jobs._options._replace(ahead=ahead)
    for kind in KINDS.values():
        jobs.register(kind)
    return jobs


def store(jobs: Scheduler, number: int, graph: Graph, scale: float) -> None:
    with jobs.batch() as batch:
        made: list[TaskBuilder[None]] = []
        for node in graph.nodes:
            builder = batch.task(KINDS[node.kind], number, node.seconds * scale)
            if node.parents:
                builder.depend_on([made[p] for p in node.parents])
            made.append(builder)


def run(
    url: str, graphs: Sequence[Graph], coming: Sequence[float], slots: int, order: str, scale: float, ahead: float
) -> Times:
    """Store each graph at its time (seconds), and wait until all have ended."""
    _left[:] = [len(graph.nodes) for graph in graphs]
    _ended[:] = [0.0] * len(graphs)
    jobs = made(url, slots, order, ahead)
    jobs.start()
    while not any(worker.state == "live" for worker in jobs.workers.list()):
        time.sleep(0.01)
    came = []
    began, cpu = time.monotonic(), time.process_time()
    for number, (graph, at) in enumerate(zip(graphs, coming, strict=True)):
        time.sleep(max(0.0, began + at - time.monotonic()))
        came.append(time.monotonic())
        store(jobs, number, graph, scale)
    while any(_left):
        time.sleep(0.05)
    cpu = time.process_time() - cpu
    jobs.close()
    took = [end - at for end, at in zip(_ended, came, strict=True)]
    slowdowns = [
        t / ((scale or 1) * max(graph.longest, graph.work / slots)) for t, graph in zip(took, graphs, strict=True)
    ]
    return Times(
        statistics.mean(took),
        sorted(took)[int(0.95 * len(took))],
        statistics.mean(slowdowns),
        max(slowdowns),
        max(took),
        max(_ended) - began,
        cpu,
    )


def arrivals(graphs: Sequence[Graph], seed: int, slots: int, scale: float) -> list[float]:
    """Random times of the graphs (seconds), such that the slots are busy for a share of the time."""
    chance, now = random.Random(seed), 0.0
    times = []
    for _ in graphs:
        times.append(now)
        now += chance.expovariate(LOAD * slots / (scale * statistics.mean(graph.work for graph in graphs)))
    return times


def ratios(pairs: Sequence[tuple[Times, ...]]) -> str:
    """Short first over in turn, the median over all pairs."""
    found = (
        f"{name} {statistics.median(short[i] / turn[i] for turn, short in pairs):.2f}"
        for i, name in enumerate(Times._fields)
    )
    return "short-first / in-turn, median: " + ", ".join(found)


def one(url: str, seed: int, order: str, part: str, given: argparse.Namespace) -> Times:
    """One run, in a process of its own."""
    graphs = mix(given.graphs, seed)
    if part == "drain":
        return run(url, graphs, [0.0] * len(graphs), given.slots, order, 0.0, AHEAD)
    coming = arrivals(graphs, seed, given.slots, given.scale)
    return run(url, graphs, coming, given.slots, order, given.scale, given.ahead)


def compare(server: str, given: argparse.Namespace) -> None:
    seeds = [int(seed) for seed in given.seeds.split(",")]
    with ExitStack() as stack:
        learnt = stack.enter_context(servers.kept(server))
        graphs = mix(given.graphs // 3, 0)
        run(learnt, graphs, [0.0] * len(graphs), 8 * given.slots, ORDERS[0], given.scale, given.ahead)
        for part in given.parts or ("mix", "drain"):
            at_once = given.at_once if part == "mix" else 1  # what sleeps disturbs nobody
            with ProcessPoolExecutor(at_once, get_context("spawn"), max_tasks_per_child=1) as processes:
                runs = {}
                for seed in seeds:
                    for order in ORDERS if seed % 2 else ORDERS[::-1]:
                        url = stack.enter_context(servers.fresh(server, learnt))
                        runs[seed, order] = processes.submit(one, url, seed, order, part, given)
                for (seed, order), found in runs.items():
                    told = " ".join(f"{name} {value:.3f}" for name, value in found.result()._asdict().items())
                    print(f"  {part} {seed} {order:11} {told}", flush=True)
            pairs = [tuple(runs[seed, order].result() for order in ORDERS) for seed in seeds]
            print(f"  {part} {ratios(pairs)}", flush=True)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=("mix", "drain", []))
    parser.add_argument("--graphs", type=int, default=70)
    parser.add_argument("--seeds", default="1,2,3,4")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--scale", type=float, default=6e-3)
    parser.add_argument("--ahead", type=float, default=0.001, help="seconds of work that the engine claims ahead")
    parser.add_argument("--at-once", type=int, default=8, help="runs of the mix")
    parser.add_argument("--databases", default="sqlite,postgresql")
    given = parser.parse_args(arguments)
    for name in given.databases.split(","):
        print(name, flush=True)
        with getattr(servers, name)() as server:
            compare(server, given)


if __name__ == "__main__":
    main(sys.argv[1:])
