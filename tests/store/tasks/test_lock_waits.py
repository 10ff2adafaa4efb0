"""Ends while another transaction holds rows that change with them: no worker waits, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Failure
from scheduler.model.spec import EdgeSpec, TaskSpec
from scheduler.model.state import Otherwise, TaskState, When
from scheduler.store import reaper
from scheduler.store.graph.release import release
from scheduler.store.tasks import deadlines as policies
from scheduler.store.tasks import outcome_locks as locking
from scheduler.store.tasks import stalls
from scheduler.store.tasks.claim import Claimed
from scheduler.store.tasks.complete import finish
from scheduler.store.tasks.enqueue import enqueue
from scheduler.testing import FakeClock
from support.bare_workers import Bare
from support.bench import Bench, Side, Step, notify_and_step
from support.databases import Database

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


@pytest.fixture
def bare(database: Database, clock: FakeClock) -> Iterator[Bare]:
    made = Bare(database.url, clock)
    yield made
    made.store.dispose()


def hold(session: sa.Connection, task_id: int) -> None:
    session.execute(sa.text("SELECT 1 FROM schedd_tasks WHERE id = :id FOR UPDATE"), {"id": task_id})


def impatient(connection: sa.Connection) -> None:
    """Waiting for a row is an error."""
    connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")


def give_back(bare: Bare, how: str, worker: int, claimed: Claimed) -> int:
    """End this claim. Returns how many tasks were written."""
    now = bare.clock.now()
    with bare.store.write() as tx:
        impatient(tx.connection)
        if how == "reaped":
            return sum(one.tasks for one in reaper.reap(tx.at(now)))
        if how == "stalled":
            quiet = [(claimed.id, claimed.claim, claimed.claimed_at, "quiet")]
            return len(stalls.reclaim(tx.at(now), worker, quiet).again)
        outcome = bare.outcome(claimed, AttemptEnd.SNOOZED, st.SCHEDULED, run_at=now, refund=1)
        return 1 - len(finish(tx.at(now), worker, [outcome]).deferred)


@pytest.mark.case(29, 65)
@pytest.mark.parametrize("held", ["what waits for it", "a parent of the new set"])
@pytest.mark.parametrize("how", ["recorded", "reaped", "stalled"])
def test_a_replaced_task(bare: Bare, clock: FakeClock, how: str, held: str) -> None:
    """Its new set may end at once, and with it what waits for it."""
    worker = bare.worker("a")
    (parent,) = bare.task()
    (first,) = bare.claim(worker)
    if held == "what waits for it":
        bare.finish(worker, bare.outcome(first, AttemptEnd.DEAD, st.DEAD, failure=Failure("no", "ValueError")))
    (task_id,) = bare.task(key="k")
    (claimed,) = bare.claim(worker)
    (child,) = bare.task(task_id)
    assert bare.task(parent, key="k", conflict="replace") == [task_id]
    clock.advance(31)
    if how == "reaped" and held == "a parent of the new set":  # which the same worker holds
        bare.finish(worker, bare.outcome(first, AttemptEnd.SNOOZED, st.SCHEDULED, run_at=clock.now() + 10**9))
    with bare.store.connect() as session, session.begin():
        hold(session, child if held == "what waits for it" else parent)
        assert give_back(bare, how, worker, claimed) == 0
        assert bare.row(task_id).state == st.CLAIMED
    assert give_back(bare, how, worker, claimed) == 1
    ended = st.FAILED if held == "what waits for it" else st.WAITING
    assert (bare.row(task_id).state, bare.row(child).state) == (ended, ended)


@pytest.mark.case(50, 65)
def test_a_life_that_ends(bare: Bare, clock: FakeClock) -> None:
    (task_id,) = bare.task(max_duration=60_000_000)
    (child,) = bare.task(task_id)
    clock.advance(61)

    def judged() -> list[int]:
        with bare.store.write() as tx:
            impatient(tx.connection)
            return list(policies.apply(tx.at(clock.now())).cancelled)

    with bare.store.connect() as session, session.begin():
        hold(session, child)
        assert judged() == []
    assert judged() == [task_id]
    assert TaskState.from_code(bare.row(child).state) is TaskState.FAILED


@pytest.mark.case(50, 65)
def test_lives_that_cannot_end_yet_keep_no_other_from_ending(bare: Bare, clock: FakeClock) -> None:
    """They are the first that are due, and as many as one batch looks at."""
    held = [bare.task(max_duration=10_000_000)[0] for _ in range(3)]
    (child,) = bare.task(*held)
    (other,) = bare.task(max_duration=20_000_000)
    clock.advance(30)
    with bare.store.connect() as session, session.begin():
        hold(session, child)
        with bare.store.write() as tx:
            impatient(tx.connection)
            assert policies.apply(tx.at(clock.now()), batch=3) == policies.Judged({}, {}, 0, True)
            assert list(policies.apply(tx.at(clock.now()), batch=3).cancelled) == [other]
    clock.advance(policies.BLOCKED_RECHECK / 1e6)
    with bare.store.write() as tx:
        assert sorted(policies.apply(tx.at(clock.now()), batch=3).cancelled) == held


@pytest.mark.case(25, 33)
def test_the_holder_of_a_key_that_a_batch_depends_on(bare: Bare) -> None:
    """It must not end between the look at it and the commit: no worker would release its dependents."""
    worker = bare.worker("a")
    (holder,) = bare.task(key="k")
    (claimed,) = bare.claim(worker)
    keyed = TaskSpec("kind", "{}", "kind", key="k")
    waits = TaskSpec("kind", "{}", "kind", edges=[EdgeSpec(0, When.SUCCESS, Otherwise.FAIL, local=True)])
    with bare.store.write() as tx:
        found, child = enqueue(tx.at(bare.clock.now()), [keyed, waits])
        assert (found, found.created) == (holder, False)
        assert bare.finish(worker, bare.outcome(claimed)).deferred
    assert bare.finish(worker, bare.outcome(claimed)).ended == {holder: TaskState.SUCCESS}
    assert bare.row(child).state == st.SCHEDULED


def task_below(bare: Bare, parent: int, when: When = When.SUCCESS, otherwise: Otherwise = Otherwise.FAIL) -> int:
    spec = TaskSpec("kind", "{}", "kind", edges=[EdgeSpec(parent, when, otherwise)])
    with bare.store.write() as tx:
        return int(enqueue(tx.at(bare.clock.now()), [spec])[0])


@pytest.mark.case(24)
def test_what_a_cascade_does_not_end_is_not_waited_for(bare: Bare) -> None:
    """It would, should the one above be skipped: but that fails, and its handler runs."""
    (parent,) = bare.task()
    failing = task_below(bare, parent)
    handler = task_below(bare, failing, When.FAILURE, Otherwise.SKIP)
    last = task_below(bare, handler)
    with bare.store.connect() as session, session.begin():
        hold(session, last)
        with bare.store.write() as tx:
            impatient(tx.connection)
            assert release(tx.at(bare.clock.now()), [(parent, TaskState.CANCELLED)]) == 1
    assert [bare.row(i).state for i in (failing, handler, last)] == [st.FAILED, st.SCHEDULED, st.WAITING]


@pytest.mark.case(24)
def test_what_is_stored_below_before_it_is_locked_is_seen(bare: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = bare.worker("a")
    (parent,) = bare.task()
    first = task_below(bare, parent)
    second = task_below(bare, first)
    (claimed,) = bare.claim(worker)
    outcome = bare.outcome(claimed, AttemptEnd.DEAD, st.DEAD, failure=Failure("no", "ValueError"))
    below = locking.tasks_below
    late: list[int] = []
    with bare.store.connect() as session, session.begin():

        def look(*args: Any) -> list[int]:
            found = below(*args)
            if not late:  # right behind the look
                late.append(task_below(bare, second))
                late.append(task_below(bare, late[0]))
                hold(session, late[1])
            return found

        monkeypatch.setattr(locking, "tasks_below", look)
        with bare.store.write() as tx:
            impatient(tx.connection)
            assert finish(tx.at(bare.clock.now()), worker, [outcome]).deferred == [outcome]
    bare.finish(worker, outcome)
    assert [bare.row(i).state for i in (parent, first, second, *late)] == [st.DEAD, *[st.FAILED] * 4]


def reap(other: Scheduler) -> int:
    """How many tasks ``other`` takes back, without waiting for a row for more than two seconds."""
    with other.database.write() as tx:
        tx.connection.exec_driver_sql("SET LOCAL lock_timeout = '2s'")
        found = reaper.reap(tx.at(other.clock.now()))
    return sum(one.tasks for one in found)


@pytest.mark.case(65)
def test_reaping_does_not_wait_for_an_open_session_either(bench: Bench) -> None:
    dying = bench.worker(queues=["default"], lease=30)
    parent = bench.step("parent").schedule()
    child = bench.step("child", parent).schedule()
    notify_and_step(dying)
    bench.jobs.cancel_task(parent)
    other = bench.worker()
    bench.clock.advance(31)
    with bench.jobs.database.write() as tx:
        bench.jobs.task(Step("grandchild")).depend_on(child).schedule(connection=tx.connection)
        assert Side(lambda: reap(other)).result() == 0
    assert Side(lambda: reap(other)).result() == 1
    assert bench.states(parent, child) == ["cancelled", "failed"]


@pytest.mark.case(29, 65)
def test_nor_does_it_where_the_new_set_ends_at_once(bench: Bench) -> None:
    """What waits for a replaced task ends with it, as the new set's parent has failed long since."""
    dead = bench.ended("dead")
    dying = bench.worker(queues=["default"], lease=30)
    task_id = bench.step("one").key("k").schedule()
    child = bench.step("child", task_id).schedule()
    notify_and_step(dying)
    bench.step("two", dead).key("k", conflict="replace").schedule()
    other = bench.worker()
    bench.clock.advance(31)
    with bench.jobs.database.write() as tx:
        bench.jobs.task(Step("grandchild")).depend_on(child).schedule(connection=tx.connection)
        assert Side(lambda: reap(other)).result() == 0
    assert Side(lambda: reap(other)).result() == 1
    assert bench.states(task_id, child) == ["failed", "failed"]
