"""A retry by hand awaits anew what failed; what the handler has acted upon, and what succeeded, stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scheduler import Context, PermanentError, RetryPolicy, Task
from scheduler.errors import TaskFailedError
from scheduler.store.requests import children as asked_children
from support.fleet import rows, write
from support.flows import AsyncStrict, Flow, Stage, Strict

ONCE = RetryPolicy(max_attempts=1)
NAMES = "SELECT name FROM schedd_checkpoints WHERE task_id = :id ORDER BY at, seq"


class Part(Task):
    """A child that fails as long as the play says so."""

    name: str

    def run(self, ctx: Context) -> str:
        ctx.state.do(f"part {self.name}")
        if self.name in ctx.state.failing:
            raise ValueError(f"{self.name} is broken")
        return self.name


@pytest.fixture(autouse=True)
def register(stage: Stage) -> None:
    stage.play.failing = {"a"}  # type: ignore[attr-defined]
    stage.jobs.register(Part)


@pytest.fixture(params=["retry", "replay", "retry many", "replay all"])
def again(stage: Stage, request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Opens a dead task again, in each way that there is."""
    jobs = stage.jobs

    def many(task_id: int) -> None:
        assert jobs.retry_failed(kind=jobs.get_task(task_id).kind) == [task_id]

    def replay_all(task_id: int) -> None:
        assert jobs.dead_letters.replay_all(kind=jobs.get_task(task_id).kind) == [task_id]

    ways: dict[str, Any] = {
        "retry": jobs.retry_task,
        "replay": jobs.dead_letters.replay,
        "retry many": many,
        "replay all": replay_all,
    }
    made: Callable[[int], None] = ways[request.param]
    return made


@pytest.fixture
def strict(kind: Any) -> Any:
    """A strict kind of either sort: what is forgotten may not make it differ."""
    return Strict if kind is Flow else AsyncStrict


def mend(stage: Stage, *names: str) -> None:
    stage.play.failing -= set(names)  # type: ignore[attr-defined]


def parts(stage: Stage, parent: int) -> list[int]:
    sql = "SELECT id FROM schedd_tasks WHERE spawned_by = :id ORDER BY id"
    return [row.id for row in rows(stage.jobs, sql, id=parent)]


def names(stage: Stage, task_id: int) -> list[str]:
    return [row.name for row in rows(stage.jobs, NAMES, id=task_id)]


def put_off(stage: Stage, task_id: int) -> None:
    """It is due in a minute."""
    write(stage.jobs, "UPDATE schedd_tasks SET run_at = run_at + 60000000 WHERE id = :id", id=task_id)


async def one(ctx: Any) -> Any:
    """A step, and a child."""
    first = await ctx.step("first", ctx.state.do, "first")
    return [first, await ctx.await_task(await ctx.spawn(Part("a")))]


