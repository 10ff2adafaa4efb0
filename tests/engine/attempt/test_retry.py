"""Retries end to end: how long they wait, when they end, what a handler may ask for, what survives a restart."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from scheduler import (
    AsyncContext,
    Context,
    PermanentError,
    Retry,
    RetryPolicy,
    Scheduler,
    Snooze,
    Task,
    TaskState,
    task,
)
from scheduler.testing import FakeClock, drain
from support.fleet import Fleet, ends, write

S = 1_000_000


@task
def attempt(ctx: Context) -> Any:
    """Does what the next entry of the worker's state says: raise it, or return it."""
    outcome = ctx.state.pop(0) if len(ctx.state) > 1 else ctx.state[0]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def failing(fleet: Fleet, *outcomes: Any, **options: Any) -> Scheduler:
    return fleet.worker(attempt, state=list(outcomes) or [ValueError("no")], **options)


def wait_of(jobs: Scheduler, task_id: int, clock: FakeClock) -> float:
    """Runs what is due; returns in how many seconds the task is due next, having let just that much time pass."""
    drain(jobs)
    record = jobs.get_task(task_id)
    assert record.state is TaskState.RETRY
    assert record.finished_at is None, "only its attempt has ended"
    wait = (record.run_at - clock.datetime) // timedelta(microseconds=1)
    number = record.attempt
    clock.advance(timedelta(microseconds=wait - 1))
    assert drain(jobs) == 0, "ran a microsecond early"
    clock.advance(timedelta(microseconds=1))
    assert jobs.get_task(task_id).attempt == number
    return wait / S


def policy(*args: Any, **options: Any) -> RetryPolicy:
    return RetryPolicy(*args, **({"jitter": 0} | options))


@pytest.mark.both_databases
@pytest.mark.case(11)
def test_exponential_waits_are_capped_and_the_third_failure_is_the_end(fleet: Fleet, clock: FakeClock) -> None:
    jobs = failing(fleet)
    task_id = jobs.task(attempt).with_retry(policy(40, 90, max_attempts=3, factor=3)).schedule()
    assert [wait_of(jobs, task_id, clock) for _ in range(2)] == [40, 90]
    assert drain(jobs) == 1
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.attempt, dead.error) == (TaskState.DEAD, 3, "ValueError: no")
    assert ends(jobs, task_id) == ["retried", "retried", "dead"]
    assert [a.number for a in jobs.get_attempts(task_id)] == [1, 2, 3]
    assert {a.error for a in jobs.get_attempts(task_id)} == {"ValueError: no"}
    clock.advance(timedelta(days=365))
    assert drain(jobs) == 0


@pytest.mark.both_databases
@pytest.mark.case(11)
def test_a_success_after_failures_is_a_success(fleet: Fleet, clock: FakeClock) -> None:
    jobs = failing(fleet, ValueError("1"), ValueError("2"), "done")
    task_id = jobs.task(attempt).with_automatic_retry().schedule()
    waits = [wait_of(jobs, task_id, clock) for _ in range(2)]
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == "done"
    assert jobs.get_retry_count(task_id) == 2
    assert jobs.get_last_error(task_id) == "ValueError: 2"
    assert 10 <= waits[0] <= 11 < 20 <= waits[1] <= 22


@pytest.mark.case(12)
def test_waits_double_up_to_twelve_hours(fleet: Fleet, clock: FakeClock) -> None:
    jobs = failing(fleet)
    task_id = jobs.task(attempt).with_retry(policy(10, 43200, max_attempts=None)).schedule()
    waits = [wait_of(jobs, task_id, clock) for _ in range(15)]
    assert waits == [10 * 2**n for n in range(13)] + [43200, 43200]


@pytest.mark.case(12)
@pytest.mark.parametrize("number", [20, 64, 65535, 2**31 - 2])
@pytest.mark.parametrize(
    "strategy", ["exponential", *(pytest.param(name, marks=pytest.mark.one_is_enough) for name in ("linear", "fixed"))]
)
def test_large_attempt_numbers_do_not_overflow(fleet: Fleet, clock: FakeClock, number: int, strategy: Any) -> None:
    jobs = failing(fleet, ValueError("no"), "done")
    task_id = jobs.task(attempt).with_retry(policy(10, 200, max_attempts=None, strategy=strategy)).schedule()
    write(jobs, "UPDATE schedd_tasks SET attempt = :n WHERE id = :id", n=number - 1, id=task_id)
    assert wait_of(jobs, task_id, clock) == (10 if strategy == "fixed" else 200)
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == "done"
    assert [a.number for a in jobs.get_attempts(task_id)] == [number, number + 1]


