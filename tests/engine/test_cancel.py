"""Cancelling, in every state; handlers really run here, in threads and on an event loop, led by events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import (
    AsyncContext,
    Context,
    RetryPolicy,
    Scheduler,
    Task,
    TaskCancelledError,
    UnknownDependencyError,
    UnknownTaskError,
)
from scheduler.errors import Cancelled
from support.bench import Bench, Step, notify_and_step, run_claimed
from support.databases import Database

PATIENCE = 20  # seconds after which a test that should be told gives up


class Room:
    """``ctx.state``: where a handler and its test wait for one another."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.raised: list[str] = []
        self.runs = 0

    def enter(self) -> None:
        self.runs += 1
        self.started.set()


class Looks(Task):
    """Looks again and again whether it was cancelled."""

    def run(self, ctx: Context) -> str:
        ctx.state.enter()
        try:
            while not ctx.state.go_on.wait(0.001):
                ctx.check_cancelled()
        except BaseException as error:
            ctx.state.raised.append(type(error).__name__)
            raise
        return "not told"


class Beats(Looks):
    """Finds out by a call that writes."""

    def run(self, ctx: Context) -> str:
        ctx.state.enter()
        try:
            while not ctx.state.go_on.is_set():
                ctx.heartbeat()
        except BaseException as error:
            ctx.state.raised.append(type(error).__name__)
            raise
        return "not told"


class Swallows(Task):
    """Catches what it can, and goes on to its end."""

    def run(self, ctx: Context) -> str:
        ctx.state.enter()
        try:
            while not ctx.state.go_on.wait(0.001):
                ctx.check_cancelled()
        except Cancelled:
            ctx.state.raised.append("Cancelled")
        return "done anyway"


class Deaf(Task):
    """Never looks."""

    def run(self, ctx: Context) -> str:
        ctx.state.enter()
        assert ctx.state.go_on.wait(PATIENCE)
        if ctx.state.runs > 5:
            raise ValueError("too often")
        return "done"


class Awaits(Task):
    """Sleeps on the event loop."""

    async def run(self, ctx: AsyncContext) -> str:
        ctx.state.enter()
        try:
            await asyncio.sleep(PATIENCE)
        except BaseException as error:
            ctx.state.raised.append(type(error).__name__)
            raise
        return "not told"


class AwaitsInHook(Task):
    """Fails, and is cancelled while its hook cleans up."""

    async def run(self, ctx: AsyncContext) -> None:
        raise ValueError("failed")

    async def on_failed(self, ctx: AsyncContext, error: BaseException) -> None:
        ctx.state.enter()
        await asyncio.sleep(PATIENCE)


KINDS = (Looks, Beats, Swallows, Deaf, Awaits, AwaitsInHook, Step)


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def jobs(database: Database, room: Room) -> Iterator[Scheduler]:
    made = Scheduler(database.url, state=room)
    for kind in KINDS:
        made.register(kind)
    with made:
        yield made
        room.go_on.set()
    made.close()


def start(jobs: Scheduler, room: Room, task: Task, change: Callable[[Any], Any] = lambda b: b) -> int:
    task_id = int(change(jobs.task(task)).schedule())
    assert room.started.wait(PATIENCE)
    return task_id


def end_of(jobs: Scheduler, task_id: int) -> str:
    return jobs.wait(task_id, PATIENCE)[task_id].state.value


@pytest.mark.case(48)
@pytest.mark.parametrize("kind", [Looks, Beats])
def test_a_thread_ends_at_its_next_context_call(jobs: Scheduler, room: Room, kind: type[Task]) -> None:
    task_id = start(jobs, room, kind())
    child = jobs.task(Looks()).depend_on(task_id).schedule()
    cleans = jobs.task(Looks()).depend_on(task_id, when="failure").after(3600).schedule()
    done = jobs.cancel_task(task_id)
    assert (done.cancelled, done.requested, done.finished, done.affected) == ((), (task_id,), {}, ())
    assert end_of(jobs, task_id) == "cancelled"
    assert room.raised == ["Cancelled"]
    assert [jobs.get_task_status(i).value for i in (child, cleans)] == ["failed", "scheduled"]
    (attempt,) = jobs.get_attempts(task_id)
    assert attempt.outcome == "cancelled"
    with pytest.raises(TaskCancelledError):
        jobs.result(task_id)


@pytest.mark.case(48)
def test_the_request_is_shown_until_the_handler_ends(jobs: Scheduler, room: Room) -> None:
    """A handler that never looks ends as cancelled, too, whatever it returned; until then nothing moves."""
    task_id = start(jobs, room, Deaf())
    child = jobs.task(Deaf()).depend_on(task_id).schedule()
    first = jobs.cancel_task(task_id)
    asked = jobs.get_task(task_id)
    again = jobs.cancel_task(task_id)
    assert first.requested == again.requested == (task_id,)
    assert asked.cancel_requested is not None
    assert asked.state in ("claimed", "running")
    assert jobs.get_task(task_id).cancel_requested == asked.cancel_requested
    assert jobs.get_task_status(child) == "waiting"
    room.go_on.set()
    assert end_of(jobs, task_id) == "cancelled"
    assert jobs.get_task_status(child) == "failed"


