"""Whatever a child process says, or a hook does, costs its own attempt alone; and a verdict stands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from faults import garbling
from faults.harness import attempts, history, state, until
from faults.pools import PATIENCE, end, serves_on, started
from scheduler import AsyncContext, Context, PermanentError, Scheduler, Task
from scheduler.engine.processes import timeouts as patience
from scheduler.ports import SECOND
from support.databases import Database, one_database

pytestmark = pytest.mark.faults
WITHIN = 5.0  # seconds
BUSY = 20.0  # seconds that a busy machine may take for what the pool notices in 0.3 s here
assert patience.MESSAGE_TIMEOUT_S < WITHIN


@pytest.fixture
def jobs(database: Database, shared_fork_server: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(patience, "MESSAGE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(patience, "HOOK_TIMEOUT_S", 0.3)
    made = started(database)
    for kind in (*garbling.KINDS, Hangs, AHangs):
        made.register(kind)
    yield made
    open_again.set()
    end(made)


def error_class(jobs: Scheduler, task_id: int) -> list[str | None]:
    return [attempt.error_class for attempt in attempts(jobs, task_id)]


@pytest.mark.case(76)
@one_database
def test_whatever_a_process_writes_costs_its_own_attempt_alone(jobs: Scheduler) -> None:
    written = {what: jobs.task(garbling.Writes(what)).schedule() for what in (*garbling.WRITTEN, "its end")}
    overdue = jobs.task(garbling.Overdue()).schedule()
    asks = jobs.task(garbling.Asks()).schedule()
    jobs.wait([*written.values(), overdue, asks], timeout=PATIENCE)
    for what, task_id in written.items():
        assert history(jobs, task_id) == [(1, "dead")], what
        (attempt,) = attempts(jobs, task_id)
        assert attempt.error_class == "ProcessDied", what
        assert attempt.finished_at - (attempt.started_at or 0) < BUSY * SECOND, what
    assert error_class(jobs, overdue) == ["TaskTimeout"]
    assert jobs.result(asks, timeout=0) == "went on"
    serves_on(jobs)


# what a handler has raised stands


@pytest.mark.case(75)
@one_database
def test_a_permanent_failure_is_permanent_whatever_its_hook_does(jobs: Scheduler) -> None:
    ways = [(kind, how) for kind in (garbling.Refused, garbling.ARefused) for how in garbling.HOOKS]
    ids = [jobs.task(kind(how)).schedule() for kind, how in ways]
    jobs.wait(ids, timeout=PATIENCE)
    for task_id, way in zip(ids, ways, strict=True):
        assert history(jobs, task_id) == [(1, "dead")], way
        assert error_class(jobs, task_id) == ["PermanentError"], way
        assert "the card is closed" in str(jobs.get_last_error(task_id))


@pytest.mark.case(75)
@one_database
def test_so_it_is_when_the_hook_goes_on_past_the_timeout(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "HOOK_TIMEOUT_S", 600.0)
    task_id = jobs.task(garbling.Refused("hangs")).timeout(0.5).schedule()
    jobs.wait([task_id], timeout=PATIENCE)
    assert error_class(jobs, task_id) == ["PermanentError"]


@pytest.mark.case(75)
def test_what_will_be_retried_keeps_its_error(jobs: Scheduler) -> None:
    task_id = jobs.task(garbling.Again()).schedule()
    assert jobs.result(task_id, timeout=PATIENCE) == 2
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    assert error_class(jobs, task_id) == ["LookupError", None]


open_again, hooked = threading.Event(), threading.Event()


class Hangs(Task, retry=garbling.STUBBORN):
    def run(self, ctx: Context) -> None:
        raise PermanentError("the card is closed")

    def on_failed(self, ctx: Context, error: BaseException) -> None:
        hooked.set()
        open_again.wait(PATIENCE)


class AHangs(Task, retry=garbling.STUBBORN):
    async def run(self, ctx: AsyncContext) -> None:
        raise PermanentError("the card is closed")

    async def on_failed(self, ctx: AsyncContext, error: BaseException) -> None:
        hooked.set()
        await asyncio.Event().wait()


@pytest.mark.case(75)
@pytest.mark.parametrize("kind", [Hangs, AHangs, garbling.Refused])
@one_database
def test_so_it_is_when_the_daemon_stops_while_the_hook_hangs(
    jobs: Scheduler, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "HOOK_TIMEOUT_S", 600.0)
    hooked.clear()
    open_again.clear()
    process = kind is garbling.Refused
    task_id = jobs.task(kind("hangs") if process else kind()).schedule()
    if process:
        held = jobs.engine.engine_state.held
        until(lambda: any(one.decided is not None for one in list(held.values())), "it has failed")
    else:
        assert hooked.wait(PATIENCE)
    jobs.stop_now()
    assert state(jobs, task_id) == "dead"
    assert history(jobs, task_id) == [(1, "dead")]
    assert error_class(jobs, task_id) == ["PermanentError"]