@pytest.mark.case(12)
def test_the_longest_policy_there_can_be(fleet: Fleet, clock: FakeClock) -> None:
    longest = timedelta(days=366_000)
    jobs = failing(fleet)
    task_id = jobs.task(attempt).with_retry(policy(longest, longest, max_attempts=2**31 - 1)).schedule()
    drain(jobs)
    record = jobs.get_task(task_id)
    assert record.run_at - clock.datetime == longest
    assert drain(jobs) == 0


class Dice(random.Random):
    """Always throws the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.case(13)
@pytest.mark.parametrize(("thrown", "factor"), [(0.0, 1.0), (0.5, 1.1), (1 - 2**-53, 1.2)])
def test_jitter_only_lengthens_and_only_up_to_its_share(
    fleet: Fleet, clock: FakeClock, thrown: float, factor: float
) -> None:
    jobs = failing(fleet, rng=Dice(thrown))
    task_id = jobs.task(attempt).with_retry(policy(40, 90, max_attempts=9, jitter=0.2)).schedule()
    waits = [wait_of(jobs, task_id, clock) for _ in range(3)]
    assert waits == pytest.approx([40 * factor, 80 * factor, 90 * factor], abs=1e-5)
    assert all(base <= wait <= 1.2 * base for base, wait in zip((40, 80, 90), waits, strict=True))


@pytest.mark.case(13)
def test_many_throws_stay_within_the_bounds_and_differ(fleet: Fleet, clock: FakeClock) -> None:
    jobs = failing(fleet, rng=random.Random(1))
    chosen = policy(10, 10, max_attempts=2, jitter=0.5)
    with jobs.batch() as batch:
        for _ in range(100):
            batch.task(attempt).with_retry(chosen)
    drain(jobs)
    waits = [(record.run_at - clock.datetime).total_seconds() for record in jobs.list_tasks(limit=1000)]
    assert all(10 <= wait <= 15 for wait in waits)
    assert len(set(waits)) > 90
    assert min(waits) < 11
    assert max(waits) > 14


@pytest.mark.case(14)
@pytest.mark.parametrize(
    ("strategy", "waits"), [("fixed", [7, 7, 7, 7]), ("linear", [7, 14, 20, 20]), ("exponential", [7, 14, 20, 20])]
)
def test_strategies(fleet: Fleet, clock: FakeClock, strategy: Any, waits: list[float]) -> None:
    jobs = failing(fleet)
    task_id = jobs.task(attempt).with_retry(policy(7, 20, max_attempts=5, strategy=strategy)).schedule()
    assert [wait_of(jobs, task_id, clock) for _ in waits] == waits
    drain(jobs)
    assert jobs.get_task_status(task_id) is TaskState.DEAD


@pytest.mark.case(14)
@pytest.mark.parametrize("chosen", [None, RetryPolicy.none(), policy(0, 0, max_attempts=1)])
def test_without_retries_the_first_failure_is_the_end(fleet: Fleet, chosen: RetryPolicy | None) -> None:
    jobs = failing(fleet)
    builder = jobs.task(attempt)
    task_id = (builder if chosen is None else builder.with_retry(chosen)).schedule()
    assert drain(jobs) == 1
    assert (jobs.get_task_status(task_id), ends(jobs, task_id)) == (TaskState.DEAD, ["dead"])


class Unlucky(OSError):
    pass


@pytest.mark.case(14)
@pytest.mark.parametrize(
    ("retry_on", "raised", "retried"),
    [
        ((OSError,), ValueError("x"), False),
        ((OSError,), Unlucky("x"), True),
        (("OSError",), Unlucky("x"), True),
        (("Unlucky",), OSError("x"), False),
        (("KeyboardInterrupt",), KeyboardInterrupt(), True),
        ((), SystemExit(1), True),
    ],
)
def test_retry_on_picks_what_is_retried(fleet: Fleet, retry_on: Any, raised: Any, retried: bool) -> None:
    jobs = failing(fleet, raised)
    task_id = jobs.task(attempt).with_retry(policy(5, 5, retry_on=retry_on)).schedule()
    assert drain(jobs) == 1
    assert jobs.get_task_status(task_id) is (TaskState.RETRY if retried else TaskState.DEAD)


@pytest.mark.case(14)
def test_a_permanent_error_ends_it_at_once_with_its_status(fleet: Fleet) -> None:
    jobs = failing(fleet, PermanentError("gone", status=410))
    task_id = jobs.task(attempt).with_automatic_retry().schedule()
    assert drain(jobs) == 1
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.error, dead.status_code) == (TaskState.DEAD, "PermanentError: gone", 410)
    assert ends(jobs, task_id) == ["dead"]
    assert jobs.get_attempts(task_id)[0].status_code == 410


@pytest.mark.case(14)
def test_a_kind_without_dead_letters_ends_failed(fleet: Fleet) -> None:
    @task(dead_letter=False, retry=policy(1, 1, max_attempts=2))
    def mortal(ctx: Context) -> None:
        raise ValueError("no")

    jobs = fleet.worker(mortal)
    task_id = jobs.task(mortal).schedule()
    drain(jobs)
    fleet.clock.advance(1)
    drain(jobs)
    assert (jobs.get_task_status(task_id), ends(jobs, task_id)) == (TaskState.FAILED, ["retried", "failed"])


@pytest.mark.case(14)
def test_a_snooze_uses_no_attempt(fleet: Fleet, clock: FakeClock) -> None:
    jobs = failing(fleet, Snooze(30), Snooze(timedelta(minutes=1)), ValueError("no"))
    task_id = jobs.task(attempt).schedule()  # one attempt only
    for seconds in (30, 60):
        drain(jobs)
        snoozed = jobs.get_task(task_id)
        assert (snoozed.state, snoozed.attempts_used, snoozed.error) == (TaskState.SCHEDULED, 0, None)
        assert snoozed.run_at == clock.datetime + timedelta(seconds=seconds)
        clock.advance(seconds - 0.001)
        assert drain(jobs) == 0
        clock.advance(0.001)
    drain(jobs)
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.attempt, dead.attempts_used) == (TaskState.DEAD, 1, 1)
    assert ends(jobs, task_id) == ["snoozed", "snoozed", "dead"]


@pytest.mark.case(14)
def test_retry_asks_for_its_own_wait_and_counts(fleet: Fleet, clock: FakeClock) -> None:
    jobs = failing(
        fleet, Retry(after=3, reason="busy", status=503), Retry(after=timedelta(hours=2)), Retry(), Retry(after=1)
    )
    task_id = jobs.task(attempt).with_retry(policy(10, 90, max_attempts=4)).schedule()
    assert wait_of(jobs, task_id, clock) == 3
    record = jobs.get_task(task_id)
    assert (record.error, record.status_code) == ("Retry: busy", 503)
    assert jobs.get_attempts(task_id)[0].status_code == 503
    assert [wait_of(jobs, task_id, clock) for _ in range(2)] == [7200, 40]
    drain(jobs)
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.error, dead.status_code) == (TaskState.DEAD, "Retry: retry requested", None)
    assert len(ends(jobs, task_id)) == 4


@pytest.mark.case(14)
@pytest.mark.parametrize("bad", [Snooze("soon"), Snooze(-1), Snooze(float("nan")), Retry(after="x"), Retry(after=-5)])
def test_a_wait_that_makes_no_sense_ends_the_task_with_that_reason(fleet: Fleet, bad: BaseException) -> None:
    jobs = failing(fleet, bad)
    task_id = jobs.task(attempt).with_automatic_retry().schedule()
    drain(jobs)
    dead = jobs.get_task(task_id)
    assert (dead.state, dead.error_class) == (TaskState.DEAD, "ConfigError")


class Watched(Task, retry=policy(1, 1, max_attempts=3)):
    name: str

    def run(self, ctx: Context) -> None:
        self.say(ctx)

    def on_attempt_failed(self, ctx: Context, error: BaseException) -> None:
        ctx.state["calls"].append(("attempt", self.name, ctx.attempt, str(error)))

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        ctx.state["calls"].append(("end", self.name, ctx.attempt, str(error)))

    def say(self, ctx: Context | AsyncContext) -> None:
        outcome = ctx.state["says"][min(ctx.attempt, len(ctx.state["says"])) - 1]
        if outcome is not None:
            raise outcome


class AsyncWatched(Watched):
    async def run(self, ctx: AsyncContext) -> None:  # type: ignore[override]
        self.say(ctx)

    async def on_attempt_failed(self, ctx: AsyncContext, error: BaseException) -> None:  # type: ignore[override]
        ctx.state["calls"].append(("attempt", self.name, ctx.attempt, str(error)))

    async def on_failed(self, ctx: AsyncContext, error: BaseException) -> None:  # type: ignore[override]
        ctx.state["calls"].append(("end", self.name, ctx.attempt, str(error)))


@pytest.mark.case(15)
@pytest.mark.parametrize("kind", [Watched, pytest.param(AsyncWatched, marks=pytest.mark.one_is_enough)])
@pytest.mark.parametrize(
    ("says", "calls"),
    [
        ([ValueError("x")], [("attempt", 1), ("attempt", 2), ("end", 3)]),
        ([ValueError("x"), None], [("attempt", 1)]),
        ([PermanentError("x")], [("end", 1)]),
        ([Retry(after=1, reason="x"), PermanentError("x")], [("attempt", 1), ("end", 2)]),
        ([None], []),
    ],
)
def test_hooks_get_each_failure_once(
    fleet: Fleet, clock: FakeClock, kind: type[Watched], says: Any, calls: Any
) -> None:
    jobs = fleet.worker(kind, state={"says": says, "calls": []})
    jobs.task(kind("one")).schedule()
    for _ in range(5):
        drain(jobs)
        clock.advance(1)
    assert jobs.state["calls"] == [(what, "one", number, "x") for what, number in calls]


@pytest.mark.case(15)
def test_a_snooze_is_no_failure_for_hooks(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(Watched, state={"says": [Snooze(1)], "calls": []})
    jobs.task(Watched("one")).schedule()
    for _ in range(3):
        drain(jobs)
        clock.advance(1)
    assert jobs.state["calls"] == []


@pytest.mark.case(16)
def test_count_policy_and_due_time_survive_a_restart(fleet: Fleet, clock: FakeClock) -> None:
    chosen = policy(40, 90, max_attempts=3, factor=3, retry_on=(ValueError,))
    jobs = failing(fleet)
    task_id = jobs.task(attempt).with_retry(chosen).schedule()
    drain(jobs)
    due = jobs.get_task(task_id).run_at
    for elapsed in (13, 26, 39):
        fleet.kill(jobs)
        jobs = failing(fleet)
        clock.advance(13)
        assert drain(jobs) == 0, f"ran {40 - elapsed} s early"
        record = jobs.get_task(task_id)
        assert (record.attempt, record.retry, record.run_at) == (1, chosen, due)
    clock.advance(1)
    assert drain(jobs) == 1
    assert jobs.get_retry_count(task_id) == 1
    fleet.kill(jobs)
    jobs = failing(fleet)
    clock.advance(90)
    drain(jobs)
    assert ends(jobs, task_id) == ["retried", "retried", "dead"]


@pytest.mark.case(16)
def test_a_task_due_in_an_hour_does_not_run_early_because_of_a_restart(fleet: Fleet, clock: FakeClock) -> None:
    jobs = failing(fleet, "done")
    ids = [
        jobs.task(attempt).after(timedelta(hours=1)).schedule(),
        jobs.task(attempt).at(clock.datetime + timedelta(hours=1)).schedule(),
    ]
    for _ in range(4):
        fleet.kill(jobs)
        jobs = failing(fleet, "done")
        assert drain(jobs) == 0
        clock.advance(timedelta(minutes=15) - timedelta(microseconds=1))
        assert drain(jobs) == 0
        clock.advance(timedelta(microseconds=1))
    assert drain(jobs) == 2
    assert [jobs.result(i, timeout=0) for i in ids] == ["done", "done"]


@pytest.mark.case(18)
def test_a_poison_task_uses_up_its_attempts_and_blocks_no_other_task(fleet: Fleet, clock: FakeClock) -> None:
    @task(retry=policy(5, 5, max_attempts=3))
    def poison(ctx: Context) -> None:
        raise KeyError("poison")

    jobs = failing(fleet, "good")
    jobs.register(poison)
    before = [jobs.task(attempt).schedule() for _ in range(5)]
    bad = [jobs.task(poison).schedule() for _ in range(20)]
    after = [jobs.task(attempt).schedule() for _ in range(5)]
    drain(jobs)
    assert [jobs.result(i, timeout=0) for i in before + after] == ["good"] * 10
    for _ in range(4):
        later = jobs.task(attempt).schedule()
        clock.advance(5)
        drain(jobs)
        assert jobs.result(later, timeout=0) == "good"
    assert {jobs.get_task_status(i) for i in bad} == {TaskState.DEAD}
    assert all(ends(jobs, i) == ["retried", "retried", "dead"] for i in bad)
