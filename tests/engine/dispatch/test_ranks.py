"""Ranks: the order of ready tasks within a priority, over all kinds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scheduler import ConfigError, Scheduler, task
from scheduler.model.lanes import (
    MAX_RANK,
    base_lane,
    executor_of,
    kind_of,
    placed_lane,
    rank_of,
    ranked_lane,
    without_key,
)
from scheduler.testing import FakeClock, drain
from support.databases import Database

ran: list[int] = []


@task(ranked=True)
def one(ctx: Any, number: int) -> None:
    ran.append(number)


@task(ranked=True, max_concurrency=1, concurrency_key="{group}")
def other(ctx: Any, number: int, group: str = "") -> None:
    ran.append(number)


@task
def plain(ctx: Any, number: int) -> None:
    ran.append(number)


@pytest.fixture
def jobs(database: Database) -> Scheduler:
    made = Scheduler.for_testing(url=database.url, clock=FakeClock())
    for kind in (one, other, plain):
        made.register(kind)
    ran.clear()
    return made


def test_marks_of_lanes() -> None:
    for rank in (-MAX_RANK, -1, 1, MAX_RANK):
        lane = ranked_lane(rank, "Train\x1fa")
        for marked, executor in ((lane, None), ("!" + lane, None), (placed_lane("slurm", lane), "slurm")):
            found = rank_of(marked), base_lane(marked), kind_of(marked), executor_of(marked)
            assert found == (rank, "Train\x1fa", "Train", executor)
        assert without_key(lane) == ranked_lane(rank, "Train")
    assert ranked_lane(0, "Train") == "Train"
    assert [rank_of(lane) for lane in ("Train", "!Train", placed_lane("slurm", "Train"))] == [0, 0, 0]


def test_the_highest_rank_goes_first_whatever_the_kind(jobs: Scheduler) -> None:
    ranks = list(range(-MAX_RANK, MAX_RANK + 1))
    random.Random(7).shuffle(ranks)
    for rank in ranks:
        jobs.task(one if rank % 2 else other, number=rank).rank(rank).schedule()
    jobs.task(plain, number=0).schedule()
    drain(jobs)
    assert ran == sorted([*ranks, 0], reverse=True)


def test_of_one_rank_the_oldest_goes_first_and_later_ones_wait_for_their_time(jobs: Scheduler) -> None:
    jobs.task(one, number=1).rank(5).schedule()
    jobs.task(one, number=2).rank(5).schedule()
    jobs.task(one, number=3).rank(30).after(60).schedule()
    drain(jobs)
    assert ran == [1, 2]


def test_a_new_payload_keeps_the_rank(jobs: Scheduler) -> None:
    changed = jobs.task(one, number=1).rank(20).schedule()
    jobs.task(one, number=2).rank(10).schedule()
    jobs.update_task(changed, payload={"number": 3})
    copied = jobs.copy_task(changed)
    drain(jobs)
    assert copied != changed
    assert ran == [3, 3, 2]


def test_a_cap_counts_all_ranks_of_its_key(jobs: Scheduler) -> None:
    for rank in (-5, 5, 0):
        jobs.task(other, number=rank, group="a").rank(rank).schedule()
    drain(jobs)
    assert ran == [5, 0, -5]
    with jobs.database.read() as tx:
        from scheduler.store.tasks import limits

        assert limits.held(tx, ["other\x1fa"]) == {"other\x1fa": 0}
        (limit,) = [found for place, found in limits.known(tx).of("default", ranked_lane(5, "other\x1fa")).items()]
    assert limit.cap == 1


def test_ranks_are_refused_where_there_are_none(jobs: Scheduler) -> None:
    with pytest.raises(ConfigError, match="has no ranks"):
        jobs.task(plain, number=1).rank(1)
    wrong: Any
    for wrong in (34, -34, 1.5, True):
        with pytest.raises(ConfigError, match="rank is a whole number"):
            jobs.task(one, number=1).rank(wrong)
