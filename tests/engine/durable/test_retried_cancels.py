"""A workflow that was cancelled, and with it what it had spawned, goes on as a whole when it is retried."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import Context, Task
from support.fleet import rows
from support.flows import Stage

pytestmark = pytest.mark.case(36)


class Part(Task):
    name: str

    def run(self, ctx: Context) -> str:
        return str(ctx.state.do(self.name))


@pytest.fixture(autouse=True)
def register(stage: Stage) -> None:
    stage.jobs.register(Part)


def states(stage: Stage, parent: int) -> list[str]:
    """Of what it has spawned."""
    sql = "SELECT id FROM schedd_tasks WHERE spawned_by = :id ORDER BY id"
    return [stage.state(row.id) for row in rows(stage.jobs, sql, id=parent)]


@pytest.mark.parametrize("downstream", [True, False])
def test_what_was_cancelled_with_it_lives_again(stage: Stage, kind: Any, downstream: bool) -> None:
    """What had succeeded stays, and what had been cancelled by itself before."""
    made: dict[str, int] = {}

    async def body(ctx: Any) -> Any:
        made["done"] = await ctx.spawn(Part("done"))
        made["alone"] = await ctx.spawn(stage.jobs.task(Part("alone")).after(60))
        made["late"] = await ctx.spawn(stage.jobs.task(Part("late")).after(60))
        return [await ctx.await_task(made["done"]), await ctx.await_task(made["late"])]

    task_id = stage.start(body, kind)
    stage.drain()
    stage.jobs.cancel_task(made["alone"])
    stage.drain(1)
    after = int(stage.jobs.task(Part("after")).depend_on(made["late"]).schedule())
    stage.jobs.cancel_task(task_id)
    stage.drain()
    assert states(stage, task_id) == ["success", "cancelled", "cancelled"]
    assert stage.state(after) == "failed"
    stage.jobs.retry_task(task_id, downstream=downstream)
    if not downstream:
        assert states(stage, task_id) == ["success", "cancelled", "cancelled"]
        return
    assert states(stage, task_id) == ["success", "cancelled", "scheduled"]
    assert stage.state(after) == "waiting"
    stage.drain()
    stage.drain(60)
    assert stage.jobs.result(task_id, 0) == ["done", "late"]
    assert stage.state(after) == "success"
    assert stage.play.done == ["done", "late", "after"]


def test_so_does_what_that_had_spawned(stage: Stage, kind: Any) -> None:
    async def child(ctx: Any) -> Any:
        return await ctx.await_task(await ctx.spawn(stage.jobs.task(Part("grandchild")).after(60)))

    stage.play.bodies["child"] = child

    async def body(ctx: Any) -> Any:
        return await ctx.await_task(await ctx.spawn(kind("child")))

    task_id = stage.start(body, kind)
    stage.drain()
    stage.jobs.cancel_task(task_id)
    assert states(stage, task_id) == ["cancelled"]
    stage.jobs.retry_task(task_id)
    stage.drain()
    stage.drain(60)
    assert stage.jobs.result(task_id, 0) == "grandchild"


def test_what_failed_by_itself_is_left_to_its_own_retry(stage: Stage, kind: Any) -> None:
    """A parent that died had not cancelled anything."""
    broken = [True]

    async def body(ctx: Any) -> Any:
        child = await ctx.spawn(stage.jobs.task(Part("slow")).after(60))
        if broken:
            raise ValueError("broken")
        return await ctx.await_task(child, timeout=1)

    task_id = stage.start(body, kind)
    stage.drain()
    for _ in range(3):
        stage.drain(2)
    assert stage.state(task_id) == "dead"
    (child,) = (row.id for row in rows(stage.jobs, "SELECT id FROM schedd_tasks WHERE spawned_by = :id", id=task_id))
    stage.jobs.cancel_task(child)
    broken.clear()
    stage.jobs.retry_task(task_id)
    assert states(stage, task_id) == ["cancelled"]
