"""scheduler.testing.perform: one handler, without a store."""

from __future__ import annotations

import asyncio
import traceback
from datetime import timedelta
from typing import Any

import pytest

from scheduler import AsyncContext, Context, PayloadError, PermanentError, Retry, Snooze, Task, task
from scheduler.errors import ConfigError
from scheduler.testing import Calls, FakeClock, perform, perform_async


class Add(Task):
    left: int
    right: int = 1

    def run(self, ctx: Context) -> dict[str, Any]:
        return {"sum": self.left + self.right, "attempt": ctx.attempt, "pair": (1, 2)}


@task
def join(ctx: Context, text: str = "", *, end: str = ".") -> str:
    return text + "".join(f"{parent}={value}" for parent, value in ctx.results().items()) + end


@task
def named(ctx: Context) -> list[Any]:
    return [ctx.results["load"], ctx.results()]


class Durable(Task):
    def run(self, ctx: Context) -> Any:
        price = ctx.step("price", lambda: 7)
        ctx.report_progress(50, "half")
        ctx.heartbeat()
        ctx.sleep_for(timedelta(days=1))
        approved = ctx.await_event("approved")
        first, again = ctx.emit_event("paid", {"price": price}), ctx.emit_event("paid")
        child = ctx.spawn(Add(1))
        sums = ctx.map(Add, [2, 3])
        return [price, approved, first, again, ctx.await_task(child), sums, ctx.await_task(55)]


class Awaits(Task):
    name: str

    async def run(self, ctx: AsyncContext) -> Any:
        price = await ctx.step("price", asyncio.sleep, 0, 7)
        await ctx.sleep_for(60)
        return [price, await ctx.results(), await ctx.cpu(len, self.name)]


@task
def named_like_ours(ctx: Context, key: str = "own") -> list[str | None]:
    return [key, ctx.key]


@task
def raises(ctx: Context, what: str) -> None:
    errors = {"snooze": Snooze(5), "retry": Retry(after=5), "for good": PermanentError("no"), "any": KeyError("gone")}
    raise errors[what]


def test_a_handler_runs_with_its_payload_and_context() -> None:
    assert perform(Add(1), attempt=3) == {"sum": 2, "attempt": 3, "pair": [1, 2]}
    assert perform(join, "a", end="!", results={4: "x", 3: None}) == "a3=None4=x!"
    assert perform(named, results={"load": "rows"}) == ["rows", {"501": "rows"}]


def test_what_it_does_durably_is_noted() -> None:
    calls, clock = Calls(), FakeClock()
    before = clock.now()
    found = perform(
        Durable(),
        events={"approved": True},
        children={"Add": lambda payload: payload["left"] * 10},
        results={55: "else"},
        calls=calls,
        clock=clock,
    )
    assert found == [7, True, True, False, 10, [20, 30], "else"]
    assert calls.steps == {"price": 7}
    assert calls.progress == [(50.0, "half")]
    assert calls.heartbeats == 1
    assert calls.emitted == {"paid": {"price": 7}}
    assert calls.spawned == [("Add", {"left": left, "right": 1}) for left in (1, 2, 3)]
    assert clock.now() - before == 86_400_000_000
    assert len(calls.slept_until) == 1


def test_an_asynchronous_handler_in_and_outside_of_a_loop() -> None:
    expected = [7, {"9": "x"}, 3]
    got = perform(Awaits("abc"), results={9: "x"})
    assert got == expected

    async def within() -> None:
        assert await perform_async(Awaits("abc"), results={9: "x"}) == expected
        assert await perform_async(Add(1)) == {"sum": 2, "attempt": 1, "pair": [1, 2]}
        with pytest.raises(ConfigError, match="await perform_async"):
            perform(Awaits("abc"))

    asyncio.run(within())


@pytest.mark.parametrize(
    ("what", "error"), [("snooze", Snooze), ("retry", Retry), ("for good", PermanentError), ("any", KeyError)]
)
def test_errors_come_out_as_they_are(what: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        perform(raises, what)
    assert traceback.extract_tb(caught.tb)[-1].name == "raises"


def test_a_payload_and_a_result_that_no_store_would_take() -> None:
    @task
    def returns_an_object(ctx: Context, text: str) -> Any:
        return object()

    with pytest.raises(PermanentError, match="not JSON"):
        perform(returns_an_object, "a")
    with pytest.raises(PayloadError):
        perform(returns_an_object, 5)
    with pytest.raises(PayloadError, match="'texd'"):
        perform(returns_an_object, "a", texd="a")
    with pytest.raises(PayloadError, match="'atempt'"):
        perform(Add(1), atempt=2)
    with pytest.raises(PayloadError, match="pass an instance"):
        perform(Add)
    with pytest.raises(ConfigError, match="attempt must be"):
        perform(Add(1), attempt=0)


def test_a_name_of_both_is_refused() -> None:
    assert perform(named_like_ours, "mine") == ["mine", None]
    with pytest.raises(PayloadError, match="by position"):
        perform(named_like_ours, key="mine")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"events={'approved'"),
        ({"events": {"approved": 1}}, r"children={'Add'"),
        ({"events": {"approved": 1}, "children": {"Add": 1}}, r"results={55"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        perform(Durable(), **given)


def test_a_transaction_needs_a_store() -> None:
    @task
    def transacts(ctx: Context) -> None:
        with ctx.transaction():
            pass

    with pytest.raises(ConfigError, match="fixture schedd"):
        perform(transacts)
