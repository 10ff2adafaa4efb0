"""What a worker makes up for after a time without one, and after a jump of the wall clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.store.admin.doctor import check
from scheduler.testing import drain
from support.bench import Bench, Step, notify_and_step

START = datetime(2026, 1, 1, tzinfo=UTC)
Seen = list[tuple[datetime, int, datetime | None]]


def hour(n: float) -> datetime:
    return START + timedelta(hours=n)


def hourly(bench: Bench, **options: Any) -> Seen:
    """An hourly schedule; where its runs write their slot, missed, and missed_since."""
    seen: Seen = []
    bench.script.bodies["tick"] = lambda ctx: seen.append((ctx.slot, ctx.missed, ctx.missed_since))
    bench.jobs.task(Step("tick")).key("tick").hourly_at(0).catchup(options.get("catchup", "skip")).schedule()
    bench.drain()
    return seen


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("policy", "runs"),
    [
        ("skip", [(hour(5), 0, None)]),
        ("last", [(hour(5), 5, hour(1))]),
        ("all", [(hour(n), 0, None) for n in (1, 2, 3, 4, 5)]),
        ("none", []),
    ],
)
def test_five_missed(bench: Bench, policy: str, runs: Seen) -> None:
    seen = hourly(bench, catchup=policy)
    bench.clock.advance(5.5 * 3600)
    bench.drain()
    assert seen == runs
    bench.advance(1800)
    assert seen == [*runs, (hour(6), 0, None)]  # and then on time


@pytest.mark.case(44)
@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_the_first_run_after_missed_ones_stands_for_them(bench: Bench, overlap: Any) -> None:
    """Also where several fire times are on time and only one may run."""
    seen: Seen = []
    bench.script.bodies["tick"] = lambda ctx: seen.append((ctx.slot, ctx.missed, ctx.missed_since))
    bench.jobs.task(Step("tick")).key("tick").every(20).catchup("last").overlap(overlap).schedule()
    bench.clock.advance(3600)
    bench.drain()
    first, *others = seen
    assert first[1:] == (177, START + timedelta(seconds=20))
    assert others == [(START + timedelta(seconds=s), 0, None) for s in (3580, 3600) if overlap == "allow"]
    assert first[0] == START + timedelta(seconds=3560 if overlap == "allow" else 3600)


@pytest.mark.both_databases
@pytest.mark.case(44)
def test_more_missed_than_a_column_can_hold(bench: Bench) -> None:
    """On PostgreSQL the schedule could not be fired any more."""
    seen = hourly(bench, catchup="last")
    bench.jobs.task(Step("tick")).key("tick").every(1).catchup("last").overlap("skip").schedule()
    bench.clock.advance(timedelta(days=25_000))
    bench.drain()
    assert [missed for _, missed, _ in seen] == [2**31 - 1]


@pytest.mark.case(44)
def test_a_new_daemon_makes_up_for_what_was_missed(bench: Bench) -> None:
    seen = hourly(bench, catchup="last")
    bench.clock.advance(5.5 * 3600)
    drain(bench.worker())
    assert seen == [(hour(5), 5, hour(1))]


@pytest.mark.both_databases
@pytest.mark.case(44)
def test_thousands_missed_come_in_ticks(bench: Bench) -> None:
    slots: list[datetime] = []
    bench.script.bodies["tick"] = lambda ctx: slots.append(ctx.slot)
    bench.jobs.task(Step("tick")).key("tick").every(60).catchup("all").schedule()
    notify_and_step(bench.jobs)
    bench.clock.advance(2500 * 60)
    made = []
    for _ in range(4):
        notify_and_step(bench.jobs)
        with bench.jobs.database.read() as tx:
            made.append(tx.connection.exec_driver_sql("SELECT count(*) FROM schedd_tasks").scalar_one())
    assert made == [1000, 2000, 2500, 2500]
    bench.drain()
    assert sorted(slots) == [START + timedelta(minutes=n) for n in range(1, 2501)]


@pytest.mark.case(47)
@pytest.mark.parametrize("policy", ["skip", "last", "all", "none"])
def test_the_wall_clock_jumps_forward(bench: Bench, policy: str) -> None:
    """Slots in the hours that were jumped over are missed ones."""
    seen = hourly(bench, catchup=policy)
    bench.clock.advance(3600)
    bench.drain()
    bench.clock.jump(timedelta(hours=2.5))
    bench.drain()
    runs = {"skip": [3], "last": [3], "all": [2, 3], "none": []}[policy]
    assert [slot for slot, _, _ in seen] == [hour(n) for n in (1, *runs)]
    bench.advance(1800)
    assert seen[-1] == (hour(4), 0, None)


@pytest.mark.case(47)
@pytest.mark.parametrize("policy", ["skip", "last", "all", "none"])
def test_the_wall_clock_jumps_back(bench: Bench, policy: str) -> None:
    """No slot twice, however often the clock comes by again, in this daemon or in one that starts then."""
    seen = hourly(bench, catchup=policy)
    for _ in range(3):
        bench.advance(3600)
    bench.clock.jump(timedelta(hours=-1))
    bench.drain()
    drain(bench.worker())
    bench.jobs.task(Step("tick")).key("tick").hourly_at(0).catchup(policy).schedule()  # type: ignore[arg-type]
    for _ in range(4):
        bench.advance(1800)
    assert [slot for slot, _, _ in seen] == [hour(n) for n in (1, 2, 3, 4)]


@pytest.mark.case(47)
@pytest.mark.parametrize("fails", [False, True])
def test_a_schedule_that_is_changed_after_a_jump_back_runs_no_slot_twice(bench: Bench, fails: bool) -> None:
    seen = hourly(bench)
    write = bench.script.bodies["tick"]
    if fails:  # its key is free again
        bench.script.bodies["tick"] = lambda ctx: write(ctx) or 1 / 0
    for _ in range(3):
        bench.advance(3600)
    bench.clock.jump(timedelta(hours=-1.5))
    bench.jobs.task(Step("tick")).key("tick").cron("0,30 * * * *").schedule()
    bench.drain()
    for _ in range(4):
        bench.advance(1800)
    assert [slot for slot, _, _ in seen] == [hour(n) for n in (1, 2, 3, 2.5, 3.5)]


@pytest.mark.case(47)
def test_the_wall_clock_jumps_forward_and_is_set_right(bench: Bench) -> None:
    seen = hourly(bench, catchup="all")
    bench.clock.jump(timedelta(hours=3))
    bench.drain()
    bench.clock.jump(timedelta(hours=-3))
    for _ in range(8):
        bench.advance(1800)
    assert [slot for slot, _, _ in seen] == [hour(n) for n in (1, 2, 3, 4)]


@pytest.mark.case(43, 47)
@pytest.mark.parametrize(
    "build", [lambda b: b.hourly_at(0), lambda b: b.every(3600), lambda b: b.every(3600, "fixed_delay")]
)
@pytest.mark.parametrize("before", [True, False])
def test_a_clock_that_was_years_ahead(bench: Bench, build: Any, before: bool) -> None:
    """Its next slot is then; the doctor says so, and pausing and resuming lets it go on."""

    def found() -> str:
        with bench.jobs.database.read() as tx:
            return next(f.text for f in check(tx.at(bench.clock.now())) if f.check == "schedules")

    fine = "1 schedule, each has its next slot"
    seen: Seen = []
    bench.script.bodies["tick"] = lambda ctx: seen.append(ctx.slot)
    if before:
        build(bench.jobs.task(Step("tick")).key("tick")).schedule()
    bench.clock.jump(timedelta(days=1000))
    if not before:
        build(bench.jobs.task(Step("tick")).key("tick")).schedule()
    bench.drain()
    assert found() == fine
    bench.clock.jump(timedelta(days=-1000))
    bench.advance(2 * 3600)
    assert len(seen) == int(before)
    assert "tick (goes on at 2028-09-27T0" in found()
    bench.jobs.schedules.pause("tick")
    bench.jobs.schedules.resume("tick")
    assert found() == fine
    assert bench.advance(3600) == ["tick"]
    assert bench.advance(3600) == ["tick"]
    assert found() == fine


@pytest.mark.both_databases
@pytest.mark.case(47)
@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
def test_tasks_running_on_two_daemons_survive_a_jump(bench: Bench, jump: timedelta) -> None:
    """Both handlers are under way while the clock jumps and both engines go round: none is run again."""
    first, second = bench.worker(queues=["first"], lease=30), bench.worker(queues=["second"], lease=30)
    ids = [bench.step(name).queue(name).schedule() for name in ("first", "second")]

    def outer(ctx: Any) -> None:
        drain(second)  # runs the other handler inside of this one

    def inner(ctx: Any) -> None:
        notify_and_step(first)
        notify_and_step(second)
        bench.clock.jump(jump)
        for _ in range(100):  # more than a lease
            for jobs in (first, second):
                notify_and_step(jobs)
            bench.clock.advance(0.5)
        assert bench.states(*ids) == ["running", "running"]

    bench.script.bodies |= {"first": outer, "second": inner}
    drain(first)
    drain(second)
    assert bench.script.ran == ["first", "second"]
    assert bench.states(*ids) == ["success", "success"]
    assert [a.number for i in ids for a in bench.jobs.get_attempts(i)] == [1, 1]
