"""Events: awaited before or after they are emitted, the first emit wins, and nothing is lost between the two."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import PayloadError, Scheduler
from scheduler.testing import drain
from support.bench import Side
from support.databases import Database
from support.fleet import rows, step
from support.flows import AGAIN, AsyncFlow, Flow, Stage

PATIENCE = 20


def waiting(jobs: Scheduler) -> list[tuple[int, str, int]]:
    return [tuple(row) for row in rows(jobs, "SELECT task_id, event, met FROM schedd_waits ORDER BY task_id, event")]


async def awaits(ctx: Any) -> Any:
    ctx.state.do("asks")
    return await ctx.await_event("approved")


@pytest.mark.case(54)
def test_await_then_emit(stage: Stage, kind: Any) -> None:
    task_id = stage.start(awaits, kind)
    stage.drain()
    assert (stage.state(task_id), stage.jobs.get_task(task_id).run_at) == ("suspended", None)
    stage.drain(86400 * 365)
    assert (stage.state(task_id), stage.play.done) == ("suspended", ["asks"])
    assert stage.jobs.emit_event("approved", {"by": "alice"}) is True
    stage.drain()
    assert stage.jobs.result(task_id, 0) == {"by": "alice"}
    assert stage.play.done == ["asks", "asks"]
    ends = [(a.number, a.outcome.value) for a in stage.jobs.get_attempts(task_id)]
    assert ends == [(1, "suspended"), (1, "succeeded")]
    assert waiting(stage.jobs) == []


@pytest.mark.case(54)
def test_emit_then_await(stage: Stage, kind: Any) -> None:
    stage.jobs.emit_event("approved", "early")
    task_id = stage.start(awaits, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "early"
    assert stage.ends(task_id) == ["succeeded"]


@pytest.mark.case(47, 55)
def test_what_is_there_already_is_in_time_though_the_clock_was_set_back(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        return await ctx.await_event("early", timeout=15)

    stage.jobs.emit_event("early", "bird")
    stage.clock.jump(-100)
    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == "bird"


@pytest.mark.case(54)
def test_the_first_emit_wins(stage: Stage, kind: Any) -> None:
    first, second = stage.start(awaits, kind), stage.start(awaits, kind)
    stage.drain()
    emits = [stage.jobs.emit_event("approved", n) for n in (1, 2, 3)]
    assert emits == [True, False, False]
    stage.drain()
    late = stage.start(awaits, kind)
    stage.drain()
    assert [stage.jobs.result(i, 0) for i in (first, second, late)] == [1, 1, 1]


@pytest.mark.case(54)
def test_all_who_wait_wake_and_no_others(stage: Stage, kind: Any) -> None:
    async def other(ctx: Any) -> Any:
        return await ctx.await_event("refused")

    many = [stage.start(awaits, kind) for _ in range(30)]
    one = stage.start(other, kind)
    stage.drain()
    stage.jobs.emit_event("approved")
    stage.drain()
    assert [stage.jobs.result(i, 0) for i in many] == [None] * 30
    assert stage.state(one) == "suspended"


@pytest.mark.case(54)
def test_what_was_received_stays(stage: Stage, kind: Any) -> None:
    """The event may be gone when a later attempt comes by; its payload is not."""

    async def body(ctx: Any) -> Any:
        found = [await ctx.await_event("approved"), await ctx.await_event("approved")]
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return found

    stage.jobs.emit_event("approved", [1])
    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.cleanup_events(0) == 0  # emitted just now
    stage.clock.advance(1)
    assert stage.jobs.cleanup_events(0) == 1
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [[1], [1]]


@pytest.mark.case(54)
def test_a_handler_emits_once(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        found = [await ctx.emit_event("approved", ctx.attempt), await ctx.emit_event("approved", "again")]
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return found

    waits = stage.start(awaits, kind)
    stage.drain()
    emits = stage.start(body, kind)
    stage.drain()
    stage.drain(1)
    assert stage.jobs.result(emits, 0) == [True, False]
    assert stage.jobs.result(waits, 0) == 1
    (event,) = rows(stage.jobs, "SELECT * FROM schedd_events")
    assert (event.name, event.payload, event.emitted_by) == ("approved", "1", emits)


@pytest.mark.case(54)
def test_two_events_side_by_side(stage: Stage) -> None:
    async def body(ctx: Any) -> Any:
        third = ctx.await_event("three", timeout=60)
        return await asyncio.gather(ctx.await_event("one"), ctx.await_event("two"), third)

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert [event for _, event, _ in waiting(stage.jobs)] == ["one", "three", "two"]
    assert stage.jobs.get_task(task_id).run_at is not None
    for name in ("two", "three", "one"):
        stage.jobs.emit_event(name, name)
        stage.drain(1)
    assert stage.jobs.result(task_id, 0) == ["one", "two", "three"]
    assert waiting(stage.jobs) == []


@pytest.mark.case(54)
def test_the_first_of_two_events(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def body(ctx: Any) -> Any:
        waits = [asyncio.create_task(ctx.await_event(name)) for name in ("approved", "refused")]
        first, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return [one.result() for one in first]

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert stage.state(task_id) == "suspended"
    stage.jobs.emit_event("refused", "no")
    stage.drain()
    gc.collect()  # asyncio logs then each exception that was never retrieved
    assert stage.jobs.result(task_id, 0) == ["no"]
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.case(54)
def test_what_fails_in_a_branch_that_is_never_awaited_is_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ConnectionError("away")

    async def body(ctx: Any) -> Any:
        await asyncio.wait([asyncio.create_task(fails())])
        return await ctx.await_event("approved", timeout=0)

    stage.start(body, AsyncFlow)
    stage.drain()
    gc.collect()
    [logged] = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert "never retrieved" in logged


@pytest.mark.case(54)
def test_a_wait_that_the_handler_no_longer_comes_to_wakes_no_task(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        if ctx.state.do("runs") and len(ctx.state.done) == 1:
            await ctx.await_event("approved")  # a way that later attempts do not take
        await ctx.sleep_for(1000)

    task_id = stage.start(body, kind)
    stage.drain()
    with stage.jobs.database.write() as tx:  # wakes by itself, as by a time that it has set
        tx.connection.execute(sa.text("UPDATE schedd_tasks SET run_at = 0"))
    stage.drain()
    assert (stage.state(task_id), waiting(stage.jobs)) == ("suspended", [])
    stage.jobs.emit_event("approved")
    for _ in range(5):
        stage.drain(10)
    assert len(stage.play.done) == 2


@pytest.mark.case(55)
@pytest.mark.parametrize("late", ["never", "after the deadline", "after the branch was taken"])
def test_a_timeout_is_recorded(stage: Stage, kind: Any, late: str) -> None:
    async def body(ctx: Any) -> Any:
        try:
            branch = await ctx.await_event("approved", timeout=60)
        except TimeoutError as error:
            branch = str(error)
        ctx.state.do(branch)
        if ctx.attempt == 1:
            raise ConnectionError("away")
        return branch

    task_id = stage.start(body, kind)
    stage.drain()
    stage.drain(59)
    assert stage.state(task_id) == "suspended"
    stage.clock.advance(2)
    if late == "after the deadline":  # but before any worker came to look
        stage.jobs.emit_event("approved", "yes")
    stage.drain()
    if late == "after the branch was taken":
        stage.jobs.emit_event("approved", "yes")
    stage.drain(1)
    message = "event 'approved' was not emitted in time"
    assert (stage.jobs.result(task_id, 0), stage.play.done) == (message, [message, message])
    assert waiting(stage.jobs) == []


@pytest.mark.case(55)
@pytest.mark.parametrize("seconds", [59, 60])
def test_an_event_in_time_is_received_however_late_the_worker_is(stage: Stage, kind: Any, seconds: float) -> None:
    async def body(ctx: Any) -> Any:
        return await ctx.await_event("approved", timeout=60)

    task_id = stage.start(body, kind)
    stage.drain()
    stage.clock.advance(seconds)
    stage.jobs.emit_event("approved", "yes")
    stage.drain(3600)
    assert stage.jobs.result(task_id, 0) == "yes"


@pytest.mark.case(55)
def test_the_time_counts_from_the_first_await(stage: Stage) -> None:
    """Not from the one of the last attempt."""

    async def body(ctx: Any) -> Any:
        async def fails() -> None:
            if ctx.attempt == 1:
                await asyncio.sleep(0.05)  # so that the wait is stored before
                raise ConnectionError("away")

        _, found = await asyncio.gather(ctx.step("fails", fails), ctx.await_event("approved", timeout=10))
        return found

    task_id = stage.start(body, AsyncFlow)
    stage.drain()
    assert stage.state(task_id) == "retry"
    before = stage.jobs.get_task(task_id).created_at
    stage.drain(5)
    run_at = stage.jobs.get_task(task_id).run_at
    assert run_at is not None
    assert (run_at - before).total_seconds() == 10


@pytest.mark.case(55)
def test_no_time_at_all(stage: Stage, kind: Any) -> None:
    async def body(ctx: Any) -> Any:
        found = [await ctx.await_event("there", timeout=0)]
        try:
            await ctx.await_event("not there", timeout=0)
        except TimeoutError:
            found.append("none")
        return found

    stage.jobs.emit_event("there", 1)
    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.jobs.result(task_id, 0) == [1, "none"]
    assert stage.ends(task_id) == ["succeeded"]


BAD: dict[str, tuple[Any, str]] = {
    "payload": (lambda ctx: ctx.emit_event("e", object()), "the payload of event 'e' is not JSON"),
    "long payload": (lambda ctx: ctx.emit_event("e", "x" * 2**20), "over the limit of 1048576"),
    "long name": (lambda ctx: ctx.emit_event("n" * 256), "1 to 255 characters"),
    "awaited name": (lambda ctx: ctx.await_event(""), "1 to 255 characters"),
    "no text": (lambda ctx: ctx.await_event(5), "1 to 255 characters"),
}


@pytest.mark.case(54)
@pytest.mark.parametrize("wrong", BAD)
def test_what_cannot_be_an_event_ends_the_task(stage: Stage, kind: Any, wrong: str) -> None:
    make, message = BAD[wrong]

    async def body(ctx: Any) -> Any:
        return await make(ctx)

    task_id = stage.start(body, kind)
    stage.drain()
    assert stage.state(task_id) == "dead"
    assert message in (stage.jobs.get_last_error(task_id) or "")


@pytest.mark.case(54)
def test_what_callers_cannot_emit(stage: Stage) -> None:
    for name, payload in (("e", object()), ("e", "x" * 2**20), ("", 1), ("n" * 256, 1), ("a\x00", 1)):
        with pytest.raises(PayloadError):
            stage.jobs.emit_event(name, payload)
    assert rows(stage.jobs, "SELECT * FROM schedd_events") == []


@pytest.mark.both_databases
@pytest.mark.case(54)
@pytest.mark.parametrize("commits", [True, False])
def test_an_event_of_the_callers_own_transaction(stage: Stage, database: Database, commits: bool) -> None:
    """It comes with the caller's rows or not at all. A handler that asks meanwhile is answered after that."""
    engine = sa.create_engine(database.url)
    before, meanwhile = stage.start(awaits), None
    stage.drain()
    with engine.connect() as connection, connection.begin() as transaction:
        assert stage.jobs.emit_event("approved", 1, connection=connection)
        if not database.is_sqlite:  # where no other connection writes meanwhile
            meanwhile = stage.start(awaits)
            other = Side(lambda: drain(stage.jobs))
            while len(stage.play.done) < 2:
                threading.Event().wait(0.001)
        if commits:
            transaction.commit()
        else:
            transaction.rollback()
    engine.dispose()
    if meanwhile is not None:
        other.result()
    stage.drain()
    for task_id in (before, meanwhile or before):
        assert stage.state(task_id) == ("success" if commits else "suspended")


