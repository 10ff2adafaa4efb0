"""``ctx.transaction()``: a handler's own rows commit with its success, or with a step's checkpoint, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import LeaseLost, PermanentError, Snooze
from scheduler.engine.execution.transaction import _TransactionScope
from scheduler.errors import Cancelled, Collided
from scheduler.ports import FAILPOINTS
from scheduler.store.db import database as store
from scheduler.store.db import engines as connecting
from scheduler.store.db import handler_transaction as transaction
from scheduler.store.db.handler_transaction import is_transient
from scheduler.store.requests import transaction as effects
from scheduler.store.tasks.complete import Completion
from scheduler.testing import drain, engine_of
from support.fleet import let_pass, rows, run_claimed, step, write
from support.flows import AsyncFlow, Flow, Stage

pytestmark = [pytest.mark.case(4, 57, 63), pytest.mark.both_databases]
ADD = sa.text("INSERT INTO ledger (entry) VALUES (:entry)")


class Both:
    """A context's transaction, with ``async with`` and awaited calls for both sorts of handlers."""

    def __init__(self, ctx: Any) -> None:
        self.block = ctx.transaction() if not hasattr(ctx, "ctx") else ctx.ctx.transaction()

    async def __aenter__(self) -> Any:
        if hasattr(self.block, "__aenter__"):
            return await self.block.__aenter__()
        self.tx = self.block.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        if hasattr(self.block, "__aexit__"):
            await self.block.__aexit__(*error)
        else:
            self.block.__exit__(*error)

    async def execute(self, *args: Any) -> Any:
        return self.tx.execute(*args)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "result":
            self.tx.result = value
        else:
            super().__setattr__(name, value)


@pytest.fixture
def ledger(stage: Stage) -> Iterator[Any]:
    write(stage.jobs, "DROP TABLE IF EXISTS ledger")
    write(stage.jobs, "CREATE TABLE ledger (entry varchar(100) NOT NULL)")
    yield lambda: [row.entry for row in rows(stage.jobs, "SELECT entry FROM ledger ORDER BY entry")]
    write(stage.jobs, "DROP TABLE ledger")


def test_rows_result_success_and_release_are_one_commit(stage: Stage, kind: Any, ledger: Any) -> None:
    seen: list[Any] = []

    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            await tx.execute(ADD, {"entry": "paid"})
            seen.extend([ledger(), stage.state(task_id)])
            tx.result = {"paid": 1}
        seen.extend([ledger(), stage.state(task_id), stage.jobs.get_task(child).state.value])

    async def after(ctx: Any) -> Any:
        return await ctx.results()

    task_id = stage.start(body, kind)
    child = stage.start(after, kind, depend_on=[task_id])
    stage.drain()
    assert stage.jobs.get_last_error(task_id) is None
    assert seen[0] == []
    assert seen[2:] == [["paid"], "success", "scheduled"]
    assert stage.jobs.result(task_id, 0) == {"paid": 1}
    assert stage.jobs.result(child, 0) == {str(task_id): {"paid": 1}}
    assert stage.ends(task_id) == ["succeeded"]


