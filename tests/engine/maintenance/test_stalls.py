"""Running tasks without a heartbeat: told of while the lease is alive, and taken back where the kind wants that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from scheduler import AsyncContext, Context, LeaseLost, RetryPolicy, Scheduler, TaskState, task
from scheduler.errors import StoreUnavailableError
from scheduler.model.state import TaskState as S
from scheduler.store.admin import doctor as checks
from scheduler.store.read.explain import why
from scheduler.store.read.status import status
from scheduler.store.tasks import control
from scheduler.store.tasks import stalls as store_stalls
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database
from support.fleet import Fleet, ends, let_pass, run_claimed, step
from support.lost_answers import lose_the_answer

pytestmark = pytest.mark.case(3)
AGAIN = RetryPolicy(min_wait=0, max_wait=0, max_attempts=5, jitter=0, strategy="fixed")


class Room:
    """``ctx.state``: what handlers do, and how many are under way."""

    def __init__(self) -> None:
        self.body: Callable[[Context], None] | None = None
        self.ran = 0
        self.inside = 0
        self.most = 0

    def play(self, ctx: Context) -> int:
        self.ran += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if self.body is not None:
                self.body(ctx)
        finally:
            self.inside -= 1
        return ctx.attempt


@task(stall_after=60)
def watched(ctx: Context) -> int:
    return ctx.state.play(ctx)


@task(stall_after=60, on_stall="reclaim")
def taken(ctx: Context) -> int:
    return ctx.state.play(ctx)


@task(stall_after=60, on_stall="reclaim", retry=AGAIN)
def retried(ctx: Context) -> int:
    return ctx.state.play(ctx)


@task
def unwatched(ctx: Context) -> int:
    return ctx.state.play(ctx)


KINDS = (watched, taken, retried, unwatched)


@pytest.fixture
def room() -> Room:
    return Room()


def reports(jobs: Scheduler, task_id: int) -> tuple[str | None, list[str], list[str]]:
    """What show, status and doctor say."""
    with jobs.database.read() as tx:
        now = jobs.database.now()
        stuck = [s.text for s in status(tx.at(now)).stuck if s.name == "stalled" and task_id in s.tasks]
        found = [f.text for f in checks.check(tx.at(now)) if f.level == checks.NOTE and task_id in f.tasks]
        return why(tx.at(now), task_id), stuck, found


def stalls(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "stalled" in record.getMessage()]


def test_a_quiet_handler_is_reported_once_while_its_lease_is_alive(
    fleet: Fleet, room: Room, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = fleet.worker(*KINDS, state=room)
    caplog.set_level(logging.WARNING)
    seen: list[Any] = []

    def body(ctx: Context) -> None:
        let_pass(clock, 50, jobs)
        ctx.heartbeat()
        let_pass(clock, 55, jobs)
        seen.append((reports(jobs, ctx.id), stalls(caplog)))
        let_pass(clock, 30, jobs)
        seen.append((reports(jobs, ctx.id), stalls(caplog)))
        ctx.report_progress(50)
        seen.append((reports(jobs, ctx.id), stalls(caplog)))
        let_pass(clock, 60, jobs)
        seen.append((reports(jobs, ctx.id), stalls(caplog)))

    room.body = body
    task_id = jobs.task(watched).schedule()
    drain(jobs)
    assert jobs.get_task_status(task_id) is TaskState.SUCCESS
    assert seen[0] == ((None, [], []), [])
    (show, stuck, doctor), logged = seen[1]
    assert show is not None
    assert show.startswith("stalled: running on worker ")
    taken_back = 'ends it, and on_stall="reclaim" of its kind has it taken back'
    by_force = f"`schedctl cancel --force {task_id}` {taken_back}"
    assert show.endswith(f" without a heartbeat for 1 min 25 s, over its kind's 1 min: {by_force}")
    remedy = f"`schedctl cancel --force ID` {taken_back}"
    assert stuck == [f"1 task is running without a heartbeat, for up to 1 min 25 s: {remedy}"]
    assert doctor == [f"1 task running without a heartbeat, for up to 1 min 25 s: {task_id}; {remedy}"]
    assert logged == ["task stalled: no heartbeat for 1 min, over its kind's 1 min"]
    assert seen[2] == ((None, [], []), logged)
    assert seen[3][1] == logged * 2
    assert ends(jobs, task_id) == ["succeeded"]


def test_kinds_that_do_not_ask_for_it_are_left_alone(fleet: Fleet, room: Room, clock: FakeClock) -> None:
    jobs = fleet.worker(*KINDS, state=room)
    seen: list[Any] = []

    def body(ctx: Context) -> None:
        let_pass(clock, 600, jobs)
        seen.append(reports(jobs, ctx.id))

    room.body = body
    jobs.task(unwatched).schedule()
    drain(jobs)
    assert seen == [(None, [], [])]


def test_its_claim_is_taken_and_another_worker_runs_it(fleet: Fleet, room: Room, clock: FakeClock) -> None:
    first, second = fleet.worker(*KINDS, state=room), fleet.worker(*KINDS, state=Room())
    raised: list[BaseException] = []

    def body(ctx: Context) -> None:
        let_pass(clock, 60, first)
        step(first)  # it hands the task back, for a second
        clock.advance(1)
        assert drain(second) == 1
        try:
            ctx.heartbeat()
        except BaseException as error:
            raised.append(error)
            raise

    room.body = body
    task_id = first.task(taken).schedule()
    step(first)
    run_claimed(first)
    step(first)
    assert isinstance(raised[0], LeaseLost)
    assert second.result(task_id, timeout=0) == 2
    lost, done = second.get_attempts(task_id)
    assert (lost.outcome.value, lost.error_class) == ("lost", "Stalled")
    assert lost.error == "stalled: no heartbeat for 1 min"
    assert (lost.worker_id, done.worker_id) == (engine_of(first).worker, engine_of(second).worker)
    assert lost.started_at is not None
    assert not engine_of(first).engine_state.losing
    assert not engine_of(first).engine_state.held


def test_a_worker_never_runs_it_beside_its_first_handler(fleet: Fleet, room: Room, clock: FakeClock) -> None:
    jobs = fleet.worker(*KINDS, state=room)
    states: set[str] = set()
    beside: list[Any] = []

    def body(ctx: Context) -> None:
        if ctx.attempt == 1:
            let_pass(clock, 60, jobs)
            for _ in range(20):
                clock.advance(0.6)
                step(jobs)
                beside.extend(attempt for slots in engine_of(jobs).inline_slots() for attempt in slots.waiting)
                states.add(jobs.get_task_status(ctx.id))

    room.body = body
    task_id = jobs.task(taken).schedule()
    drain(jobs)
    clock.advance(1)
    drain(jobs)
    assert (room.ran, room.most) == (2, 1)
    assert "scheduled" in states
    assert not beside
    assert jobs.result(task_id, timeout=0) == 2
    assert ends(jobs, task_id) == ["lost", "succeeded"], "handing it back used no attempt and left no trace"


@pytest.mark.parametrize("answer", ["lost", "there"])
def test_nor_if_the_commit_that_took_it_back_was_not_answered(
    fleet: Fleet, room: Room, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    jobs = fleet.worker(*KINDS, state=room)
    lost = lose_the_answer(jobs, monkeypatch, store_stalls, "reclaim") if answer == "lost" else []
    beside: list[Any] = []

    def body(ctx: Context) -> None:
        if ctx.attempt == 1:
            with suppress(StoreUnavailableError):
                let_pass(clock, 61, jobs)
            for _ in range(20):
                clock.advance(0.6)
                step(jobs)
                beside.extend(attempt for slots in engine_of(jobs).inline_slots() for attempt in slots.waiting)
            ctx.heartbeat()

    room.body = body
    task_id = jobs.task(retried).schedule()
    for _ in range(3):
        drain(jobs)
        clock.advance(1)
    assert bool(lost) == (answer == "lost")
    assert not beside
    assert (room.ran, room.most) == (2, 1)
    assert jobs.result(task_id, timeout=0) == 2
    assert ends(jobs, task_id) == ["lost", "succeeded"]
    assert not engine_of(jobs).engine_state.losing


@pytest.mark.parametrize("ends_first", [True, False])
def test_the_last_stall_is_logged_although_its_commit_was_not_answered(
    fleet: Fleet, room: Room, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, ends_first: bool
) -> None:
    letters: list[Any] = []
    jobs = fleet.worker(*KINDS, state=room, on_dead_letter=letters.append)
    monkeypatch.setattr(store_stalls, "MIN_STALLED_ATTEMPTS", 1)
    lost = lose_the_answer(jobs, monkeypatch, store_stalls, "reclaim")

    def body(ctx: Context) -> None:
        with suppress(StoreUnavailableError):
            let_pass(clock, 61, jobs)
        if not ends_first:
            let_pass(clock, 10, jobs)

    room.body = body
    task_id = jobs.task(taken).schedule()
    drain(jobs)
    let_pass(clock, 10, jobs)
    assert lost
    assert jobs.get_task_status(task_id) is TaskState.DEAD
    assert [letter.id for letter in letters] == [task_id]
    assert not engine_of(jobs).engine_state.losing


def test_what_could_not_be_taken_back_is_not_taken_for_lost(
    fleet: Fleet, room: Room, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction holds its row."""
    jobs = fleet.worker(*KINDS, state=room)
    monkeypatch.setattr(store_stalls, "reclaim", lambda *_, **__: store_stalls.ReclaimedStalls([], {}))

    def body(ctx: Context) -> None:
        let_pass(clock, 61, jobs)
        assert not engine_of(jobs).engine_state.losing
        ctx.heartbeat()

    room.body = body
    task_id = jobs.task(taken).schedule()
    drain(jobs)
    assert ends(jobs, task_id) == ["succeeded"]


