"""Sleeping: the slot is free meanwhile, the attempt goes on with its number, and nothing starts the sleep anew."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from scheduler.testing import FakeClock, engine_of
from support.databases import Database
from support.fleet import rows
from support.flows import AsyncFlow, Flow, Stage

SLEEPS = "SELECT name, value FROM schedd_checkpoints WHERE task_id = :id AND type = 1 ORDER BY at, seq"


def at(clock: FakeClock) -> float:
    return clock.monotonic()


@pytest.mark.case(53)
def test_a_sleep_gives_up_the_slot_and_keeps_the_attempt(stage: Stage, kind: Any) -> None:
    one = stage.worker(pools={"medium": (1, 1)})
    stage.jobs = one

    async def sleeps(ctx: Any) -> Any:
        ctx.state.do(f"starts at {at(stage.clock):g}")
        await ctx.sleep_for(timedelta(hours=1))
        ctx.state.do(f"woke at {at(stage.clock):g}")
        return ctx.attempt

    async def other(ctx: Any) -> Any:
        ctx.state.do("other")

    task_id = stage.start(sleeps, kind)
    stage.drain()
    assert stage.state(task_id) == "suspended"
    assert stage.jobs.get_task(task_id).state.simple == "Pending"
    stage.start(other, kind)
    stage.drain()
    stage.drain(3599.9)
    assert stage.play.done == ["starts at 0", "other"]
    stage.drain(0.1)
    assert stage.jobs.result(task_id, 0) == 1
    assert stage.play.done == ["starts at 0", "other", "starts at 3600", "woke at 3600"]
    assert [(a.number, a.claim, a.outcome.value) for a in stage.jobs.get_attempts(task_id)] == [
        (1, 1, "suspended"),
        (1, 2, "succeeded"),
    ]


@pytest.mark.case(53)
def test_two_sleeps_are_independent(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.sleep_for(10)
        ctx.state.do(at(stage.clock))
        await ctx.sleep_for(10)
        ctx.state.do(at(stage.clock))

    task_id = stage.start(body, kind)
    for _ in range(5):
        stage.drain(5)
    assert stage.play.done == [15, 25, 25]  # begun at 5
    assert [row.name for row in rows(stage.jobs, SLEEPS, id=task_id)] == ["$sleep", "$sleep#2"]


@pytest.mark.case(53)
def test_a_restart_in_between(database: Database, stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.step("before", ctx.state.do, "before")
        await ctx.sleep_for(100, name="night")
        return await ctx.step("after", ctx.state.do, "after")

    task_id = stage.start(body, kind)
    stage.drain()
    stage.kill(stage.jobs)
    stage.jobs = stage.worker()
    stage.drain(99)
    assert stage.state(task_id) == "suspended"
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == "after"
    assert stage.play.done == ["before", "after"]


@pytest.mark.case(53)
def test_a_retry_does_not_sleep_again(stage: Stage, kind: Any) -> None:
    """Until when it sleeps was decided once."""

    async def body(ctx: Any) -> Any:
        await ctx.sleep_for(10)
        ctx.state.do(at(stage.clock))
        if ctx.attempt == 1:
            raise ConnectionError("away")

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(10)
    stage.drain(1)
    assert stage.play.done == [10, 11]
    assert stage.ends(task_id) == ["suspended", "retried", "succeeded"]


@pytest.mark.case(53)
def test_a_sleep_into_the_past_returns_at_once(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.sleep_until(stage.clock.datetime - timedelta(days=1))
        await ctx.sleep_until(stage.clock.datetime)
        await ctx.sleep_for(0)
        return "awake"

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "awake"
    assert stage.ends(task_id) == ["succeeded"]


@pytest.mark.case(53)
def test_sleep_until(stage: Stage, kind: Any) -> None:
    morning = stage.clock.datetime + timedelta(hours=8)

    async def body(ctx: Any) -> Any:
        await ctx.sleep_until(morning)
        return stage.clock.datetime == morning

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.get_task(task_id).run_at == morning
    stage.drain(8 * 3600)
    assert stage.jobs.result(task_id, 0) is True


@pytest.mark.case(53)
@pytest.mark.parametrize("wrong", [-1, "soon", float("nan"), None])
def test_spans_that_are_none(stage: Stage, kind: Any, wrong: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.sleep_for(wrong)

    task_id = stage.start(body, kind)
    stage.drain()
    assert "sleep_for" in (stage.jobs.get_last_error(task_id) or "")


@pytest.mark.case(53)
def test_the_handler_is_unwound(stage: Stage, kind: Any) -> None:
    """``except Exception`` does not see it, ``finally`` runs."""

    async def body(ctx: Any) -> Any:
        try:
            await ctx.sleep_for(10)
        except Exception:
            ctx.state.do("caught")
        finally:
            ctx.state.do("cleaned up")
        return "done"

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.play.done == ["cleaned up"]
    stage.drain(10)
    assert (stage.jobs.result(task_id, 0), stage.play.done) == ("done", ["cleaned up"] * 2)


@pytest.mark.case(53)
def test_a_handler_that_swallows_it_is_suspended_all_the_same(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        try:
            await ctx.sleep_for(10)
        except BaseException:
            ctx.state.do("swallowed")
        return ctx.attempt

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), stage.play.done) == ("suspended", ["swallowed"])
    stage.drain(10)
    assert (stage.jobs.result(task_id, 0), stage.play.done) == (1, ["swallowed"])


@pytest.mark.case(53)
def test_an_error_on_the_way_out_is_a_failed_attempt(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        try:
            await ctx.sleep_for(10)
        finally:
            if ctx.attempt == 1:
                raise ConnectionError("cleaning up failed")
        return "done"

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), stage.ends(task_id)) == ("retry", ["retried"])
    stage.drain(1)
    assert stage.state(task_id) == "suspended"
    stage.drain(9)
    assert stage.jobs.result(task_id, 0) == "done"


@pytest.mark.case(53)
def test_the_timeout_of_an_attempt_does_not_count_its_sleep(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.sleep_for(100)
        return "in time"

    task_id = stage.start(body, kind, timeout=5)
    stage.drain()
    stage.drain(100)
    assert stage.jobs.result(task_id, 0) == "in time"


@pytest.mark.case(53)
def test_branches_that_sleep_side_by_side(stage: Stage) -> None:
    """All of them wait before the handler is unwound, and it is woken for the first."""

    async def body(ctx: Any) -> Any:
        async def branch(n: int) -> int:
            await ctx.step(f"before {n}", ctx.state.do, f"before {n}")
            await ctx.sleep_for(10 * n, name=f"sleep {n}")
            return int(await ctx.step(f"after {n}", ctx.state.do, at(stage.clock)))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(n)) for n in (3, 1, 2)]
        return [task.result() for task in tasks]

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert sorted(stage.play.done) == ["before 1", "before 2", "before 3"]
    for _ in range(3):
        stage.drain(10)
    assert stage.jobs.result(task_id, 0) == [30, 10, 20]
    assert stage.ends(task_id) == ["suspended"] * 3 + ["succeeded"]


@pytest.mark.case(53)
def test_a_step_ends_before_the_handler_is_suspended(stage: Stage) -> None:
    async def body(ctx: Any) -> Any:
        async def slow() -> str:
            await asyncio.sleep(0.05)
            return str(ctx.state.do("slow"))

        await asyncio.gather(ctx.sleep_for(10), ctx.step("slow", slow))

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert (stage.state(task_id), stage.play.done) == ("suspended", ["slow"])
    stage.drain(10)
    assert (stage.state(task_id), stage.play.done) == ("success", ["slow"])


CALLS: dict[str, Any] = {
    "heartbeat": lambda ctx: ctx.heartbeat(),
    "progress": lambda ctx: ctx.report_progress(5),
    "cpu": lambda ctx: ctx.cpu(int),
    "results": lambda ctx: ctx.results(),
    "failures": lambda ctx: ctx.dependency_failures(),
}


async def rounds(count: int = 50) -> None:
    """The event loop has gone round so often since."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.case(53, 63)
