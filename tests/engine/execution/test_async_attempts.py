"""A coroutine's attempt ends when nothing of it runs any more: calls in threads and ``ctx.wait_until`` included."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from faults.harness import until

from scheduler import AsyncContext, Context, PermanentError, RetryPolicy, Scheduler, TaskFailedError, task
from scheduler.engine.execution import leftovers as remains
from scheduler.engine.maintenance import hung_handlers as hung
from scheduler.engine.maintenance import periodic as periodic
from scheduler.store.read.explain import why
from scheduler.store.read.history import attempt_log
from support.databases import Database

pytestmark = pytest.mark.case(73)
PATIENCE = 30.0
AGAIN = RetryPolicy(min_wait=0, max_wait=0, max_attempts=2, jitter=0.0, strategy="fixed")
own_threads = ThreadPoolExecutor(4)


class Gates:
    """What handlers of one test wait for and tell."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.notified = threading.Event()  # the handler has heard that it is to end, or has returned
        self.go_on: Future[None] = Future()
        self.inside = self.most = self.runs = 0
        self._lock = threading.Lock()

    def block(self) -> str:
        with self._lock:
            self.runs += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.open.wait(PATIENCE)
        with self._lock:
            self.inside -= 1
        return "from a thread"


gates = Gates()


def beside(call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
    async def calls() -> Any:
        return await call()

    return asyncio.gather(asyncio.create_task(calls()), asyncio.sleep(0))


WAYS: dict[str, Callable[[], Awaitable[Any]]] = {
    "to_thread": lambda: asyncio.to_thread(gates.block),
    "in a task": lambda: beside(lambda: asyncio.to_thread(gates.block)),
    "threads of its own": lambda: asyncio.get_running_loop().run_in_executor(own_threads, gates.block),
}


@task(retry=AGAIN, max_concurrency=1, timeout=0.3)
async def overdue(ctx: AsyncContext, way: str) -> str:
    if gates.open.is_set():
        return "again"
    try:
        await WAYS[way]()
    except asyncio.CancelledError:
        gates.notified.set()
        raise
    return "in time"


@task
async def leaves_a_call(ctx: AsyncContext) -> str:
    asyncio.get_running_loop().run_in_executor(None, gates.block)
    asyncio.get_running_loop().call_soon(gates.notified.set)
    return "returned"


@task
async def to_cancel(ctx: AsyncContext) -> None:
    try:
        await asyncio.to_thread(gates.block)
    finally:
        gates.notified.set()


@task
async def leaves_a_coroutine(ctx: AsyncContext) -> str:
    async def more() -> None:
        await asyncio.wrap_future(gates.go_on)
        gates.runs += 1

    ctx.wait_until(more())
    gates.notified.set()
    return "returned"


@task(retry=AGAIN)
async def its_coroutine_fails(ctx: AsyncContext) -> str:
    async def more() -> None:
        await asyncio.sleep(0)
        raise ValueError("of the rest")

    if ctx.attempt == 1:
        ctx.wait_until(more())
    return "returned"


@task(retry=AGAIN, timeout=0.3)
async def its_coroutine_takes_long(ctx: AsyncContext) -> str:
    async def more() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(gates.block)

    if ctx.attempt == 1:
        ctx.wait_until(more())
    gates.open.set()
    return f"attempt {ctx.attempt}, {gates.runs} ended"


@task
async def fails_beside(ctx: AsyncContext) -> None:
    async def more() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gates.runs += 1

    ctx.wait_until(more())
    await asyncio.sleep(0)
    raise PermanentError("no")


@task
async def leaves_a_task(ctx: AsyncContext) -> str:
    gates.left = asyncio.create_task(asyncio.Event().wait())  # type: ignore[attr-defined]
    return "returned"


@task
def in_a_thread(ctx: Context) -> None:
    ctx.wait_until(asyncio.sleep)


KINDS = (
    *(overdue, leaves_a_call, to_cancel, leaves_a_coroutine, its_coroutine_fails, its_coroutine_takes_long),
    *(fails_beside, leaves_a_task, in_a_thread),
)


@pytest.fixture(autouse=True)
def new_gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made = Gates()
    monkeypatch.setitem(globals(), "gates", made)
    yield
    made.open.set()
    made.go_on.cancel()


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url, pools={"high": (0, 0), "medium": (1, 4), "low": (0, 0)})
    for kind in KINDS:
        made.register(kind)
    yield made
    gates.open.set()
    made.close()


def ends(jobs: Scheduler, task_id: int) -> list[tuple[str | None, str | None]]:
    return [(a.outcome, a.error_class) for a in jobs.get_attempts(task_id)]


def test_a_timeout_is_recorded_once_its_thread_has_ended(jobs: Scheduler) -> None:
    with jobs:
        first = jobs.task(overdue, "to_thread").schedule()
        assert gates.notified.wait(PATIENCE)
        other = jobs.task(overdue, "to_thread").schedule()
        later = jobs.task(leaves_a_coroutine).schedule()
        gates.notified.clear()
        assert gates.notified.wait(PATIENCE), "tasks that came later have begun"
        assert not jobs.get_task(first).state.terminal
        assert jobs.get_task(other).state == "scheduled", "the kind's cap holds"
        assert ends(jobs, first) == []
        until(lambda: "ends when its handler has ended, with what that has in threads" in why_of(jobs, first), "told")
        gates.open.set()
        gates.go_on.set_result(None)
        assert jobs.result(first, timeout=PATIENCE) == "again"
        assert jobs.result(other, timeout=PATIENCE) == "again"
        assert jobs.result(later, timeout=PATIENCE) == "returned"
    assert ends(jobs, first) == [("retried", "TaskTimeout"), ("succeeded", None)]
    failed, again = jobs.get_attempts(first)
    assert failed.finished_at is not None
    assert again.started_at is not None
    assert again.started_at >= failed.finished_at
    assert gates.most == 1


