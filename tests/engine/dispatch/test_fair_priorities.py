"""Where priorities share places, the highest goes first, and none is passed over for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from scheduler import Context, Scheduler, task
from scheduler.engine.fair_rotation import LOWER_EVERY, FairRotation
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, step

PRIORITIES = ("high", "medium", "low")


@task
def thread(ctx: Context) -> None:
    ctx.state.advance(0.5)  # too long to be claimed ahead


@task(isolation="process")
def process(ctx: Context) -> None:
    ctx.state.advance(0.5)


@task(max_concurrency=1)
def full(ctx: Context) -> None: ...


def flood(jobs: Scheduler, kind: Any, *priorities: str, count: int = 16) -> None:
    with jobs.batch() as batch:
        for priority in priorities:
            for _ in range(count):
                batch.task(kind).priority(priority)


def run(jobs: Scheduler, kind: Any, times: int) -> list[str]:
    """Let so many of this kind run, one at a time; their priorities, in order."""
    ran: list[str] = []
    step(jobs)
    while len(ran) < times:
        (slots,) = [s for s in engine_of(jobs).inline_slots() if s.waiting and s.waiting[0].kind.source is kind]
        (attempt,) = slots.waiting
        ran.append(PRIORITIES[attempt.claimed.priority])
        assert slots.run_one()
        step(jobs)
    return ran


@pytest.mark.case(60)
def test_no_priority_keeps_all_places_under_max_concurrent_tasks(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(thread, max_concurrent_tasks=1, state=clock)
    flood(jobs, thread, "medium", "low")
    assert run(jobs, thread, 12) == ["medium", "medium", "medium", "low"] * 3


@pytest.mark.case(60)
def test_the_lower_priorities_go_first_in_turn(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(thread, max_concurrent_tasks=1, state=clock)
    flood(jobs, thread, *PRIORITIES)
    assert run(jobs, thread, 16) == [*["high"] * 3, "low", *["high"] * 3, "medium"] * 2


@pytest.mark.case(60)
@pytest.mark.parametrize("before", [0, 1])
def test_no_priority_keeps_all_children_beside_a_kind_at_its_cap(fleet: Fleet, clock: FakeClock, before: int) -> None:
    """Each cycle plans twice then: every fourth plan was never the one that counts, or too often."""
    jobs = fleet.worker(process, full, processes=1, state=clock)
    flood(jobs, full, "high", count=2)
    flood(jobs, process, "medium", count=before)
    run(jobs, process, before)
    flood(jobs, process, "medium", "low")
    assert run(jobs, process, 12) == ["medium", "medium", "medium", "low"] * 3


@example([({0, 1, 2}, False)] * 4 + [({0, 1}, False)] * 3 + [({1, 2}, False)])
@given(some.lists(some.tuples(some.sets(some.integers(0, 2), min_size=1), some.booleans()), max_size=60))
def test_who_waits_has_its_turn(rounds: list[tuple[set[int], bool]]) -> None:
    """A priority that always has work waits no longer than this, whatever the other priorities do."""
    turns = FairRotation()
    since = dict.fromkeys((0, 1, 2), 0)
    for waiting, asked_twice in rounds:
        if asked_twice:
            turns.order(waiting)
        first = turns.order(waiting)[0]
        turns.record(waiting, {first})
        for priority in since:
            since[priority] = since[priority] + 1 if priority in waiting and priority != first else 0
    assert max(since.values()) < 2 * LOWER_EVERY
