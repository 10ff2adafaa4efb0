"""Large graphs, stored in batches while they run: every edge is respected in the recorded times, over a restart too."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from scheduler import Context, Scheduler, task
from scheduler.ports import SystemClock
from scheduler.store.admin.doctor import OK, check
from support.databases import Database
from support.fleet import rows, write

PARENTS = 3
NEAR = 200  # how far back a parent is at most, as a rule
SIZES = [
    pytest.param(2_500, 500, id="small"),
    pytest.param(100_000, 2_000, id="large", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
]


class OneClock(SystemClock):
    """The system's time as it is: not measured anew against PostgreSQL's every few seconds, which moves it a little."""

    steps = True


@task
def nothing(ctx: Context) -> None:
    pass


def worker(database: Database) -> Scheduler:
    jobs = Scheduler(database.url, clock=OneClock())
    jobs.register(nothing)
    return jobs


def parents_of(place: int, choice: random.Random) -> Sequence[int]:
    """Three tasks before this one, mostly near it; the first few have fewer."""
    if place <= PARENTS:
        return range(place)
    first = 0 if choice.random() < 0.05 else max(0, place - NEAR)
    return choice.sample(range(first, place), PARENTS)


def store(jobs: Scheduler, ids: list[int], count: int, choice: random.Random) -> int:
    """One more batch, with edges among its tasks and to those of the batches before. Returns how many edges."""
    first, edges = len(ids), 0
    with jobs.batch() as batch:
        builders: list[Any] = []
        for place in range(first, first + count):
            parents = parents_of(place, choice)
            builders.append(batch.task(nothing))
            builders[-1].depend_on([builders[p - first] if p >= first else ids[p] for p in parents])
            edges += len(parents)
    ids += batch.ids
    return edges


def until_ended(jobs: Scheduler, wanted: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while rows(jobs, "SELECT count(*) FROM schedd_tasks WHERE state >= 6")[0][0] < wanted:
        assert time.monotonic() < deadline, rows(jobs, "SELECT state, count(*) FROM schedd_tasks GROUP BY state")
        time.sleep(0.2)


@pytest.mark.case(31, 37, 38)
@pytest.mark.parametrize(("count", "size"), SIZES)
def test_every_edge_is_respected(database: Database, tell: Callable[[str], None], count: int, size: int) -> None:
    choice = random.Random(38)
    caller, first = worker(database), worker(database)
    ids: list[int] = []
    edges = 0
    begun = time.monotonic()
    try:
        first.start()
        while len(ids) < count // 2:
            edges += store(caller, ids, size, choice)
        until_ended(caller, count // 4, 600)
        edges += store(caller, ids, size, choice)
        assert first.stop(drain=30) == []
        between = rows(caller, "SELECT count(*) FROM schedd_tasks WHERE state < 6")[0][0]
        assert between > 0
        while len(ids) < count:
            edges += store(caller, ids, size, choice)
        stored = rows(caller, "SELECT parent, child, on_end, otherwise FROM schedd_edges ORDER BY parent, child")
        assert len(stored) == edges
        second = worker(database)
        second.start()
        until_ended(caller, count, 1500)
        took = time.monotonic() - begun
        assert second.stop(drain=30) == []
        second.close()
    finally:
        first.close()
    assert stored == rows(caller, "SELECT parent, child, on_end, otherwise FROM schedd_edges ORDER BY parent, child")
    assert rows(caller, "SELECT state, count(*) FROM schedd_tasks GROUP BY state") == [(6, count)]
    write(caller, "ANALYZE")  # else PostgreSQL may compare all attempts with all
    # One attempt each, and none began before all of its parents had ended.
    assert rows(caller, "SELECT count(*), count(DISTINCT task_id) FROM schedd_attempts") == [(count, count)]
    early = rows(
        caller,
        "SELECT e.parent, e.child FROM schedd_edges e JOIN schedd_attempts p ON p.task_id = e.parent "
        "JOIN schedd_attempts c ON c.task_id = e.child WHERE c.started_at < p.finished_at LIMIT 10",
    )
    assert early == []
    with caller.database.read() as tx:
        assert [f for f in check(tx) if f.level != OK] == []
    assert edges >= PARENTS * (count - PARENTS)
    tell(f"{count} tasks, {edges} edges in {took:.1f} s; {between} tasks were open when the engine was started anew")
    caller.close()
