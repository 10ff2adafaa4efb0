"""Next fire times when the rules of a zone change, or the recurrence itself does."""

from __future__ import annotations

import importlib.resources
import itertools
import os
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from scheduler import Context, Scheduler, task
from scheduler.model.recurrence import Mode, Recurrence, cron, daily_at, every
from scheduler.model.zoned import forget_zones
from scheduler.store.admin import doctor
from scheduler.testing import FakeClock, drain
from support.fleet import Fleet, step

BERLIN = "Europe/Berlin"
pytestmark = pytest.mark.case(104)


@task
def report(ctx: Context) -> None: ...


@pytest.fixture
def rules(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Gives Berlin the rules of another city, as an update of the system's files does."""
    file, paths = tmp_path / BERLIN, zoneinfo.TZPATH
    file.parent.mkdir()

    def give(city: str) -> None:
        new = file.with_suffix(".new")
        new.write_bytes(importlib.resources.files("tzdata").joinpath("zoneinfo", "Europe", city).read_bytes())
        os.replace(new, file)

    give("Berlin")
    zoneinfo.reset_tzpath([str(tmp_path)])
    forget_zones()
    yield give
    zoneinfo.reset_tzpath([str(path) for path in paths])
    forget_zones()


def next_at(jobs: Scheduler, name: str) -> datetime:
    found = jobs.schedules.get(name).next_at
    assert found is not None
    return found


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 1, 10, 12, 0, tzinfo=UTC))


def go_to(fleet: Fleet, instant: datetime) -> None:
    fleet.clock.advance(instant - fleet.clock.datetime)


def registered(fleet: Fleet) -> Scheduler:
    jobs = fleet.worker(report)
    jobs.task(report).key("daily").daily_at(9, 0, tz=BERLIN).schedule()
    jobs.task(report).key("yearly").cron("0 9 1 7 *", tz=BERLIN).schedule()
    jobs.task(report).key("utc").daily_at(9, 0).schedule()
    jobs.task(report).key("rate").every(3600).schedule()
    return jobs


def findings(jobs: Scheduler) -> str:
    with jobs.database.read() as tx:
        return next(f"{f.level} {f.text}" for f in doctor.check(tx) if f.check == "schedules")


@pytest.mark.both_databases
def test_a_worker_finds_times_again_when_rules_change(fleet: Fleet, rules: Callable[[str], None]) -> None:
    jobs = registered(fleet)
    step(jobs)
    before = {name: next_at(jobs, name) for name in ("daily", "yearly", "utc", "rate")}
    assert before["daily"] == datetime(2026, 1, 11, 8, 0, tzinfo=UTC)
    rules("Istanbul")
    fleet.clock.advance(61)
    step(jobs)
    zone = ZoneInfo(BERLIN)
    assert next_at(jobs, "daily").astimezone(zone).isoformat() == "2026-01-11T09:00:00+03:00"
    assert next_at(jobs, "yearly").astimezone(zone).isoformat() == "2026-07-01T09:00:00+03:00"
    assert {name: next_at(jobs, name) for name in ("utc", "rate")} == {n: before[n] for n in ("utc", "rate")}
    assert "ok" in findings(jobs)


def test_so_does_a_worker_that_starts_and_doctor_says_so_before(fleet: Fleet, rules: Callable[[str], None]) -> None:
    jobs = registered(fleet)
    rules("Istanbul")
    forget_zones()
    said = findings(jobs)
    assert "daily" in said
    assert "yearly" in said
    assert "utc" not in said
    assert "2026-01-11T06:00" in said
    step(jobs)
    assert next_at(jobs, "daily") == datetime(2026, 1, 11, 6, 0, tzinfo=UTC)
    assert "ok" in findings(jobs)


def test_so_does_a_program_that_registers_it_again(fleet: Fleet, rules: Callable[[str], None]) -> None:
    registered(fleet)
    rules("Istanbul")
    forget_zones()
    jobs = registered(fleet)
    assert next_at(jobs, "daily") == datetime(2026, 1, 11, 6, 0, tzinfo=UTC)


@pytest.mark.both_databases
def test_a_day_runs_once_though_its_time_has_moved(fleet: Fleet, rules: Callable[[str], None]) -> None:
    """The clock goes two hours on: nine o'clock is over where it was to come; and back again."""
    jobs = registered(fleet)
    drain(jobs)
    go_to(fleet, datetime(2026, 1, 11, 7, 0, tzinfo=UTC))
    rules("Istanbul")
    forget_zones()
    for _ in range(3):
        drain(jobs)
        fleet.clock.advance(61)
    runs = jobs.schedules.runs("daily")
    assert [run.slot for run in runs] == [datetime(2026, 1, 11, 6, 0, tzinfo=UTC)]
    rules("Berlin")
    for _ in range(3):
        fleet.clock.advance(61)
        drain(jobs)
    assert next_at(jobs, "daily").astimezone(ZoneInfo(BERLIN)).hour == 9
    assert len(jobs.schedules.runs("daily")) == 1


