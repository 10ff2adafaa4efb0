"""Steps: what has succeeded is recorded and never runs again, over retries, workers and crashes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from scheduler import AsyncContext, Context, LeaseLost, RetryPolicy, Scheduler, Task
from scheduler.engine.dispatch.cycle import DispatchCycle
from scheduler.testing import drain
from support.bench import Side
from support.databases import Database
from support.fleet import let_pass, rows, run_claimed, step
from support.flows import AsyncFlow, Flow, Play, Stage

NAMES = "SELECT name, type, claim, value FROM schedd_checkpoints WHERE task_id = :id ORDER BY at, seq"


def names(jobs: Scheduler, task_id: int) -> list[str]:
    return [row.name for row in rows(jobs, NAMES, id=task_id)]


@pytest.mark.case(52)
def test_done_steps_are_skipped_by_the_next_attempt(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        found = [await ctx.step(name, ctx.state.do, name) for name in ("one", "two", "three")]
        ctx.state.do(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return found

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.state(task_id) == "retry"
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == ["one", "two", "three"]
    assert stage.play.done == ["one", "two", "three", "attempt 1", "attempt 2"]
    assert stage.ends(task_id) == ["retried", "succeeded"]


@pytest.mark.case(52)
def test_a_failed_step_is_not_recorded(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        def flaky() -> int:
            ctx.state.do("tried")
            if len(ctx.state.done) < 3:
                raise ConnectionError("away")
            return 7

        return await ctx.step("flaky", flaky)

    task_id = stage.start(body, kind)
    stage.drain()
    assert names(stage.jobs, task_id) == []
    stage.drain(1)
    stage.drain(1)
    assert (stage.jobs.result(task_id, 0), stage.play.done) == (7, ["tried"] * 3)


@pytest.mark.case(52)
def test_a_failed_step_uses_up_its_name(stage: Stage, kind: Any) -> None:
    """Who catches the failure and asks again asks under the next number, in every attempt the same."""

    async def body(ctx: Any) -> Any:
        def busy() -> int:
            raise ConnectionError(ctx.state.do("busy"))

        for function in (busy, lambda: ctx.state.do("done")):
            try:
                found = await ctx.step("ask", function)
            except ConnectionError:
                continue
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return found

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == "done"
    assert stage.play.done == ["busy", "done", "busy"]
    assert names(stage.jobs, task_id) == ["ask#2"]


@pytest.mark.case(52)
def test_repeated_names_are_numbered(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        found = []
        for value in "abc":
            found.append(await ctx.step("same", ctx.state.do, value))
            await ctx.step("other", ctx.state.do, value.upper())
        if ctx.attempt < 3:
            raise ConnectionError("away")
        return found

    task_id = stage.start(body, kind)
    for _ in range(3):
        stage.drain(1)
    assert stage.jobs.result(task_id, 0) == ["a", "b", "c"]
    assert stage.play.done == ["a", "A", "b", "B", "c", "C"]
    assert names(stage.jobs, task_id) == ["same", "other", "same#2", "other#2", "same#3", "other#3"]


@pytest.mark.case(52)
def test_values_are_the_same_in_every_attempt(stage: Stage, kind: Any) -> None:
    """None is a value like any other, and what JSON does not know comes as JSON has it, the first time, too."""
    given = [None, {"a": (1, 2.5)}, "x" * 5000, [], False, "\x00 and ü"]
    seen: list[Any] = []

    async def body(ctx: Any) -> Any:
        seen.append([await ctx.step("value", lambda v=v: ctx.state.do(v)) for v in given])
        if ctx.attempt == 1:
            raise ConnectionError("away")

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.state(task_id) == "success"
    assert seen[0] == seen[1] == [None, {"a": [1, 2.5]}, "x" * 5000, [], False, "\x00 and ü"]
    assert len(stage.play.done) == len(given)


@pytest.mark.case(52)
def test_another_worker_goes_on_where_a_dead_one_stopped(stage: Stage, kind: Any) -> None:
    dying = stage.worker(lease=30)

    async def body(ctx: Any) -> Any:
        await ctx.step("one", ctx.state.do, "one")
        if ctx.attempt == 1:
            stage.kill(dying)
            raise SystemExit
        return await ctx.step("two", ctx.state.do, "two")

    task_id = stage.start(body, kind)
    step(dying)
    run_claimed(dying)
    step(stage.jobs)
    let_pass(stage.clock, 50, stage.jobs)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "two"
    assert stage.play.done == ["one", "two"]
    assert stage.ends(task_id) == ["lost", "succeeded"]
    first, second = (row.claim for row in rows(stage.jobs, NAMES, id=task_id))
    assert first == 1 < second


@pytest.mark.case(3, 52)
def test_a_step_is_a_heartbeat(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        stage.clock.advance(20)  # of the lease's 30
        await ctx.step("one", ctx.state.do, "one")

    task_id = stage.start(body, kind)
    before = stage.clock.now()
    stage.drain()
    assert rows(stage.jobs, "SELECT last_heartbeat_at AS at FROM schedd_tasks WHERE id = :id", id=task_id)[0].at == (
        before + 20_000_000
    )
    (lease,) = rows(stage.jobs, "SELECT lease_until FROM schedd_workers")
    assert lease.lease_until == before + 50_000_000


BAD: dict[str, tuple[Any, str]] = {
    "not JSON": (lambda ctx: ctx.step("s", object), "the result of step 's' is not JSON"),
    "too long": (lambda ctx: ctx.step("s", lambda: "x" * 2**20), "over the limit of 1048576"),
    "long name": (lambda ctx: ctx.step("n" * 256, int), "1 to 255 characters"),
    "no name": (lambda ctx: ctx.step("", int), "1 to 255 characters"),
    "own name": (lambda ctx: ctx.step("$sleep", int), "cannot begin with $"),
    "numbered name": (lambda ctx: ctx.step("a#2", int), "end like #2"),
    "half a pair": (lambda ctx: ctx.step("\ud800", int), "cannot be stored"),
    "no function": (lambda ctx: ctx.step("s", 5), "needs a function"),
}


@pytest.mark.case(52)
@pytest.mark.parametrize("wrong", BAD)
def test_what_cannot_be_a_step_ends_the_task_at_once(stage: Stage, kind: Any, wrong: str) -> None:
    make, message = BAD[wrong]

    async def body(ctx: Any) -> Any:
        return await make(ctx)

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.state(task_id) == "dead"  # another attempt would meet it again
    assert message in (stage.jobs.get_last_error(task_id) or "")


@pytest.mark.case(52)
def test_the_longest_values_fit(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        text = await ctx.step("n" * 255, lambda: "x" * (2**20 - 2))
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return len(text)

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == 2**20 - 2


class Nests(Task):
    def run(self, ctx: Context) -> Any:
        return ctx.step("outer", lambda: ctx.step("inner", int))


class AsyncNests(Task):
    async def run(self, ctx: AsyncContext) -> Any:
        async def outer() -> int:
            return await ctx.step("inner", int)

        return await ctx.step("outer", outer)


class Decorates(Task):
    """Steps as decorators, with and without a name."""

    def run(self, ctx: Context) -> Any:
        @ctx.step
        def charge(amount: int) -> int:
            return int(ctx.state.do(amount))

        @ctx.step("named")
        def other(amount: int, *, twice: bool) -> int:
            return int(ctx.state.do(amount * (2 if twice else 1)))

        return [charge(1), charge(2), other(3, twice=True)]


class AsyncDecorates(Task):
    async def run(self, ctx: AsyncContext) -> Any:
        @ctx.step
        async def charge(amount: int) -> int:
            return int(ctx.state.do(amount))

        @ctx.step("named")
        async def other(amount: int, *, twice: bool) -> int:
            return int(ctx.state.do(amount * (2 if twice else 1)))

        return [await charge(1), await charge(2), await other(3, twice=True)]


class AsyncInSync(Task):
    def run(self, ctx: Context) -> Any:
        async def work() -> None: ...

        return ctx.step("s", work)


@pytest.mark.case(52)
@pytest.mark.parametrize("nests", [Nests, pytest.param(AsyncNests, marks=pytest.mark.one_is_enough)])
def test_steps_cannot_be_nested(stage: Stage, nests: Any) -> None:
    stage.jobs.register(nests)
    task_id = stage.jobs.task(nests()).schedule()
    stage.drain()
    assert stage.state(task_id) == "dead"
    assert "steps cannot be nested" in (stage.jobs.get_last_error(task_id) or "")
    assert names(stage.jobs, task_id) == []


@pytest.mark.case(52)
@pytest.mark.parametrize("decorates", [Decorates, pytest.param(AsyncDecorates, marks=pytest.mark.one_is_enough)])
def test_a_step_as_a_decorator(stage: Stage, decorates: Any) -> None:
    stage.jobs.register(decorates)
    task_id = stage.jobs.task(decorates()).schedule()
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [1, 2, 6]
    assert names(stage.jobs, task_id) == ["charge", "charge#2", "named"]


@pytest.mark.case(52)
def test_an_async_step_in_a_thread_is_refused(stage: Stage) -> None:
    stage.jobs.register(AsyncInSync)
    task_id = stage.jobs.task(AsyncInSync()).schedule()
    stage.drain()
    assert "needs an async handler" in (stage.jobs.get_last_error(task_id) or "")


@pytest.mark.case(52)
def test_steps_side_by_side(stage: Stage) -> None:
    """What a failed attempt had done stays done, whichever of the branches it was."""

    async def body(ctx: Any) -> Any:
        async def branch(name: str) -> Any:
            first = await ctx.step(name, ctx.state.do, name)
            if name == "b" and ctx.attempt == 1:
                await asyncio.sleep(0.05)
                raise ConnectionError("away")
            return [first, await ctx.step(f"end of {name}", ctx.state.do, name + "!")]

        return await asyncio.gather(*map(branch, "abc"))

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    stage.drain(1)
    result = stage.jobs.result(task_id, 0)
    assert [first for first, _ in result] == ["a", "b", "c"]
    assert sorted(stage.play.done) == ["a", "a!", "b", "b!", "c", "c!"]


@pytest.mark.case(52)
def test_a_step_in_a_thread_that_outlasts_a_failing_branch_is_recorded(stage: Stage) -> None:
    """It is not interrupted, so it comes to its end: what it did must not be done again."""
    goes_on = threading.Event()

    async def body(ctx: Any) -> Any:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def pay() -> str:
            loop.call_soon_threadsafe(begun.set)
            assert goes_on.wait(20)
            return str(ctx.state.do("paid"))

        async def fails() -> None:
            if ctx.attempt == 1:
                await begun.wait()
                _after_rounds(goes_on.set)
                raise ConnectionError("away")

        found, _ = await asyncio.gather(ctx.step("pay", pay), fails())
        return found

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert (stage.state(task_id), names(stage.jobs, task_id)) == ("retry", ["pay"])
    stage.drain(1)
    assert (stage.jobs.result(task_id, 0), stage.play.done) == ("paid", ["paid"])


def _after_rounds(function: Any, rounds: int = 50) -> None:
    """Call it once the event loop has gone round so often: what it had to do is done by then."""
    if rounds:
        asyncio.get_running_loop().call_soon(_after_rounds, function, rounds - 1)
    else:
        function()


@pytest.mark.case(52)
def test_a_step_whose_record_is_on_its_way_when_a_branch_fails(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cycle under way takes long: it and the attempt's end would come to the next one together."""
    free = threading.Event()
    free.set()
    turn = DispatchCycle.run

    def waits(*args: Any, **options: Any) -> Any:
        assert free.wait(20)
        return turn(*args, **options)

    monkeypatch.setattr(DispatchCycle, "run", waits)
    play = Play()

    async def body(ctx: Any) -> Any:
        asked = asyncio.Event()

        async def pay() -> Any:
            if ctx.attempt == 1:
                free.clear()
            asked.set()
            return ctx.state.do("paid")

        async def fails() -> None:
            if ctx.attempt == 1:
                await asked.wait()
                _after_rounds(free.set)
                raise ConnectionError("away")

        found, _ = await asyncio.gather(ctx.step("pay", pay), fails())
        return found

    play.bodies["body"] = body
    with Scheduler(database.url, state=play) as jobs:
        jobs.register(AsyncFlow)
        task_id = jobs.task(AsyncFlow("body")).with_retry(RetryPolicy(min_wait=0, jitter=0, max_attempts=2)).schedule()
        assert jobs.result(task_id, 20) == "paid"
    assert play.done == ["paid"]


