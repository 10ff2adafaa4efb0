"""How much a cycle takes on: as much as fits into its own time on this machine, with this database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, RetryPolicy, Scheduler, TaskState, task
from scheduler.engine.dispatch import completion as ledger
from scheduler.engine.dispatch import cycle as turn
from scheduler.engine.dispatch import requests as answering
from scheduler.engine.dispatch.lanes import RELY_ON_SCAN_S, LaneOffsets
from scheduler.engine.dispatch.planner import BATCH_BOUNDS
from scheduler.engine.engine import LOCKED_RETRY_S
from scheduler.engine.maintenance.jobs import ScheduleFirer
from scheduler.engine.slots import InlineSlots
from scheduler.model.capacity import THREAD
from scheduler.store import due_work as looks_of_store
from scheduler.store.db.statements import _MAX_ROWS
from scheduler.store.db.write_gate import WriteGate
from scheduler.store.tasks import claim as claims
from scheduler.store.tasks.complete import Completion
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, ends, run_claimed, step
from support.lost_answers import fail_a_step


@task
def plain(ctx: Context) -> None: ...


def largest(jobs: Scheduler) -> int:
    """How much the planner lets a cycle take on after some cycles with a lot to do."""
    for _ in range(4):
        with jobs.batch() as batch:
            for _ in range(100):
                batch.task(plain)
        step(jobs)
        while run_claimed(jobs):
            step(jobs)
    return engine_of(jobs).dispatch.planner.batch


def test_a_slow_database_makes_cycles_smaller(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = fleet.worker(plain, pools={"medium": (250, 0)})
    claim = claims.claim

    def slowly(*args: object) -> list[claims.Claimed]:
        clock.advance(0.1)
        return claim(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(claims, "claim", slowly)
    assert largest(jobs) < BATCH_BOUNDS[1]


def test_after_a_slow_one_they_grow_to_the_most_again(fleet: Fleet) -> None:
    """Rounded down, the mean would stop short of it."""
    dispatch = engine_of(fleet.worker(plain)).dispatch
    dispatch._fit(0.030, BATCH_BOUNDS[1])
    assert dispatch.planner.batch < BATCH_BOUNDS[1]
    for _ in range(20):
        dispatch._fit(0.0001, dispatch.planner.batch)
    assert dispatch.planner.batch == BATCH_BOUNDS[1] == _MAX_ROWS


def test_waiting_for_other_writers_does_not(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two daemons on one SQLite file, which take turns, commit half as much each time."""
    jobs = fleet.worker(plain, pools={"medium": (250, 0)})
    passed = WriteGate.hold

    @contextmanager
    def after_a_while(gate: WriteGate) -> Iterator[None]:
        clock.advance(0.1)
        with passed(gate):
            yield

    monkeypatch.setattr(WriteGate, "hold", after_a_while)
    assert largest(jobs) == BATCH_BOUNDS[1]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each recording of ends, whether it was to be done without locking them first."""
    found: list[bool] = []
    real = ledger.finish

    def finish(*args: Any, **given: Any) -> Completion:
        found.append(given.get("skip_locks", False))
        return real(*args, **given)

    monkeypatch.setattr(ledger, "finish", finish)
    return found


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.case(6)
def test_what_a_caller_holds_is_put_off_and_no_other_task_waits(
    fleet: Fleet, clock: FakeClock, asked: list[bool]
) -> None:
    """A cycle writes without locking first. If another transaction holds a row, the cycle writes again, with locks."""
    jobs = fleet.worker(plain)
    engine_of(jobs)._poll_every = lambda: 60.0  # type: ignore[method-assign]
    held, free = jobs.task(plain).schedule(), jobs.task(plain).schedule()
    step(jobs)
    assert run_claimed(jobs) == 2
    with jobs.database.write() as tx:
        tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": held})
        step(jobs)
        assert jobs.get_task_status(free) is TaskState.SUCCESS
        assert jobs.get_task_status(held) is TaskState.CLAIMED
        # No notification comes when it can be written.
        assert engine_of(jobs).periodic.timers.remaining("poll") <= LOCKED_RETRY_S
        assert asked == [True, False]
        clock.advance(ledger.LOCK_FIRST_S)
        step(jobs)
        assert asked == [True, False, False]  # it is still held, as is known
    step(jobs)
    assert jobs.get_task_status(held) is TaskState.SUCCESS
    assert asked == [True, False, False, False]
    later = jobs.task(plain).schedule()
    step(jobs)
    run_claimed(jobs)
    step(jobs)
    assert jobs.get_task_status(later) is TaskState.SUCCESS
    assert asked[-1]
    assert [ends(jobs, i) for i in (held, free, later)] == [["succeeded"]] * 3


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.case(65)
@pytest.mark.parametrize("many", [3, 4, 9])
def test_requests_that_are_put_off_keep_no_others_waiting(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    """However many there are: a cycle answers 500, here 4. And each of them is asked again in turn."""
    monkeypatch.setattr(answering, "MAX_REQUESTS", 4)
    jobs = fleet.worker(plain, pools={"medium": (20, 0)})
    with jobs.batch() as batch:
        for _ in range(many + 1):
            batch.task(plain)
    step(jobs)
    engine_state = engine_of(jobs).engine_state
    monkeypatch.setattr(engine_state, "inline", None)  # no thread runs a cycle for a request
    attempts = {attempt.claimed.id: attempt for attempt in engine_state.held.values()}

    def ask(task_id: int) -> Any:
        return engine_state.request(
            attempts[task_id], "record", {"name": "step", "seq": 1, "value": None, "started_at": None}
        )

    with jobs.database.write() as tx:
        tx.connection.execute(
            sa.text("SELECT id FROM schedd_tasks WHERE id < :last ORDER BY id FOR UPDATE"), {"last": batch.ids[-1]}
        )
        blocked = [ask(task_id) for task_id in batch.ids[:-1]]
        for _ in range(many):
            step(jobs)
        assert len(engine_state.put_off) == many
        free = ask(batch.ids[-1])
        step(jobs)
        assert free.done()
        assert not any(answer.done() for answer in blocked)
    for _ in range(many):
        step(jobs)
    assert [answer.result(0)["held"] for answer in blocked] == [True] * many


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.case(52, 65)
@pytest.mark.parametrize("fails", [False, True], ids=["commits", "fails"])
def test_requests_of_an_attempt_stay_in_their_order(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Grouped steps do not wait for each other: a later one is not to be recorded without one before it."""
    monkeypatch.setattr(answering, "MAX_REQUESTS", 4)
    jobs = fleet.worker(plain, pools={"medium": (2, 0)})
    held, other = jobs.task(plain).schedule(), jobs.task(plain).schedule()
    step(jobs)
    engine_state = engine_of(jobs).engine_state
    monkeypatch.setattr(engine_state, "inline", None)  # no thread runs a cycle for a request
    attempts = {attempt.claimed.id: attempt for attempt in engine_state.held.values()}

    def ask(task_id: int, n: int) -> Any:
        named = {"name": f"{n:02}", "seq": n, "value": None, "started_at": None}
        return engine_state.request(attempts[task_id], "record", named)

    answers = []
    with jobs.database.write() as tx:
        tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR UPDATE"), {"id": held})
        for n in range(9):
            answers.append(ask(held, n))
            step(jobs)
    beside = ask(other, 1)
    if fails:
        fail_a_step(jobs, monkeypatch, "before answer commit")
    for n in range(9, 14):
        answers.append(ask(held, n))
        step(jobs)
        done = [answer.done() for answer in answers]
        assert done == sorted(done, reverse=True), done
    while not all(answer.done() for answer in answers):
        step(jobs)
    assert beside.done()


