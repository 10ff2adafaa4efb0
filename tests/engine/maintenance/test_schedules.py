"""Recurring schedules, run by engines: slots, zones, registering again, pause, failures, intervals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from scheduler import (
    ConfigError,
    DuplicateScheduleError,
    InvalidScheduleError,
    RetryPolicy,
    UnknownScheduleError,
    Weekday,
)
from scheduler.store import schedules
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import Bench, Side, Soft, Step, notify_and_step

START = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday; where FakeClock starts


def tick(bench: Bench, name: str = "tick") -> Any:
    return bench.jobs.task(Step(name)).key(name)


def slots(bench: Bench, name: str = "tick") -> list[datetime]:
    """Where the handlers of this name will write their slots."""
    seen: list[datetime] = []
    bench.script.bodies[name] = lambda ctx: seen.append(ctx.slot)
    return seen


def go_on(bench: Bench, until: datetime) -> None:
    """Let time pass from slot to slot."""
    while (due := min(s.next_at for s in bench.jobs.schedules.list())) <= until:
        bench.clock.advance(max(timedelta(), due - bench.clock.datetime))
        bench.drain()


def instants(bench: Bench, name: str, count: int) -> list[str]:
    return [f"{slot:%m-%d %H:%M}" for slot in bench.jobs.schedules.next(name, count)]


@pytest.mark.case(39)
def test_when_they_fire(bench: Bench) -> None:
    make: dict[str, Callable[[Any], Any]] = {
        "hourly": lambda b: b.hourly_at(15),
        "daily": lambda b: b.daily_at(2, 30),
        "weekly": lambda b: b.weekly_on(Weekday.MONDAY, 9, 0),
        "monthly": lambda b: b.monthly_on(31, 12, 0),
        "raw": lambda b: b.cron("*/20 8 * * sat,SUN"),
        "rate": lambda b: b.every(timedelta(hours=5)),
        "delay": lambda b: b.every(90 * 60, mode="fixed_delay"),
        "berlin": lambda b: b.daily_at(0, 30, tz="Europe/Berlin"),
    }
    seen = {name: slots(bench, name) for name in make}
    for name, build in make.items():
        assert build(tick(bench, name)).schedule() == name
    expected = {
        "hourly": ["01-01 00:15", "01-01 01:15", "01-01 02:15"],
        "daily": ["01-01 02:30", "01-02 02:30", "01-03 02:30"],
        "weekly": ["01-05 09:00", "01-12 09:00", "01-19 09:00"],
        "monthly": ["01-31 12:00", "03-31 12:00", "05-31 12:00"],
        "raw": ["01-03 08:00", "01-03 08:20", "01-03 08:40"],
        "rate": ["01-01 05:00", "01-01 10:00", "01-01 15:00"],
        "delay": ["01-01 01:30"],
        "berlin": ["01-01 23:30", "01-02 23:30", "01-03 23:30"],
    }
    assert {name: instants(bench, name, 3) for name in make} == expected
    fired: dict[str, list[str]] = {}
    expected["delay"] += ["01-01 03:00", "01-01 04:30"]
    while bench.jobs.schedules.list():
        go_on(bench, min(s.next_at for s in bench.jobs.schedules.list()))
        for name in [name for name, times in seen.items() if len(times) == 3]:
            bench.jobs.schedules.delete(name)
            fired[name] = [f"{slot:%m-%d %H:%M}" for slot in seen.pop(name)]
    assert fired == expected


@pytest.mark.case(39, 44)
@pytest.mark.parametrize(
    ("catchup", "expected"),
    [("skip", [23, 24, 25]), ("last", [23, 24, 25]), ("all", [1, 2, 3]), ("none", [24, 25, 26])],
)
def test_the_next_instants_of_one_that_is_overdue(bench: Bench, catchup: Any, expected: list[int]) -> None:
    """Those that will still run, not yesterday's hours, which no worker will run."""
    tick(bench).hourly_at(0).catchup(catchup).schedule()
    tick(bench, "paused").hourly_at(0).catchup(catchup).schedule()
    bench.jobs.schedules.pause("paused")
    bench.clock.advance(23.5 * 3600)
    assert bench.jobs.schedules.next("tick", 3) == [START + timedelta(hours=n) for n in expected]
    assert bench.jobs.schedules.next("paused", 2) == [START + timedelta(hours=n) for n in (24, 25)]