@pytest.mark.case(52)
def test_a_context_is_of_no_use_after_its_attempt(stage: Stage, kind: Any) -> None:
    kept: list[Any] = []

    async def body(ctx: Any) -> Any:
        kept.append(ctx)

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.state(task_id) == "success"
    (ctx,) = kept

    async def late() -> None:
        for call in (
            lambda: ctx.step("late", int),
            lambda: ctx.sleep_for(5),
            lambda: ctx.await_event("late"),
            lambda: ctx.emit_event("late", 1),
            lambda: ctx.spawn(Flow("late")),
            lambda: ctx.await_task(99),
            lambda: ctx.map(Flow, ["late"]),
            lambda: ctx.heartbeat(),
            lambda: ctx.report_progress(5),
            lambda: ctx.check_cancelled(),
            lambda: ctx.results(),
        ):
            with pytest.raises(LeaseLost, match="has ended"):
                await call()

    asyncio.run(late())
    assert names(stage.jobs, task_id) == []


@pytest.mark.case(52)
def test_hooks_do_nothing_durable(stage: Stage) -> None:
    class Hooked(Flow):
        def on_attempt_failed(self, ctx: Context, error: BaseException) -> None:
            ctx.heartbeat()
            try:
                ctx.step("hook", int)
            except Exception as told:
                ctx.state.do(str(told))

    stage.jobs.register(Hooked)

    async def body(ctx: Any) -> Any:
        raise ConnectionError("away")

    stage.start(body, Hooked)
    stage.drain()
    assert "a hook cannot do anything durable" in stage.play.done[0]


