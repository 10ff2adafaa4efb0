"""A handler's calls are matched by name with the recorded ones. A mismatch is logged, or fails a strict handler."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.fleet import rows
from support.flows import AsyncFlow, AsyncStrict, Flow, Stage, Strict

pytestmark = [pytest.mark.case(52), pytest.mark.one_is_enough]
NOTES = "SELECT name, note FROM schedd_checkpoints WHERE task_id = :id AND note IS NOT NULL ORDER BY name"


def notes(stage: Stage, task_id: int) -> list[tuple[str, str]]:
    return [(row.name, row.note) for row in rows(stage.jobs, NOTES, id=task_id)]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "does not fit" in record.getMessage()]


@pytest.fixture
def strict(kind: Any) -> Any:
    """A strict kind of either sort: what fits fits it, too."""
    return Strict if kind is Flow else AsyncStrict


def test_other_code_may_take_other_steps_in_another_order(
    stage: Stage, strict: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A deploy between two attempts adds a step and swaps two: what is recorded is not done again."""

    async def body(ctx: Any) -> Any:
        if ctx.attempt == 1:
            order = ["one", "two"]
        else:
            order = ["zero", "two", "one", "three"]
        found = {name: await ctx.step(name, ctx.state.do, f"{name} by {ctx.attempt}") for name in order}
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return found

    task_id = stage.start(body, strict)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == {
        "zero": "zero by 2",
        "two": "two by 1",
        "one": "one by 1",
        "three": "three by 2",
    }
    assert stage.play.done == ["one by 1", "two by 1", "zero by 2", "three by 2"]
    assert warnings(caplog) == []
    assert notes(stage, task_id) == []


def test_side_by_side_steps_may_come_in_any_order(stage: Stage) -> None:
    async def body(ctx: Any) -> Any:
        names = "abcd" if ctx.attempt == 1 else "dbca"
        found = await asyncio.gather(*[ctx.step(name, ctx.state.do, f"{name}{ctx.attempt}") for name in names])
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return sorted(found)

    task_id = stage.start(body, AsyncStrict)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == ["a1", "b1", "c1", "d1"]


def test_the_order_counts_among_repeats_of_one_name(stage: Stage, strict: Any) -> None:
    async def body(ctx: Any) -> Any:
        names = ["x", "same", "same", "y"] if ctx.attempt == 1 else ["same", "y", "same", "x"]
        values = iter(range(10))
        found = [[name, await ctx.step(name, ctx.state.do, [ctx.attempt, next(values)])] for name in names]
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return [value for name, value in found if name == "same"]

    task_id = stage.start(body, strict)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == [[1, 1], [1, 2]]


def test_a_recorded_step_that_is_never_met_is_logged(stage: Stage, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.step("stays", ctx.state.do, "stays")
        if ctx.attempt == 1:
            await ctx.step("went", ctx.state.do, "went")
            await ctx.step("went", ctx.state.do, "went again")
            raise ConnectionError("away")

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.state(task_id) == "success"
    message = "the handler does not fit what is recorded: recorded, but never met by the handler: went, went#2"
    assert warnings(caplog) == [message]
    kept = rows(stage.jobs, "SELECT value FROM schedd_task_values WHERE name LIKE 'log:%'")
    assert any(message in row.value for row in kept)
    stage.drain()
    note = "not met by the attempt that succeeded"
    assert notes(stage, task_id) == [("went", note), ("went#2", note)]


def test_a_name_that_changed_its_type_is_done_anew_and_logged(
    stage: Stage, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(ctx: Any) -> Any:
        if ctx.attempt == 1:
            await ctx.sleep_for(0, name="pause")
            raise ConnectionError("away")
        return await ctx.step("pause", ctx.state.do, "a step now")

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == "a step now"
    assert warnings(caplog) == [
        "the handler does not fit what is recorded: 'pause' is recorded as sleep, and is now step: done anew"
    ]
    assert notes(stage, task_id) == [("pause", "was sleep")]
    (row,) = rows(stage.jobs, "SELECT type, claim FROM schedd_checkpoints WHERE task_id = :id", id=task_id)
    assert (row.type, row.claim) == (0, 2)


@pytest.mark.parametrize("change", ["never met", "sort"])
def test_strict_fails_the_attempt_with_both_sequences(stage: Stage, strict: Any, change: str) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.step("one", ctx.state.do, 1)
        if ctx.attempt == 1:
            await ctx.step("two", ctx.state.do, 2)
            raise ConnectionError("away")
        if change == "sort":
            await ctx.sleep_for(0, name="two")
        await ctx.step("three", ctx.state.do, 3)
        return "done"

    task_id = stage.start(body, strict)
    stage.drain()
    stage.drain(1)
    error = stage.jobs.get_last_error(task_id) or ""
    if change == "sort":
        assert "'two' is recorded as step, and is now sleep: done anew" in error
        assert "recorded: one (step), two (step); met now: one (step), two (sleep)" in error
        assert stage.play.done == [1, 2]
    else:
        assert "recorded, but never met by the handler: two" in error
        # what was recorded by this attempt before its end is not what earlier ones recorded
        assert "recorded: one (step), two (step); met now: one (step), three (step)" in error
    assert error.startswith("DeterminismError: ")
    assert stage.state(task_id) in ("retry", "dead")
    assert stage.jobs.get_attempts(task_id)[-1].outcome.value != "succeeded"


def test_strict_counts_what_is_recorded_even_if_nothing_durable_is_done(stage: Stage, strict: Any) -> None:
    async def body(ctx: Any) -> Any:
        if ctx.attempt == 1:
            await ctx.step("went", ctx.state.do, 1)
            raise ConnectionError("away")

    task_id = stage.start(body, strict)
    stage.drain()
    stage.drain(1)
    error = stage.jobs.get_last_error(task_id) or ""
    assert "recorded: went (step); met now: nothing" in error
    assert stage.jobs.get_attempts(task_id)[-1].outcome.value != "succeeded"


def test_strict_is_kept_by_a_transaction(stage: Stage) -> None:
    """What is not met is known in front of the commit, so nothing of it is committed."""

    async def body(ctx: Any) -> Any:
        if ctx.attempt == 1:
            await ctx.step("went", ctx.state.do, 1)
            raise ConnectionError("away")
        with ctx.ctx.transaction() as tx:
            tx.result = "done"

    task_id = stage.start(body, Strict)
    stage.drain()
    stage.drain(1)
    assert "recorded, but never met by the handler: went" in (stage.jobs.get_last_error(task_id) or "")


def test_what_is_not_met_is_noted_behind_a_transaction(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        if ctx.attempt == 1:
            await ctx.step("went", ctx.state.do, 1)
            raise ConnectionError("away")
        if kind is AsyncFlow:
            async with ctx.transaction() as tx:
                tx.result = "done"
        else:
            with ctx.ctx.transaction() as tx:
                tx.result = "done"

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == "done"
    stage.drain()
    assert notes(stage, task_id) == [("went", "not met by the attempt that succeeded")]
