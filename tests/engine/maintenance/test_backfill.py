"""Backfills: each fire time of a time once, marked, bounded, also of graphs and after retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import ConfigError, InvalidScheduleError, UnknownScheduleError
from support.bench import Bench, Step

START = datetime(2026, 1, 1, tzinfo=UTC)  # where FakeClock starts
HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)


def hours(*numbers: int) -> tuple[datetime, ...]:
    return tuple(START + number * HOUR for number in numbers)


def test_each_slot_runs_once_and_is_marked(bench: Bench) -> None:
    seen: list[Any] = []
    bench.script.bodies["tick"] = lambda ctx: seen.append((ctx.slot, ctx.causation_id))
    bench.jobs.task(Step("tick")).key("tick").hourly_at(0).overlap("skip").schedule()
    bench.advance(3600)
    seen.clear()
    backfill = bench.jobs.schedules.backfill
    start, end = START - 2 * HOUR, START + HOUR
    assert backfill("tick", start, end, dry_run=True) == (hours(-2, -1, 0), hours(1))
    assert bench.drain() == []
    assert backfill("tick", start, end) == (hours(-2, -1, 0), hours(1))
    bench.drain()
    assert seen == [(slot, "backfill:2026-01-01T01:00:00Z") for slot in hours(-2, -1, 0)]
    assert backfill("tick", start) == ((), hours(-2, -1, 0, 1))
    assert [run.origin for run in bench.jobs.schedules.runs("tick")] == ["backfill"] * 3 + ["schedule"]
    bench.advance(3600)  # the schedule itself goes on as it was
    assert seen[-1] == (START + 2 * HOUR, None)
    (entry,) = bench.jobs.audit(action="schedule backfilled")
    assert entry.subject == "schedule tick"


def test_a_slot_that_ran_is_remembered_after_its_task_was_removed(bench: Bench) -> None:
    bench.jobs.task(Step("tick")).key("tick").hourly_at(0).schedule()
    bench.advance(3600)
    bench.jobs.schedules.pause("tick")
    bench.clock.advance(WEEK)
    assert bench.jobs.cleanup_completed_tasks(24) == 1
    assert bench.jobs.schedules.runs("tick") == []
    assert bench.jobs.schedules.backfill("tick", START, START + 2 * HOUR) == (hours(0, 2), hours(1))


def test_a_graph_is_backfilled_whole(bench: Bench) -> None:
    with bench.jobs.recurring("etl").hourly_at(0) as dag:
        dag.task(Step("report")).depend_on(dag.task(Step("load")))
    assert bench.jobs.schedules.backfill("etl", START - HOUR).run == hours(-1, 0)
    assert bench.drain().count("report") == 2
    assert [(r.origin, sum(r.states.values())) for r in bench.jobs.schedules.runs("etl")] == [("backfill", 2)] * 2
    assert bench.jobs.schedules.backfill("etl", START - HOUR) == ((), hours(-1, 0))


def test_what_cannot_be_backfilled(bench: Bench) -> None:
    bench.jobs.task(Step("tick")).key("tick").hourly_at(0).schedule()
    bench.jobs.task(Step("tick")).key("delay").every(60, mode="fixed_delay").schedule()
    backfill = bench.jobs.schedules.backfill
    with pytest.raises(ConfigError, match="there are 169 slots, over the limit of 100"):
        backfill("tick", START - WEEK)
    assert len(backfill("tick", START - WEEK, limit=169, dry_run=True).run) == 169
    with pytest.raises(InvalidScheduleError, match="still to come"):
        backfill("tick", START, START + HOUR)
    with pytest.raises(InvalidScheduleError, match="backwards"):
        backfill("tick", START, START - HOUR)
    with pytest.raises(InvalidScheduleError, match="fixed delay"):
        backfill("delay", START - HOUR)
    with pytest.raises(UnknownScheduleError):
        backfill("none", START - HOUR)
    with pytest.raises(ConfigError, match="limit must be"):
        backfill("tick", START, limit=0)
    assert bench.jobs.list_tasks() == []