@pytest.mark.case(39)
def test_the_next_instants_end_with_the_calendar(bench: Bench) -> None:
    for name, build in {
        "rate": lambda b: b.every(timedelta(days=36500)),
        "cron": lambda b: b.cron("0 0 1 1 *"),
    }.items():
        build(tick(bench, name)).schedule()
        found = bench.jobs.schedules.next(name, 10_000)
        assert found[-1].year > 9900
        assert len(found) < 8000


@pytest.mark.both_databases
@pytest.mark.case(39)
def test_a_slot_runs_at_its_time_and_knows_it(bench: Bench) -> None:
    seen = slots(bench)
    tick(bench).hourly_at(0).schedule()
    assert bench.advance(3599) == []
    assert bench.advance(1) == ["tick"]
    assert seen == [START + timedelta(hours=1)]
    (task,) = bench.jobs.list_tasks()
    assert (task.key, task.schedule, task.missed) == ("tick@2026-01-01T01:00:00Z", "tick", None)
    assert task.slot == seen[0]


@pytest.mark.case(39)
@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.cron("61 * * * *"),
        lambda b: b.cron("* * * *"),
        lambda b: b.cron("@daily"),
        lambda b: b.cron("0 0 30 2 *"),
        lambda b: b.cron("0 0 31 4,6,9,11 *"),
        lambda b: b.hourly_at(60),
        lambda b: b.daily_at(24, 0),
        lambda b: b.daily_at(0, 0, tz="Mars/Base"),
        lambda b: b.weekly_on(1, 0, 0),
        lambda b: b.monthly_on(32, 0, 0),
        lambda b: b.every(0),
        lambda b: b.every(timedelta(seconds=-1)),
        lambda b: b.every(10, mode="sometimes"),
        lambda b: b.depend_on(1).every(10),
        lambda b: b.every(10).depend_on(1),
        lambda b: b.run_on_startup().schedule(),
    ],
)
def test_what_cannot_work_is_an_error_when_built(bench: Bench, build: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidScheduleError):
        build(tick(bench))
    assert bench.jobs.schedules.list() == []


@pytest.mark.case(39)
def test_other_mistakes(bench: Bench) -> None:
    for change in (lambda b: b.catchup("sometimes"), lambda b: b.overlap("maybe")):
        with pytest.raises(ConfigError):
            change(tick(bench).every(10))
    with pytest.raises(InvalidScheduleError):
        bench.jobs.batch().task(Step("tick")).every(10)
    with pytest.raises(ConfigError, match="misfire_grace must be a number of seconds of at least 1, not 0"):
        bench.worker(misfire_grace=0)  # each slot would be missed, and with catchup none never run


ZONES = {
    # zone, day: daily at 02:30, daily at 01:30, hourly from midnight to 05:00; all as the local clock shows them
    ("Europe/Berlin", "2026-03-29"): (["03:00+02:00"], ["01:30+01:00"], "00+01 01+01 03+02 04+02 05+02"),
    ("Europe/Berlin", "2026-10-25"): (["02:30+02:00"], ["01:30+02:00"], "00+02 01+02 02+02 02+01 03+01 04+01 05+01"),
    ("America/New_York", "2026-03-08"): (["03:00-04:00"], ["01:30-05:00"], "00-05 01-05 03-04 04-04 05-04"),
    ("America/New_York", "2026-11-01"): (["02:30-05:00"], ["01:30-04:00"], "00-04 01-04 01-05 02-05 03-05 04-05 05-05"),
    ("Australia/Lord_Howe", "2026-10-04"): (["02:30+11:00"], ["01:30+10:30"], "00+10:30 01+10:30 03+11 04+11 05+11"),
    ("Australia/Lord_Howe", "2026-04-05"): (
        ["02:30+10:30"],
        ["01:30+11:00"],
        "00+11 01+11 02+10:30 03+10:30 04+10:30 05+10:30",
    ),
}


def hours(text: str) -> list[str]:
    return [f"{word[:2]}:00{word[2:] if ':' in word else word[2:] + ':00'}" for word in text.split()]


# A zone is no matter of the database: the second run has one.
_FIRST, *_OTHERS = ZONES


