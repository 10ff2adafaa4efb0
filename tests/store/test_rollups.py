"""Numbers of attempts: written with the lease, added up over workers, rolled up by retention, read by time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, PermanentError, RetryPolicy, Scheduler, StoreUnavailableError, task
from scheduler.errors import ConfigError, InvalidScheduleError
from scheduler.store import rollups
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet

HOUR, DAY = 3600, 86_400


@task(kind="works", retry=RetryPolicy(min_wait=1, max_attempts=2, jitter=0))
def works(ctx: Context, seconds: float = 0.0, bad: str = "") -> None:
    ctx.state.advance(seconds)
    if bad and (bad != "once" or ctx.attempt == 1):
        raise PermanentError(bad) if bad == "final" else ValueError(bad)


@task(kind="other", queue="mail")
def other(ctx: Context) -> None:
    """Does nothing."""


def worker(fleet: Fleet, **options: Any) -> Scheduler:
    return fleet.worker(works, other, state=fleet.clock, **options)


def stored(jobs: Scheduler, *others: Scheduler) -> list[tuple[int, int]]:
    """(span, sum of numbers) of runs, with what these workers have counted."""
    for one in (jobs, *others):
        one.stats()
    return written(jobs)


def written(jobs: Scheduler) -> list[tuple[int, int]]:
    """The same, without what was not written yet."""
    sql = "SELECT span, sum(number) FROM schedd_rollups WHERE measure = 0 GROUP BY span ORDER BY span"
    with jobs.database.read() as tx:
        return [(row[0], int(row[1])) for row in tx.connection.execute(sa.text(sql))]


def test_how_long_tasks_run_and_wait_and_how_many_fail(fleet: Fleet, clock: FakeClock) -> None:
    jobs = worker(fleet)
    for seconds in [0.2] * 90 + [5.0] * 10:
        jobs.task(works, seconds).schedule()
        drain(jobs)
    jobs.task(works, bad="final").schedule()
    jobs.task(works, bad="any").schedule()
    jobs.task(other).schedule()
    clock.advance(40)
    drain(jobs)
    clock.advance(2)
    drain(jobs)
    found = jobs.stats()
    kind, mail = found.kinds
    assert (kind.kind, kind.attempts, mail.kind, mail.attempts) == ("works", 103, "other", 1)
    assert kind.outcomes == {"succeeded": 100, "retried": 1, "dead": 2}
    assert kind.failure_rate == 3 / 103
    assert found.total.attempts == 104
    assert found.total.failure_rate == 3 / 104
    assert found.total.throughput == pytest.approx(104 / (found.until - found.since).total_seconds())
    assert kind.run.count == 103
    assert kind.run.mean == pytest.approx(68 / 103, rel=1e-3)
    assert kind.run.p50 == pytest.approx(0.2, rel=0.3)
    assert kind.run.p95 == pytest.approx(5.0, rel=0.3)
    assert mail.wait.p50 == pytest.approx(40, rel=0.3)
    assert [one.kind for one in jobs.stats("other").kinds] == ["other"]
    assert [one.kind for one in jobs.stats(queue="mail").kinds] == ["other"]
    assert jobs.stats("nothing").kinds == []
    assert jobs.stats("nothing").total.failure_rate is None


def test_a_wait_is_not_the_plan_nor_the_pause_nor_the_parents(fleet: Fleet, clock: FakeClock) -> None:
    jobs = worker(fleet)
    jobs.task(works).after(timedelta(hours=2)).schedule()
    jobs.task(works, bad="once").schedule()
    parent = jobs.task(works, 30.0).schedule()
    jobs.task(works).depend_on(parent).schedule()
    drain(jobs)
    for _ in range(3):
        clock.advance(3600)
        drain(jobs)
    (kind,) = jobs.stats(since=timedelta(hours=5)).kinds
    assert kind.outcomes == {"succeeded": 4, "retried": 1}
    assert kind.wait.count == 4
    assert kind.wait.mean is not None
    assert kind.wait.mean < 30  # what ran before them in this one thread


def test_numbers_of_workers_add_up(fleet: Fleet) -> None:
    one, two = worker(fleet), worker(fleet)
    for jobs in (one, two):
        for _ in range(3):
            jobs.task(works).schedule()
        drain(jobs)
    assert stored(one, two) == [(60, 6)]


def test_numbers_are_written_with_the_lease_and_at_the_end(fleet: Fleet, clock: FakeClock) -> None:
    jobs = worker(fleet)
    engine = engine_of(jobs)
    jobs.task(works).schedule()
    engine.step()
    (slots,) = [s for s in engine.inline_slots() if s.waiting]
    slots.run_one()
    engine.step()
    assert written(jobs) == []
    clock.advance(10)
    engine.step()
    assert written(jobs) == [(60, 1)]
    jobs.task(works).schedule()
    engine.step()
    slots.run_one()
    engine.step()
    engine.stop(hand_back_running=True)
    assert written(jobs) == [(60, 2)]


def test_what_could_not_be_written_is_written_later(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = worker(fleet)
    write = rollups.add

    def fail(*_: Any) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(rollups, "add", fail)
    jobs.task(works).schedule()
    drain(jobs)
    assert jobs.stats().total.attempts == 0
    monkeypatch.setattr(rollups, "add", write)
    assert stored(jobs) == [(60, 1)]


def test_numbers_can_be_switched_off(fleet: Fleet) -> None:
    jobs = worker(fleet, rollups=False)
    jobs.task(works).schedule()
    drain(jobs)
    assert stored(jobs) == []
    assert jobs.stats().total.attempts == 0


def test_old_numbers_are_rolled_up_and_then_removed(fleet: Fleet, clock: FakeClock) -> None:
    """Minutes become hours, hours days, and nothing is lost or counted twice meanwhile, until their time is over."""
    jobs = worker(fleet, retention={"stats": 30 * DAY})
    since = clock.datetime
    for _ in range(3):
        jobs.task(works).schedule()
        drain(jobs)
        clock.advance(90)

    def sweep(seconds: float) -> None:
        clock.advance(seconds)
        for _ in range(30):
            clock.advance(61)
            drain(jobs)

    sweep(0)
    assert stored(jobs) == [(60, 3)]
    sweep(7 * HOUR)
    assert stored(jobs) == [(3600, 3)]
    assert jobs.stats(since=since).total.attempts == 3
    assert jobs.stats(since=timedelta(hours=1)).total.attempts == 0
    jobs.task(works).schedule()
    sweep(15 * DAY)
    assert stored(jobs) == [(60, 1), (86_400, 3)]
    assert jobs.stats(since=since).total.attempts == 4
    sweep(16 * DAY)
    assert stored(jobs) == [(86_400, 1)]


def test_the_time_asked_for_is_widened_to_what_is_kept(fleet: Fleet, clock: FakeClock) -> None:
    jobs = worker(fleet)
    clock.advance(100 * DAY + 12 * HOUR + 1234)
    now = clock.datetime
    recent, days, weeks = (jobs.stats(since=timedelta(seconds=s)) for s in (1800, 3 * DAY, 40 * DAY))
    assert (recent.since, recent.until) == ((now - timedelta(minutes=30)).replace(second=0), now)
    assert days.since == (now - timedelta(days=3)).replace(minute=0, second=0)
    assert weeks.since == (now - timedelta(days=40)).replace(hour=0, minute=0, second=0)
    part = jobs.stats(since=now - timedelta(days=40), until=now - timedelta(days=30))
    assert (part.until - part.since) == timedelta(days=11)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (ConfigError, {"since": -1}),
        (ConfigError, {"since": 0}),
        (ConfigError, {"since": "an hour"}),
        (ConfigError, {"kind": 3}),
        (InvalidScheduleError, {"until": "now"}),
    ],
)
def test_what_makes_no_sense_is_refused(fleet: Fleet, error: type[Exception], asked: dict[str, Any]) -> None:
    with pytest.raises(error):
        worker(fleet).stats(**asked)
    now = fleet.clock.datetime
    with pytest.raises(ConfigError, match="until must be after since"):
        worker(fleet).stats(since=now, until=now)
    with pytest.raises(InvalidScheduleError, match="time zone"):
        worker(fleet).stats(since=now.replace(tzinfo=None))
