"""Intervals: fixed rate and fixed delay, and runs that overlap their next slot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import RetryPolicy
from scheduler.testing import engine_of
from support.bench import Bench, Step, notify_and_step

START = datetime(2026, 1, 1, tzinfo=UTC)


def tick(bench: Bench, name: str = "tick") -> Any:
    return bench.jobs.task(Step(name)).key(name)


@pytest.mark.case(46)
@pytest.mark.parametrize(("mode", "starts"), [("fixed_rate", [10, 20, 30, 40, 50]), ("fixed_delay", [10, 24, 38, 52])])
def test_intervals_with_a_task_of_forty_percent(bench: Bench, mode: str, starts: list[int]) -> None:
    seen: list[float] = []

    def body(ctx: Any) -> None:
        seen.append((bench.clock.datetime - START).total_seconds())
        bench.clock.advance(4)

    bench.script.bodies["tick"] = body
    tick(bench).every(10, mode=mode).schedule()
    while bench.clock.datetime < START + timedelta(seconds=56):
        bench.advance(1)
    assert seen == starts


@pytest.mark.case(46)
@pytest.mark.parametrize("end", ["dead", "cancelled"])
def test_fixed_delay_counts_from_the_terminal_state(bench: Bench, end: str) -> None:
    """Retries belong to the run; failing for good and being cancelled end it, too."""
    bench.script.bodies["tick"] = lambda ctx: 1 / 0
    tick(bench).with_retry(RetryPolicy(5, 5, max_attempts=3, jitter=0)).every(10, mode="fixed_delay").schedule()
    assert bench.advance(10) == ["tick"]
    assert bench.jobs.schedules.get("tick").next_at is None
    bench.advance(5)
    if end == "cancelled":
        bench.jobs.cancel_task(bench.jobs.list_tasks()[0].id)
    else:
        bench.advance(5)
    assert [t.state.value for t in bench.jobs.list_tasks()] == [end]
    ended = bench.clock.datetime
    bench.clock.advance(3)  # no worker looks at once
    bench.drain()
    assert bench.jobs.schedules.get("tick").next_at == ended + timedelta(seconds=10)
    assert bench.advance(6) == []
    assert bench.advance(1) == ["tick"]


@pytest.mark.case(46)
def test_overlap(bench: Bench) -> None:
    tick(bench, "skips").every(10).overlap("skip").schedule()
    tick(bench, "allows").every(10).schedule()
    for _ in range(4):
        bench.clock.advance(10)
        notify_and_step(bench.jobs)  # claimed, and not run
    assert sorted(bench.drain()) == ["allows"] * 4 + ["skips"]
    assert sorted(bench.advance(10)) == ["allows", "skips"]


@pytest.mark.case(46)
def test_a_changed_fixed_delay_waits_for_the_run_under_way(bench: Bench) -> None:
    tick(bench).every(60, mode="fixed_delay").overlap("skip").schedule()
    bench.clock.advance(60)
    notify_and_step(bench.jobs)  # claimed, still going
    tick(bench).every(1, mode="fixed_delay").overlap("skip").schedule()
    bench.clock.advance(1)
    engine_of(bench.jobs).periodic.schedules.tick(engine_of(bench.jobs)._conn())
    assert bench.jobs.schedules.get("tick").next_at is None  # not due again and again until then
    assert bench.drain() == ["tick"]
    assert bench.advance(1) == ["tick"]
