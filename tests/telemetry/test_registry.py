"""A worker's own metrics: counted where its loop records ends, read by any thread, never lost or counted twice."""

from __future__ import annotations

import threading
from datetime import timedelta
from importlib.metadata import version
from operator import itemgetter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from scheduler import Context, PermanentError, RetryPolicy, Scheduler, StoreUnavailableError, TaskTimeout, task
from scheduler.model.rollup import BOUNDS, RollupCounter
from scheduler.store import rollups
from scheduler.telemetry import metrics as names
from scheduler.telemetry.metrics import BUCKETS, Distribution, Metric
from scheduler.telemetry.prometheus import Collector
from scheduler.telemetry.registry import IDLE_FORGET_S, MAX_PAIRS, MetricsRegistry
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, step


@task(kind="works", retry=RetryPolicy(min_wait=1, max_attempts=2, jitter=0))
def works(ctx: Context, seconds: float = 0.0, bad: str = "") -> None:
    ctx.state.advance(seconds)
    if bad == "slow":
        raise TaskTimeout("too long")
    if bad:
        raise PermanentError(bad) if bad == "final" else ValueError(bad)


@task(kind="alone", max_concurrency=1)
def one_at_a_time(ctx: Context) -> None:
    """Does nothing."""


@task(kind="seldom", rate_limit="1/h")
def seldom(ctx: Context) -> None:
    """Does nothing."""


def worker(fleet: Fleet, **options: Any) -> Scheduler:
    return fleet.worker(works, one_at_a_time, seldom, state=fleet.clock, **{"metrics": True, **options})


def registry_of(jobs: Scheduler) -> MetricsRegistry:
    found = engine_of(jobs).metrics
    assert found is not None
    return found


def values(jobs: Scheduler, metric: Metric) -> dict[tuple[str, ...], float]:
    """The values of a counter or gauge by their labels, without those that are 0."""
    (family,) = [family for family in registry_of(jobs).snapshot() if family.metric is metric]
    return {sample.labels: sample.value for sample in family.samples if sample.value}


def distributions(jobs: Scheduler, metric: Metric) -> dict[tuple[str, ...], Distribution]:
    (family,) = [family for family in registry_of(jobs).snapshot() if family.metric is metric]
    return {one.labels: one for one in family.distributions}


def test_attempts_by_kind_queue_and_outcome(fleet: Fleet, clock: FakeClock) -> None:
    jobs = worker(fleet)
    for seconds in (0.2, 0.2, 4.0):
        jobs.task(works, seconds).schedule()
        drain(jobs)
    jobs.task(works, bad="any").queue("mail").schedule()
    drain(jobs)
    clock.advance(40)  # the numbers are handed over with the lease
    drain(jobs)
    jobs.task(works, bad="slow").queue("mail").schedule()
    drain(jobs)
    assert values(jobs, names.ATTEMPTS) == {
        ("works", "default", "succeeded"): 3,
        ("works", "mail", "retried"): 2,
        ("works", "mail", "dead"): 1,
    }
    runs = distributions(jobs, names.ATTEMPT_DURATION)["works", "default"]
    assert (runs.number, runs.total) == (3, pytest.approx(4.4))
    assert [(bound, n) for bound, n in zip(BUCKETS, runs.counts, strict=False) if n] == [(0.25, 2), (5.0, 1)]
    waits = distributions(jobs, names.QUEUE_WAIT)["works", "mail"]
    assert waits.number == 3
    assert values(jobs, names.DEAD_LETTERS_MADE) == {("works",): 1}
    assert values(jobs, names.TIMEOUTS) == {(): 1}
    (cycles,) = distributions(jobs, names.CYCLE_DURATION).values()
    assert cycles.number > 0


def test_every_bound_is_one_of_the_rollups() -> None:
    assert {round(bound * 1_000_000) for bound in BUCKETS} <= set(BOUNDS)


@pytest.mark.parametrize("rollups_on", [True, False])
def test_numbers_are_handed_over_once(fleet: Fleet, clock: FakeClock, rollups_on: bool) -> None:
    jobs = worker(fleet, rollups=rollups_on)
    for count in (1, 2, 3):
        jobs.task(works).schedule()
        drain(jobs)
        assert values(jobs, names.ATTEMPTS) == {("works", "default", "succeeded"): count}
        clock.advance(10)
        drain(jobs)
        assert values(jobs, names.ATTEMPTS) == {("works", "default", "succeeded"): count}
    assert jobs.stats(since=timedelta(hours=1)).total.attempts == (3 if rollups_on else 0)


