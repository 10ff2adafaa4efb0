"""Grouped steps: several are recorded in one commit, in order, and nothing leaves the attempt in front of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scheduler import AsyncContext, Context, RetryPolicy, Scheduler, Task
from scheduler.engine.dispatch.cycle import DispatchCycle
from scheduler.engine.durable import calls
from scheduler.store.durable import checkpoints
from support.databases import Database
from support.fleet import rows
from support.flows import BOTH, Flow, Play, Stage

NAMES = "SELECT name FROM schedd_checkpoints WHERE task_id = :id ORDER BY at, seq"
TEN = [f"step {n}" for n in range(10)]


def names(jobs: Scheduler, task_id: int) -> list[str]:
    return [row.name for row in rows(jobs, NAMES, id=task_id)]


class Gate:
    """The engine's cycles wait while it is shut; ``writes``: how many checkpoints each commit had."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.writes: list[int] = []
        turn, write = DispatchCycle.run, checkpoints.write

        def run(*args: Any, **options: Any) -> Any:
            assert self.open.wait(20)
            return turn(*args, **options)

        def counted(tx: Any, entries: Any) -> None:
            self.writes += [len(entries)] * bool(entries)
            write(tx, entries)

        patch.setattr(DispatchCycle, "run", run)
        patch.setattr(checkpoints, "write", counted)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def run(database: Database, kind: Any, body: Any) -> tuple[Any, Play, list[str]]:
    play = Play({"body": body})
    with Scheduler(database.url, state=play) as jobs:
        jobs.register(kind)
        task_id = jobs.task(kind("body")).with_retry(RetryPolicy(min_wait=0, jitter=0, max_attempts=2)).schedule()
        return jobs.result(task_id, 20), play, names(jobs, task_id)


@pytest.mark.both_databases
@pytest.mark.case(52)
@pytest.mark.parametrize("kind", BOTH)
def test_ten_quick_steps_are_one_commit(database: Database, gate: Gate, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        gate.open.clear()
        found = [await ctx.step(name, ctx.state.do, name, durable="grouped") for name in TEN]
        gate.open.set()
        return found

    result, play, recorded = run(database, kind, body)
    assert result == play.done == recorded == TEN
    assert sum(gate.writes) == len(TEN)
    assert len(gate.writes) <= 2, "with the success, three commits at most"


@pytest.mark.case(52)
@pytest.mark.parametrize("kind", BOTH)
def test_a_failed_attempt_leaves_them_recorded(database: Database, gate: Gate, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        if ctx.attempt == 1:
            gate.open.clear()
        found = [await ctx.step(name, ctx.state.do, name, durable="grouped") for name in TEN]
        if ctx.attempt == 1:
            threading.Timer(0.05, gate.open.set).start()
            raise ConnectionError("away")
        return found

    result, play, recorded = run(database, kind, body)
    assert result == play.done == recorded == TEN


@pytest.mark.case(52)
@pytest.mark.parametrize("leaves", ["step", "transaction"])
def test_what_leaves_the_attempt_waits_for_them(database: Database, gate: Gate, leaves: str) -> None:
    """No commit is possible before the gate opens; a wait for the records is what opens it late enough."""
    seen: list[int] = []

    def note() -> None:
        seen.append(sum(gate.writes))

    class Leaves(Task):
        def run(self, ctx: Context) -> None:
            gate.open.clear()
            for name in TEN:
                ctx.step(name, int, durable="grouped")
            threading.Timer(0.1, gate.open.set).start()
            if leaves == "step":
                ctx.step("pay", note)
            else:
                with ctx.transaction():
                    note()

    with Scheduler(database.url) as jobs:
        jobs.register(Leaves)
        jobs.wait(jobs.task(Leaves()).schedule(), 20)
    assert seen == [len(TEN)]


@pytest.mark.case(52)
@pytest.mark.parametrize("kind", BOTH)
def test_not_all_records_of_a_long_loop_are_kept_in_memory(
    database: Database, gate: Gate, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """A step waits once so many are not recorded."""
    monkeypatch.setattr(calls, "MAX_UNSETTLED", 4)
    done: list[int] = []

    async def body(ctx: Any) -> Any:
        gate.open.clear()
        threading.Timer(0.2, lambda: done.append(len(ctx.state.done)) or gate.open.set()).start()
        return [await ctx.step(name, ctx.state.do, name, durable="grouped") for name in TEN]

    result, play, recorded = run(database, kind, body)
    assert result == play.done == recorded == TEN
    assert done == [4]


@pytest.mark.parametrize("call", [lambda ctx: ctx.emit_event("done"), lambda ctx: ctx.spawn(Flow("child"))])
def test_no_call_is_sent_before_they_are_recorded(database: Database, gate: Gate, call: Any) -> None:
    """Not even to wait beside them for the same commit."""
    waiting: list[str] = []

    class Leaves(Task):
        def run(self, ctx: Context) -> None:
            gate.open.clear()
            ctx.step("one", int, durable="grouped")
            requests = jobs.engine.engine_state.requests

            def look() -> None:
                waiting.extend(request.what for request in requests)
                gate.open.set()

            threading.Timer(0.1, look).start()
            call(ctx)

    with Scheduler(database.url) as jobs:
        for kind in (Leaves, Flow):
            jobs.register(kind)
        jobs.wait(jobs.task(Leaves()).schedule(), 20)
    assert waiting in (["record"], [])


class Decorates(Task):
    def run(self, ctx: Context) -> Any:
        @ctx.step("named", durable="grouped")
        def twice(number: int) -> int:
            return 2 * number

        return [twice(1), ctx.step("own", dict, durable="mine")]


class AsyncDecorates(Task):
    async def run(self, ctx: AsyncContext) -> Any:
        @ctx.step("named", durable="grouped")
        async def twice(number: int) -> int:
            return 2 * number

        return [await twice(1), await ctx.step("own", dict, durable="mine")]


@pytest.mark.parametrize("kind", [Decorates, AsyncDecorates])
def test_as_a_decorator_and_beside_an_argument_of_the_same_name(stage: Stage, kind: Any) -> None:
    stage.jobs.register(kind)
    task_id = stage.jobs.task(kind()).schedule()
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [2, {"durable": "mine"}]


def test_a_decorator_takes_nothing_else(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        return await ctx.step("named", durable="group")

    task_id = stage.start(body, kind)
    stage.drain()
    error = stage.jobs.get_last_error(task_id) or ""
    assert "takes its name and durable='grouped', not {'durable': 'group'}" in error
