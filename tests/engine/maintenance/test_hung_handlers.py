"""Handlers that hang: what a stop records of them, what it reports, and the ways out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import AsyncContext, Context, RetryPolicy, Scheduler, TaskState, task
from scheduler.engine.maintenance import hung_handlers as hung
from scheduler.engine.maintenance import periodic as periodic
from scheduler.store.admin import doctor as checks
from scheduler.store.read import history as read_history
from scheduler.store.read.explain import why
from scheduler.store.read.status import status
from scheduler.store.tasks import control
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database
from support.fleet import Fleet, ends, let_pass, step, until

PATIENCE = 20.0
THRICE = RetryPolicy(min_wait=60, max_wait=60, max_attempts=3, jitter=0)


class Hanging:
    """A scheduler with threads, and handlers that wait until the test is over."""

    def __init__(self, database: Database) -> None:
        self.over = threading.Event()
        self.jobs = Scheduler(database.url)

        @task(timeout=0.05)
        def once(ctx: Context) -> None:
            self.over.wait(PATIENCE)

        @task(timeout=0.05, retry=THRICE)
        def thrice(ctx: Context) -> None:
            self.over.wait(PATIENCE)

        @task(timeout=3600)
        def patient(ctx: Context) -> None:
            self.over.wait(PATIENCE)

        self.once, self.thrice, self.patient = once, thrice, patient
        for kind in (once, thrice, patient):
            self.jobs.register(kind)
        self.jobs.start()

    def past_their_timeout(self, count: int) -> None:
        """Wait until so many handlers are past their timeout."""
        held = self.jobs.engine.engine_state.held

        def past() -> int:
            late = [a.deadline for a in list(held.values()) if a.deadline is not None]
            return sum(deadline < time.monotonic() for deadline in late)

        until(lambda: past() >= count, PATIENCE)


@pytest.fixture
def hanging(database: Database) -> Iterator[Hanging]:
    made = Hanging(database)
    yield made
    made.over.set()
    made.jobs.close()


@pytest.mark.case(74)
def test_an_attempt_past_its_timeout_at_a_stop_has_timed_out(hanging: Hanging) -> None:
    jobs = hanging.jobs
    once, thrice, patient = (
        int(jobs.task(kind).schedule()) for kind in (hanging.once, hanging.thrice, hanging.patient)
    )
    hanging.past_their_timeout(2)
    until(
        lambda: len([a for a in list(jobs.engine.engine_state.held.values()) if a.started_at is not None]) == 3,
        PATIENCE,
    )
    assert jobs.stop_now() == [patient], "it is not past its timeout, so it goes back unused"
    assert [jobs.get_task_status(i) for i in (once, thrice)] == [TaskState.DEAD, TaskState.RETRY]
    assert [ends(jobs, i) for i in (once, thrice, patient)] == [["dead"], ["retried"], ["handed back"]]
    assert [jobs.get_task(i).attempts_used for i in (once, thrice, patient)] == [1, 1, 0]
    (attempt,) = jobs.get_attempts(once)
    assert attempt.error_class == "TaskTimeout"
    assert attempt.error == "TaskTimeout: ran longer than its timeout of 0.05 s, and still ran when its worker stopped"


@pytest.mark.case(74)
def test_a_wait_is_counted_from_the_recorded_end(hanging: Hanging) -> None:
    jobs = hanging.jobs
    thrice = int(jobs.task(hanging.thrice).schedule())
    hanging.past_their_timeout(1)
    jobs.stop_now()
    (attempt,) = jobs.get_attempts(thrice)
    assert attempt.finished_at is not None
    due = jobs.get_task(thrice).run_at
    assert due is not None
    assert (due - attempt.finished_at).total_seconds() == 60


@task(timeout=10)
def overruns(ctx: Context) -> str:
    return str(ctx.state(ctx))


@task
def after(ctx: Context) -> None:
    pass


def texts(jobs: Scheduler, task_id: int) -> tuple[str | None, list[str], list[str], str | None]:
    """What show, status and doctor say of handlers that hang, and the stack."""
    task_now = jobs.get_task(task_id)
    with jobs.database.read() as tx:
        now = jobs.database.now()
        stuck = [s.text for s in status(tx.at(now)).stuck if s.name == "hung" and task_id in s.tasks]
        found = [f.text for f in checks.check(tx.at(now)) if f.check == "handlers" and f.level != checks.OK]
        claim = max((a.claim for a in jobs.get_attempts(task_id)), default=0) if task_now.state.terminal else 1
        return why(tx.at(now), task_id), stuck, found, read_history.stack_of(tx, task_id, claim)


@pytest.mark.case(77)
def test_a_handler_past_its_timeout_is_reported_with_its_stack(
    fleet: Fleet, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    reports: list[Any] = []

    def hangs(ctx: Context) -> str:
        let_pass(clock, 10, jobs)
        reports.append(texts(jobs, ctx.id))
        let_pass(clock, 10, jobs)
        reports.append(texts(jobs, ctx.id))
        let_pass(clock, 10, jobs)
        return "ended"

    jobs = fleet.worker(overruns, after, state=hangs)
    task_id = int(jobs.task(overruns).schedule())
    drain(jobs)
    (_, stuck, doctor, stack), (show, stuck_late, doctor_late, stack_late) = reports
    assert (stuck, doctor, stack) == ([], [], None), "it may still end by itself"
    worker = engine_of(jobs).worker
    ways = f"`schedctl cancel --force {task_id}` ends the task, `schedctl worker restart {worker}` frees the slot"
    assert show is not None
    assert show.startswith("overdue: running on worker ")
    assert show.endswith(f" for 20 s, over its timeout of 10 s; its handler hangs: {ways}")
    assert len(stuck_late) == 1
    assert stuck_late == doctor_late
    assert stuck_late[0].startswith(f"task {task_id} (overruns) hangs on worker ")
    assert stuck_late[0].endswith(ways)
    assert stack_late is not None
    assert "in hangs\n" in stack_late
    assert "attempt.py" not in stack_late, "what of ours calls the handler says nothing"
    (logged,) = [r for r in caplog.records if "a handler hangs" in r.getMessage()]
    assert ways in logged.getMessage()
    assert (logged.__dict__["task"], logged.__dict__["kind"]) == (task_id, "overruns")
    assert "in hangs\n" in logged.__dict__["stack"]
    step(jobs)
    assert engine_of(jobs).engine_state.hung == ()
    assert texts(jobs, task_id)[1:3] == ([], [])


@pytest.mark.case(77)
@pytest.mark.parametrize(("threads", "pool"), [(1, "medium"), (2, None)])
def test_a_pool_is_full_of_handlers_that_hang(fleet: Fleet, clock: FakeClock, threads: int, pool: str | None) -> None:
    """The daemon asks for that to start anew, by its setting restart_when_hung."""
    seen: list[Any] = []

    def hangs(ctx: Context) -> str:
        for _ in range(2):
            let_pass(clock, 10, jobs)
            seen.append((engine_of(jobs).hung_pool(), engine_of(jobs).only_hung()))
        return "ended"

    pools = {"high": (1, 1), "medium": (threads, 1), "low": (1, 1)}
    jobs = fleet.worker(overruns, state=hangs, pools=pools)
    jobs.task(overruns).schedule()
    drain(jobs)
    assert seen == [(None, False), (pool, True)]
    step(jobs)
    assert engine_of(jobs).hung_pool() is None


@pytest.mark.case(77)
def test_a_cancel_by_force_does_not_wait_for_the_handler(fleet: Fleet, clock: FakeClock) -> None:
    seen: list[TaskState] = []

    def hangs(ctx: Context) -> str:
        with jobs.database.write() as tx:
            control.cancel(tx, [ctx.id])
        let_pass(clock, 5, jobs)
        seen.append(jobs.get_task_status(task_id))
        with jobs.database.write() as tx:
            control.cancel(tx, [ctx.id], force=True)
        let_pass(clock, 5, jobs)
        seen.append(jobs.get_task_status(task_id))
        return "ended"

    jobs = fleet.worker(overruns, after, state=hangs)
    task_id = int(jobs.task(overruns).schedule())
    child = int(jobs.task(after).depend_on([task_id], when="finished").schedule())
    drain(jobs)
    assert seen == [TaskState.RUNNING, TaskState.CANCELLED]
    assert jobs.get_task_status(child) is TaskState.SUCCESS
    assert ends(jobs, task_id) == ["cancelled"]
    assert jobs.get_attempts(task_id)[0].error == "cancelled by force, while its handler still ran"
    assert jobs.retry_task(task_id) is None


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers count as hung after a moment."""
    monkeypatch.setattr(hung, "HUNG_AFTER_S", 0.2)
    monkeypatch.setattr(periodic, "HUNG_EVERY", 0.05)


@pytest.mark.case(77)
@pytest.mark.usefixtures("soon")
def test_beside_a_blocked_event_loop_others_go_on(database: Database) -> None:
    block, end, began = threading.Event(), threading.Event(), threading.Event()

    @task
    async def blocks(ctx: AsyncContext) -> None:
        block.wait(PATIENCE)

    @task
    async def behind(ctx: AsyncContext) -> str:
        began.set()
        await asyncio.to_thread(end.wait, PATIENCE)
        return "went on"

    @task
    async def later(ctx: AsyncContext) -> str:
        return "ran"

    jobs = Scheduler(database.url)
    for kind in (blocks, behind, later):
        jobs.register(kind)
    jobs.start()
    try:
        waits = int(jobs.task(behind).schedule())
        assert began.wait(PATIENCE)
        culprit = int(jobs.task(blocks).schedule())
        until(lambda: texts(jobs, culprit)[1], PATIENCE)
        assert jobs.result(jobs.task(later).schedule(), timeout=PATIENCE) == "ran", "on another event loop"
        show, stuck, doctor, stack = texts(jobs, culprit)
        assert show is not None
        assert show.startswith("it blocks the event loop of medium tasks on worker ")
        assert stuck == doctor
        assert ", 1 coroutine cannot go on: `schedctl cancel --force" in stuck[0]
        assert stack is not None
        assert "block.wait(PATIENCE)" in stack
        stands = texts(jobs, waits)[0]
        assert stands is not None
        assert stands.startswith(f"it cannot go on: the event loop is blocked by task {culprit} since ")
        end.set()
        block.set()
        assert jobs.result(waits, timeout=PATIENCE) == "went on"
        until(lambda: jobs.get_task_status(culprit) is TaskState.SUCCESS, PATIENCE)
    finally:
        end.set()
        block.set()
        jobs.close()
