"""Short graphs first: tasks of graphs with little work start before those of graphs with much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from scheduler import Context, Scheduler, task
from scheduler.engine.dispatch.lanes import by_turn
from scheduler.engine.dispatch.planner import allocate
from scheduler.model.lanes import (
    base_lane,
    delay_of,
    executor_of,
    fair_lane,
    fairness_of,
    inherited_lane,
    kind_of,
    parts_of,
    placed_lane,
    rank_of,
    size_of,
    sized_lane,
    with_rank,
    without_key,
)
from scheduler.store.graph import sizes
from scheduler.store.read.explain import why
from scheduler.store.tasks import limits
from scheduler.store.tasks.claim import LaneHead
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, run_claimed, step

POOLS = {"high": (0, 0), "medium": (1, 0), "low": (0, 0)}
SLOW = 4.0  # seconds
ran: list[str] = []
clocks: list[FakeClock] = []


@task
def slow(ctx: Context, graph: str) -> None:
    clocks[0].advance(SLOW)
    ran.append(graph)


@task(max_concurrency=1)
def quick(ctx: Context, graph: str) -> None:
    clocks[0].advance(0.1)
    ran.append(graph)


@task
def spawns(ctx: Context) -> None:
    ctx.spawn(quick, "spawned")


@pytest.fixture(autouse=True)
def _clock(clock: FakeClock) -> None:
    ran.clear()
    clocks[:] = [clock]


def worker(fleet: Fleet, **options: Any) -> Scheduler:
    """One that knows how long its kinds take."""
    jobs = fleet.worker(slow, quick, spawns, pools=POOLS, **({"graphs": "short-first"} | options))
    jobs.task(slow, "").schedule()
    jobs.task(quick, "").schedule()
    drain(jobs)
    engine_of(jobs).write_rollups()
    engine_of(jobs).engine_state.options = engine_of(jobs).engine_state.options._replace(ahead=0.0)
    ran.clear()
    return jobs


def fork(jobs: Scheduler, name: str, kinds: Sequence[Any], queue: str = "default", key: str | None = None) -> list[int]:
    """A first task, and the others after it."""
    with jobs.batch() as batch:
        first = batch.task(kinds[0], name).queue(queue)
        for kind in kinds[1:]:
            batch.task(kind, name).queue(queue).depend_on(first)
        if key is not None:
            first.fairness_key(key)
    return [*batch.ids]


def delays(jobs: Scheduler, ids: Sequence[int]) -> set[int | None]:
    with jobs.database.read() as tx:
        return {delay_of(lane) for task_id, lane in tx.rows("SELECT id, lane FROM schedd_tasks") if task_id in ids}


def test_marks_of_lanes() -> None:
    lane = sized_lane(7, with_rank(5, "Train\x1fa"))
    for marked, executor in ((lane, None), ("!" + lane, None), (placed_lane("slurm", lane), "slurm")):
        found = parts_of(marked).size, rank_of(marked), base_lane(marked), kind_of(marked), executor_of(marked)
        assert found == (7, 5, "Train\x1fa", "Train", executor)
    assert without_key(lane) == with_rank(5, "Train")
    fair = fair_lane(lane, "ada", 2)
    assert (parts_of(fair).size, fairness_of(fair).key, base_lane(fair)) == (7, "ada", "Train\x1fa")
    assert sized_lane(3, fair) == fair_lane(sized_lane(3, with_rank(5, "Train\x1fa")), "ada", 2)
    assert sized_lane(None, lane) == with_rank(5, "Train\x1fa")
    assert parts_of(inherited_lane("Load", lane)).size == 7
    assert [size_of(0), size_of(1000), size_of(4000), size_of(1e30)] == [0, 0, 1, 20]
    assert delay_of("Train") is None


def test_half_of_the_room_goes_to_the_lane_that_is_first() -> None:
    heads = [LaneHead("default", sized_lane(size, kind), 1, 0) for size in (1, 2, 3) for kind in ("a", "b")]
    plan = allocate(
        by_turn(heads),
        lambda pool, head: 8 if pool == 1 else 0,
        100,
        0,
        100,
        place=lambda head: head.run_at + (delay_of(head.lane) or 0),
    )
    assert [pick.limit for pick in plan.picks] == [4, 2, 1, 1]
    assert [parts_of(pick.lane).size for pick in plan.picks] == [1, 1, 2, 2]


def test_a_kind_of_another_queue_keeps_its_share() -> None:
    heads = [LaneHead("default", sized_lane(size, "a"), 1, 0) for size in (1, 2, 3)]
    plan = allocate(
        by_turn([*heads, LaneHead("other", "b", 1, 0)]),
        lambda pool, head: 8 if pool == 1 else 0,
        *(100, 0, 100),
        place=lambda head: None if head.queue == "other" else head.run_at + (delay_of(head.lane) or 0),
    )
    assert {pick.queue: pick.limit for pick in plan.picks if pick.queue == "other"} == {"other": 4}
    assert sum(pick.limit for pick in plan.picks) == 8


def test_short_graphs_go_first_and_long_ones_are_not_put_off_for_ever(fleet: Fleet, clock: FakeClock) -> None:
    jobs = worker(fleet)
    long = fork(jobs, "long", [slow, slow, slow])
    short = fork(jobs, "short", [quick, quick])
    assert delays(jobs, long) == {4000 * 4**8}  # the nearest to thirty times twelve seconds
    assert delays(jobs, short) == {1000 * 4**6}  # and to six seconds
    clock.advance(10.0)
    fork(jobs, "later", [quick, quick])
    clock.advance(400.0)
    fork(jobs, "latest", [quick, quick])
    drain(jobs)
    assert ran == ["short"] * 2 + ["later"] * 2 + ["long"] * 3 + ["latest"] * 2


def test_in_turn_nothing_is_marked(fleet: Fleet) -> None:
    jobs = worker(fleet, graphs="in-turn")
    assert delays(jobs, fork(jobs, "long", [slow, slow])) == {None}


def test_only_in_the_queues_that_are_named(fleet: Fleet) -> None:
    jobs = worker(fleet, graphs_in=["etl"])
    assert delays(jobs, fork(jobs, "long", [slow, slow])) == {None}
    assert None not in delays(jobs, fork(jobs, "long", [slow, slow], queue="etl"))


def test_what_is_added_or_spawned_belongs_to_its_graph(fleet: Fleet) -> None:
    jobs = worker(fleet)
    with jobs.batch() as batch:
        batch.task(slow, "").depend_on(batch.task(spawns))
    first, _ = batch.ids
    (size,) = delays(jobs, [first])
    assert size is not None
    added = jobs.task(quick, "added").depend_on(first).schedule()
    alone = jobs.task(quick, "alone").schedule()
    assert delays(jobs, [added]) == {size}
    assert delays(jobs, [alone]) == {None}
    drain(jobs)
    (spawned,) = [one for one in jobs.list_tasks() if one.kind == "quick" and one.id > alone]
    assert delays(jobs, [spawned.id]) == {size}


def test_tasks_with_a_fairness_key_keep_its_turns(fleet: Fleet) -> None:
    jobs = worker(fleet)
    assert delays(jobs, fork(jobs, "", [slow, slow], key="ada")) == {None}


def test_a_cap_counts_the_graphs_of_every_size(fleet: Fleet) -> None:
    jobs = worker(fleet)
    for others in (1, 60):
        fork(jobs, "", [quick, *[quick] * others])
    step(jobs)
    with jobs.database.read() as tx:
        assert limits.held(tx, ["quick"]) == {"quick": 1}
    run_claimed(jobs)


def test_why_tells_of_it(fleet: Fleet) -> None:
    jobs = worker(fleet)
    long = fork(jobs, "long", [slow, slow, slow])
    with jobs.database.read() as tx:
        told = why(tx, long[0])
    assert told is not None
    assert told.endswith("short graphs go first: with the work of its graph it goes as if due 4 min 22 s later")


def test_room_that_short_lanes_leave_goes_to_the_others(fleet: Fleet) -> None:
    jobs = fleet.worker(slow, graphs="short-first", pools={"high": (0, 0), "medium": (8, 0), "low": (0, 0)})
    with jobs.batch() as batch:
        for number in range(12):  # a lane each, and the planner knows of none how many it has
            batch.task(slow, "").queue(f"queue{number % 2}")
    with jobs.database.write() as tx:
        tx.run("UPDATE schedd_tasks SET lane = '%0' || (id % 6) || :separator || lane", separator="\x1f")
    step(jobs)
    engine = engine_of(jobs)
    for _ in range(3):
        engine.step()  # without a notification
    assert len(engine.engine_state.held) == 8


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_graph_in_a_callers_transaction(fleet: Fleet, asynchronous: bool) -> None:
    jobs = worker(fleet)
    url = jobs.database.absolute_url()

    async def store() -> list[int]:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with engine.begin() as connection, jobs.batch(connection=connection) as batch:
            batch.task(slow, "").depend_on(batch.task(slow, ""))
        await engine.dispose()
        return [*batch.ids]

    if asynchronous:
        stored = asyncio.run(store())
    else:
        with sa.create_engine(url).begin() as connection, jobs.batch(connection=connection) as batch:
            batch.task(slow, "").depend_on(batch.task(slow, ""))
        stored = [*batch.ids]
    assert None not in delays(jobs, stored)


def test_a_graph_is_stored_while_another_caller_has_kinds_measured_anew(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = worker(fleet)
    slots = sizes._GraphFleet.slots

    def forgets(one: sizes._GraphFleet, *given: Any) -> int:
        one.usual = {}  # as another thread's call does, a minute after the last
        return slots(one, *given)

    monkeypatch.setattr(sizes._GraphFleet, "slots", forgets)
    ids = fork(jobs, "both", [slow, quick, quick])
    assert len(set(ids)) == 3
    drain(jobs)
    assert ran == ["both"] * 3