@pytest.mark.case(57)
@pytest.mark.parametrize("first_call", [True, False], ids=["its first durable call", "a later one"])
def test_a_stale_attempt_neither_sees_nor_writes_newer_checkpoints(stage: Stage, kind: Any, first_call: bool) -> None:
    stale, fresh = stage.worker(lease=30), stage.worker(lease=30)
    seen: list[Any] = []

    async def body(ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise ConnectionError("so that there are claims before")
        if ctx.attempt == 2:
            if not first_call:
                await ctx.step("before", ctx.state.do, "before")
            let_pass(stage.clock, 50, fresh)  # the lease of the one who runs this has run out
            Side(lambda: drain(fresh)).result()  # in a thread of its own: an event loop may be running in this one
            for name in ("value", "mine"):
                try:
                    seen.append(await ctx.step(name, ctx.state.do, "stale"))
                except LeaseLost as error:
                    seen.append(error)
            return "stale"
        return await ctx.step("value", ctx.state.do, "fresh")

    step(fresh)
    task_id = stage.start(body, kind)
    drain(stale)
    stage.clock.advance(1)
    drain(stale)
    assert stage.jobs.result(task_id, 0) == "fresh"
    assert [type(one) for one in seen] == [LeaseLost, LeaseLost]
    # The function of a step may run before the loss is known, if nothing had to be read before; its value goes nowhere.
    assert stage.play.done == (["fresh"] if first_call else ["before", "fresh", "stale"])
    assert {row.name: row.value for row in rows(stage.jobs, NAMES, id=task_id)} == {"value": '"fresh"'} | (
        {} if first_call else {"before": '"before"'}
    )
    assert stage.ends(task_id) == ["retried", "lost", "succeeded"]


@pytest.mark.case(51, 52)
def test_retention_removes_checkpoints_with_their_task(stage: Stage) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.step("one", int)
        await ctx.sleep_for(0)

    task_id = stage.start(body)
    stage.drain()
    assert names(stage.jobs, task_id) == ["one", "$sleep"]
    stage.clock.advance(2 * 86400)
    assert stage.jobs.cleanup_completed_tasks(1) == 1
    assert rows(stage.jobs, "SELECT 1 FROM schedd_checkpoints") == []
