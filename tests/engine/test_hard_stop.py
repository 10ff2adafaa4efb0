"""What the last write of a hard stop says of handlers that still run, or just have ended."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import AsyncContext, Context, Scheduler, Task, TaskState, task
from scheduler.engine.dispatch.cycle import DispatchCycle
from support.databases import Database, one_database
from support.fleet import until

PATIENCE = 20.0


class Bodies:
    """An engine with threads, whose handlers run until the test lets them go."""

    def __init__(self, jobs: Scheduler) -> None:
        self.jobs = jobs
        self.go = threading.Event()  # for those that are to end
        self.end = threading.Event()  # when the test is over

        @task
        def ends(ctx: Context) -> None:
            self.go.wait(PATIENCE)

        @task
        def stays(ctx: Context) -> None:
            self.end.wait(PATIENCE)

        @task
        def commits(ctx: Context) -> None:
            with ctx.transaction():
                pass
            self.end.wait(PATIENCE)

        self.kinds = {"ends": ends, "stays": stays, "commits": commits}
        for kind in self.kinds.values():
            jobs.register(kind)
        jobs.start()

    def begin(self, *names: str) -> list[int]:
        ids = [int(self.jobs.task(self.kinds[name]).schedule()) for name in names]
        held = self.jobs.engine.engine_state.held
        until(lambda: {task_id for (task_id, _), a in list(held.items()) if a.started_at is not None} >= {*ids})
        return ids

    def ended_as(self, task_id: int) -> tuple[TaskState, list[str]]:
        return self.jobs.get_task_status(task_id), [a.outcome.value for a in self.jobs.get_attempts(task_id)]


@pytest.fixture
def bodies(database: Database) -> Iterator[Bodies]:
    jobs = Scheduler(database.url)
    made = Bodies(jobs)
    yield made
    made.go.set()
    made.end.set()
    jobs.close()


@pytest.mark.case(8)
def test_a_handler_that_ends_before_the_last_write_has_ended(bodies: Bodies, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the engine has made up its mind about what still runs."""
    ended, still = bodies.begin("ends", "stays")
    turn = DispatchCycle.run

    def late(dispatch: DispatchCycle, *args: Any, **given: Any) -> Any:
        if given.get("extra"):
            bodies.go.set()
            until(lambda: dispatch.engine_state.outcomes)
        return turn(dispatch, *args, **given)

    monkeypatch.setattr(DispatchCycle, "run", late)
    assert bodies.jobs.stop_now() == [still]
    assert bodies.ended_as(ended) == (TaskState.SUCCESS, ["succeeded"])
    assert bodies.ended_as(still) == (TaskState.SCHEDULED, ["handed back"])


@pytest.mark.case(8)
def test_what_is_decided_already_is_not_named(bodies: Bodies, caplog: pytest.LogCaptureFixture) -> None:
    committed, cancelled, still = bodies.begin("commits", "stays", "stays")
    engine_state = bodies.jobs.engine.engine_state
    until(lambda: any(a.committed_outcome is not None for a in list(engine_state.held.values())))
    bodies.jobs.cancel_task(cancelled)
    assert bodies.jobs.stop_now() == [still]
    assert bodies.ended_as(committed) == (TaskState.SUCCESS, ["succeeded"])
    assert bodies.ended_as(cancelled) == (TaskState.CANCELLED, ["cancelled"])
    assert bodies.ended_as(still) == (TaskState.SCHEDULED, ["handed back"])
    assert "outcome dropped" not in caplog.text


@one_database
def test_coroutines_that_are_left_are_collected_without_a_word(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither their failure hook nor their outcome is anybody's business any more."""
    begun = threading.Event()
    hooks: list[BaseException] = []

    class Stays(Task):
        async def run(self, ctx: AsyncContext) -> None:
            begun.set()
            await asyncio.gather(asyncio.sleep(PATIENCE), asyncio.sleep(PATIENCE))

        def on_attempt_failed(self, ctx: AsyncContext, error: BaseException) -> None:
            hooks.append(error)

    jobs = Scheduler(database.url)
    jobs.register(Stays)
    jobs.start()
    task_id = int(jobs.task(Stays()).schedule())
    assert begun.wait(PATIENCE)
    assert jobs.stop_now() == [task_id]
    jobs.close()
    del jobs
    gc.collect()
    assert hooks == []
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []
