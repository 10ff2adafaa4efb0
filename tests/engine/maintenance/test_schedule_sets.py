"""Sets of schedules, their bounds and jitter, their runs, and the local time of a fire time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import ConfigError, DuplicateScheduleError, InvalidScheduleError, UnknownScheduleError
from scheduler.testing import FakeClock
from support.bench import Bench, Soft, Step

START = datetime(2026, 1, 1, tzinfo=UTC)  # where FakeClock starts
HOUR = timedelta(hours=1)


def tick(bench: Bench, name: str = "tick") -> Any:
    return bench.jobs.task(Step(name)).key(name)


def names(bench: Bench) -> list[str]:
    return [s.name for s in bench.jobs.schedules.list()]


@pytest.mark.both_databases
def test_sync_applies_an_exact_set_of_one_owner(bench: Bench) -> None:
    sync = bench.jobs.schedules.sync
    tick(bench, "by hand").hourly_at(0).schedule()
    first = [tick(bench, "a").hourly_at(0), tick(bench, "b").hourly_at(0)]
    assert sync(first, owner="app", dry_run=True) == (("a", "b"), (), (), ())
    assert names(bench) == ["by hand"]
    assert sync(first, owner="app") == (("a", "b"), (), (), ())
    assert sync([tick(bench, "c").hourly_at(5)], owner="other").added == ("c",)
    second = [tick(bench, "b").hourly_at(30), tick(bench, "d").every(60), tick(bench, "a").hourly_at(0)]
    assert sync(second, owner="app") == (("d",), ("b",), ("a",), ())
    assert sync(second[:1], owner="app") == ((), (), ("b",), ("a", "d"))
    assert {s.name: s.owner for s in bench.jobs.schedules.list()} == {"b": "app", "c": "other", "by hand": None}
    assert sync([], owner="app").removed == ("b",)
    assert sync([tick(bench, "by hand").hourly_at(0)], owner="app").updated == ("by hand",)  # it has an owner now


@pytest.mark.case(72)
def test_sets_never_take_each_others_schedules(bench: Bench) -> None:
    sync = bench.jobs.schedules.sync
    sync([tick(bench, "a").hourly_at(0)], owner="app")
    before = bench.jobs.schedules.list()
    taken = [tick(bench, "a").hourly_at(0)]
    with pytest.raises(DuplicateScheduleError, match="belongs to the set of 'app'"):
        sync([tick(bench, "new").hourly_at(0), *taken], owner="other")
    with pytest.raises(DuplicateScheduleError, match="belongs to the set of 'app'"):
        sync(taken, owner="other", dry_run=True)
    with pytest.raises(DuplicateScheduleError, match="belongs to the set of 'app'"):
        tick(bench, "a").hourly_at(5).schedule()
    with pytest.raises(DuplicateScheduleError, match="twice in the set"):
        sync([*taken, *taken], owner="app")
    with pytest.raises(DuplicateScheduleError, match="of kind Step"):
        sync([bench.jobs.task(Soft("a")).key("a").hourly_at(0)], owner="app")
    with pytest.raises(ConfigError, match="recurring builders"):
        sync([tick(bench, "x")], owner="app")
    assert bench.jobs.schedules.list() == before
    tick(bench, "a").hourly_at(5).schedule(replace=True)
    assert bench.jobs.schedules.get("a").owner is None


def test_a_start_and_an_end(bench: Bench) -> None:
    seen: list[datetime] = []
    bench.script.bodies["tick"] = lambda ctx: seen.append(ctx.slot)
    day = START + timedelta(days=1)
    tick(bench).hourly_at(0).starts_at(day).ends_at(day + HOUR).schedule()
    assert bench.jobs.schedules.next("tick", 5) == [day, day + HOUR]
    for _ in range(30):
        bench.advance(3600)
    assert seen == [day, day + HOUR]
    assert (bench.jobs.schedules.next("tick", 2), bench.jobs.schedules.get("tick").next_at) == ([], None)
    tick(bench).hourly_at(0).starts_at(day).ends_at(day + HOUR).schedule()  # over, and still no error
    with pytest.raises(InvalidScheduleError, match="never fires"):
        tick(bench).hourly_at(30).starts_at(day).ends_at(day + HOUR / 3).schedule()
    with pytest.raises(InvalidScheduleError, match="time zone"):
        tick(bench).hourly_at(0).starts_at(datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidScheduleError, match="needs a recurrence"):
        tick(bench).ends_at(day).schedule()


def test_intervals_count_from_their_start(bench: Bench) -> None:
    start = START + timedelta(hours=2, minutes=10)
    tick(bench, "rate").every(HOUR).starts_at(start).schedule()
    assert bench.jobs.schedules.next("rate", 2) == [start, start + HOUR]
    tick(bench, "delay").every(HOUR, mode="fixed_delay").starts_at(start).ends_at(start + HOUR).schedule()
    assert bench.jobs.schedules.next("delay") == [start]
    bench.clock.advance(start - bench.clock.datetime)
    bench.drain()
    bench.advance(3600)  # ends as its last slot does
    bench.advance(3600)
    assert [run.slot for run in bench.jobs.schedules.runs("delay")] == [start + HOUR, start]


def test_jitter_is_within_its_bound_and_the_same_each_time(bench: Bench) -> None:
    tick(bench).hourly_at(0).jitter(600).schedule()
    for _ in range(5):
        bench.advance(3600)
    due = [task.run_at - task.slot for task in bench.jobs.list_tasks() if task.run_at and task.slot]
    assert len(set(due)) == 5
    assert all(timedelta() <= late <= timedelta(minutes=10) for late in due)
    from scheduler.model.catchup import jitter_of

    assert jitter_of("tick", 5, 1000) == jitter_of("tick", 5, 1000) <= 1000
    with pytest.raises(InvalidScheduleError, match="not shorter than the interval"):
        tick(bench).every(10).jitter(10).schedule()
    with pytest.raises(ConfigError, match="24 hours"):
        tick(bench).hourly_at(0).jitter(timedelta(hours=25))


def test_the_runs_of_one_schedule(bench: Bench) -> None:
    bench.script.failing.add("tick")
    tick(bench).hourly_at(0).correlation("all").schedule()
    tick(bench, "other").hourly_at(0).schedule()
    bench.advance(3600)
    bench.script.failing.clear()
    bench.advance(3600)
    by_hand = bench.jobs.schedules.trigger("tick")
    runs = bench.jobs.schedules.runs("tick")
    assert [(r.slot, r.origin, r.state.value) for r in runs] == [
        (None, "trigger", "scheduled"),
        (START + 2 * HOUR, "schedule", "success"),
        (START + HOUR, "schedule", "dead"),
    ]
    assert (runs[0].run, runs[1].run) == (str(by_hand), "tick@2026-01-01T02:00:00Z")
    assert "tick failed" in (runs[2].error or "")
    page = bench.jobs.schedules.runs("tick", limit=2)
    assert bench.jobs.schedules.runs("tick", cursor=page[-1].first) == runs[2:]
    assert bench.jobs.schedules.cancel("tick").cancelled == (by_hand,)
    with pytest.raises(UnknownScheduleError):
        bench.jobs.schedules.runs("none")
    with pytest.raises(ConfigError):
        bench.jobs.schedules.runs("tick", limit=0)


def test_the_local_day_of_a_slot(bench: Bench) -> None:
    """Midnight in Berlin is the day before in UTC."""
    bench.clock = FakeClock(datetime(2026, 3, 28, 12, tzinfo=UTC))
    days: list[Any] = []
    bench.script.bodies["tick"] = lambda ctx: days.append(ctx.slot_local and ctx.slot_local.isoformat())
    tick(bench).daily_at(0, 0, tz="Europe/Berlin").schedule()
    bench.advance(11 * 3600)
    bench.advance(23 * 3600)  # the night in which the clock goes forward
    bench.jobs.schedules.trigger("tick")
    bench.drain()
    assert days == ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", None]


@pytest.mark.both_databases
def test_trigger_of_a_slot_runs_it_once(bench: Bench) -> None:
    seen: list[Any] = []
    bench.script.bodies["tick"] = lambda ctx: seen.append((ctx.slot, ctx.causation_id))
    tick(bench).hourly_at(0).schedule()
    bench.clock.advance(1800)
    made = bench.jobs.schedules.trigger("tick", slot=START - HOUR)
    again = bench.jobs.schedules.trigger("tick", slot=START - HOUR)
    assert (again, made.created, again.created) == (made, True, False)
    ahead = bench.jobs.schedules.trigger("tick", slot=START + HOUR)
    bench.drain()
    bench.advance(1800)  # it has run already
    assert seen == [(START - HOUR, "trigger:2026-01-01T00:30:00Z"), (START + HOUR, "trigger:2026-01-01T00:30:00Z")]
    assert ahead != made
    with pytest.raises(InvalidScheduleError, match=r"is no slot of .* near it are .*T01:00:00Z and .*T02:00:00Z"):
        bench.jobs.schedules.trigger("tick", slot=START + 1.5 * HOUR)
    tick(bench, "delay").every(60, mode="fixed_delay").schedule()
    with pytest.raises(InvalidScheduleError, match="fixed delay"):
        bench.jobs.schedules.trigger("delay", slot=START)


@pytest.mark.both_databases
def test_a_slot_whose_run_retention_has_removed_is_not_run_again(bench: Bench) -> None:
    trigger = bench.jobs.schedules.trigger
    tick(bench).hourly_at(0).schedule()
    with bench.jobs.recurring("etl").hourly_at(0) as dag:
        dag.task(Step("report")).depend_on(dag.task(Step("load")))
    bench.advance(3600)
    for name in ("tick", "etl"):
        bench.jobs.schedules.pause(name)
    made = [trigger("tick", slot=START), trigger("etl", slot=START)]
    bench.drain()
    ran = len(bench.script.ran)
    bench.clock.advance(7 * 86_400)
    assert bench.jobs.cleanup_completed_tasks(24) == 6
    again = [trigger("tick", slot=START), trigger("etl", slot=START)]
    assert (again, [one.created for one in again]) == (made, [False, False])
    assert not trigger("tick", slot=START + HOUR).created
    bench.clock.advance(100 * 86_400)  # nor does anything but the schedule remember its last run
    bench.jobs.gc()
    assert not trigger("tick", slot=START + HOUR).created
    bench.drain()
    assert len(bench.script.ran) == ran


def test_a_slot_that_was_triggered_ahead_and_removed_does_not_fire(bench: Bench) -> None:
    tick(bench).monthly_on(1, 0, 0).schedule()
    bench.jobs.schedules.trigger("tick", slot=datetime(2026, 2, 1, tzinfo=UTC))
    bench.drain()
    bench.clock.advance(7 * 86_400)
    assert bench.jobs.cleanup_completed_tasks(24) == 1
    bench.advance(25 * 86_400)
    assert bench.script.ran == ["tick"]


@pytest.mark.both_databases
def test_a_clock_that_jumps_back_over_a_removed_run_does_not_run_it_again(bench: Bench) -> None:
    tick(bench).hourly_at(0).catchup("last").schedule()
    bench.advance(3600)
    bench.advance(3600)
    ran = len(bench.script.ran)
    bench.clock.advance(7 * 86_400)
    assert bench.jobs.cleanup_completed_tasks(24) == 2
    bench.clock.jump(-7 * 86_400 - 5400)
    bench.jobs.schedules.pause("tick")
    bench.jobs.schedules.resume("tick")  # the time it waits for is found again
    assert bench.jobs.schedules.next("tick") == [START + HOUR]
    bench.advance(5400)
    assert len(bench.script.ran) == ran
    bench.advance(3600)
    assert len(bench.script.ran) == ran + 1


def test_h_spreads_schedules_by_their_names(bench: Bench) -> None:
    for name in ("a", "b", "c", "d"):
        tick(bench, name).cron("H H * * *").schedule()
        tick(bench, name).cron("H H * * *").schedule()  # registered again, it is the same
    due = {s.next_at for s in bench.jobs.schedules.list()}
    assert len(due) == 4
    assert not any("H" in s.recurrence.describe() for s in bench.jobs.schedules.list())