@pytest.mark.parametrize(("kind", "attempts"), [(taken, 3), (retried, 5)])
def test_one_that_is_always_quiet_ends_dead(
    fleet: Fleet, room: Room, clock: FakeClock, kind: Any, attempts: int
) -> None:
    letters: list[Any] = []
    jobs = fleet.worker(*KINDS, state=room, on_dead_letter=letters.append)
    room.body = lambda ctx: let_pass(clock, 65, jobs)
    task_id = jobs.task(kind).key("k").schedule()
    child = jobs.task(unwatched).depend_on(task_id, when="failure").schedule()
    for _ in range(12):
        drain(jobs)
        clock.advance(1)
    found = jobs.get_task(task_id)
    assert (found.state, found.error, found.error_class) == (
        S.DEAD,
        "stalled: no heartbeat for 1 min",
        "Stalled",
    )
    assert ends(jobs, task_id) == ["lost"] * attempts
    assert [letter.id for letter in letters] == [task_id]
    assert jobs.get_task_status(child) is S.SUCCESS
    assert jobs.task(kind).key("k").schedule() != task_id, "its key is free again"


def test_one_that_was_asked_to_end_ends(fleet: Fleet, room: Room, clock: FakeClock) -> None:
    jobs = fleet.worker(*KINDS, state=room)

    def body(ctx: Context) -> None:
        with jobs.database.write() as tx:
            control.cancel(tx, [ctx.id])
        let_pass(clock, 60, jobs)

    room.body = body
    task_id = jobs.task(taken).schedule()
    drain(jobs)
    assert jobs.get_task_status(task_id) is S.CANCELLED
    assert room.ran == 1