@pytest.mark.case(48)
def test_a_handler_that_swallows_it_is_cancelled_all_the_same(jobs: Scheduler, room: Room) -> None:
    task_id = start(jobs, room, Swallows(), lambda b: b.with_retry(RetryPolicy(0, 0)))
    jobs.cancel_task(task_id)
    assert end_of(jobs, task_id) == "cancelled"
    assert (room.raised, room.runs) == (["Cancelled"], 1)


@pytest.mark.case(48)
def test_an_async_handler_ends_at_its_next_await(jobs: Scheduler, room: Room) -> None:
    task_id = start(jobs, room, Awaits(), lambda b: b.with_retry(RetryPolicy(0, 0)))
    assert jobs.cancel_task(task_id).requested == (task_id,)
    assert end_of(jobs, task_id) == "cancelled"
    assert (room.raised, room.runs) == (["CancelledError"], 1)


@pytest.mark.case(48)
def test_an_async_hook_that_is_cancelled_still_ends_the_attempt(jobs: Scheduler, room: Room) -> None:
    task_id = start(jobs, room, AwaitsInHook())
    jobs.cancel_task(task_id)
    assert end_of(jobs, task_id) == "cancelled"
    assert jobs.stop(PATIENCE) == []


@pytest.mark.case(48)
def test_the_key_of_a_cancelled_task_is_free(jobs: Scheduler, room: Room) -> None:
    task_id = start(jobs, room, Deaf(), lambda b: b.key("k"))
    jobs.cancel_task(task_id)
    assert jobs.task(Deaf()).key("k").schedule() == task_id  # held until the handler has ended
    room.go_on.set()
    assert end_of(jobs, task_id) == "cancelled"
    fresh = jobs.task(Deaf()).key("k").after(3600).schedule()
    assert fresh.created


@pytest.mark.case(48)
@pytest.mark.parametrize("state", ["waiting", "scheduled", "retry", "claimed"])
def test_what_is_not_running_never_runs(bench: Bench, state: str) -> None:
    """Waiting, due later, between two attempts, and claimed but not begun."""
    task = bench.step("task").key("k").with_retry(RetryPolicy(60, 60, max_attempts=2))
    if state == "waiting":
        task.depend_on(bench.step("open").after(60).schedule())
    if state == "retry":
        bench.script.bodies["task"] = lambda ctx: 1 / 0
    task_id = int(task.schedule() if state != "scheduled" else task.after(60).schedule())
    if state == "retry":
        bench.drain()
    if state == "claimed":
        notify_and_step(bench.jobs)
    assert bench.state(task_id) == state
    before = list(bench.script.ran)
    done = bench.jobs.cancel_task(task_id)
    if state == "claimed":
        assert (done.cancelled, done.requested) == ((), (task_id,))
        notify_and_step(bench.jobs)  # the engine hears of it
        run_claimed(bench.jobs)
        bench.drain()
    else:
        assert (done.cancelled, done.requested) == ((task_id,), ())
    record = bench.jobs.get_task(task_id)
    assert (record.state, record.finished_at) == ("cancelled", bench.clock.datetime)
    bench.drain()
    bench.advance(120)
    assert bench.script.ran == [*before, *(["open"] if state == "waiting" else [])]
    assert bench.step("fresh").key("k").schedule().created


@pytest.mark.case(48)
@pytest.mark.parametrize("end", ["success", "dead", "cancelled", "skipped"])
def test_what_has_ended_stays_as_it_is(bench: Bench, end: str) -> None:
    """And so does a second cancel change nothing."""
    task_id = bench.ended(end)
    before = bench.jobs.get_task(task_id)
    bench.clock.advance(5)
    done = bench.jobs.cancel_task(task_id, cascade=True)
    assert (done.cancelled, done.requested, done.finished, done.affected) == ((), (), {task_id: end}, ())
    assert bench.jobs.get_task(task_id) == before


@pytest.mark.case(23, 48)
@pytest.mark.parametrize("task_id", [99, 0, -1, 2**63, 2**70])
def test_an_unknown_id(bench: Bench, task_id: int) -> None:
    """Also one that is too large for any task."""
    jobs, known = bench.jobs, bench.step("known").after(60).schedule()
    for change in (
        lambda: jobs.cancel_task(task_id),
        lambda: jobs.retry_task(task_id),
        lambda: jobs.add_dependency(task_id, known),
        lambda: jobs.set_retry_policy(task_id, RetryPolicy(1, 1)),
    ):
        with pytest.raises(UnknownTaskError, match=str(task_id)):
            change()
    with pytest.raises(UnknownDependencyError, match=str(task_id)):
        jobs.add_dependency(known, task_id)


