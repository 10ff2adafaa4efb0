"""Children: spawned once, awaited without a slot, cancelled with their parent; fan-out with results in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from scheduler import Context, DuplicateKeyError, RetryPolicy, Scheduler, Task, task
from scheduler.errors import ResultExpiredError, TaskCancelledError, TaskFailedError, UnknownTaskError
from scheduler.testing import drain
from support.databases import Database
from support.fleet import rows, run_claimed, step, write
from support.flows import AsyncFlow, Flow, Play, Stage

PATIENCE = 20


class Double(Task):
    n: int
    fail: bool = False

    def run(self, ctx: Context) -> int:
        ctx.state.do(("double", self.n))
        if self.fail:
            raise ValueError(f"{self.n} is too much")
        return 2 * self.n


@task
def shout(ctx: Context, text: str, mark: str = "!") -> str:
    return text.upper() + mark


@pytest.fixture(autouse=True)
def register(stage: Stage) -> None:
    for one in (Double, shout):
        stage.jobs.register(one)


def children(jobs: Scheduler, parent: int) -> list[Any]:
    sql = "SELECT id, kind, state, correlation, causation FROM schedd_tasks WHERE spawned_by = :id ORDER BY id"
    return rows(jobs, sql, id=parent)


@pytest.mark.case(56)
def test_spawn_and_await(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        child = await ctx.spawn(Double(21))
        ctx.state.do("spawned")
        return [child.created, await ctx.await_task(child)]

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [True, 42]
    assert stage.play.done == ["spawned", ("double", 21), "spawned"]
    assert len(children(stage.jobs, task_id)) == 1
    assert [(a.number, a.outcome.value) for a in stage.jobs.get_attempts(task_id)] == [
        (1, "suspended"),
        (1, "succeeded"),
    ]
    assert rows(stage.jobs, "SELECT * FROM schedd_waits") == []


@pytest.mark.case(56)
def test_a_retry_spawns_nothing_again(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        made = [await ctx.spawn(Double(n)) for n in (1, 2)] + [await ctx.spawn(Double(3), name="third")]
        if ctx.attempt < 3:
            raise ConnectionError("away")
        return [await ctx.await_task(child) for child in made]

    task_id = stage.start(body, kind)
    for _ in range(3):
        stage.drain(1)
    assert stage.jobs.result(task_id, 0) == [2, 4, 6]
    assert sorted(stage.play.done) == [("double", n) for n in (1, 2, 3)]
    names = [
        row.name for row in rows(stage.jobs, "SELECT name FROM schedd_checkpoints WHERE type = 4 ORDER BY at, seq")
    ]
    assert names == ["$spawn:Double", "$spawn:Double#2", "third"]


@pytest.mark.case(56)
@pytest.mark.parametrize("end", ["dead", "cancelled", "skipped"])
def test_a_childs_failure_reaches_its_parent(stage: Stage, kind: Any, end: str) -> None:
    async def body(ctx: Any) -> Any:
        if end == "skipped":
            never = stage.jobs.task(Double(0)).depend_on(await ctx.spawn(Double(1)), when="failure")
            child = await ctx.spawn(never)
        else:
            child = await ctx.spawn(Double(1, fail=end == "dead"))
        if end == "cancelled":
            await ctx.step("cancel", lambda: bool(stage.jobs.cancel_task(child)))
        try:
            await ctx.await_task(child)
        except (TaskFailedError, TaskCancelledError) as error:
            ctx.state.do(str(error))
            if ctx.attempt == 1:
                raise
            return type(error).__name__

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    expected = "TaskCancelledError" if end == "cancelled" else "TaskFailedError"
    assert stage.jobs.result(task_id, 0) == expected
    errors = [text for text in stage.play.done if isinstance(text, str)]
    assert len(errors) == 2
    assert errors[0] == errors[1]
    if end == "dead":
        assert errors[0] == f"task {children(stage.jobs, task_id)[0].id} failed: ValueError: 1 is too much"


@pytest.mark.case(47, 56)
def test_a_child_that_has_ended_is_in_time_though_the_clock_was_set_back(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        child = await ctx.spawn(Double(21))
        await ctx.await_event("go")
        return await ctx.await_task(child, timeout=5)

    task_id = stage.start(body, kind)
    stage.drain()
    stage.clock.jump(-100)
    stage.jobs.emit_event("go")
    stage.drain()
    stage.drain(101)
    assert stage.jobs.result(task_id, 0) == 42


@pytest.mark.case(55, 56)
def test_what_it_no_longer_waits_for_does_not_wake_it(stage: Stage, kind: Any) -> None:
    """Its child ends in the very turn that suspends it again, for something else: other code runs since then.

    It has the higher level, so that it runs first: what it asks of the engine lets nothing end in between.
    """
    runs: list[int] = []

    async def body(ctx: Any) -> Any:
        runs.append(1)
        if len(runs) == 1:
            await ctx.await_task(await ctx.spawn(stage.jobs.task(Double(1)).after(5)), timeout=5)
        return await ctx.await_event("other", timeout=100)

    task_id = stage.start(body, kind, priority="high")
    stage.drain()
    stage.clock.advance(6)
    while len(stage.jobs.list_tasks(status="claimed")) < 2:
        step(stage.jobs)
    assert run_claimed(stage.jobs) == 2
    stage.drain()
    assert stage.play.done == [("double", 1)]
    assert (len(runs), stage.state(task_id)) == (2, "suspended")
    stage.jobs.emit_event("other", "now")
    stage.drain()
    assert (len(runs), stage.jobs.result(task_id, 0)) == (3, "now")


@pytest.mark.case(56)
def test_a_pool_of_one_does_not_deadlock(database: Database, stage: Stage, kind: Any) -> None:
    """Three generations in one slot."""
    stage.jobs = stage.worker(Double, pools={"high": (0, 0), "medium": (1, 1), "low": (0, 0)})

    async def child(ctx: Any) -> Any:
        return 1 + await ctx.await_task(await ctx.spawn(Double(20)))

    stage.play.bodies["child"] = child

    async def body(ctx: Any) -> Any:
        return 1 + await ctx.await_task(await ctx.spawn(kind("child")))

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == 42


@pytest.mark.case(56)
def test_any_task_can_be_awaited(stage: Stage, kind: Any) -> None:
    """Not only children; one that has ended, and one that retention has removed."""
    early, late = (stage.jobs.task(Double(n)).schedule() for n in (1, 2))
    gone = stage.jobs.task(Double(3)).schedule()
    stage.drain()
    stage.drain(2 * 86400)
    stage.jobs.cleanup_completed_tasks(1)
    early = stage.jobs.task(Double(1)).schedule()
    stage.drain()
    late = stage.jobs.task(Double(2)).after(60).schedule()

    async def body(ctx: Any) -> Any:
        found = [await ctx.await_task(early)]
        for task_id in (gone, 4711):
            try:
                await ctx.await_task(task_id)
            except Exception as error:
                found.append(type(error).__name__)
        return [*found, await ctx.await_task(late)]

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.state(task_id) == "suspended"
    stage.drain(60)
    assert stage.jobs.result(task_id, 0) == [2, "ResultExpiredError", "UnknownTaskError", 4]


@pytest.mark.case(55, 56)
@pytest.mark.parametrize("late", ["never", "after the deadline", "in time"])
def test_awaiting_a_task_only_so_long(stage: Stage, kind: Any, late: str) -> None:
    ends_at = {"never": 9999.0, "after the deadline": 60.5, "in time": 59.0}[late]
    other = stage.jobs.task(Double(1)).after(ends_at).schedule()
    elsewhere = Scheduler.for_testing(url=stage.database.url, clock=stage.clock, state=stage.play)
    elsewhere.register(Double)  # and nothing else

    async def body(ctx: Any) -> Any:
        try:
            found = await ctx.await_task(other, timeout=60)
        except TimeoutError as error:
            found = str(error)
        ctx.state.do(found)
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return found

    task_id = stage.start(body, kind)
    stage.drain()
    for seconds in (59.5, 1.5):
        stage.clock.advance(seconds)  # the other worker is there all the time, this one comes late
        drain(elsewhere)
    elsewhere.close()
    stage.drain()
    assert stage.state(task_id) == "retry"
    stage.drain(1)
    expected = 2 if late == "in time" else f"task {other} has not ended in time"
    assert stage.jobs.result(task_id, 0) == expected
    assert [one for one in stage.play.done if one != ("double", 1)] == [expected, expected]


@pytest.mark.case(51, 56)
@pytest.mark.parametrize("by", ["retention", "reading it"])
@pytest.mark.parametrize("size", [5, 5000], ids=["short", "long"])
def test_a_result_that_has_expired_is_not_taken_for_none(stage: Stage, kind: Any, by: str, size: int) -> None:
    """The row is kept for longer than the result."""
    stage.jobs = stage.worker(shout, retention={"success": 86400.0 * 10, "failed": 1e9, "outcomes": 1e9, "events": 1e9})
    other = stage.jobs.task(shout, "x" * size).schedule()
    stage.drain()

    async def body(ctx: Any) -> Any:
        with pytest.raises(ResultExpiredError):
            await ctx.await_task(other)
        return "raised"

    stage.clock.advance(86400 * 2)
    if by == "retention":
        stage.drain()
        stage.drain(60)
    else:
        with pytest.raises(ResultExpiredError):
            stage.jobs.result(other, 0)
    assert stage.jobs.get_task(other).result is None
    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "raised"


@pytest.mark.case(56)
def test_a_task_cannot_await_itself(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.await_task(ctx.id)

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.state(task_id) == "dead"
    assert "cannot await itself" in (stage.jobs.get_last_error(task_id) or "")


@pytest.mark.case(56)
@pytest.mark.parametrize("wrong", [0, -1, True, "5", None, 2**63])
def test_what_is_no_task_cannot_be_awaited(stage: Stage, kind: Any, wrong: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.await_task(wrong)

    task_id = stage.start(body, kind)
    stage.drain()
    assert "await_task takes a task's id" in (stage.jobs.get_last_error(task_id) or "")


@pytest.mark.case(61)
def test_children_inherit_the_correlation_and_name_their_cause(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.spawn(Double(1))
        await ctx.spawn(stage.jobs.task(Double(2)).correlation("own").causation("another"))
        await ctx.map(Double, [3])

    with_one = stage.start(body, kind, correlation="order-42")
    without = stage.start(body, kind)
    stage.drain()
    for parent, correlation in ((with_one, "order-42"), (without, str(without))):
        causes = [(c.correlation, c.causation) for c in children(stage.jobs, parent)]
        assert causes == [(correlation, str(parent)), ("own", "another"), (correlation, str(parent))]
    assert {t.kind for t in stage.jobs.list_tasks(correlation="order-42")} == {"Double", kind.__name__}


@pytest.mark.case(56)
def test_what_can_be_spawned(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        builder = stage.jobs.task(Double(5)).key("k").priority("high").after(30)
        made = [
            await ctx.spawn(shout, "hey", mark="?"),
            await ctx.spawn(builder),
            await ctx.spawn(stage.jobs.task(Double(6)).key("k")),
        ]
        made.append(await ctx.spawn(stage.jobs.task(shout, "after").depend_on(made[0])))
        ctx.state.do([child.created for child in made])
        return [await ctx.await_task(child) for child in made]

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(30)
    assert stage.jobs.result(task_id, 0) == ["HEY?", 10, 10, "AFTER!"]
    assert stage.play.done[0] == [True, True, False, True]
    assert len(children(stage.jobs, task_id)) == 3


@pytest.mark.case(56)
def test_a_spawn_that_is_refused_can_be_caught(stage: Stage, kind: Any) -> None:
    class Unknown(Task):
        def run(self, ctx: Context) -> None: ...

    async def body(ctx: Any) -> Any:
        held = await ctx.spawn(stage.jobs.task(Double(1)).key("k").after(60))
        refused = []
        for make in (
            lambda: stage.jobs.task(Double(2)).key("k", conflict="reject"),
            lambda: stage.jobs.task(Double(2)).depend_on(4711),
            lambda: Unknown(),
            lambda: Double("x"),  # type: ignore[arg-type]
            lambda: stage.jobs.task(Double(2)).every(60),
            lambda: stage.jobs.batch().task(Double(2)),
        ):
            try:
                await ctx.spawn(make())
            except DuplicateKeyError as error:
                refused.append(f"held by {error.existing_id - held}")
            except Exception as error:
                refused.append(type(error).__name__)
        return refused

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [
        "held by 0",
        "UnknownDependencyError",
        "UnregisteredKindError",
        "PayloadError",
        "InvalidScheduleError",
        "ConfigError",
    ]
    assert len(children(stage.jobs, task_id)) == 1


# cancelling


@pytest.mark.case(48, 56)
@pytest.mark.parametrize("state", ["suspended", "running"])
def test_cancel_reaches_the_children(stage: Stage, kind: Any, state: str) -> None:
    """And their children; but no other task's, nor a child that had ended."""

    async def grandchild(ctx: Any) -> Any:
        await ctx.sleep_for(1000)

    async def child(ctx: Any) -> Any:
        await ctx.await_task(await ctx.spawn(kind("grandchild")))

    stage.play.bodies |= {"grandchild": grandchild, "child": child}

    async def body(ctx: Any) -> Any:
        done = await ctx.spawn(Double(1))
        await ctx.await_task(done)
        made = [await ctx.spawn(kind("child")), await ctx.spawn(stage.jobs.task(Double(2)).after(500))]
        made.append(await ctx.spawn(stage.jobs.task(Double(3)).depend_on(made[1])))
        if state == "running":
            await ctx.step("cancel", lambda: stage.jobs.cancel_task(ctx.id).requested)
        await ctx.await_task(made[0])

    other = stage.jobs.task(Double(7)).after(500).schedule()
    task_id = stage.start(body, kind)
    stage.drain()
    if state == "suspended":
        made = [c.id for c in children(stage.jobs, task_id)]
        (below,) = [c.id for c in children(stage.jobs, made[1])]
        done = stage.jobs.cancel_task(task_id)
        assert (done.cancelled, done.affected) == ((task_id,), tuple(sorted([*made[1:], below])))
        assert stage.state(below) == "cancelled"
    states = [stage.state(c.id) for c in children(stage.jobs, task_id)]
    assert (stage.state(task_id), states) == ("cancelled", ["success", "cancelled", "cancelled", "cancelled"])
    assert stage.state(other) == "scheduled"
    stage.drain(1000)
    assert stage.play.done == [("double", 1), ("double", 7)]


