"""The lanes that reads for people look at: all where they are few, some of each queue where keys make many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from scheduler import Context, Scheduler, task
from scheduler.store.read import lanes, stuck_tasks
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.snapshot import Snapshot
from scheduler.store.tasks.claim import lane_heads
from support.databases import Database

MOST = 5


@task
def ping(ctx: Context) -> None: ...


@pytest.fixture
def jobs(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(lanes, "MAX_LANES", MOST)
    made = Scheduler.for_testing(url=database.url)
    made.register(ping)
    yield made
    made.close()


def store(jobs: Scheduler, queue: str, priority: str, number: int) -> None:
    for key in range(number):
        jobs.task(ping).queue(queue).priority(priority).fairness_key(f"k{key}").schedule()


def test_all_lanes_are_read_where_there_are_few(jobs: Scheduler) -> None:
    store(jobs, "a", "high", 2)
    store(jobs, "b", "low", 2)
    with jobs.database.read() as tx:
        assert heads_of_queues(tx) == lane_heads(tx)
        assert len(lane_heads(tx)) == 4


def test_some_of_each_queue_and_priority_are_read_where_there_are_many(jobs: Scheduler) -> None:
    sizes = {("a", "high"): 4, ("a", "low"): 17, ("b", "medium"): 12, ("c", "high"): 1, ("d", "low"): 5}
    for (queue, priority), number in sizes.items():
        store(jobs, queue, priority, number)
    with jobs.database.read() as tx:
        every, some = lane_heads(tx), heads_of_queues(tx)
    assert set(some) <= set(every)
    assert len(some) == len(set(some))
    read, there = (Counter((head.queue, head.priority) for head in heads) for heads in (some, every))
    assert len(there) == len(sizes)
    assert all(min(number, MOST) <= read[pair] <= 2 * MOST for pair, number in there.items())


def test_tasks_of_many_lanes_that_no_worker_takes_are_counted_at_once(jobs: Scheduler) -> None:
    store(jobs, "a", "high", 4)
    store(jobs, "a", "high", 3)  # a second task of three of the lanes
    store(jobs, "b", "low", 3)
    with jobs.database.read() as tx:
        (unserved,) = stuck_tasks.unserved_of(Snapshot(tx))
    assert unserved.number == 10
    assert len(set(unserved.tasks)) == stuck_tasks.EXAMPLES
