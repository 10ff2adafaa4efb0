"""Task types that make the keys of their tasks: unique, and debounce with a longest delay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler import (
    ConfigError,
    Context,
    Debounce,
    InvalidScheduleError,
    PayloadError,
    PermanentError,
    Scheduler,
    Task,
    Unique,
    task,
)
from scheduler.testing import drain
from support.bench import Bench

pytestmark = pytest.mark.both_databases


class Sync(Task, kind="unique.Sync", unique=Unique(by=("order_id",))):
    order_id: int
    note: str = ""

    def run(self, ctx: Context) -> str:
        if self.note == "fails":
            raise PermanentError("as told")
        return self.note


class Kept(Sync, kind="unique.Kept", unique=Unique(by=("order_id",), period=100)):
    pass


class Queued(Sync, kind="unique.Queued", unique=Unique(by=("order_id",), states=("scheduled", "waiting"))):
    def run(self, ctx: Context) -> str:
        ctx.state.ran.append(self.note)
        if self.note == "first":
            ctx.state.bodies["made"](ctx)
        return self.note


class Index(Task, kind="unique.Index", debounce=Debounce(30, 100, by=("document",))):
    document: str
    text: str

    def run(self, ctx: Context) -> None:
        ctx.state.ran.append(self.text)
        ctx.state.bodies.pop(self.text, lambda _: None)(ctx)


@task(kind="unique.whole", unique=Unique())
def whole(ctx: Context, path: str, width: int = 800) -> None:
    """Unique by all its arguments."""


@pytest.fixture
def jobs(bench: Bench) -> Scheduler:
    made = bench.jobs
    for kind in (Sync, Kept, Queued, Index, whole):
        made.register(kind)
    return made


def test_one_task_for_the_same_fields_while_it_lives(jobs: Scheduler) -> None:
    first = jobs.task(Sync(1, "a")).schedule()
    again = jobs.task(Sync(1, "b")).schedule()
    other = jobs.task(Sync(2, "a")).schedule()
    assert (again, first.created, again.created, other.created) == (first, True, False, True)
    assert jobs.get_task(first).key == 'unique:{"order_id":1}'
    drain(jobs)
    assert jobs.result(first, 0) == "a"
    assert jobs.task(Sync(1, "fails")).schedule().created
    drain(jobs)
    assert jobs.task(Sync(1)).schedule().created
    with jobs.batch() as batch:
        for number in (7, 8, 7):
            batch.task(Sync(number))
    assert [made.created for made in batch.ids] == [True, True, False]
    assert batch.ids[0] == batch.ids[2]


def test_a_period_after_its_success(bench: Bench, jobs: Scheduler) -> None:
    first = jobs.task(Kept(1)).schedule()
    drain(jobs)
    bench.clock.advance(99)
    assert jobs.task(Kept(1)).schedule() == first
    bench.clock.advance(1)
    assert jobs.task(Kept(1)).schedule().created


def test_only_in_some_states(bench: Bench, jobs: Scheduler) -> None:
    """While one runs one more may wait, and no third one."""
    made: list[Any] = []

    def schedule_two(_ctx: Context) -> None:
        made.extend(jobs.task(Queued(1, note)).schedule() for note in ("second", "third"))

    bench.script.bodies["made"] = schedule_two
    first = jobs.task(Queued(1, "first")).schedule()
    assert not jobs.task(Queued(1, "another")).schedule().created
    drain(jobs)
    assert [one.created for one in made] == [True, False]
    assert made[0] == made[1] != first
    assert bench.script.ran == ["first", "second"]
    assert bench.states(first, made[0]) == ["success", "success"]


def test_by_all_fields(jobs: Scheduler) -> None:
    first = jobs.task(whole, "a.jpg").schedule()
    assert jobs.task(whole, "a.jpg", width=800).schedule() == first  # the default is the same
    assert jobs.task(whole, "a.jpg", 400).schedule().created


def test_debounce_waits_for_the_last_call(bench: Bench, jobs: Scheduler) -> None:
    ids = []
    for text in ("one", "two", "three"):
        ids.append(jobs.task(Index("d", text)).schedule())
        bench.clock.advance(20)
        drain(jobs)
    assert len(set(ids)) == 1
    assert bench.script.ran == []
    bench.clock.advance(10)
    drain(jobs)
    assert bench.script.ran == ["three"]
    assert jobs.task(Index("d", "four")).schedule().created


def test_debounce_has_a_longest_delay(bench: Bench, jobs: Scheduler) -> None:
    for second in range(0, 120, 20):
        jobs.task(Index("d", f"at {second}")).schedule()
        bench.clock.advance(20)
        drain(jobs)
    assert bench.script.ran == ["at 80"]  # 100 s after the first call, though calls go on
    bench.clock.advance(30)
    drain(jobs)
    assert bench.script.ran == ["at 80", "at 100"]


def test_calls_while_it_runs_make_one_more_run(bench: Bench, jobs: Scheduler) -> None:
    def call(_ctx: Context) -> None:
        for text in ("b", "c"):
            jobs.task(Index("d", text)).schedule()

    bench.script.bodies["a"] = call
    jobs.task(Index("d", "a")).schedule()
    bench.clock.advance(30)
    drain(jobs)
    assert bench.script.ran == ["a"]
    bench.clock.advance(30)
    drain(jobs)
    assert bench.script.ran == ["a", "c"]


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda j: j.task(Sync(1)).key("mine"), ConfigError, "makes its keys itself"),
        (lambda j: j.task(Sync(1)).hourly_at(0), InvalidScheduleError, "keys of their slots"),
        (lambda j: j.task(Index("d", "t")).every(60), InvalidScheduleError, "keys of their slots"),
        (lambda j: (g := j.recurring("g").every(9)).task(Sync(1)) and g.schedule(), InvalidScheduleError, "slots"),
        (
            lambda j: task(kind="k", unique=Unique(), debounce=Debounce(1, 2))(lambda ctx: 1),
            ConfigError,
            "exclude each other",
        ),
        (lambda j: task(kind="k", unique=Unique(), key_retention=5)(lambda ctx: 1), ConfigError, "key_retention"),
        (lambda j: task(kind="k", unique="order_id")(lambda ctx: 1), ConfigError, "must be a Unique"),
        (lambda j: j.register(task(kind="k", unique=Unique(by=("x",)))(lambda ctx, y: 1)), ConfigError, "field 'x'"),
        (lambda j: Unique(by="order_id"), ConfigError, "tuple of names"),
        (lambda j: Unique(by=()), ConfigError, "names no field"),
        (lambda j: Unique(states=("success",)), ConfigError, "no state 'success'"),
        (lambda j: Unique(period=0), ConfigError, "more than 0"),
        (lambda j: Debounce(30, 10), ConfigError, "shorter than the wait"),
    ],
)
def test_contradictions_are_refused(
    jobs: Scheduler, build: Callable[[Any], Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        build(jobs)
    assert jobs.list_tasks() == []


def test_programs_without_the_type_cannot_bypass_it(bench: Bench, jobs: Scheduler) -> None:
    drain(jobs)  # publishes its kinds
    other = bench.worker()
    with pytest.raises(PayloadError, match="makes its keys itself"):
        other.submit("unique.Sync", {"order_id": 1})