@pytest.mark.case(56)
@pytest.mark.parametrize("end", ["success", "dead"])
def test_children_outlive_a_parent_that_ends_otherwise(stage: Stage, kind: Any, end: str) -> None:
    async def body(ctx: Any) -> Any:
        await ctx.spawn(stage.jobs.task(Double(1)).after(60))
        if end == "dead":
            raise ValueError("no")

    task_id = stage.start(body, kind, with_retry=RetryPolicy(max_attempts=1))
    stage.drain()
    assert stage.state(task_id) == end
    stage.drain(60)
    assert stage.play.done == [("double", 1)]


@pytest.mark.case(51, 56)
def test_retention_leaves_what_a_live_task_spawned_or_awaits(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        child = await ctx.spawn(Double(1))
        await ctx.sleep_for(86400 * 10)
        return await ctx.await_task(child)

    stranger = stage.jobs.task(Double(2)).schedule()
    task_id = stage.start(body, kind)
    stage.drain()
    stage.clock.advance(86400 * 9)
    assert stage.jobs.cleanup_completed_tasks(24) == 1
    with pytest.raises(UnknownTaskError):
        stage.jobs.get_task(stranger)
    stage.drain(86400)
    assert stage.jobs.result(task_id, 0) == 2
    stage.clock.advance(86400 * 2)
    assert stage.jobs.cleanup_completed_tasks(24) == 2


@pytest.mark.case(36, 51, 56)
def test_retention_leaves_what_a_dead_task_spawned(stage: Stage, kind: Any) -> None:
    """It is kept for longer than a success is, so that it may be retried; then it asks for these."""
    broken = [True]

    async def body(ctx: Any) -> Any:
        found = await ctx.map(Double, [1, 2])
        if broken:
            raise ConnectionError("away")
        return found

    task_id = stage.start(body, kind, with_retry=RetryPolicy(max_attempts=1))
    stage.drain()
    stage.clock.advance(86400 * 20)
    assert stage.jobs.cleanup_completed_tasks(24) == 0
    stage.drain()  # the engine's own retention
    broken.clear()
    stage.jobs.retry_task(task_id)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [2, 4]
    stage.clock.advance(86400 * 2)
    assert stage.jobs.cleanup_completed_tasks(24) == 3


@pytest.mark.case(51, 56)
def test_retention_leaves_a_result_that_a_task_awaits(stage: Stage, kind: Any) -> None:
    other = stage.jobs.task(Double(1)).after(60).schedule()
    elsewhere = Scheduler.for_testing(url=stage.database.url, clock=stage.clock, state=stage.play)
    elsewhere.register(Double)  # and nothing else

    async def body(ctx: Any) -> Any:
        return await ctx.await_task(other)

    task_id = stage.start(body, kind)
    stage.drain()
    stage.clock.advance(60)
    drain(elsewhere)
    elsewhere.close()
    stage.clock.advance(86400 * 9)
    assert stage.jobs.cleanup_completed_tasks(24) == 0
    stage.drain()
    assert stage.jobs.result(task_id, 0) == 2


@pytest.mark.case(25, 48, 56)
def test_a_cancel_leaves_alone_what_was_found_by_its_key(stage: Stage, kind: Any) -> None:
    other = stage.jobs.task(Double(1)).key("k").after(60).schedule()

    async def body(ctx: Any) -> Any:
        found = await ctx.spawn(stage.jobs.task(Double(2)).key("k"))
        assert int(found) == other
        await ctx.sleep_for(1000)

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.cancel_task(task_id).affected == ()
    stage.drain(60)
    assert stage.state(other) == "success"
    assert stage.play.done == [("double", 1)]


@pytest.mark.case(56)
def test_what_has_ended_and_lives_again_is_awaited_again(stage: Stage, kind: Any) -> None:
    """Opened again before the one who awaits it came to look."""
    other = stage.jobs.task(Double(1)).after(60).schedule()

    async def body(ctx: Any) -> Any:
        return await ctx.await_task(other)

    task_id = stage.start(body, kind)
    stage.drain()
    stage.jobs.cancel_task(other)
    stage.jobs.retry_task(other)
    write(stage.jobs, "UPDATE schedd_tasks SET run_at = run_at + 60000000 WHERE id = :id", id=other)
    assert drain(stage.jobs, limit=3) == 1
    assert stage.state(task_id) == "suspended"
    stage.drain(60)
    assert stage.jobs.result(task_id, 0) == 2


# fan-out


@pytest.mark.case(56)
def test_map_gives_results_in_order(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        first = await ctx.map(Double, range(20))
        second = await ctx.map(shout, ["a", {"text": "b", "mark": "?"}])
        third = await ctx.map("Double", [Double(1), {"n": 2}])
        return [first, second, third, await ctx.map(Double, [])]

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [[2 * n for n in range(20)], ["A!", "B?"], [2, 4], []]
    assert stage.ends(task_id) == ["suspended"] * 3 + ["succeeded"]  # woken once for all
    assert rows(stage.jobs, "SELECT * FROM schedd_waits") == []


@pytest.mark.case(56)
def test_map_raises_what_became_of_the_first_that_failed(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        try:
            await ctx.map(Double, [Double(1), Double(2, fail=True), Double(3), Double(4, fail=True)])
        except TaskFailedError as error:
            ctx.state.do(str(error))
            if ctx.attempt == 1:
                raise
            return str(error)

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    made = [c.id for c in children(stage.jobs, task_id)]
    assert len(made) == 4
    assert stage.jobs.result(task_id, 0) == f"task {made[1]} failed: ValueError: 2 is too much"
    assert sorted(n for n in stage.play.done if isinstance(n, tuple)) == [("double", n) for n in (1, 2, 3, 4)]


@pytest.mark.case(56)
def test_map_in_chunks_survives_a_crash_between_them(stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    from scheduler.engine.durable import calls as durable

    monkeypatch.setattr(durable, "CHILDREN_PER_REQUEST", 10)
    made: list[int] = []

    async def body(ctx: Any) -> Any:
        def items() -> Any:
            for n in range(35):
                if ctx.attempt == 1 and n == 25:
                    yield {"n": n, "no such field": 1}  # found out when the third chunk is built
                else:
                    yield {"n": n}

        made.append(len(children(stage.jobs, ctx.id)))
        return sum(await ctx.map(Double, items()))

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(task_id, 0) == sum(2 * n for n in range(35))
    assert made == [0, 20, 35]
    assert len(stage.play.done) == 35


@pytest.mark.case(56)
def test_branches_that_await_children_side_by_side(stage: Stage) -> None:
    async def body(ctx: Any) -> Any:
        async def branch(n: int) -> Any:
            child = await ctx.spawn(Double(n), name=f"child {n}")
            return await ctx.await_task(child)

        return await asyncio.gather(*map(branch, range(5)), ctx.map(Double, [10, 11]))

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [0, 2, 4, 6, 8, [20, 22]]


@pytest.mark.case(56)
def test_a_fan_out_on_real_engines(database: Database) -> None:
    """Two engines, whose last children often end at the same moment."""
    play = Play()

    async def body(ctx: Any) -> Any:
        total = 0
        for _ in range(3):
            total += sum(await ctx.map(Double, range(60)))
        return total

    play.bodies["body"] = body
    engines = [Scheduler(database.url, state=play) for _ in range(2)]
    for jobs in engines:
        for one in (Flow, AsyncFlow, Double):
            jobs.register(one)
        jobs.start()
    try:
        parents = [engines[0].task(one("body")).schedule() for one in (Flow, AsyncFlow)]
        engines[0].wait(parents, PATIENCE * 3)
        assert [engines[0].result(i, 0) for i in parents] == [3 * sum(2 * n for n in range(60))] * 2
        assert rows(engines[0], "SELECT count(*) AS n FROM schedd_tasks")[0].n == 2 + 2 * 180
        assert [engines[0].get_task(i).attempt for i in parents] == [1, 1]
    finally:
        for jobs in engines:
            jobs.stop(PATIENCE)
            jobs.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.case(56)
def test_ten_thousand_children_wide(database: Database, tell: Callable[[str], None]) -> None:
    """On a pool of one slot, which the parent does not keep while it waits."""
    play = Play()

    async def body(ctx: Any) -> int:
        return sum(await ctx.map(Double, range(10_000)))

    play.bodies["body"] = body
    jobs = Scheduler(database.url, state=play, pools={"high": (1, 0), "medium": (1, 0), "low": (1, 0)})
    for one in (Flow, Double):
        jobs.register(one)
    jobs.start()
    try:
        begun = time.monotonic()
        parent = jobs.task(Flow("body")).schedule()
        jobs.wait([parent], 500)
        assert jobs.result(parent, 0) == sum(2 * n for n in range(10_000))
        assert jobs.get_task(parent).attempt == 1
        assert rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE state = 6")[0].n == 10_001
        tell(f"10,000 children in {time.monotonic() - begun:.1f} s")
    finally:
        jobs.stop(PATIENCE)
        jobs.close()