def test_a_block_without_a_statement_is_one_transaction_too(
    stage: Stage, kind: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with its end: what is written there commits together."""

    async def body(ctx: Any) -> Any:
        async with Both(ctx):
            pass

    def fail(name: str) -> None:
        if name == "before transaction commit":
            raise RuntimeError("no")

    task_id, second = stage.start(body, kind), stage.start(body, kind)
    with monkeypatch.context() as m:
        m.setattr(FAILPOINTS, "hit", fail)
        stage.drain()
    assert (stage.state(task_id), stage.state(second)) == ("retry", "retry")
    stage.drain(1)
    assert (stage.state(task_id), stage.ends(task_id)) == ("success", ["retried", "succeeded"])


def test_a_block_without_a_statement_whose_task_was_cancelled(stage: Stage, kind: Any, ledger: Any) -> None:
    async def body(ctx: Any) -> Any:
        stage.jobs.cancel_task(task_id)
        async with Both(ctx):
            pass

    async def after(ctx: Any) -> Any: ...

    task_id = stage.start(body, kind)
    child = stage.start(after, kind)
    stage.jobs.add_dependency(child, task_id, when="finished")
    stage.drain()
    assert (stage.state(task_id), stage.state(child)) == ("cancelled", "success")
    assert stage.ends(task_id) == ["cancelled"]


def test_what_raises_leaves_no_row_and_is_tried_again(stage: Stage, kind: Any, ledger: Any) -> None:
    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            await tx.execute(ADD, {"entry": f"attempt {ctx.attempt}"})
            if ctx.attempt == 1:
                raise ConnectionError("away")

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), ledger()) == ("retry", [])
    stage.drain(1)
    assert (stage.state(task_id), ledger()) == ("success", ["attempt 2"])


def test_a_result_that_is_not_json_leaves_no_row(stage: Stage, kind: Any, ledger: Any) -> None:
    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            await tx.execute(ADD, {"entry": "paid"})
            tx.result = object()

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), ledger()) == ("dead", [])


@pytest.mark.parametrize("in_step", [False, True])
def test_a_stale_attempts_rows_roll_back(stage: Stage, kind: Any, ledger: Any, in_step: bool) -> None:
    other = stage.worker()
    raised: list[type] = []

    async def pay(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            if ctx.state.do(f"attempt {ctx.attempt}") == "attempt 1":
                let_pass(stage.clock, 50, other)  # our lease runs out, and another worker takes the task
            await tx.execute(ADD, {"entry": f"attempt {ctx.attempt}"})
            tx.result = ctx.attempt

    async def body(ctx: Any) -> Any:
        try:
            if in_step:
                return await ctx.step("pay", (lambda: pay(ctx)) if kind is AsyncFlow else (lambda: sync(pay(ctx))))
            await pay(ctx)
        except LeaseLost as error:
            raised.append(type(error))
            raise

    task_id = stage.start(body, kind)
    step(stage.jobs)
    run_claimed(stage.jobs)
    assert ledger() == []
    drain(other)
    assert raised == [LeaseLost]
    assert ledger() == ["attempt 2"]
    assert stage.jobs.result(task_id, 0) == 2
    assert stage.ends(task_id) == ["lost", "succeeded"]


def sync(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


@pytest.mark.case(48, 49)
def test_a_task_cancelled_meanwhile_commits_nothing(stage: Stage, kind: Any, ledger: Any) -> None:
    raised: list[type] = []

    async def body(ctx: Any) -> Any:
        try:
            async with Both(ctx) as tx:
                write(stage.jobs, "UPDATE schedd_tasks SET cancel_requested = 1 WHERE id = :id", id=ctx.id)
                await tx.execute(ADD, {"entry": "paid"})
        except Cancelled as error:
            raised.append(type(error))
            raise

    task_id = stage.start(body, kind)
    stage.drain()
    assert (stage.state(task_id), ledger(), raised) == ("cancelled", [], [Cancelled])


def test_a_handler_that_waits_for_another_transaction_can_be_ended(
    stage: Stage, kind: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a row that waits for this task, and may never let go of it."""
    tries: list[int] = []

    def held(tx: Any, worker: int, outcomes: Any, **_more: Any) -> Completion:
        (attempt,) = engine_of(stage.jobs).engine_state.held.values()
        attempt.cancelled = True
        tries.append(attempt.claimed.id)
        if len(tries) > 5:
            raise AssertionError("it waits for ever")
        return Completion({}, [], [outcomes[0]], 0)

    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            await tx.execute(ADD, {"entry": "paid"})

    task_id = stage.start(body, kind)
    monkeypatch.setattr(effects, "finish", held)
    stage.drain()
    assert (stage.state(task_id), ledger(), tries) == ("cancelled", [], [task_id])


@pytest.mark.case(49, 65)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_handler_that_waits_for_another_transaction_holds_nothing_that_others_need(
    stage: Stage, kind: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that end at once may each have some of the children that they share: both would wait for ever."""
    free: list[int] = []
    wait = _TransactionScope._wait

    def waits(scope: Any) -> None:
        free.extend(row.id for row in rows(stage.jobs, "SELECT id FROM schedd_tasks FOR UPDATE SKIP LOCKED"))
        held.rollback()
        wait(scope)

    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            await tx.execute(ADD, {"entry": "paid"})

    task_id = stage.start(body, kind)
    first, second = (stage.start(body, kind, depend_on=[task_id]) for _ in range(2))
    monkeypatch.setattr(_TransactionScope, "_wait", waits)
    with stage.jobs.database.connect() as held:
        held.execute(sa.text("SELECT 1 FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": second})
        stage.drain()
    assert sorted(free) == [task_id, first]
    assert [stage.state(i) for i in (task_id, first, second)] == ["success"] * 3
    assert ledger() == ["paid"] * 3


def test_in_a_step_its_checkpoint_commits_with_the_rows(stage: Stage, kind: Any, ledger: Any) -> None:
    seen: list[Any] = []

    async def body(ctx: Any) -> Any:
        async def pay() -> str:
            async with Both(ctx) as tx:
                await tx.execute(ADD, {"entry": "paid"})
                tx.result = {"receipt": 7}
            seen.append((ledger(), [row.name for row in rows(stage.jobs, "SELECT name FROM schedd_checkpoints")]))
            if ctx.attempt == 1:
                raise ConnectionError("away, when it had committed")
            return "not stored"

        return await ctx.step("pay", pay if kind is AsyncFlow else lambda: sync(pay()))

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.state(task_id) == "retry"
    stage.drain(1)
    assert seen == [(["paid"], ["pay"])]
    assert stage.jobs.result(task_id, 0) == {"receipt": 7}
    assert ledger() == ["paid"]


@pytest.mark.parametrize("point", ["before transaction commit", "after transaction commit"])
def test_a_crash_leaves_all_of_it_or_nothing(
    stage: Stage, kind: Any, ledger: Any, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = stage.worker()

    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            await tx.execute(ADD, {"entry": f"attempt {ctx.attempt}"})

    def crash(name: str) -> None:
        if name == point:
            raise SystemExit(point)

    task_id = stage.start(body, kind)
    step(dying)
    with monkeypatch.context() as patch:
        patch.setattr(FAILPOINTS, "hit", crash)
        assert run_claimed(dying) == 1
    stage.kill(dying)
    committed = point.startswith("after")
    assert ledger() == (["attempt 1"] if committed else [])
    step(stage.jobs)
    let_pass(stage.clock, 50, stage.jobs)
    stage.drain()
    assert ledger() == (["attempt 1"] if committed else ["attempt 2"])
    assert stage.ends(task_id) == (["succeeded"] if committed else ["lost", "succeeded"])


def test_misuse_is_refused(stage: Stage, ledger: Any) -> None:
    raised: list[str] = []

    async def body(ctx: Any) -> Any:
        with ctx.ctx.transaction() as tx:
            tx.execute(ADD, {"entry": "paid"})
            for call in (
                tx.commit,
                tx.rollback,
                ctx.ctx.heartbeat,
                lambda: ctx.ctx.step("one", int),
                lambda: ctx.ctx.transaction().__enter__(),
            ):
                with pytest.raises(PermanentError) as refused:
                    call()
                raised.append(str(refused.value))
            with tx.begin():  # what of it goes wrong need not be the end of all
                tx.execute(ADD, {"entry": "savepoint"})
        with pytest.raises(LeaseLost, match="its attempt has ended"):
            ctx.ctx.transaction().__enter__()
        return "not stored"

    task_id = stage.start(body)
    stage.drain()
    assert (stage.state(task_id), stage.jobs.result(task_id, 0)) == ("success", None)
    assert ledger() == ["paid", "savepoint"]
    assert [text.split(" ")[0] for text in raised] == ["ctx.transaction()"] * 2 + ["not"] * 3


def test_one_transaction_for_each_step(stage: Stage, ledger: Any) -> None:
    async def body(ctx: Any) -> Any:
        def twice() -> None:
            for entry in ("first", "second"):
                with ctx.ctx.transaction() as tx:
                    tx.execute(ADD, {"entry": entry})

        await ctx.step("twice", twice)

    task_id = stage.start(body)
    stage.drain()
    error = stage.jobs.get_last_error(task_id)
    assert error is not None
    assert "step 'twice' has had its transaction" in error
    assert ledger() == ["first"]


def test_sqlite_is_not_kept_from_writing_for_long(
    stage: Stage, kind: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite = stage.jobs.database.dialect.name == "sqlite"
    monkeypatch.setattr(store, "LIMIT", 0.05)  # for PostgreSQL there is none

    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            try:
                await tx.execute(ADD, {"entry": "paid"})
            finally:
                if sqlite:  # comes back once the lock is free
                    write(stage.jobs, "UPDATE schedd_tasks SET subject = 'written' WHERE id = :id", id=ctx.id)

    task_id = stage.start(body, kind)
    stage.drain()
    error = stage.jobs.get_last_error(task_id)
    if sqlite:
        assert stage.jobs.get_task(task_id).subject == "written"
        assert error is not None
        assert "held SQLite's write lock for more than 0.05 s and was rolled back" in error
        assert ledger() == []
    else:
        assert (error, ledger()) == (None, ["paid"])


def test_two_in_each_others_way_use_no_attempt(
    stage: Stage, kind: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "SQLITE_BUSY_MS", 20)
    stage.jobs.database.dispose()
    sqlite = stage.jobs.database.dialect.name == "sqlite"
    tries: list[int] = []

    async def body(ctx: Any) -> Any:
        tries.append(ctx.attempt)
        holder = None
        try:
            async with Both(ctx) as tx:
                if len(tries) == 1 and sqlite:
                    holder = sqlite3.connect(stage.jobs.database.path, isolation_level=None, check_same_thread=False)
                    holder.execute("BEGIN IMMEDIATE")
                await tx.execute(ADD, {"entry": "paid"})
                if len(tries) == 1:
                    raised = "DO $$ BEGIN RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01'; END $$"
                    await tx.execute(sa.text(raised))
        except Exception:
            raise AssertionError("swallowed by except Exception") from None
        finally:
            if holder is not None:
                holder.close()

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert (stage.state(task_id), ledger(), tries) == ("success", ["paid"], [1, 1])
    assert stage.ends(task_id) == ["snoozed", "succeeded"]


@pytest.mark.case(65)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_step_does_not_wait_for_a_caller_that_adds_a_child(stage: Stage, ledger: Any) -> None:
    """Whose open session may hold the task's row as it is for minutes."""

    async def body(ctx: Any) -> Any:
        def pay() -> None:
            with ctx.ctx.transaction() as tx:
                tx.execute(sa.text("SET LOCAL lock_timeout = '50ms'"))
                tx.execute(ADD, {"entry": "paid"})

        with stage.jobs.database.connect() as session:
            stage.jobs.task(Flow("child")).depend_on(ctx.id).schedule(session)
            await ctx.step("pay", pay)
            session.rollback()

    task_id = stage.start(body)
    stage.drain()
    assert (stage.state(task_id), stage.ends(task_id), ledger()) == ("success", ["succeeded"], ["paid"])


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_handler_may_say_itself_what_follows_a_collision(stage: Stage, kind: Any, ledger: Any) -> None:
    tries: list[int] = []

    async def body(ctx: Any) -> Any:
        tries.append(ctx.attempt)
        async with Both(ctx) as tx:
            if len(tries) > 1:
                return
            try:
                await tx.execute(sa.text("DO $$ BEGIN RAISE EXCEPTION 'taken' USING ERRCODE = '55P03'; END $$"))
            except sa.exc.OperationalError:
                raise Snooze(60) from None

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(59)
    assert (stage.state(task_id), tries) == ("scheduled", [1])
    stage.drain(1)
    assert (stage.state(task_id), tries) == ("success", [1, 1])


def test_branches_in_others_way_use_no_attempt_either(
    stage: Stage, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of tasks raises what its branches raise as a group."""
    monkeypatch.setattr(FAILPOINTS, "hit", lambda name: collide() if name == "before transaction commit" else None)
    left = [1]

    def collide() -> None:
        if left:
            left.pop()
            raise sa.exc.OperationalError("x", None, sqlite3.OperationalError("database is locked"))

    async def body(ctx: Any) -> Any:
        async def pay(entry: str) -> None:
            async with ctx.transaction() as tx:
                await tx.execute(ADD, {"entry": entry})

        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("one", pay, "one"))

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    stage.drain(1)
    assert (stage.state(task_id), ledger()) == ("success", ["one"])
    assert stage.ends(task_id) == ["snoozed", "succeeded"]


def test_who_gets_no_place_uses_no_attempt(
    stage: Stage, kind: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MOST_OPEN", 1)
    monkeypatch.setattr(transaction, "_PLACE_TIMEOUT_S", 0.0)
    stage.jobs = stage.worker()
    places = stage.jobs.database._places

    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            await tx.execute(ADD, {"entry": "paid"})

    task_id = stage.start(body, kind)
    places.take()
    stage.drain()
    places.release()
    assert stage.state(task_id) == "scheduled"
    stage.drain(1)
    assert (stage.ends(task_id), ledger()) == (["snoozed", "succeeded"], ["paid"])


@pytest.mark.case(9)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_connection_that_breaks_keeps_no_place(
    stage: Stage, kind: Any, ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the block raises, and so is the first to learn of it when it is rolled back."""
    monkeypatch.setattr(transaction, "MOST_OPEN", 1)
    monkeypatch.setattr(transaction, "_PLACE_TIMEOUT_S", 0.0)
    stage.jobs = stage.worker()

    async def body(ctx: Any) -> Any:
        async with Both(ctx) as tx:
            found = await tx.execute(sa.text("SELECT pg_backend_pid() AS pid"))
            if ctx.attempt == 1:
                write(stage.jobs, "SELECT pg_terminate_backend(:pid, 10000)", pid=found.one().pid)
                raise ValueError("the handler's own")
            await tx.execute(ADD, {"entry": "paid"})

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.get_last_error(task_id) == "ValueError: the handler's own"
    stage.drain(1)
    assert (stage.state(task_id), ledger()) == ("success", ["paid"])


@pytest.mark.case(57, pure=True)
def test_what_counts_as_being_in_each_others_way() -> None:
    assert is_transient(sa.exc.OperationalError("x", None, sqlite3.OperationalError("database is locked")))
    assert not is_transient(sa.exc.IntegrityError("x", None, sqlite3.IntegrityError("UNIQUE constraint failed")))
    assert not is_transient(RuntimeError("database is locked"))
    assert not issubclass(Collided, Exception)


def test_a_task_scheduled_with_its_rows_commits_with_them(stage: Stage, ledger: Any) -> None:
    async def body(ctx: Any) -> Any:
        with ctx.ctx.transaction() as tx:
            tx.execute(ADD, {"entry": f"attempt {ctx.attempt}"})
            stage.jobs.task(Flow(follow)).schedule(tx)
            if ctx.attempt == 1:
                raise ConnectionError("away")

    async def followed(ctx: Any) -> Any:
        return "followed"

    follow = "followed"
    stage.play.bodies[follow] = followed
    task_id = stage.start(body)
    stage.drain()
    stage.drain(1)
    assert (stage.state(task_id), ledger()) == ("success", ["attempt 2"])
    assert [info.state.value for info in stage.jobs.list_tasks() if info.id != task_id] == ["success"]