@pytest.mark.case(56)
def test_a_child_that_has_succeeded_since_gives_its_result(
    stage: Stage, strict: Any, again: Callable[[int], None]
) -> None:
    task_id = stage.start(one, strict)
    stage.drain()
    for _ in range(2):
        stage.drain(1)  # the attempts that it has: none awaits the child anew
    assert (stage.state(task_id), stage.ends(task_id)[1:]) == ("dead", ["retried", "retried", "dead"])
    (child,) = parts(stage, task_id)
    mend(stage, "a")
    stage.jobs.dead_letters.replay(child)
    stage.drain()
    again(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == ["first", "a"]
    assert stage.play.done == ["first", "part a", "part a"]
    assert parts(stage, task_id) == [child]
    assert names(stage, task_id) == ["first", "$spawn:Part", f"$task:{child}"]


@pytest.mark.case(56)
def test_a_child_that_lives_again_is_waited_for(stage: Stage, strict: Any) -> None:
    task_id = stage.start(one, strict, with_retry=ONCE)
    stage.drain()
    (child,) = parts(stage, task_id)
    mend(stage, "a")
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.get_last_error(task_id) == f"TaskFailedError: task {child} failed: ValueError: a is broken"
    assert stage.state(task_id) == "dead"  # as long as the child is
    stage.jobs.retry_task(child)
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == ["first", "a"]
    assert stage.play.done == ["first", "part a", "part a"]


@pytest.mark.case(56)
def test_a_retry_between_two_attempts_awaits_anew_too(stage: Stage, kind: Any) -> None:
    task_id = stage.start(one, kind)
    stage.drain()
    (child,) = parts(stage, task_id)
    mend(stage, "a")
    stage.jobs.retry_task(child)
    assert stage.state(task_id) == "retry"
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == ["first", "a"]


@pytest.mark.case(48, 56)
def test_a_cancelled_child_too(stage: Stage, kind: Any) -> None:
    child = stage.jobs.task(Part("b")).after(60).schedule()

    async def body(ctx: Any) -> Any:
        return await ctx.await_task(child)

    task_id = stage.start(body, kind, with_retry=ONCE)
    stage.drain()
    stage.jobs.cancel_task(child)
    stage.drain()
    assert stage.state(task_id) == "dead"
    stage.jobs.retry_task(child)
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "b"


@pytest.mark.case(54, 55, 56)
@pytest.mark.parametrize("what", ["task", "event"])
def test_a_timeout_that_ended_it_begins_anew(stage: Stage, strict: Any, what: str) -> None:
    other = stage.jobs.task(Part("b")).after(90).schedule()

    async def body(ctx: Any) -> Any:
        if what == "task":
            return await ctx.await_task(other, timeout=60)
        return await ctx.await_event("go", timeout=60)

    task_id = stage.start(body, strict, with_retry=ONCE)
    stage.drain()
    stage.drain(60)
    assert stage.state(task_id) == "dead"
    stage.drain(10)
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.state(task_id) == "suspended"
    stage.jobs.emit_event("go", "b")
    stage.drain(50)
    assert stage.jobs.result(task_id, 0) == "b"


@pytest.mark.case(54, 55)
def test_a_wait_that_was_cut_off_has_its_whole_time_again(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        return await ctx.await_event("go", timeout=60)

    task_id = stage.start(body, kind)
    stage.drain()
    stage.jobs.cancel_task(task_id)
    stage.drain(100)
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.state(task_id) == "suspended"
    stage.drain(59)
    stage.jobs.emit_event("go", "in time")
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "in time"


@pytest.mark.case(52, 56)
@pytest.mark.parametrize("begun", ["recorded", "failed"])
def test_a_failure_that_the_handler_acted_upon_stays(
    stage: Stage, strict: Any, again: Callable[[int], None], begun: str
) -> None:
    """Its refund has been made, or was at least begun: the child's late success may not ship the goods as well."""
    broken = [True]

    def refund() -> None:
        stage.play.do("refund")
        if begun == "failed" and broken:
            raise ConnectionError("away")

    def inform() -> None:
        if broken:
            raise ConnectionError("away")
        stage.play.do("inform")

    async def body(ctx: Any) -> Any:
        await ctx.step("reserve", ctx.state.do, "reserve")
        child = await ctx.spawn(Part("a"))
        try:
            await ctx.await_task(child)
        except TaskFailedError as error:
            await ctx.step("refund", refund)
            await ctx.step("inform", inform)
            return str(error)
        return await ctx.step("ship", ctx.state.do, "ship")

    task_id = stage.start(body, strict, with_retry=ONCE)
    stage.drain()
    assert stage.state(task_id) == "dead"
    (child,) = parts(stage, task_id)
    mend(stage, "a")
    stage.jobs.retry_task(child)
    stage.drain()
    broken.clear()
    again(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == f"task {child} failed: ValueError: a is broken"
    refunds = ["refund"] * (2 if begun == "failed" else 1)
    assert [done for done in stage.play.done if "part" not in done] == ["reserve", *refunds, "inform"]
    (note,) = rows(stage.jobs, "SELECT note FROM schedd_checkpoints WHERE failure IS NOT NULL")
    assert note.note == "caught: the handler went on"


@pytest.mark.case(52, 56)
def test_one_that_compensates_and_raises_again_stays_as_it_ended(stage: Stage, strict: Any) -> None:
    async def body(ctx: Any) -> Any:
        child = await ctx.spawn(Part("a"))
        try:
            return await ctx.await_task(child)
        except TaskFailedError:
            await ctx.step("refund", ctx.state.do, "refund")
            raise

    task_id = stage.start(body, strict, with_retry=ONCE)
    stage.drain()
    mend(stage, "a")
    stage.jobs.retry_task(parts(stage, task_id)[0])
    stage.drain()
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.state(task_id) == "dead"
    assert stage.play.done == ["part a", "refund", "part a"]


def retried_past_its_timeout(stage: Stage, task_id: int, broken: list[bool]) -> None:
    """The wait is over, what the handler does then breaks; mended, it does that, though the event is there."""
    stage.drain()
    stage.drain(60)
    assert stage.state(task_id) == "dead"
    broken.clear()
    stage.jobs.emit_event("approved", "too late")
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "refunded"


@pytest.mark.case(55)
def test_a_timeout_that_the_handler_acted_upon_stays(stage: Stage, strict: Any) -> None:
    broken = [True]

    def refund() -> str:
        if broken:
            raise ConnectionError("away")
        return "refunded"

    async def body(ctx: Any) -> Any:
        try:
            return await ctx.await_event("approved", timeout=60)
        except TimeoutError:
            return await ctx.step("refund", refund)

    task_id = stage.start(body, strict, with_retry=ONCE)
    retried_past_its_timeout(stage, task_id, broken)


@pytest.mark.case(55)
def test_a_transaction_acts_upon_a_timeout_too(stage: Stage) -> None:
    broken = [True]

    class Refund(Task, retry=ONCE):
        def run(self, ctx: Context) -> Any:
            try:
                return ctx.await_event("approved", timeout=60)
            except TimeoutError:
                with ctx.transaction() as tx:
                    if broken:
                        raise ConnectionError("away") from None
                    tx.result = "refunded"

    stage.jobs.register(Refund)
    task_id = int(stage.jobs.task(Refund()).schedule())
    retried_past_its_timeout(stage, task_id, broken)


@pytest.mark.case(56)
def test_failures_that_were_collected_are_awaited_anew(stage: Stage, strict: Any) -> None:
    """Nothing was done because of them, but to await the next one."""
    stage.play.failing = {"a", "c"}  # type: ignore[attr-defined]

    async def body(ctx: Any) -> Any:
        made = [await ctx.spawn(Part(name)) for name in "abc"]
        found, failed = [], []
        for child in made:
            try:
                found.append(await ctx.await_task(child))
            except TaskFailedError as error:
                failed.append(str(error))
        if failed:
            raise RuntimeError("; ".join(failed))
        return await ctx.step("sum", "".join, found)

    task_id = stage.start(body, strict, with_retry=ONCE)
    stage.drain()
    assert stage.state(task_id) == "dead"
    a, _, c = parts(stage, task_id)
    mend(stage, "a", "c")
    stage.jobs.retry_task(a)
    stage.jobs.retry_task(c)
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "abc"
    assert len(stage.play.done) == 5


@pytest.mark.case(56)
@pytest.mark.parametrize("around", ["gather", "group"])
def test_what_a_sibling_has_done_since_keeps_no_failure(stage: Stage, around: str) -> None:
    """Two branches of one handler: one goes on, with steps, after the other one's child has died."""
    stage.play.failing = {"a", "b"}  # type: ignore[attr-defined]

    async def body(ctx: Any) -> Any:
        async def branch(name: str) -> Any:
            child = await ctx.spawn(Part(name), name=f"child {name}")
            found = await ctx.await_task(child)
            return await ctx.step(f"keep {name}", ctx.state.do, found)

        async def late() -> Any:
            for n in range(3):
                await ctx.step(f"late {n}", ctx.state.do, f"late {n}")
            return "late"

        if around == "gather":
            return await asyncio.gather(branch("a"), branch("b"), branch("c"), late())
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(branch(name)) for name in "abc"] + [group.create_task(late())]
        return [one.result() for one in made]

    task_id = stage.start(body, AsyncStrict)
    stage.drain()
    for _ in range(2):
        stage.drain(1)
    assert stage.state(task_id) == "dead"
    mend(stage, "a", "b")
    for child in parts(stage, task_id):
        if stage.state(child) == "dead":
            stage.jobs.retry_task(child)
    stage.drain()
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == ["a", "b", "c", "late"]


@pytest.mark.case(56)
@pytest.mark.parametrize("where", ["handler", "branch"])
def test_a_failure_that_came_from_a_branch_can_be_acted_upon(stage: Stage, where: str) -> None:
    """By the handler, or by a branch that has branches of its own."""
    broken = [True]

    async def report(ctx: Any, children: list[int]) -> list[str]:
        found = await asyncio.gather(*map(ctx.await_task, children), return_exceptions=True)
        await ctx.step("report", ctx.state.do, [str(one) for one in found])
        return [str(one) for one in found]

    async def body(ctx: Any) -> Any:
        children = [await ctx.spawn(Part(name)) for name in "ab"]
        if where == "handler":
            found = await report(ctx, children)
        else:
            (found,) = await asyncio.gather(report(ctx, children))
        if broken:
            raise ConnectionError("away")
        return found

    task_id = stage.start(body, AsyncStrict, with_retry=ONCE)
    stage.drain()
    assert stage.state(task_id) == "dead"
    a, _ = parts(stage, task_id)
    mend(stage, "a")
    broken.clear()
    stage.jobs.retry_task(a)
    stage.drain()
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [f"task {a} failed: ValueError: a is broken", "b"]


@pytest.mark.case(19, 56)
def test_a_copy_begins_from_its_beginning(stage: Stage, kind: Any) -> None:
    task_id = stage.start(one, kind, with_retry=ONCE)
    stage.drain()
    mend(stage, "a")
    copy = stage.jobs.dead_letters.replay(task_id, copy=True)
    stage.drain()
    assert stage.jobs.result(copy, 0) == ["first", "a"]
    assert stage.play.done == ["first", "part a"] * 2
    assert (len(parts(stage, task_id)), len(parts(stage, copy))) == (1, 1)


@pytest.mark.case(36, 56)
@pytest.mark.parametrize("downstream", [True, False])
def test_what_waits_for_the_workflow(stage: Stage, kind: Any, downstream: bool) -> None:
    task_id = stage.start(one, kind, with_retry=ONCE)
    below = stage.jobs.task(Part("below")).depend_on(task_id).schedule()
    stage.drain()
    assert stage.state(below) == "failed"
    mend(stage, "a")
    stage.jobs.retry_task(parts(stage, task_id)[0])
    stage.jobs.retry_task(task_id, downstream=downstream)
    stage.drain()
    assert [stage.state(i) for i in (task_id, below)] == ["success", "success" if downstream else "failed"]


# fan-out


async def fan_out(ctx: Any) -> Any:
    """A child for each letter."""
    return "".join(await ctx.map(Part, [Part(name) for name in "abc"]))


@pytest.mark.case(20, 56)
@pytest.mark.parametrize("order", ["child first", "parent first", "all"])
def test_a_map_waits_for_children_that_live_again(stage: Stage, strict: Any, order: str) -> None:
    task_id = stage.start(fan_out, strict, with_retry=ONCE)
    stage.drain()
    assert stage.state(task_id) == "dead"
    a = parts(stage, task_id)[0]
    mend(stage, "a")
    if order == "all":
        assert sorted(stage.jobs.dead_letters.replay_all()) == [task_id, a]
    else:
        for one_id in (a, task_id) if order == "child first" else (task_id, a):
            stage.jobs.retry_task(one_id)
    put_off(stage, a)
    stage.drain()
    assert stage.state(task_id) == "suspended"
    stage.drain(60)
    assert stage.jobs.result(task_id, 0) == "abc"
    assert sorted(stage.play.done) == ["part a", "part a", "part b", "part c"]


@pytest.mark.case(56)
def test_a_map_waits_for_a_child_that_was_retried_between_its_attempts(stage: Stage, strict: Any) -> None:
    task_id = stage.start(fan_out, strict)
    stage.drain()
    assert stage.state(task_id) == "retry"
    a = parts(stage, task_id)[0]
    mend(stage, "a")
    stage.jobs.retry_task(a)
    put_off(stage, a)
    stage.drain(1)
    assert stage.state(task_id) == "suspended"
    stage.drain(60)
    assert stage.jobs.result(task_id, 0) == "abc"
    assert rows(stage.jobs, "SELECT * FROM schedd_waits") == []


@pytest.mark.case(56)
def test_a_map_whose_child_is_still_dead_fails_again(stage: Stage, kind: Any) -> None:
    task_id = stage.start(fan_out, kind, with_retry=ONCE)
    stage.drain()
    stage.jobs.retry_task(task_id)
    stage.drain()
    a = parts(stage, task_id)[0]
    assert stage.jobs.get_last_error(task_id) == f"TaskFailedError: task {a} failed: ValueError: a is broken"
    assert len(stage.play.done) == 3


@pytest.mark.case(56)
def test_one_that_is_opened_again_while_it_is_looked_at(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """It had ended when the cycle began to look, and no longer when it read how."""
    other = stage.jobs.task(Part("b")).after(60).schedule()
    look = asked_children._living
    looks: list[Any] = []

    def had_ended(*arguments: Any) -> Any:
        looks.append(arguments)
        return set() if len(looks) == 1 else look(*arguments)

    monkeypatch.setattr(asked_children, "_living", had_ended)

    async def body(ctx: Any) -> Any:
        return await ctx.await_task(other)

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), len(looks)) == ("suspended", 2)
    stage.drain(60)
    assert stage.jobs.result(task_id, 0) == "b"


@pytest.mark.case(19, 52)
@pytest.mark.parametrize("copy", [False, True])
def test_what_a_changed_payload_finds_recorded(stage: Stage, copy: bool) -> None:
    """Of the same task its steps, as after any failure; a copy begins anew."""

    async def wrong(ctx: Any) -> Any:
        await ctx.step("told", ctx.state.do, "wrong")
        raise PermanentError("cannot go on with this")

    async def right(ctx: Any) -> Any:
        return await ctx.step("told", ctx.state.do, "right")

    stage.play.bodies |= {"wrong": wrong, "right": right}
    task_id = stage.jobs.task(Flow("wrong")).schedule()
    stage.drain()
    again = stage.jobs.dead_letters.replay(task_id, payload={"name": "right"}, copy=copy)
    stage.drain()
    assert stage.play.done == (["wrong", "right"] if copy else ["wrong"])
    assert stage.jobs.result(again, timeout=0) == ("right" if copy else "wrong")
