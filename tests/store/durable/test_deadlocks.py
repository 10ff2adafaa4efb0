"""Tasks that wait for one another: told by show and doctor, as neither can be refused for certain."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.store.admin import doctor as checks
from scheduler.store.read.explain import why
from support.flows import Stage

pytestmark = pytest.mark.case(56)


def why_of(stage: Stage, task_id: int) -> str:
    with stage.jobs.database.read() as tx:
        return str(why(tx, task_id))


def found(stage: Stage) -> tuple[str, tuple[int, ...]]:
    """What doctor says of awaits, and the tasks that it names."""
    with stage.jobs.database.read() as tx:
        (one,) = [f for f in checks.check(tx) if f.check == "awaits"]
    return one.text if one.level == checks.PROBLEM else one.level, one.tasks


def start_two(stage: Stage, kind: Any, **timeout: float) -> tuple[int, int]:
    """Two tasks that await each other."""
    made: list[int] = []

    async def first(ctx: Any) -> Any:
        return await ctx.await_task(made[1], **timeout)

    async def second(ctx: Any) -> Any:
        return await ctx.await_task(made[0])

    made += [stage.start(first, kind), stage.start(second, kind)]
    return made[0], made[1]


def test_two_that_await_each_other(stage: Stage, kind: Any) -> None:
    a, b = start_two(stage, kind)
    assert found(stage) == ("ok", ())
    stage.drain()
    text = "these tasks wait for one another, and none goes on until one is cancelled"
    assert why_of(stage, a) == f"suspended, awaits task {b}; {text}: {a} -> {b} -> {a}; `schedctl cancel {a}` ends that"
    assert why_of(stage, b) == f"suspended, awaits task {a}; {text}: {b} -> {a} -> {b}; `schedctl cancel {b}` ends that"
    assert found(stage) == (f"{text}: {a} -> {b} -> {a}; `schedctl cancel {a}` ends that", (a, b))
    stage.jobs.cancel_task(b)
    assert found(stage) == ("ok", ())
    stage.drain()
    assert stage.state(a) == "retry", "it was told, and did nothing about it"


def test_one_that_will_give_up_breaks_it(stage: Stage, kind: Any) -> None:
    a, b = start_two(stage, kind, timeout=60)
    stage.drain()
    assert "one another" not in why_of(stage, a) + why_of(stage, b)
    assert found(stage) == ("ok", ())


def test_one_that_awaits_what_depends_on_it(stage: Stage, kind: Any) -> None:
    """By way of a task between them, and told by all that are in it; who only waits for it is not."""
    made: list[int] = []

    async def parent(ctx: Any) -> Any:
        return await ctx.await_task(made[2])

    async def outside(ctx: Any) -> Any:
        return await ctx.await_task(made[0])

    async def nothing(ctx: Any) -> None: ...

    made.append(stage.start(parent, kind))
    made.append(stage.start(nothing, kind, depend_on=made[0]))
    made.append(stage.start(nothing, kind, depend_on=made[1]))
    waits = stage.start(outside, kind)
    stage.drain()
    a, b, c = made
    assert why_of(stage, a).endswith(f": {a} -> {c} -> {b} -> {a}; `schedctl cancel {a}` ends that")
    assert why_of(stage, waits) == f"suspended, awaits task {a}"
    assert found(stage)[1] == (a, b, c)


def test_a_suspended_task_without_a_wait_names_the_command_that_mends_it(stage: Stage) -> None:
    def waits(ctx: Any) -> Any:
        return ctx.await_event("approved")

    task_id = stage.start(waits)
    stage.drain()
    with stage.jobs.database.write() as tx:
        tx.run("DELETE FROM schedd_waits WHERE task_id = :id", id=task_id)
    assert why_of(stage, task_id) == "suspended, but no wait is recorded: run `schedctl doctor`"