@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_the_context_beside_a_branch_that_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It does something, however long it takes until it is answered; what comes after it is not put off either."""
    engine_state = engine_of(stage.jobs).engine_state
    request, cpu, load = engine_state.request, engine_state.cpu, engine_state.load
    answered = threading.Event()

    def late(usual: Any) -> Any:
        answer: Future[Any] = Future()
        asyncio.ensure_future(rounds()).add_done_callback(lambda _: answer.set_result(usual.result()))
        return answer

    def asks(attempt: Any, what: str, args: Any) -> Any:
        return late(request(attempt, what, args)) if what == "beat" else request(attempt, what, args)

    def reads(attempt: Any, what: str, args: Any) -> Any:
        if what not in ("results", "failures"):
            return load(attempt, what, args)
        assert answered.wait(20)
        return []

    monkeypatch.setattr(engine_state, "request", asks)
    monkeypatch.setattr(engine_state, "cpu", lambda *call: late(cpu(*call)))
    monkeypatch.setattr(engine_state, "load", reads)

    async def body(ctx: Any) -> Any:
        async def works() -> None:
            answers = asyncio.ensure_future(rounds())
            answers.add_done_callback(lambda _: answered.set())
            await CALLS[call](ctx)
            await ctx.step("after", ctx.state.do, "after")

        await asyncio.gather(ctx.sleep_for(10), works())

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert (stage.state(task_id), stage.play.done) == ("suspended", ["after"])
    stage.drain(10)
    assert (stage.state(task_id), stage.play.done) == ("success", ["after"])


@pytest.mark.case(53, 63)
def test_a_transaction_beside_a_branch_that_waits(stage: Stage) -> None:
    async def body(ctx: Any) -> Any:
        async def pays() -> None:
            async with ctx.transaction() as tx:
                await rounds()
                tx.result = "paid"

        await asyncio.gather(ctx.sleep_for(10), pays())

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "paid"


@pytest.mark.case(53)
def test_what_a_suspended_handler_left_running_is_ended(stage: Stage) -> None:
    """It is no step, so it begins anew with the next attempt; never beside it."""

    async def body(ctx: Any) -> Any:
        async def plain() -> str:
            ctx.state.do("begins")
            try:
                await asyncio.sleep(0.2 if len(ctx.state.done) > 2 else 3600)
                return str(ctx.state.do("whole"))
            finally:
                ctx.state.do("ends")

        background = asyncio.create_task(plain())
        await ctx.sleep_for(10)
        return await background

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert (stage.state(task_id), stage.play.done) == ("suspended", ["begins", "ends"])
    stage.drain(10)
    assert stage.jobs.result(task_id, 0) == "whole"


@pytest.mark.case(48)
def test_cancelling_what_is_suspended_ends_it_at_once(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        ctx.state.do("ran")
        await ctx.sleep_for(10)
        return "done"

    task_id = stage.start(body, kind, key="k")
    child = stage.jobs.task(Flow("never")).depend_on(task_id).schedule()
    stage.drain()
    done = stage.jobs.cancel_task(task_id)
    assert (done.cancelled, done.requested, done.affected) == ((task_id,), (), (child,))
    assert [stage.state(i) for i in (task_id, child)] == ["cancelled", "failed"]
    stage.drain(20)
    assert stage.play.done == ["ran"]
    assert stage.jobs.cancel_task(task_id).finished == {task_id: "cancelled"}
    assert stage.jobs.task(kind("other")).key("k").after(60).schedule().created


@pytest.mark.case(48)
def test_a_cancel_while_it_is_about_to_sleep(stage: Stage, kind: Any) -> None:
    """The request is seen by the very call, and the task does not sleep first."""

    async def body(ctx: Any) -> Any:
        stage.made[0].cancel_task(ctx.id)
        try:
            await ctx.sleep_for(10)
        except BaseException as error:
            ctx.state.do(type(error).__name__)
            raise

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), stage.play.done) == ("cancelled", ["Cancelled"])
    assert rows(stage.jobs, SLEEPS, id=task_id) == []


@pytest.mark.case(48)
def test_a_cancel_is_seen_at_a_checkpoint(stage: Stage, kind: Any) -> None:
    """What the step did is recorded all the same."""

    async def body(ctx: Any) -> Any:
        await ctx.step("one", lambda: len(stage.made[0].cancel_task(ctx.id).requested))
        ctx.state.do("went on")

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), stage.play.done) == ("cancelled", [])
    assert [row.name for row in rows(stage.jobs, "SELECT name FROM schedd_checkpoints")] == ["one"]
