"""What a cycle's successes make ready is claimed by that very cycle, in its order among all that is due."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, TaskState, task
from scheduler.engine.dispatch import lanes
from scheduler.ports import FAILPOINTS
from scheduler.store.db import statements as statement
from scheduler.store.tasks import ready_children as ripe
from scheduler.store.tasks.attempts import INLINE
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, rows, run_claimed, step, write

on_sqlite = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
FOUR: dict[str, Any] = {"pools": {"medium": (4, 0), "high": (2, 0)}}


@task
def plain(ctx: Context, n: int = 0, text: str = "") -> str:
    return text[:3]


@task
def other(ctx: Context) -> None: ...


@task(queue="elsewhere")
def elsewhere(ctx: Context) -> None: ...


@task(max_concurrency=1)
def capped(ctx: Context) -> None: ...


def four(fleet: Fleet, *types: Any, **options: Any) -> Scheduler:
    """A worker that claims four tasks at once, and never more ahead."""
    jobs = fleet.worker(*(types or (plain,)), **FOUR, **options)
    engine_of(jobs).dispatch.planner.batch = 4
    return jobs


def finish_and_claim(jobs: Scheduler) -> None:
    """Run the claimed tasks; one cycle records them, without a notification."""
    assert run_claimed(jobs)
    engine_of(jobs).step()


def states(jobs: Scheduler, *ids: int) -> list[str]:
    return [jobs.get_task(i).state.value for i in ids]


def test_the_children_are_claimed_with_the_cycle_that_releases_them(fleet: Fleet) -> None:
    jobs = four(fleet)
    parent = jobs.task(plain).schedule()
    left = jobs.task(plain).schedule()
    children = [jobs.task(plain).depend_on(parent).schedule() for _ in range(3)]
    late = jobs.task(plain).depend_on([parent, left, *children]).schedule()
    step(jobs)
    finish_and_claim(jobs)
    assert states(jobs, parent, left, *children, late) == ["success"] * 2 + ["claimed"] * 3 + ["waiting"]
    assert [row.unmet for row in rows(jobs, "SELECT unmet FROM schedd_tasks ORDER BY id")] == [0, 0, 0, 0, 0, 3]
    attempts = [(a.number, a.outcome) for a in jobs.get_attempts(children[0])]
    assert attempts == []
    finish_and_claim(jobs)
    finish_and_claim(jobs)
    assert states(jobs, *children, late) == ["success"] * 4
    assert {tuple((a.number, a.outcome.value) for a in jobs.get_attempts(i)) for i in [*children, late]} == {
        ((1, "succeeded"),)
    }


def test_what_there_is_no_room_for_is_everybodys(fleet: Fleet, clock: FakeClock) -> None:
    jobs, others = four(fleet), four(fleet)
    parent = jobs.task(plain).schedule()
    children = [jobs.task(plain).after(20 - n).depend_on(parent).schedule() for n in range(7)]
    clock.advance(21)
    step(jobs)
    assert run_claimed(jobs)
    engine = engine_of(jobs)
    assert engine.dispatch.run(engine._conn(), claiming=True).ready >= 3  # for which other workers are notified
    assert states(jobs, *children) == ["scheduled"] * 3 + ["claimed"] * 4  # the earliest first
    step(others)
    assert states(jobs, *children) == ["claimed"] * 7
    assert {key[0] for key in engine_of(others).engine_state.held} == set(children[:3])


def test_what_was_due_before_comes_first(fleet: Fleet, clock: FakeClock) -> None:
    jobs = four(fleet)
    parent = jobs.task(plain).schedule()
    step(jobs)
    earlier = [jobs.task(plain).schedule() for _ in range(2)]
    clock.advance(1)
    children = [jobs.task(plain).depend_on(parent).schedule() for _ in range(4)]
    clock.advance(1)
    later = jobs.task(plain).schedule()
    finish_and_claim(jobs)
    assert states(jobs, *earlier, *children, later) == ["claimed"] * 4 + ["scheduled"] * 3


def test_a_higher_priority_comes_first(fleet: Fleet) -> None:
    jobs = fleet.worker(plain, other, pools={"medium": (1, 0)})
    engine_of(jobs).dispatch.planner.batch = 1
    parent = jobs.task(plain).schedule()
    medium = jobs.task(other).depend_on(parent).schedule()
    high = jobs.task(plain).priority("high").depend_on(parent).schedule()
    step(jobs)
    finish_and_claim(jobs)
    assert states(jobs, medium, high) == ["scheduled", "claimed"]
    run_claimed(jobs)
    step(jobs)
    assert states(jobs, medium, high) == ["claimed", "success"]


def test_what_is_not_due_yet_is_claimed_when_it_is(fleet: Fleet, clock: FakeClock) -> None:
    jobs = four(fleet)
    parent = jobs.task(plain).schedule()
    now, later = (jobs.task(plain).after(s).depend_on(parent).schedule() for s in (0, 5))
    step(jobs)
    finish_and_claim(jobs)
    assert states(jobs, now, later) == ["claimed", "scheduled"]
    finish_and_claim(jobs)
    assert engine_of(jobs)._next_due == clock.now() + 5_000_000
    clock.advance(5)
    engine_of(jobs).step()
    assert states(jobs, now, later) == ["success", "claimed"]


def test_what_another_worker_serves_is_left_to_it(fleet: Fleet) -> None:
    jobs = four(fleet, plain, queues=["default"])
    others = fleet.worker(plain, elsewhere, other, queues=["elsewhere", "default"])
    parent = jobs.task(plain).schedule()
    step(jobs)
    there = others.task(elsewhere).depend_on(parent).schedule()
    unknown = others.task(other).depend_on(parent).schedule()
    finish_and_claim(jobs)
    assert states(jobs, there, unknown) == ["scheduled"] * 2
    step(others)
    assert states(jobs, there, unknown) == ["claimed"] * 2


def test_a_cap_is_kept(fleet: Fleet) -> None:
    jobs = four(fleet, plain, capped)
    parent = jobs.task(plain).schedule()
    children = [jobs.task(capped).depend_on(parent).schedule() for _ in range(3)]
    step(jobs)
    finish_and_claim(jobs)
    assert sorted(states(jobs, *children)) == ["claimed", "scheduled", "scheduled"]


def test_a_broken_edge_ends_what_it_should_and_the_rest_is_claimed(fleet: Fleet) -> None:
    jobs = four(fleet)
    parent = jobs.task(plain).schedule()
    usual = jobs.task(plain).depend_on(parent).schedule()
    never = jobs.task(plain).depend_on(parent, when="failure", otherwise="skip").schedule()
    below = jobs.task(plain).depend_on(never).schedule()
    step(jobs)
    finish_and_claim(jobs)
    step(jobs)
    assert states(jobs, usual, never, below) == ["claimed", "skipped", "skipped"]


def test_what_is_rarely_set_and_what_is_long_comes_along(fleet: Fleet) -> None:
    jobs = four(fleet)
    parent = jobs.task(plain).schedule()
    text = "abc" * INLINE
    child = jobs.task(plain, 1, text).depend_on(parent).headers({"a": "b"}).schedule()
    step(jobs)
    finish_and_claim(jobs)
    (attempt,) = engine_of(jobs).engine_state.held.values()
    assert attempt.claimed.headers == '{"a":"b"}'
    finish_and_claim(jobs)
    assert jobs.get_task(child).result == "abc"


def test_a_suspect_runs_alone(fleet: Fleet) -> None:
    jobs = four(fleet)
    parent, beside = jobs.task(plain).schedule(), jobs.task(plain).schedule()
    usual, suspect = (jobs.task(plain).depend_on(parent).schedule() for _ in range(2))
    write(jobs, "UPDATE schedd_tasks SET lane = '!' || lane, suspect = 1 WHERE id = :id", id=suspect)
    step(jobs)
    finish_and_claim(jobs)
    while states(jobs, suspect) != ["success"]:
        held = [jobs.get_task(key[0]) for key in engine_of(jobs).engine_state.held]
        assert len(held) == 1 or suspect not in {t.id for t in held}
        run_claimed(jobs)
        step(jobs)
    assert states(jobs, parent, beside) == ["success"] * 2
    run_claimed(jobs)
    step(jobs)
    assert states(jobs, usual) == ["success"]


@pytest.mark.parametrize("at", ["before finish commit", "after finish commit"])
def test_a_cycle_that_fails_loses_none(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    jobs = four(fleet)
    parent = jobs.task(plain).schedule()
    child = jobs.task(plain).depend_on(parent).schedule()
    step(jobs)
    assert run_claimed(jobs)

    def fail(name: str) -> None:
        if name == at:
            raise RuntimeError("no")

    with monkeypatch.context() as m:
        m.setattr(FAILPOINTS, "hit", fail)
        with pytest.raises(RuntimeError, match="no"):
            engine_of(jobs).step()
    for _ in range(6):
        step(jobs)
        run_claimed(jobs)
    assert states(jobs, parent, child) == ["success"] * 2
    assert not engine_of(jobs).engine_state.held


def test_what_was_left_comes_before_what_comes_next(fleet: Fleet, clock: FakeClock) -> None:
    jobs = four(fleet)
    parent = jobs.task(plain).schedule()
    children = [jobs.task(plain).depend_on(parent).schedule() for _ in range(8)]
    clock.advance(1)
    next_ones = [jobs.task(plain).depend_on(children[0]).schedule() for _ in range(4)]
    clock.advance(1)
    step(jobs)
    finish_and_claim(jobs)
    assert states(jobs, *children) == ["claimed"] * 4 + ["scheduled"] * 4
    finish_and_claim(jobs)
    assert states(jobs, *children, *next_ones) == ["success"] * 4 + ["claimed"] * 4 + ["scheduled"] * 4


def test_what_there_was_no_room_for_comes_first(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(plain, pools={"medium": (2, 0)}, max_concurrent_tasks=2)
    parents = [jobs.task(plain).schedule() for _ in range(2)]
    step(jobs)
    (slots,) = [s for s in engine_of(jobs).inline_slots() if s.waiting]
    before = jobs.task(plain).schedule()
    clock.advance(1)
    child = jobs.task(plain).depend_on(parents[0]).schedule()
    step(jobs)  # it has seen what is due, and has no room
    assert slots.run_one()
    engine_of(jobs).step()
    assert states(jobs, before, child) == ["claimed", "scheduled"]


def test_there_may_be_too_many_to_be_read(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ripe, "MAX_CHILDREN", 3)
    jobs = four(fleet)
    parents = [jobs.task(plain).schedule() for _ in range(2)]
    some = [jobs.task(plain).depend_on(parents[0]).schedule() for _ in range(5)]
    one = jobs.task(plain).depend_on(parents).schedule()
    step(jobs)
    finish_and_claim(jobs)
    assert states(jobs, *some, one) == ["claimed"] * 4 + ["scheduled"] * 2


def test_more_lanes_than_one_look_takes_in(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is due in theirs is not known then: it comes first."""
    jobs = fleet.worker(plain, other, pools={"medium": (1, 0)}, max_concurrent_tasks=1)
    parent = jobs.task(plain).schedule()
    step(jobs)
    monkeypatch.setattr(lanes, "LANES_PER_SCAN", 2)
    for kind in (plain, other):  # the lanes that are looked at first
        jobs.task(kind).priority("high").after(60).schedule()
    before = jobs.task(plain).schedule()
    clock.advance(1)
    child = jobs.task(plain).depend_on(parent).schedule()
    assert run_claimed(jobs)
    engine = engine_of(jobs)
    for _ in range(3):
        engine.step()
    assert states(jobs, before, child) == ["claimed", "scheduled"]