def flap(jobs: Scheduler, versions: list[Callable[[], object]], rounds: int, seconds: float) -> list[datetime]:
    clock = jobs.database.clock
    assert isinstance(clock, FakeClock)
    for n in range(rounds):
        versions[n % len(versions)]()
        drain(jobs)
        clock.advance(seconds)
        drain(jobs)
    return sorted(run.created_at for run in jobs.schedules.runs("s", limit=1000))


@pytest.mark.parametrize("mode", ["fixed_rate", "fixed_delay"])
@pytest.mark.parametrize(
    "seconds", [300, *(pytest.param(other, marks=pytest.mark.one_is_enough) for other in (299.5, 300.6))]
)
def test_two_versions_with_other_intervals_still_fire(fleet: Fleet, mode: Mode, seconds: float) -> None:
    jobs = fleet.worker(report)

    def version(interval: int) -> Callable[[], object]:
        return lambda: jobs.task(report).key("s").every(interval, mode=mode).schedule()

    rounds = round(2 * 3600 / seconds)
    ran = flap(jobs, [version(601), version(600)], rounds, seconds)
    assert (10 if mode == "fixed_rate" else 7) <= len(ran) <= 13  # a delay counts from a run that was late
    assert min(b - a for a, b in itertools.pairwise(ran)) >= timedelta(seconds=290)


def test_two_versions_with_other_times_of_the_day_still_fire(fleet: Fleet) -> None:
    """Registered in turn just so that each is never the one that is due."""
    jobs = fleet.worker(report)

    def version(minute: int) -> Callable[[], object]:
        return lambda: jobs.task(report).key("s").daily_at(2, minute).schedule()

    # from 2:10 to 2:40 the one of 2:00 is stored, else the one of 2:30
    go_to(fleet, datetime(2026, 1, 11, 1, 50, tzinfo=UTC))
    ran = 0
    for _ in range(5):
        for minute, minutes in ((30, 20), (0, 30), (30, 23 * 60 + 10)):
            version(minute)()
            ran += drain(jobs)
            fleet.clock.advance(minutes * 60)
    assert ran == 5


def test_a_change_by_hand_runs_nothing_at_once(fleet: Fleet) -> None:
    jobs = fleet.worker(report)
    go_to(fleet, datetime(2026, 1, 11, 1, 0, tzinfo=UTC))
    jobs.task(report).key("s").daily_at(2, 0).schedule()
    fleet.clock.advance(3600)
    drain(jobs)
    fleet.clock.advance(8 * 3600)  # ten o'clock
    jobs.task(report).key("s").daily_at(9, 0).schedule()
    drain(jobs)
    assert len(jobs.schedules.runs("s")) == 1
    assert next_at(jobs, "s") == datetime(2026, 1, 12, 9, 0, tzinfo=UTC)
    jobs.task(report).key("s").every(3600).schedule()
    jobs.task(report).key("s").every(1800).schedule()
    drain(jobs)
    assert len(jobs.schedules.runs("s")) == 1


@pytest.mark.parametrize(
    ("old", "new", "catchup", "ran"),
    [
        (daily_at(2, 0), daily_at(2, 30), "skip", ["2026-01-11T02:00"]),
        (daily_at(2, 0), every(3600), "last", ["2026-01-11T02:00"]),
        (cron("0 */2 * * *"), daily_at(2, 30), "all", [f"2026-01-11T0{hour}:00" for hour in (2, 4, 6, 8)]),
        (daily_at(2, 0), daily_at(2, 30), "none", []),
    ],
)
def test_what_was_missed_runs_by_the_old_times(
    fleet: Fleet, old: Recurrence, new: Recurrence, catchup: str, ran: list[str]
) -> None:
    jobs = fleet.worker(report)
    go_to(fleet, datetime(2026, 1, 11, 0, 30, tzinfo=UTC))
    jobs.task(report).key("s")._recurring(old).catchup(catchup).schedule()
    fleet.clock.advance(9 * 3600)
    jobs.task(report).key("s")._recurring(new).catchup(catchup).schedule()
    drain(jobs)
    runs = jobs.schedules.runs("s")
    assert sorted(run.slot.isoformat()[:16] for run in runs if run.slot is not None) == ran
    dropped = [entry.detail.get("missed") for entry in jobs.audit(action="schedule slots dropped")]
    assert dropped == ([] if ran else [1])
    assert next_at(jobs, "s") > fleet.clock.datetime


@pytest.mark.parametrize(("catchup", "kept"), [("skip", 1), ("last", 1), ("none", 1), ("all", 5)])
def test_a_kind_that_no_worker_knows_has_one_run_waiting(fleet: Fleet, catchup: str, kept: int) -> None:
    """And no more, however long that lasts; a worker that knows it goes on with the next slot."""

    @task
    def other(ctx: Context) -> None: ...

    knows = fleet.worker(report)
    knows.task(report).key("s").every(60).catchup(catchup).schedule()
    jobs = fleet.worker(other)
    for _ in range(5):
        fleet.clock.advance(60)
        drain(jobs)
    assert len(jobs.schedules.runs("s")) == kept
    assert drain(knows) == kept
    for _ in range(2):
        fleet.clock.advance(60)
        drain(jobs)
        assert drain(knows) == 1