@pytest.mark.case(48)
def test_a_dead_workers_task_that_was_cancelled_is_not_run_again(bench: Bench) -> None:
    dying, other = bench.worker(queues=["default"], lease=30), bench.worker(lease=30)
    task_id = int(bench.step("task").schedule())
    child = bench.step("child", task_id, when="failure").schedule()
    notify_and_step(dying)
    notify_and_step(other)
    assert bench.jobs.cancel_task(task_id).requested == (task_id,)
    for _ in range(5):  # renewing its own lease meanwhile: a worker that did not get round to it reaps no other
        bench.clock.advance(9)
        notify_and_step(other)
    assert bench.state(task_id) == "cancelled"
    for _ in range(3):
        notify_and_step(other)
        run_claimed(other)
    assert bench.script.ran == ["child"]
    assert bench.states(task_id, child) == ["cancelled", "success"]


@pytest.mark.case(37, 48)
def test_cascade_from_a_running_task(bench: Bench) -> None:
    task_id = int(bench.step("task").schedule())
    child = bench.step("child", task_id).schedule()
    cleans = bench.step("cleans", task_id, when="failure").schedule()
    notify_and_step(bench.jobs)
    done = bench.jobs.cancel_task(task_id, cascade=True)
    assert (done.requested, done.affected, done.later) == ((task_id,), (), (child,))
    assert bench.states(child, cleans) == ["waiting", "waiting"], "they move when the handler has ended"
    bench.drain()
    assert bench.states(task_id, child, cleans) == ["cancelled", "cancelled", "success"]


@pytest.mark.case(37, 48)
def test_cascade_goes_on_below_what_runs_once_that_has_ended(bench: Bench) -> None:
    """The middle one started before its parent was opened again; below it nothing moves before it has ended."""
    top = bench.ended("dead")
    middle = int(bench.step("middle", top, when="success", otherwise="run").schedule())
    notify_and_step(bench.jobs)
    assert bench.state(middle) == "claimed"
    bench.jobs.retry_task(top)
    beside = int(bench.step("beside", top).schedule())
    below = int(bench.step("below", middle, otherwise="run").schedule())
    last = int(bench.step("last", below).schedule())
    done = bench.jobs.cancel_task(top, cascade=True)
    assert (done.cancelled, done.requested, done.affected, done.later) == ((top,), (middle,), (beside,), (below, last))
    assert bench.states(beside, below, last) == ["cancelled", "waiting", "waiting"]
    bench.drain()
    assert bench.states(middle, below, last) == ["cancelled"] * 3
    assert bench.script.ran == ["ends dead"]


@pytest.mark.case(37, 48)
def test_a_reaper_carries_the_cascade_out(bench: Bench) -> None:
    dying, other = bench.worker(queues=["default"], lease=30), bench.worker(lease=30)
    task_id = int(bench.step("task").schedule())
    child = bench.step("child", task_id, otherwise="run").schedule()
    notify_and_step(dying)
    notify_and_step(other)
    bench.jobs.cancel_task(task_id, cascade=True)
    for _ in range(5):
        bench.clock.advance(9)
        assert bench.states(task_id, child) in (["claimed", "waiting"], ["cancelled", "cancelled"])
        notify_and_step(other)
    assert bench.states(task_id, child) == ["cancelled", "cancelled"]


@pytest.mark.case(37, 48)
def test_asked_again_with_cascade_and_then_retried(bench: Bench) -> None:
    task_id = int(bench.step("task").schedule())
    child = bench.step("child", task_id, otherwise="run").schedule()
    notify_and_step(bench.jobs)
    assert bench.jobs.cancel_task(task_id).later == ()
    assert bench.jobs.cancel_task(task_id, cascade=True).later == (child,)
    bench.drain()
    assert bench.states(task_id, child) == ["cancelled", "cancelled"]
    bench.jobs.retry_task(task_id)
    other = bench.step("other", task_id, otherwise="run").schedule()
    notify_and_step(bench.jobs)
    bench.jobs.cancel_task(task_id)
    bench.drain()
    assert bench.states(task_id, other) == ["cancelled", "success"], "the second cancel asked for no cascade"


@pytest.mark.case(37, 65)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_cascade_waits_for_no_open_session(bench: Bench) -> None:
    """Another transaction adds a task below. The cancelled task's end is recorded once that transaction is over."""
    task_id = int(bench.step("task").schedule())
    child = int(bench.step("child", task_id, otherwise="run").schedule())
    other = int(bench.step("other").schedule())
    notify_and_step(bench.jobs)
    bench.jobs.cancel_task(task_id, cascade=True)
    caller = bench.worker()
    with caller.database.write() as tx:
        grandchild = caller.task(Step("grandchild")).depend_on(child).schedule(connection=tx.connection)
        for _ in range(3):
            run_claimed(bench.jobs)
            notify_and_step(bench.jobs)
        assert bench.states(task_id, child, other) == ["claimed", "waiting", "success"]
    bench.drain()
    assert bench.states(task_id, child, grandchild) == ["cancelled"] * 3