@pytest.mark.case(54)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_event_of_a_transaction_that_cannot_see_who_awaits_it(stage: Stage, database: Database, level: str) -> None:
    """A snapshot that is older than the wait: such a transaction is refused, and the caller begins again."""
    engine = sa.create_engine(database.url, isolation_level=level)  # type: ignore[arg-type]
    with engine.connect() as connection:
        connection.execute(sa.text("SELECT count(*) FROM schedd_tasks"))
        task_id = stage.start(awaits)
        stage.drain()
        if level != "READ COMMITTED":
            with pytest.raises(sa.exc.OperationalError, match="could not serialize access"):
                stage.jobs.emit_event("approved", 1, connection=connection)
            connection.rollback()
        assert stage.jobs.emit_event("approved", 1, connection=connection)
        connection.commit()
    engine.dispose()
    stage.drain()
    assert stage.state(task_id) == "success"


@pytest.mark.case(51, 54)
def test_events_go_after_their_time_but_never_while_a_task_waits(stage: Stage) -> None:
    day = 86400
    waits = stage.start(awaits)
    stage.drain()
    for name in ("approved", "other"):
        stage.jobs.emit_event(name)
    stage.clock.advance(40 * day)
    stage.jobs.cleanup_events(24)
    assert {row.name for row in rows(stage.jobs, "SELECT name FROM schedd_events")} == {"approved"}
    assert stage.state(waits) == "suspended"  # what was woken is not claimed yet
    step(stage.jobs)
    assert stage.state(waits) == "claimed"  # which has recorded the event for it
    stage.jobs.cleanup_events(24)
    assert rows(stage.jobs, "SELECT name FROM schedd_events") == []
    stage.drain()
    assert (stage.state(waits), stage.play.done) == ("success", ["asks", "asks"])