def test_a_failed_write_of_rollups_counts_nothing_twice(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, write = worker(fleet), rollups.add

    def fail(*_: Any) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(rollups, "add", fail)
    jobs.task(works).schedule()
    drain(jobs)
    assert jobs.stats().total.attempts == 0  # which tried to write
    assert values(jobs, names.ATTEMPTS) == {("works", "default", "succeeded"): 1}
    monkeypatch.setattr(rollups, "add", write)
    jobs.stats()
    clock.advance(60)
    assert jobs.stats().total.attempts == 1
    assert values(jobs, names.ATTEMPTS) == {("works", "default", "succeeded"): 1}


def test_a_program_serves_them_with_its_own(fleet: Fleet) -> None:
    jobs = worker(fleet)
    own = CollectorRegistry()
    own.register(Collector(jobs.metrics))
    assert b"schedd" not in generate_latest(own)
    jobs.task(works).schedule()
    drain(jobs)
    labels = {"kind": "works", "queue": "default"}
    assert own.get_sample_value("schedd_attempts_total", labels | {"outcome": "succeeded"}) == 1
    assert own.get_sample_value("schedd_attempt_duration_seconds_bucket", labels | {"le": "0.005"}) == 1
    assert own.get_sample_value("schedd_attempt_duration_seconds_bucket", labels | {"le": "3600.0"}) == 1
    assert worker(fleet, metrics=False).metrics() == []


def test_off_there_is_nothing(fleet: Fleet) -> None:
    jobs = worker(fleet, metrics=False)
    jobs.task(works, bad="final").schedule()
    drain(jobs)
    state = engine_of(jobs).engine_state
    assert engine_of(jobs).metrics is None
    assert state.dead_letter_hook.counts is None
    assert worker(fleet, metrics=False, rollups=False)._make_engine(inline=True).engine_state.rollups is None


def test_kinds_that_wait_for_a_cap_or_a_rate(fleet: Fleet, clock: FakeClock) -> None:
    jobs = worker(fleet)
    for _ in range(3):
        jobs.task(one_at_a_time).schedule()
        jobs.task(seldom).schedule()
    step(jobs)
    step(jobs)
    assert values(jobs, names.CAP_WAITS).keys() == {("alone",)}
    assert values(jobs, names.RATE_WAITS).keys() == {("seldom",)}


def test_what_was_reclaimed_is_counted_on_both_sides(fleet: Fleet, clock: FakeClock) -> None:
    late, heir = worker(fleet), worker(fleet)
    for _ in range(3):
        late.task(works).schedule()
    step(late)
    assert len(engine_of(late).engine_state.held) == 3
    for _ in range(8):
        clock.advance(9)
        step(heir)
    assert values(heir, names.RECLAIMED) == {(): 3}
    assert values(late, names.LEASES_LOST) == {}
    step(late)
    assert values(late, names.LEASES_LOST) == {(): 1}
    assert values(late, names.ORPHANED_ATTEMPTS) == {}


def test_slots_and_what_runs_in_them(fleet: Fleet) -> None:
    jobs = worker(fleet, pools={"high": (1, 2), "medium": (3, 4), "low": (0, 0)}, processes=2)
    assert values(jobs, names.SLOTS) == {
        ("high", "thread"): 1,
        ("high", "async"): 2,
        ("medium", "thread"): 3,
        ("medium", "async"): 4,
    }
    assert values(jobs, names.SLOTS_BUSY) == {}
    ((schedd, python, store),) = values(jobs, names.BUILD_INFO)
    assert (schedd.partition("+")[0], python.count("."), store) == (version("schedd"), 2, fleet.database.dialect)


def test_kinds_and_queues_that_are_not_used_any_more_go() -> None:
    clock = FakeClock()
    counter = RollupCounter(itemgetter(0), itemgetter(0))
    registry = MetricsRegistry(clock.monotonic, counter)

    def count(queue: str) -> None:
        counter._counts[0, "works", queue, 0, 0, 0] = [1, 50]
        counter.take()

    def queues() -> set[str]:
        return {sample.labels[1] for sample in registry.snapshot()[0].samples}

    count("old")
    clock.advance(IDLE_FORGET_S / 2)
    count("new")
    assert queues() == {"old", "new"}
    clock.advance(IDLE_FORGET_S / 2 + 1)
    counter.take()
    assert queues() == {"new"}
    for number in range(MAX_PAIRS + 10):
        clock.advance(0.001)
        count(f"q{number}")
    assert len(queues()) == MAX_PAIRS
    assert "new" not in queues()
    assert f"q{MAX_PAIRS + 9}" in queues()


def test_readers_see_counters_that_only_grow() -> None:
    """A thread that reads while the loop counts and hands over never sees a number twice, nor one go back."""
    counter = RollupCounter(itemgetter(0), itemgetter(0))
    registry = MetricsRegistry(FakeClock().monotonic, counter)
    over, wrong, last = threading.Event(), [], 0.0

    def read() -> None:
        nonlocal last
        while not over.is_set():
            now = sum(sample.value for sample in registry.snapshot()[0].samples)
            if not last <= now <= rounds:
                wrong.append((last, now))
            last = now

    rounds = 20_000
    reader = threading.Thread(target=read)
    reader.start()
    for number in range(rounds):
        counter._spread(0, "works", f"q{number % 7}", 0, 0, [number])  # type: ignore[arg-type]
        if number % 3 == 0:
            counter.take()
    over.set()
    reader.join()
    assert wrong == []
    assert sum(sample.value for sample in registry.snapshot()[0].samples) == rounds
