"""More of two at once: reopening beside a finish, a sweep beside an enqueue, a reaper beside an open session."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, Task
from scheduler.model import state as st
from scheduler.store import reaper
from scheduler.store.admin import retention
from scheduler.store.db.notifier import ring_after_commit
from scheduler.store.tasks import control
from scheduler.testing import engine_of
from support.bench import Bench, Side, Step, ring_and_step
from support.databases import Database
from support.fleet import until

on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
DAY = 86400.0


def in_time(side: Side, seconds: float = 0.3) -> None:
    """Give the other side time to come to where it waits, or ends."""
    side.join(seconds)


@on_postgres
@pytest.mark.case(33, 36)
def test_a_parent_that_finishes_while_its_child_is_reopened_releases_it(bench: Bench) -> None:
    dead, running = bench.step("dead").schedule(), bench.step("running").schedule()
    child = bench.step("child", dead, running).schedule()
    ring_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (slots,) = [s for s in engine.inline_slots() if len(s.waiting) == 2]
    other = slots.waiting.pop()
    bench.script.failing.add("dead")
    slots.run_one()
    ring_and_step(bench.jobs)
    assert bench.states(dead, running, child) == ["dead", "claimed", "failed"]
    bench.script.failing.clear()
    slots.waiting.append(other)
    slots.run_one()
    caller = bench.worker()
    with caller.database.write() as connection:
        control.retry(connection, dead, bench.clock.now())
        engine.step()  # records that the other parent has ended, or leaves it for later
    bench.drain()
    assert bench.states(dead, running, child) == ["success", "success", "success"]


@on_postgres
@pytest.mark.case(36)
def test_two_dead_parents_retried_at_once_revive_their_child(bench: Bench) -> None:
    bench.script.failing |= {"one", "two"}
    one, two = bench.step("one").schedule(), bench.step("two").schedule()
    child = bench.step("child", one, two).schedule()
    bench.drain()
    assert bench.states(one, two, child) == ["dead", "dead", "failed"]
    bench.script.failing.clear()
    other = bench.worker()
    with bench.jobs.database.write() as connection:
        control.retry(connection, two, bench.clock.now())
        side = Side(lambda: other.retry_task(one))
        in_time(side)
    side.result()
    bench.drain()
    assert bench.states(one, two, child) == ["success", "success", "success"]


@on_postgres
@pytest.mark.case(33, 51)
def test_a_child_stored_while_its_parent_is_swept_keeps_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = bench.ended("dead")
    bench.clock.advance(40 * DAY)
    caller = bench.worker()
    held, go = threading.Event(), threading.Event()

    def enqueue() -> int:
        with caller.database.write() as connection:
            made = caller.task(Step("child")).depend_on(parent, otherwise="wait").schedule(connection=connection)
            held.set()
            go.wait(10)
        return int(made)

    side = Side(enqueue)
    assert held.wait(10)
    real = sa.Connection.execute

    def execute(self: sa.Connection, statement: Any, *args: Any, **kwargs: Any) -> Any:
        # What a statement sees was settled when it began; what it finds unlocked is a matter of the moment. As if the
        # session ended between the two.
        if "t.finished_at < :before" in str(statement) and args[0].get("state") == st.DEAD and not go.is_set():
            found = real(self, sa.text(str(statement).replace("FOR UPDATE OF t SKIP LOCKED", "")), *args, **kwargs)
            go.set()
            side.join(10)
            return found
        return real(self, statement, *args, **kwargs)

    kept = {"success": DAY, "failed": 30 * DAY, "outcomes": 90 * DAY, "events": 90 * DAY}
    with monkeypatch.context() as m, bench.jobs.database.write() as connection:
        m.setattr(sa.Connection, "execute", execute)
        for _ in range(5):
            retention.purge_batch(connection, bench.jobs.database.dialect, bench.clock.now(), kept)
    child = side.result()
    assert bench.states(parent, child) == ["dead", "waiting"]


def reap(other: Scheduler) -> int:
    """How many tasks ``other`` takes back, without waiting for a row for more than two seconds."""
    with other.database.write() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        found = reaper.reap(connection, other.database.dialect, other.clock.now())
    return sum(one.tasks for one in found)


@on_postgres
@pytest.mark.case(65)
def test_reaping_does_not_wait_for_an_open_session_either(bench: Bench) -> None:
    dying = bench.worker(queues=["default"], lease=30)
    parent = bench.step("parent").schedule()
    child = bench.step("child", parent).schedule()
    ring_and_step(dying)
    bench.jobs.cancel_task(parent)
    other = bench.worker()
    bench.clock.advance(31)
    with bench.jobs.database.write() as session:
        bench.jobs.task(Step("grandchild")).depend_on(child).schedule(connection=session)
        assert Side(lambda: reap(other)).result() == 0
    assert Side(lambda: reap(other)).result() == 1
    assert bench.states(parent, child) == ["cancelled", "failed"]


@on_postgres
@pytest.mark.case(29, 65)
def test_nor_does_it_where_the_new_set_ends_at_once(bench: Bench) -> None:
    """What waits for a replaced task ends with it, as the new set's parent has failed long since."""
    dead = bench.ended("dead")
    dying = bench.worker(queues=["default"], lease=30)
    task_id = bench.step("one").key("k").schedule()
    child = bench.step("child", task_id).schedule()
    ring_and_step(dying)
    bench.step("two", dead).key("k", conflict="replace").schedule()
    other = bench.worker()
    bench.clock.advance(31)
    with bench.jobs.database.write() as session:
        bench.jobs.task(Step("grandchild")).depend_on(child).schedule(connection=session)
        assert Side(lambda: reap(other)).result() == 0
    assert Side(lambda: reap(other)).result() == 1
    assert bench.states(task_id, child) == ["failed", "failed"]