@pytest.mark.case(54, 89)
@pytest.mark.parametrize("length", [10, 2_000], ids=["short", "long"])
def test_what_was_awaited_is_received_once_and_stays(stage: Stage, kind: Any, length: int) -> None:
    """Whether the claim records it, as short ones, or the handler asks; and on the next attempt, too."""
    seen: list[Any] = []

    async def body(ctx: Any) -> Any:
        await ctx.step("before", lambda: "x" * length)
        seen.append(await ctx.await_event("approved"))
        seen.append(await ctx.await_event("signed"))
        if len(seen) < 4:
            raise ConnectionError("again")

    task_id = stage.start(body, kind)
    stage.drain()
    stage.jobs.emit_event("approved", "a" * length)
    stage.jobs.emit_event("signed", "s" * length)
    stage.drain()
    stage.drain(60)
    assert stage.state(task_id) == "success"
    assert seen == ["a" * length, "s" * length] * 2
    assert stage.ends(task_id) == ["suspended", "retried", "succeeded"]
    names = rows(stage.jobs, "SELECT name FROM schedd_checkpoints ORDER BY at, seq")
    assert [row.name for row in names] == ["before", "$event:approved", "$event:signed"]
    assert waiting(stage.jobs) == []


@pytest.mark.case(54)
@pytest.mark.parametrize("sort", [Flow, AsyncFlow], ids=["thread", "async"])
@pytest.mark.both_databases
def test_await_and_emit_racing_lose_nothing(database: Database, sort: Any) -> None:
    """Each task awaits an event of its own, which is emitted at any moment around that; real engines, two of them."""
    from support.flows import Play

    count = 120
    play = Play()
    begun = [threading.Event() for _ in range(count)]

    def body_of(n: int) -> Any:
        async def body(ctx: Any) -> Any:
            begun[n].set()
            return await ctx.await_event(f"event {n}")

        return body

    play.bodies = {str(n): body_of(n) for n in range(count)}
    engines = [Scheduler(database.url, state=play) for _ in range(2)]
    for jobs in engines:
        jobs.register(sort)
        jobs.start()
    try:
        with engines[0].batch() as batch:
            for n in range(count):
                batch.task(sort(str(n))).with_retry(AGAIN)

        def emit(mine: range) -> None:
            for n in mine:
                assert begun[n].wait(PATIENCE)
                threading.Event().wait((n % 7) * 0.0007)
                assert engines[n % 2].emit_event(f"event {n}", n)

        sides = [Side(lambda k=k: emit(range(k, count, 4))) for k in range(4)]
        for side in sides:
            side.result()
        engines[0].wait(batch.ids, PATIENCE)
        assert [engines[0].result(i, 0) for i in batch.ids] == list(range(count))
        assert waiting(engines[0]) == []
    finally:
        for jobs in engines:
            jobs.stop(PATIENCE)
            jobs.close()