@pytest.mark.both_databases
@pytest.mark.case(41)
@pytest.mark.parametrize(
    ("zone", "day"), [_FIRST, *(pytest.param(*one, marks=pytest.mark.one_is_enough) for one in _OTHERS)]
)
def test_both_changes_of_the_clock(bench: Bench, zone: str, day: str) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    bench.clock = FakeClock(midnight.astimezone(UTC) - timedelta(seconds=1))
    seen = [slots(bench, name) for name in ("two", "one", "hourly")]
    tick(bench, "two").daily_at(2, 30, tz=zone).schedule()
    tick(bench, "one").daily_at(1, 30, tz=zone).schedule()
    tick(bench, "hourly").hourly_at(0, tz=zone).schedule()
    go_on(bench, midnight.replace(hour=5).astimezone(UTC))
    shown = [[iso(s, zone) for s in times] for times in seen]
    two, one, hourly = ZONES[zone, day]
    assert shown == [two, one, hours(hourly)]
    go_on(bench, (midnight + timedelta(days=1)).replace(hour=5).astimezone(UTC))
    assert [len(times) for times in seen[:2]] == [2, 2]


def iso(slot: datetime, zone: str) -> str:
    text = slot.astimezone(ZoneInfo(zone)).isoformat()
    return text[11:16] + text[19:]


@pytest.mark.both_databases
@pytest.mark.case(42)
def test_two_engines_one_slot(bench: Bench) -> None:
    first, second = bench.worker(), bench.worker()
    tick(bench).every(10).schedule()
    for jobs in (first, second):
        notify_and_step(jobs)
    for _ in range(5):
        bench.clock.advance(10)
        for jobs in (first, second):
            notify_and_step(jobs)
        drain(second)
        drain(first)
    assert bench.script.ran == ["tick"] * 5


@pytest.mark.both_databases
@pytest.mark.case(42)
def test_two_engines_at_the_same_moment(bench: Bench) -> None:
    """The first has fired the slot and not committed when the other comes."""
    first, second = bench.worker(), bench.worker()
    tick(bench).every(10).schedule()
    notify_and_step(second)
    bench.clock.advance(10)
    with first.database.write() as tx:
        fired = schedules.tick(tx.at(bench.clock.now()), 60)
        assert [len(f.ids) for f in fired] == [1]
        side = Side(lambda: notify_and_step(second))
        if not bench.database.is_sqlite:
            side.result()
    side.result()
    drain(second)
    drain(first)
    assert bench.script.ran == ["tick"]


@pytest.mark.both_databases
@pytest.mark.case(42)
def test_registering_at_every_boot(bench: Bench) -> None:
    tick(bench).every(100).schedule()
    bench.clock.advance(60)
    for _ in range(3):
        bench.worker().task(Step("tick")).key("tick").every(100).schedule()
    (record,) = bench.jobs.schedules.list()
    assert record.next_at == START + timedelta(seconds=100)
    assert (record.created_at, record.seen_at) == (START, bench.clock.datetime)
    bench.advance(40)
    assert bench.script.ran == ["tick"]


@pytest.mark.case(42)
def test_registering_a_change(bench: Bench) -> None:
    bench.jobs.task(Step("old")).key("s").every(100).schedule()
    bench.clock.advance(60)
    bench.jobs.task(Step("new")).key("s").every(100).catchup("all").schedule()
    (record,) = bench.jobs.schedules.list()
    assert (msgspec.json.decode(record.payload), record.catchup) == ({"name": "new"}, "all")
    assert record.next_at == START + timedelta(seconds=100)  # the slot stands
    bench.jobs.task(Step("new")).key("s").every(30).schedule()
    assert bench.advance(29) == []
    assert bench.advance(1) == ["new"]
    assert bench.advance(30) == ["new"]