def statements_of(bench: Bench, work: Callable[[], object]) -> int:
    """How many statements a caller's work takes."""
    seen: list[object] = []

    def before(*given: Any) -> None:
        seen.append(given)

    engine = bench.jobs.database.open()
    sa.event.listen(engine, "before_cursor_execute", before)
    work()
    sa.event.remove(engine, "before_cursor_execute", before)
    return len(seen)


@pytest.mark.case(36)
def test_reviving_many_takes_few_statements(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.script.failing.add("root")
    root = bench.step("root").schedule()
    with bench.jobs.batch() as batch:
        for i in range(300):
            made = batch.task(Step(f"child{i}")).depend_on(root)
            if i % 100 == 0:
                made.key(f"key{i}")
    bench.drain()
    bench.script.failing.clear()
    taken = bench.step("other").key("key100").schedule()
    assert statements_of(bench, lambda: bench.jobs.retry_task(root)) < 60
    bench.drain()
    refused = batch.ids[100]  # another task has its key
    assert bench.states(refused) == ["failed"]
    assert set(bench.states(root, taken, *(i for i in batch.ids if i != refused))) == {"success"}
    assert bench.jobs.list_tasks(key="key0")[0].state == "success"


@pytest.mark.case(30, 36, 70)
def test_reviving_a_long_chain_with_keys_takes_few_statements(bench: Bench) -> None:
    """Two of them have one key: the first has it again, and the second stays as it ended, with what waits for it."""
    (root,) = bench.die("root")
    chain = [root]
    with bench.jobs.batch() as batch:
        above: Any = root
        for i in range(150):
            above = batch.task(Step(f"link{i}")).depend_on(above)
            above.key(f"key{i}")
    chain += map(int, batch.ids)
    assert set(bench.states(*chain[1:])) == {"failed"}
    bench.execute("UPDATE schedd_tasks SET key = 'key3' WHERE id = :id", id=chain[100])
    assert statements_of(bench, lambda: bench.jobs.retry_task(root)) < 30
    assert set(bench.states(*chain[1:100])) == {"waiting"}
    assert set(bench.states(*chain[100:])) == {"failed"}
    assert bench.step("again").key("key3").schedule() == chain[4]
    bench.script.failing.clear()
    assert bench.drain() == ["root", *(f"link{i}" for i in range(99))]


@on_postgres
@pytest.mark.case(30, 36, 70)
def test_a_key_that_is_taken_while_its_task_is_revived(bench: Bench) -> None:
    (root,) = bench.die("root")
    with bench.jobs.batch() as batch:
        for i in range(3):
            batch.task(Step(f"child{i}")).depend_on(root).key(f"key{i}")
    caller, other = bench.worker(), bench.worker()
    with caller.database.write() as session:
        taken = caller.task(Step("other")).key("key1").after(60).schedule(connection=session)
        side = Side(lambda: other.retry_task(root))
        in_time(side)
    side.result()
    assert bench.states(*batch.ids) == ["waiting", "failed", "waiting"]
    again = [bench.step("again").key(f"key{i}").schedule() for i in range(3)]
    assert again == [batch.ids[0], taken, batch.ids[2]]


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_many_tasks_in_one_transaction_ring_once(bench: Bench) -> None:
    rung: list[int] = []
    before = threading.active_count()
    engine = bench.jobs.database.open()
    with engine.begin() as connection:
        for _ in range(200):
            ring_after_commit(connection, lambda: rung.append(1))
    assert threading.active_count() - before < 10
    with engine.connect() as connection:
        with connection.begin():
            ring_after_commit(connection, lambda: rung.append(2))
        with connection.begin():
            ring_after_commit(connection, lambda: rung.append(3))
    until(lambda: set(rung) >= {1, 2, 3})
    assert {1, 2, 3} == set(rung)


@pytest.mark.case(37)
def test_cancelling_crosswise_is_no_error(bench: Bench) -> None:
    """Two that lock the same rows in different orders: the server ends one, which tries again."""
    ids = [bench.step(f"task{i}").schedule() for i in range(2)]
    other = bench.worker()
    real = control.cancel
    met = threading.Barrier(2)

    def cancel(connection: sa.Connection, wanted: Any, now: int, *, cascade: bool = False) -> Any:
        first, second = ids if wanted == [ids[0]] else ids[::-1]
        done = real(connection, [first], now)
        with contextlib.suppress(threading.BrokenBarrierError):
            met.wait(2)
        real(connection, [second], now)
        return done

    with pytest.MonkeyPatch.context() as m:
        m.setattr("scheduler.client.tasks.control.cancel", cancel)
        sides = [Side(lambda i=i, j=j: j.cancel_task(i)) for i, j in zip(ids, (bench.jobs, other), strict=True)]
        for side in sides:
            side.result()
    assert bench.states(*ids) == ["cancelled", "cancelled"]


def test_starting_again_while_old_bodies_end_runs_new_work(database: Database) -> None:
    over = threading.Event()

    class Slow(Task, kind="slow"):
        def run(self, ctx: Context) -> None:
            over.wait(20)

    jobs = Scheduler(database.url)
    jobs.register(Slow)
    jobs.register(Step)

    class Quick(Task, kind="quick"):
        def run(self, ctx: Context) -> str:
            return "done"

    jobs.register(Quick)
    jobs.start()
    slow = jobs.task(Slow()).schedule()
    while jobs.get_task_status(slow) != "running":
        over.wait(0.01)
    assert jobs.stop(drain=0.05) == [slow]
    jobs.start()
    assert jobs.result(jobs.task(Quick()).schedule(), 10) == "done"
    over.set()
    jobs.wait(slow, 10)
    assert jobs.get_task_status(slow) == "success"
    assert jobs.get_task(slow).attempt == 1
    jobs.stop()
    jobs.close()


def test_one_look_at_many_tasks_is_one_statement(bench: Bench) -> None:
    with bench.jobs.batch() as batch:
        for i in range(100):
            batch.task(Step(f"task{i}"))

    def looks() -> None:
        with pytest.raises(TimeoutError):
            bench.jobs.wait(batch.ids, 0)

    assert statements_of(bench, looks) < 10
    bench.drain()
    assert {task.state.value for task in bench.jobs.wait(batch.ids, 0).values()} == {"success"}


def test_who_schedules_while_it_stops_holds_nothing_that_the_stop_waits_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop is about to make its last write; until it is over, the bell cannot be had."""
    jobs = Scheduler(database.url, auto_migrate=True)
    jobs.register(Step)
    came = threading.Event()
    real = jobs._own_notifier

    def bell() -> Any:
        came.set()
        return real()

    monkeypatch.setattr(jobs, "_own_notifier", bell)

    def write() -> None:
        with jobs.database.write() as connection:
            connection.execute(sa.text("DELETE FROM schedd_tasks WHERE id = -1"))

    write()
    with jobs._lifecycle:  # as stop_now() does
        caller = Side(lambda: jobs.task(Step("one")).schedule())
        assert came.wait(20)
        stop = Side(write)
        stop.join(5)  # half of what the gate is waited for
        went_on = not stop.is_alive()
    caller.result()
    stop.result()
    assert went_on
    jobs.close()