@pytest.mark.case(29)
def test_one_that_was_replaced_runs_as_what_replaced_it(fleet: Fleet, room: Room, clock: FakeClock) -> None:
    jobs = fleet.worker(*KINDS, state=room)

    def body(ctx: Context) -> None:
        room.body = None
        jobs.task(taken).key("k", conflict="replace").subject("new").schedule()
        let_pass(clock, 60, jobs)

    room.body = body
    task_id = jobs.task(taken).key("k").subject("old").schedule()
    drain(jobs)
    clock.advance(1)
    drain(jobs)
    found = jobs.get_task(task_id)
    assert (found.state, found.subject, found.attempts_used, room.ran) == (S.SUCCESS, "new", 1, 2)
    assert ends(jobs, task_id) == ["lost", "succeeded"]


def test_a_handler_that_has_ended_is_not_taken_back(fleet: Fleet, room: Room, clock: FakeClock) -> None:
    """Its outcome is to be recorded in the next cycle, and the looking comes first."""
    jobs = fleet.worker(*KINDS, state=room)
    room.body = lambda ctx: clock.advance(61)
    task_id = jobs.task(taken).schedule()
    drain(jobs)
    assert (jobs.get_task_status(task_id), ends(jobs, task_id)) == (S.SUCCESS, ["succeeded"])


def test_a_coroutine_is_interrupted(database: Database) -> None:
    """On a started engine, in real time."""
    cancelled: list[int] = []

    @task(stall_after=1.0, on_stall="reclaim")  # the second attempt has to begin and end within that, too
    async def sleeper(ctx: AsyncContext) -> int:
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(ctx.attempt)
                raise
        return ctx.attempt

    jobs = Scheduler(database.url)
    jobs.register(sleeper)
    task_id = jobs.task(sleeper).schedule()
    with jobs:
        assert jobs.result(task_id, timeout=20) == 2
    assert cancelled == [1]
    assert ends(jobs, task_id) == ["lost", "succeeded"]
    jobs.close()


def test_an_attempt_that_was_taken_back_counts_as_lost(fleet: Fleet, room: Room, clock: FakeClock) -> None:
    jobs = fleet.worker(*KINDS, state=room)
    room.body = lambda ctx: let_pass(clock, 65, jobs)
    jobs.task(taken).schedule()
    for _ in range(6):
        drain(jobs)
        clock.advance(1)
    found = jobs.stats().total
    assert found.outcomes == {"lost": 3}
    assert found.failure_rate == 1.0