@pytest.mark.case(42)
def test_what_takes_the_place_of_another_schedule_is_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A name is one schedule, over all kinds; without a key it is that of its kind and payload."""
    caplog.set_level(logging.INFO, "scheduler.store")
    for _ in range(2):
        tick(bench).every(10).schedule()
    assert caplog.messages == []
    tick(bench).daily_at(2, 30).schedule()
    assert caplog.messages == ["schedule 'tick' was every 10 s, fixed rate, and is 30 2 * * * UTC now"]
    bench.jobs.task(Soft("tick")).key("tick").daily_at(2, 30).schedule(replace=True)
    assert caplog.records[-1].levelno == logging.WARNING
    assert caplog.messages[-1] == "schedule 'tick' was one of kind Step, and is one of Soft now"
    bench.execute("UPDATE schedd_schedules SET recurrence = 'x'")
    bench.jobs.task(Soft("tick")).key("tick").daily_at(2, 30).schedule()
    assert caplog.messages[-1] == "schedule 'tick' was unreadable, and is 30 2 * * * UTC now"


@pytest.mark.case(42)
def test_the_name_without_a_key_comes_from_kind_and_payload(bench: Bench) -> None:
    names = [bench.jobs.task(Step(name)).every(10).schedule() for name in ("a", "b", "a")]
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("Step-") for name in names)
    assert sorted(bench.advance(10)) == ["a", "b"]


@pytest.mark.case(42)
def test_an_engine_without_notifications_finds_a_new_schedule(bench: Bench) -> None:
    """The notifier may be lossy; behind it every engine looks once a second."""
    deaf, caller = bench.worker(), bench.worker()
    notify_and_step(deaf)
    caller.task(Step("tick")).key("tick").every(10).schedule()
    for _ in range(12):
        bench.clock.advance(1)
        engine_of(deaf).step()
    assert [t.state.value for t in bench.jobs.list_tasks()] == ["claimed"]


@pytest.mark.both_databases
@pytest.mark.case(40)
def test_a_failing_run_leaves_the_schedule_alive(bench: Bench) -> None:
    attempts: list[tuple[int, int]] = []

    def body(ctx: Any) -> None:
        attempts.append((round((ctx.slot - START).total_seconds()), ctx.attempt))
        raise ValueError("no luck")

    bench.script.bodies["tick"] = body
    tick(bench).with_retry(RetryPolicy(10, 10, max_attempts=3, jitter=0)).every(100).schedule()
    for _ in range(45):
        bench.advance(10)
    assert attempts == [(slot, attempt) for slot in (100, 200, 300, 400) for attempt in (1, 2, 3)]
    assert [t.state.value for t in bench.jobs.list_tasks()] == ["dead"] * 4


@pytest.mark.both_databases
@pytest.mark.case(43)
def test_pause_and_resume(bench: Bench) -> None:
    seen = slots(bench)
    tick(bench).hourly_at(0).catchup("all").schedule()
    go_on(bench, START + timedelta(hours=1))
    bench.jobs.schedules.pause("tick")
    assert bench.jobs.schedules.get("tick").paused
    assert bench.advance(3.5 * 3600) == []
    bench.jobs.schedules.resume("tick")
    assert bench.drain() == []
    go_on(bench, START + timedelta(hours=6))
    assert [s.hour for s in seen] == [1, 5, 6]


@pytest.mark.case(43)
def test_resume_before_the_slot_keeps_it(bench: Bench) -> None:
    tick(bench).every(100).schedule()
    bench.jobs.schedules.pause("tick")
    bench.advance(50)
    bench.jobs.schedules.resume("tick")
    assert bench.advance(50) == ["tick"]


@pytest.mark.both_databases
@pytest.mark.case(43)
def test_trigger_runs_it_once_now_beside_its_slots(bench: Bench) -> None:
    seen = slots(bench)
    tick(bench).every(100).schedule()
    bench.advance(30)
    made = bench.jobs.schedules.trigger("tick")
    assert bench.drain() == ["tick"]
    bench.jobs.schedules.pause("tick")
    bench.jobs.schedules.trigger("tick")
    assert bench.drain() == ["tick"]
    bench.jobs.schedules.resume("tick")
    assert bench.jobs.get_task(made).schedule == "tick"
    assert bench.advance(70) == ["tick"]
    assert seen == [None, None, START + timedelta(seconds=100)]


@pytest.mark.both_databases
@pytest.mark.case(43)
def test_delete(bench: Bench) -> None:
    tick(bench).every(10).schedule()
    bench.clock.advance(10)
    notify_and_step(bench.jobs)
    bench.jobs.schedules.delete("tick")
    assert bench.drain() == ["tick"]  # the task that it had made stays
    assert bench.advance(100) == []
    assert bench.jobs.schedules.list() == []
    tick(bench).every(10).schedule()
    assert bench.advance(10) == ["tick"]


@pytest.mark.case(43)
def test_unknown_names(bench: Bench) -> None:
    s = bench.jobs.schedules
    for call in (s.get, s.pause, s.resume, s.trigger, s.delete, s.next):
        with pytest.raises(UnknownScheduleError, match="'unknown'"):
            call("unknown")


@pytest.mark.both_databases
@pytest.mark.case(45)
def test_run_on_startup(bench: Bench) -> None:
    def boot() -> list[str]:
        tick(bench).hourly_at(0).catchup("none").run_on_startup().schedule()
        return bench.drain()

    assert boot() == ["tick"]  # fresh
    assert boot() == []
    bench.clock.advance(1800)
    assert boot() == []  # the slot stands
    assert bench.advance(1800) == ["tick"]
    bench.clock.advance(2.5 * 3600)
    assert boot() == ["tick"]  # overdue
    assert boot() == []
    assert bench.advance(1799) == []
    assert bench.advance(1) == ["tick"]


@pytest.mark.case(44, 45)
@pytest.mark.parametrize(
    ("catchup", "ran"), [("skip", [3.5]), ("last", [3.5]), ("none", [3.5]), ("all", [1.0, 2.0, 3.0])]
)
def test_run_on_startup_of_an_overdue_schedule_loses_no_slot(bench: Bench, catchup: Any, ran: list[float]) -> None:
    """Once now; with catch-up all, that is the slots that it missed."""
    begin = bench.clock.datetime
    seen: list[Any] = []
    bench.script.bodies["tick"] = lambda ctx: seen.append(((ctx.slot - begin).total_seconds() / 3600, ctx.missed))

    def boot() -> None:
        tick(bench).hourly_at(0).catchup(catchup).run_on_startup().schedule()

    boot()
    bench.drain()
    assert seen == [(0.0, 0)]
    seen.clear()
    bench.clock.advance(3.5 * 3600)
    boot()
    boot()
    bench.drain()
    assert seen == [(slot, 3 if catchup == "last" else 0) for slot in ran]
    seen.clear()
    bench.clock.advance(1800)
    bench.drain()
    assert seen == [(4.0, 0)]


@pytest.mark.case(45)
def test_run_on_startup_of_a_paused_schedule_runs_nothing(bench: Bench) -> None:
    tick(bench).every(10).schedule()
    bench.jobs.schedules.pause("tick")
    bench.clock.advance(60)
    tick(bench).every(10).run_on_startup().schedule()
    assert bench.drain() == []


@pytest.mark.both_databases
@pytest.mark.case(72)
def test_the_name_of_another_kinds_schedule_is_refused(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    tick(bench).hourly_at(0).schedule()
    before = bench.jobs.schedules.get("tick")
    other = bench.worker()
    with pytest.raises(
        DuplicateScheduleError, match=r"'tick' makes tasks of kind Step: .* Soft another key\(\)"
    ) as raised:
        other.task(Soft("tick")).key("tick").daily_at(6, 0).schedule()
    assert (raised.value.name, bench.jobs.schedules.get("tick")) == ("tick", before)
    tick(bench).daily_at(6, 0).schedule()  # its own kind's may be updated
    with caplog.at_level(logging.WARNING):
        other.task(Soft("tick")).key("tick").daily_at(6, 0).schedule(replace=True)
    assert "was one of kind Step, and is one of Soft now" in caplog.text
    bench.jobs.schedules.delete("tick")
    tick(bench).hourly_at(0).schedule()
    assert bench.jobs.schedules.get("tick").kind == "Step"


@pytest.mark.case(72)
def test_a_second_recurrence_of_a_task_without_a_key_is_refused(bench: Bench) -> None:
    def register(jobs: Any, minute: int, name: str = "tick") -> str:
        made: str = jobs.task(Step(name)).hourly_at(minute).schedule()
        return made

    name = register(bench.jobs, 0)
    assert register(bench.jobs, 0) == name  # the same again is no other
    with pytest.raises(DuplicateScheduleError, match=r"as 0 \* \* \* \* UTC: give each .* a key\(\)"):
        register(bench.jobs, 30)
    assert register(bench.jobs, 30, "another payload") != name
    assert tick(bench, "half").hourly_at(30).schedule() == "half"
    next_program = bench.worker()
    assert register(next_program, 30) == name  # at the next start it is updated
    assert "30 * * * *" in bench.jobs.schedules.get(name).recurrence.describe()
    next_program.schedules.delete(name)
    assert register(next_program, 15) == name
    assert len(bench.jobs.schedules.list()) == 3


@pytest.mark.case(72)
def test_a_setup_that_failed_may_register_something_else(bench: Bench) -> None:
    def setup(minute: int) -> None:
        with bench.jobs.starting():
            bench.jobs.task(Step("tick")).hourly_at(minute).schedule()
            if minute == 0:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        setup(0)
    setup(30)
    with pytest.raises(DuplicateScheduleError):
        setup(45)
    (schedule,) = bench.jobs.schedules.list()
    assert "30 * * * *" in schedule.recurrence.describe()