@task(max_concurrency=2)
def capped(ctx: Context) -> None: ...


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_only_ends_of_capped_kinds_are_locked_first(fleet: Fleet, asked: list[bool]) -> None:
    jobs = fleet.worker(plain, capped)
    for kind in (plain, capped):
        done = jobs.task(kind).schedule()
        step(jobs)
        assert run_claimed(jobs) == 1
        step(jobs)
        assert jobs.get_task_status(done) is TaskState.SUCCESS
    assert asked == [True, False]


def test_quick_kinds_are_claimed_ahead_for_one_priority_only(fleet: Fleet) -> None:
    """The others' slots help with what they can start at once."""
    jobs = fleet.worker(plain, pools={"medium": (4, 0), "low": (3, 0)})
    engine = engine_of(jobs)
    engine.dispatch.planner.batch = 10
    engine.engine_state.means["plain"] = 0.00001
    for _ in range(100):
        jobs.task(plain).schedule()
    for _ in range(5):
        step(jobs)
    sorts = Counter(attempt.slot_key for attempt in engine.engine_state.held.values())
    assert sorts == {(1, THREAD): 4 + 2 * 10, (2, THREAD): 3}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many lanes each look at all of them has found."""
    seen: list[int] = []

    def heads(*args: Any, **options: Any) -> list[claims.LaneHead]:
        found = real(*args, **options)
        seen.append(len(found))
        return found

    real = LaneOffsets.heads
    monkeypatch.setattr(LaneOffsets, "heads", heads)
    return seen


def in_fours(fleet: Fleet, *types: Any) -> Scheduler:
    """A worker whose cycles claim four tasks."""
    jobs = fleet.worker(*types, pools={"medium": (4, 0)})
    engine_of(jobs).dispatch.planner.batch = 4
    return jobs


def goes_on(jobs: Scheduler) -> int:
    """Run the claimed handlers, then one more cycle, without a notification."""
    ran = run_claimed(jobs)
    engine_of(jobs).step()
    return ran


@task
def fails_once(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise RuntimeError("once")


def test_a_lane_that_gives_what_is_asked_is_taken_to_hold_more(
    fleet: Fleet, clock: FakeClock, looks: list[int]
) -> None:
    """For a moment; once it gives less, everything is looked at before the engine rests."""
    jobs = in_fours(fleet, plain)
    ids = [jobs.task(plain).schedule() for _ in range(22)]
    step(jobs)
    assert looks == [1]
    assert [goes_on(jobs) for _ in range(3)] == [4, 4, 4]
    assert looks == [1]
    clock.advance(RELY_ON_SCAN_S)
    assert goes_on(jobs) == 4
    assert looks == [1, 1]
    assert [goes_on(jobs), goes_on(jobs)] == [4, 2]  # the first left two, which the lane gave instead of four
    assert looks == [1, 1, 0]
    assert all(jobs.get_task_status(i) is TaskState.SUCCESS for i in ids)


def test_what_a_worker_itself_makes_due_is_looked_for(fleet: Fleet, looks: list[int]) -> None:
    jobs = in_fours(fleet, plain, fails_once)
    parent = jobs.task(plain).schedule()
    child = jobs.task(fails_once).with_retry(RetryPolicy(0, max_attempts=2)).depend_on(parent).schedule()
    for _ in range(30):
        jobs.task(plain).schedule()
    step(jobs)
    assert looks == [1]
    assert goes_on(jobs) == 4
    # It has released one of another kind, which on SQLite it claims before that is among the lanes.
    looked = 1 if jobs.database.dialect.name == "sqlite" else 2
    assert looks == [1, looked]
    assert jobs.get_task_status(child) is TaskState.CLAIMED
    assert goes_on(jobs)
    assert looks == [1, looked, 2]  # which is due again
    assert jobs.get_task_status(child) is TaskState.CLAIMED
    assert goes_on(jobs)
    assert jobs.get_task_status(child) is TaskState.SUCCESS


@task
def named(ctx: Context, text: str) -> None: ...


@pytest.mark.parametrize("delay", [0, 0.1])
def test_what_was_replaced_while_it_ran_is_due_again(fleet: Fleet, clock: FakeClock, delay: float) -> None:
    """It has succeeded, and yet it may be claimed, or will be."""
    jobs = fleet.worker(plain, named, pools={"medium": (4, 0), "high": (2, 0)})
    engine = engine_of(jobs)
    engine.dispatch.planner.batch = 4
    first = jobs.task(named, "a").priority("high").key("k", conflict="replace").schedule()
    step(jobs)
    for _ in range(22):
        jobs.task(plain).schedule()
    step(jobs)
    assert jobs.task(named, "b").priority("high").key("k", conflict="replace").after(delay).schedule() == first
    step(jobs)
    high = engine.slots[turn.HIGH_PRIORITY, THREAD]
    assert isinstance(high, InlineSlots)
    assert high.run_one()
    engine.step()
    if delay:
        assert engine._next_due == clock.now() + delay * 1_000_000
        clock.advance(delay)
        engine.step()
    assert jobs.get_task_status(first) is TaskState.CLAIMED


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_what_is_handed_back_is_notified_although_the_cycle_is_done_over(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(plain)
    engine = engine_of(jobs)
    first = jobs.task(plain).schedule()
    step(jobs)
    run_claimed(jobs)
    ended = list(engine.engine_state.outcomes)
    engine.engine_state.outcomes.clear()  # to be recorded with the next cycle but one
    jobs.task(plain).schedule()
    step(jobs)
    engine.engine_state.outcomes.extend(ended)
    clock.advance(engine.options.give_back + 1)
    with jobs.database.write() as tx:
        tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": first})
        assert engine.dispatch.run(engine._conn(), claiming=False).ready == 1


def test_schedules_are_looked_at_with_every_look(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one takes longer than the next."""
    seen: list[float] = []
    took = cycle([0.05, 0.0])
    look, see = looks_of_store.poll, ScheduleFirer.note_next

    def slowly(*args: Any, **options: Any) -> looks_of_store.DueWork:
        clock.advance(next(took))
        return look(*args, **options)

    def recorded(schedules: ScheduleFirer, next_at: int) -> None:
        seen.append(clock.monotonic())
        see(schedules, next_at)

    monkeypatch.setattr(looks_of_store, "poll", slowly)
    monkeypatch.setattr(ScheduleFirer, "note_next", recorded)
    jobs = fleet.worker(plain)
    begun = clock.monotonic()
    while clock.monotonic() < begun + 5:
        engine_of(jobs).step()
        clock.advance(0.003)
    assert max(after - before for before, after in pairwise(seen)) < 1.1