def claimed_after(jobs: Scheduler, clock: FakeClock, task_id: int) -> float:
    """Seconds that the worker takes to claim it, if it pauses as long as it would."""
    engine, begun = engine_of(jobs), clock.monotonic()
    while states(jobs, task_id) == ["scheduled"]:
        assert clock.monotonic() < begun + 10
        clock.advance(max(engine._pause(), 0.001))
        engine.step()
    return clock.monotonic() - begun


@pytest.fixture
def jobs(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """A worker that polls once a second unless it is notified."""
    made = four(fleet, plain, other)
    monkeypatch.setattr(engine_of(made), "_poll_every", lambda: 1.0)
    return made


def test_unnotified_work_is_found_a_quarter_of_a_second_later(jobs: Scheduler, fleet: Fleet, clock: FakeClock) -> None:
    """Children of its own do not keep a worker from looking what else there is."""
    parent = jobs.task(plain).schedule()
    child = jobs.task(plain).depend_on(parent).schedule()
    step(jobs)
    step(jobs)  # nothing else is due, and that is known for a while
    clock.advance(0.2)
    due = fleet.worker(other).task(other).schedule()
    finish_and_claim(jobs)
    assert states(jobs, child) == ["claimed"]
    assert claimed_after(jobs, clock, due) <= lanes.RELY_ON_SCAN_S


@pytest.mark.parametrize("notified", [True, False])
def test_a_cycle_after_a_failed_one_overlooks_nothing(
    jobs: Scheduler, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, notified: bool
) -> None:
    """It records what the failed one could not, and does not look itself."""
    parents = [jobs.task(plain).schedule() for _ in range(2)]
    children = [jobs.task(plain).depend_on(parent).schedule() for parent in parents]
    step(jobs)
    step(jobs)
    engine = engine_of(jobs)
    (slots,) = [s for s in engine.inline_slots() if s.waiting]
    assert slots.run_one()
    due = jobs.task(other).schedule() if notified else None

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as m:
        m.setattr("scheduler.engine.dispatch.completion.finish", fail)
        with pytest.raises(RuntimeError):
            step(jobs)
    clock.advance(0.1)  # as long as the loop waits after an error
    engine._needs_scan = True
    engine.step()
    assert states(jobs, *children) == ["scheduled", "waiting"]
    assert slots.run_one()
    engine.step()
    assert states(jobs, *children) == ["claimed"] * 2
    assert due is None or claimed_after(jobs, clock, due) == 0


def test_a_look_that_is_not_at_the_whole_proves_nothing(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = fleet.worker(plain, other, pools={"medium": (1, 0)}, max_concurrent_tasks=1)
    parent = jobs.task(plain).schedule()
    step(jobs)
    step(jobs)
    monkeypatch.setattr(lanes, "LANES_PER_SCAN", 2)
    for kind in (plain, other):
        jobs.task(kind).priority("high").after(60).schedule()
    before = jobs.task(plain).schedule()
    clock.advance(0.1)
    child = jobs.task(plain).depend_on(parent).schedule()
    step(jobs)
    assert not engine_of(jobs).dispatch.lanes.whole
    finish_and_claim(jobs)
    assert states(jobs, before, child) != ["scheduled", "claimed"]


@on_sqlite
def test_that_it_comes_due_is_known_at_once(fleet: Fleet, clock: FakeClock) -> None:
    jobs = four(fleet)
    top = jobs.task(plain).schedule()
    parent = jobs.task(plain).depend_on(top).schedule()
    for seconds in (0, 5):
        jobs.task(plain).after(seconds).depend_on(parent).schedule()
    step(jobs)
    for _ in range(2):
        finish_and_claim(jobs)
    assert engine_of(jobs)._next_due == clock.now() + 5_000_000


@on_sqlite
def test_it_is_written_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = four(fleet)
    with jobs.batch() as batch:
        above: list[Any] = []
        for _ in range(5):
            above = [batch.task(plain).depend_on(above) if above else batch.task(plain) for _ in range(4)]
    step(jobs)
    finish_and_claim(jobs)  # it has looked whether anything else is due
    statements: list[str] = []
    raw = statement._raw

    def recording(connection: sa.Connection, text: str, bound: Any) -> Any:
        statements.append(text)
        return raw(connection, text, bound)

    monkeypatch.setattr(statement, "_raw", recording)
    finish_and_claim(jobs)
    updates = [text for text in statements if "UPDATE schedd_tasks" in text]
    assert len(updates) == 2, updates  # the ends, and the claim
    assert not [text for text in statements if "RECURSIVE" in text]  # nor is there a look for more
    assert {t.state for t in jobs.list_tasks()} == {TaskState.SUCCESS, TaskState.CLAIMED, TaskState.WAITING}