def why_of(jobs: Scheduler, task_id: int) -> str:
    with jobs.database.read() as tx:
        return why(tx, task_id) or ""


@pytest.mark.parametrize("way", ["in a task", "threads of its own"])
def test_wherever_the_call_was_made(jobs: Scheduler, way: str) -> None:
    with jobs:
        made = jobs.task(overdue, way).schedule()
        assert gates.notified.wait(PATIENCE)
        assert ends(jobs, made) == []
        gates.open.set()
        assert jobs.result(made, timeout=PATIENCE) == "again"
    assert gates.runs == 1


def test_a_success_waits_for_a_call_that_the_handler_does_not_await(jobs: Scheduler) -> None:
    with jobs:
        made = jobs.task(leaves_a_call).schedule()
        assert gates.notified.wait(PATIENCE)
        other = jobs.task(its_coroutine_fails).schedule()
        assert jobs.result(other, timeout=PATIENCE) == "returned"
        assert not jobs.get_task(made).state.terminal
        gates.open.set()
        assert jobs.result(made, timeout=PATIENCE) == "returned"
    assert (gates.runs, gates.inside) == (1, 0)


def test_a_cancel_waits_for_its_thread(jobs: Scheduler) -> None:
    with jobs:
        made = jobs.task(to_cancel).schedule()
        while not gates.runs:
            assert not gates.notified.wait(0.005)
        jobs.cancel_task(made)
        assert gates.notified.wait(PATIENCE)
        assert not jobs.get_task(made).state.terminal
        gates.open.set()
        assert jobs.wait([made], timeout=PATIENCE)[made].state == "cancelled"
    assert gates.inside == 0


def test_the_log_says_what_an_attempt_waits_for(
    jobs: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remains, "WAIT_LOG_AFTER_S", 0.01)
    text = "the handler has ended; its attempt waits for 1 call in threads"
    with jobs, caplog.at_level(logging.WARNING, "scheduler.engine"):
        made = jobs.task(leaves_a_call).schedule()
        while text not in caplog.text:
            assert not gates.open.wait(0.005)
        gates.open.set()
        jobs.result(made, timeout=PATIENCE)
    with jobs.database.read() as tx:
        assert text in (attempt_log(tx, made) or "")


@pytest.mark.case(77)
def test_where_a_thread_hangs_is_reported(
    jobs: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hung, "HUNG_AFTER_S", 0.0)
    monkeypatch.setattr(periodic, "HUNG_EVERY", 0.01)
    with jobs:
        made = jobs.task(overdue, "to_thread").schedule()
        assert gates.notified.wait(PATIENCE)
        until(lambda: any("in block" in getattr(record, "stack", "") for record in list(caplog.records)), "its stack")
        gates.open.set()
        jobs.result(made, timeout=PATIENCE)


def test_a_drain_waits_for_what_was_given_to_wait_until(jobs: Scheduler) -> None:
    jobs.start()
    made = jobs.task(leaves_a_coroutine).schedule()
    assert gates.notified.wait(PATIENCE)
    assert not jobs.get_task(made).state.terminal
    stopping = threading.Thread(target=jobs.stop, kwargs={"drain": PATIENCE})
    stopping.start()
    gates.go_on.set_result(None)
    stopping.join(PATIENCE)
    assert jobs.get_task(made).state == "success"
    assert gates.runs == 1


def test_what_it_raises_fails_the_attempt(jobs: Scheduler) -> None:
    with jobs:
        made = jobs.task(its_coroutine_fails).schedule()
        assert jobs.result(made, timeout=PATIENCE) == "returned"
    assert ends(jobs, made) == [("retried", "ValueError"), ("succeeded", None)]


def test_a_timeout_ends_it(jobs: Scheduler) -> None:
    with jobs:
        made = jobs.task(its_coroutine_takes_long).schedule()
        assert jobs.result(made, timeout=PATIENCE) == "attempt 2, 1 ended"
    assert ends(jobs, made) == [("retried", "TaskTimeout"), ("succeeded", None)]


def test_it_ends_with_a_handler_that_fails(jobs: Scheduler) -> None:
    with jobs, pytest.raises(TaskFailedError, match="no"):
        jobs.result(jobs.task(fails_beside).schedule(), timeout=PATIENCE)
    assert gates.runs == 1


def test_tasks_that_a_handler_leaves_are_logged_once(jobs: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    remains._logged.clear("leaves_a_task")
    with jobs:
        for _ in range(2):
            assert jobs.result(jobs.task(leaves_a_task).schedule(), timeout=PATIENCE) == "returned"
    logged = [record.getMessage() for record in caplog.records if "asyncio task" in record.getMessage()]
    assert len(logged) == 1
    assert logged[0].startswith("a handler of leaves_a_task has ended and left 1 asyncio task running")


def test_a_handler_in_a_thread_gets_an_error_that_it_is_not_for_it(jobs: Scheduler) -> None:
    with jobs, pytest.raises(TaskFailedError, match=r"ctx\.wait_until is for async handlers"):
        jobs.result(jobs.task(in_a_thread).schedule(), timeout=PATIENCE)
