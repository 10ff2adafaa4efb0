"""The fence at its own level: who may write what about a claim, told in statements without an engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain

import pytest
import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Failure, Outcome
from scheduler.model.spec import EdgeSpec, TaskSpec
from scheduler.model.state import Otherwise, TaskState, When
from scheduler.model.worker_states import DRAINING
from scheduler.store import reaper, workers
from scheduler.store.durable import waits
from scheduler.store.graph import spawned as children
from scheduler.store.graph.release import release
from scheduler.store.tasks import control
from scheduler.store.tasks.claim import (
    Claimed,
    end_quarantine,
    mark_running,
    record_quarantined_crash,
)
from scheduler.store.tasks.complete import Completion, finish
from scheduler.store.tasks.enqueue import enqueue
from scheduler.testing import FakeClock
from support.bare_workers import LEASE, Bare
from support.databases import Database

S = 1_000_000


@pytest.fixture
def bare(database: Database, clock: FakeClock) -> Iterator[Bare]:
    made = Bare(database.url, clock)
    yield made
    made.store.dispose()


@pytest.mark.case(4)
def test_a_success_is_written_once(bare: Bare) -> None:
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (claimed,) = bare.claim(worker)
    one = bare.outcome(claimed, result='"x"')
    assert bare.finish(worker, one) == Completion({task_id: TaskState.SUCCESS}, [], [], 0)
    before = bare.row(task_id)
    assert bare.finish(worker, one).lost == [one]
    assert bare.row(task_id) == before
    assert bare.history(task_id) == [(1, "succeeded")]


@pytest.mark.case(4)
@pytest.mark.parametrize(
    ("end", "state"),
    [
        (AttemptEnd.SUCCEEDED, st.SUCCESS),
        (AttemptEnd.RETRIED, st.RETRY),
        (AttemptEnd.DEAD, st.DEAD),
        (AttemptEnd.SNOOZED, st.SCHEDULED),
        (AttemptEnd.CANCELLED, st.CANCELLED),
        (AttemptEnd.HANDED_BACK, st.SCHEDULED),
    ],
)
def test_nothing_is_written_under_a_stale_claim(bare: Bare, clock: FakeClock, end: AttemptEnd, state: int) -> None:
    first, second = bare.worker("a"), bare.worker("b")
    (task_id,) = bare.task()
    (child,) = bare.task(task_id)
    (stale,) = bare.claim(first)
    clock.advance(31)
    with bare.store.write() as tx:
        assert workers.renew(tx.at(clock.now()), second, LEASE)
    bare.reap()
    (fresh,) = bare.claim(second)
    assert (fresh.claim, fresh.attempt) == (2, 2)
    before = bare.row(task_id), bare.row(child)
    late = bare.outcome(stale, end, state, result='"late"', failure=Failure("late", "Late"), log="late", refund=1)
    for worker in (first, second):  # not even the present holder can use the old claim
        done = bare.finish(worker, late)
        assert (done.lost, done.ended, done.deferred, done.ready) == ([late], {}, [], 0)
    assert bare.finish(first, late._replace(claim=2)).lost  # nor the old holder the new claim
    assert (bare.row(task_id), bare.row(child)) == before
    assert bare.history(task_id) == [(1, "lost")]
    with bare.store.read() as tx:
        assert tx.connection.execute(sa.text("SELECT * FROM schedd_task_values")).fetchall() == []
    assert bare.finish(second, bare.outcome(fresh)).ready == 1


@pytest.mark.case(4)
@pytest.mark.parametrize("first_end", [AttemptEnd.SNOOZED, AttemptEnd.HANDED_BACK, AttemptEnd.RETRIED])
@pytest.mark.parametrize("order", ["old first", "new first"])
def test_one_worker_holding_a_task_twice_cannot_mix_up_its_claims(
    bare: Bare, first_end: AttemptEnd, order: str
) -> None:
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (other,) = bare.task()
    first = {c.id: c for c in bare.claim(worker)}
    back = bare.outcome(first[task_id], first_end, st.RETRY if first_end is AttemptEnd.RETRIED else st.SCHEDULED)
    assert bare.finish(worker, back).lost == []
    (again,) = bare.claim(worker)
    assert (again.id, again.claim) == (task_id, 2)
    stale = bare.outcome(first[task_id], result='"old"')
    fresh = bare.outcome(again, result='"new"')
    both = [stale, fresh] if order == "old first" else [fresh, stale]
    done = bare.finish(worker, *both, bare.outcome(first[other]))
    assert done.lost == [stale]
    assert set(done.ended) == {task_id, other}
    assert bare.row(task_id).result == '"new"'
    assert bare.history(task_id) == [(1, first_end.value), (2, "succeeded")]
    assert bare.history(other) == [(1, "succeeded")]


@pytest.mark.case(4, 31)
@pytest.mark.parametrize("order", ["old first", "new first"])
@pytest.mark.parametrize(
    ("when", "otherwise", "fresh_state", "stale_state", "ended"),
    [
        (When.FAILURE, Otherwise.SKIP, st.SUCCESS, st.FAILED, "skipped"),
        (When.SUCCESS, Otherwise.FAIL, st.FAILED, st.SUCCESS, "failed"),
        (When.SUCCESS, Otherwise.FAIL, st.SUCCESS, st.FAILED, "scheduled"),
    ],
)
def test_a_stale_claim_beside_the_new_one_decides_nothing_below(
    bare: Bare, when: When, otherwise: Otherwise, fresh_state: int, stale_state: int, ended: str, order: str
) -> None:
    """Both outcomes of the task in one cycle: what follows is by the one that holds."""
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (first,) = bare.claim(worker)
    bare.finish(worker, bare.outcome(first, AttemptEnd.HANDED_BACK, st.SCHEDULED))
    (again,) = bare.claim(worker)
    with bare.store.write() as tx:
        edges = [EdgeSpec(task_id, when, otherwise)]
        child = int(enqueue(tx.at(bare.clock.now()), [TaskSpec("kind", "{}", "kind", edges=edges)])[0])

    def outcome(claimed: Claimed, state: int) -> Outcome:
        if state == st.SUCCESS:
            return bare.outcome(claimed)
        return bare.outcome(claimed, AttemptEnd.FAILED, state, failure=Failure("no", "Error", "f"))

    stale, fresh = outcome(first, stale_state), outcome(again, fresh_state)
    done = bare.finish(worker, *([stale, fresh] if order == "old first" else [fresh, stale]))
    assert done.lost == [stale]
    assert TaskState.from_code(bare.row(child).state).value == ended


@pytest.mark.case(3, 4)
def test_stamps_of_two_claims_are_distinct(bare: Bare, clock: FakeClock) -> None:
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (first,) = bare.claim(worker)
    bare.finish(worker, bare.outcome(first, AttemptEnd.HANDED_BACK, st.SCHEDULED))
    (second,) = bare.claim(worker)
    clock.advance(5)
    beats = [(task_id, 1, 99.0, "old"), (task_id, 2, 10.0, "new"), (task_id, 2, None, None)]
    with bare.store.write() as tx:
        held = control.stamp(tx.at(clock.now()), worker, beats)
    assert held == {(task_id, 2)}
    row = bare.row(task_id)
    assert (row.progress, row.progress_message, row.last_heartbeat_at) == (10.0, "new", clock.now())
    bare.finish(worker, bare.outcome(second))
    with bare.store.write() as tx:
        assert control.stamp(tx.at(clock.now()), worker, beats) == set()


@pytest.mark.case(4)
@pytest.mark.parametrize("state", [s for s in TaskState if s not in (TaskState.CLAIMED, TaskState.RUNNING)])
def test_a_row_that_is_neither_claimed_nor_running_has_no_holder(bare: Bare, state: TaskState) -> None:
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (claimed,) = bare.claim(worker)
    with bare.store.write() as tx:
        bound = {"state": state.code, "id": task_id}
        tx.connection.execute(sa.text("UPDATE schedd_tasks SET state = :state WHERE id = :id"), bound)
    before = bare.row(task_id)
    assert bare.finish(worker, bare.outcome(claimed)).lost
    with bare.store.write() as tx:
        assert control.stamp(tx.at(bare.clock.now()), worker, [(task_id, 1, 5.0, None)]) == set()
    assert bare.row(task_id) == before


@pytest.mark.case(4)
def test_running_is_marked_under_the_fence(bare: Bare, clock: FakeClock) -> None:
    first, second = bare.worker("a"), bare.worker("b")
    (task_id,) = bare.task()
    (claimed,) = bare.claim(first)

    def mark(worker: int, claim: int) -> TaskState:
        with bare.store.write() as tx:
            mark_running(tx, worker, [(task_id, claim, clock.now())])
        return TaskState.from_code(bare.row(task_id).state)

    assert mark(second, 1) is TaskState.CLAIMED
    assert mark(first, 2) is TaskState.CLAIMED
    assert mark(first, 1) is TaskState.RUNNING
    bare.finish(first, bare.outcome(claimed))
    assert mark(first, 1) is TaskState.SUCCESS


@pytest.mark.case(4)
def test_who_is_a_suspect_is_decided_under_the_fence(bare: Bare) -> None:
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (first,) = bare.claim(worker)
    bare.finish(worker, bare.outcome(first, AttemptEnd.HANDED_BACK, st.SCHEDULED)._replace(started_at=None))
    (second,) = bare.claim(worker)
    with bare.store.write() as tx:
        tx.connection.execute(sa.text("UPDATE schedd_tasks SET lane = '!kind', suspect = 2"))
    before = bare.row(task_id)
    with bare.store.write() as tx:
        end_quarantine(tx, worker, task_id, first.claim)
        end_quarantine(tx, worker + 1, task_id, second.claim)
        record_quarantined_crash(tx, task_id, first.claim)
    assert bare.row(task_id) == before
    with bare.store.write() as tx:
        end_quarantine(tx, worker, task_id, second.claim)
    assert bare.row(task_id).lane == "kind"


@pytest.mark.case(4)
@pytest.mark.parametrize("begun", [True, False])
def test_a_handler_that_came_to_an_end_is_no_suspect_any_more(bare: Bare, begun: bool) -> None:
    """One that never began proves nothing."""
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (claimed,) = bare.claim(worker)
    with bare.store.write() as tx:
        tx.connection.execute(sa.text("UPDATE schedd_tasks SET lane = '!kind', suspect = 2"))
    outcome = bare.outcome(claimed, AttemptEnd.RETRIED, st.RETRY, failure=Failure("no", "ValueError"))
    bare.finish(worker, outcome if begun else outcome._replace(started_at=None))
    row = bare.row(task_id)
    assert (row.suspect, row.lane) == ((0, "kind") if begun else (2, "!kind"))


@pytest.mark.case(2, 4)
def test_a_new_claim_has_not_started_whatever_the_last_one_had(bare: Bare, clock: FakeClock) -> None:
    first, second = bare.worker("a"), bare.worker("b")
    (task_id,) = bare.task()
    (claimed,) = bare.claim(first)
    bare.finish(first, bare.outcome(claimed, AttemptEnd.RETRIED, st.RETRY, failure=Failure("no", "ValueError")))
    assert bare.row(task_id).started_at is not None
    bare.claim(second)
    assert bare.row(task_id).started_at is None
    clock.advance(31)
    bare.reap()
    with bare.store.read() as tx:
        started = tx.connection.execute(sa.text("SELECT started_at FROM schedd_attempts WHERE claim = 2")).scalar_one()
    assert started is None


@pytest.mark.case(3)
def test_a_reaped_lease_cannot_be_renewed(bare: Bare, clock: FakeClock) -> None:
    first, second = bare.worker("a"), bare.worker("b")
    clock.advance(20)
    with bare.store.write() as tx:
        assert workers.renew(tx.at(clock.now()), first, LEASE)
    clock.advance(11)
    bare.reap()  # the second's
    with bare.store.write() as tx:
        assert workers.renew(tx.at(clock.now()), first, LEASE)
        assert not workers.renew(tx.at(clock.now()), second, LEASE)


@pytest.mark.case(2, 3)
def test_who_reaps_spares_itself(bare: Bare, clock: FakeClock) -> None:
    """Its own lease may have run out, too, while it stood still: it renews that, and what it holds stays its own."""
    first, second = bare.worker("a"), bare.worker("b")
    mine, other = bare.task(count=2)
    (claimed,) = bare.claim(first, 1)
    bare.claim(second, 1)
    clock.advance(31)
    with bare.store.write() as tx:
        assert [one.worker for one in reaper.reap(tx.at(clock.now()), spare=first)] == [second]
        assert workers.renew(tx.at(clock.now()), first, LEASE)
    assert (bare.row(mine).state, bare.row(other).state) == (st.CLAIMED, st.SCHEDULED)
    assert bare.finish(first, bare.outcome(claimed)).ended == {mine: TaskState.SUCCESS}


@pytest.mark.case(3)
def test_a_heartbeat_leaves_a_draining_worker_draining(bare: Bare, clock: FakeClock) -> None:
    worker = bare.worker("a")
    with bare.store.write() as tx:
        assert workers.renew(tx.at(clock.now()), worker, LEASE, DRAINING)
        assert workers.renew(tx.at(clock.now()), worker, LEASE)
        state = tx.connection.execute(
            sa.text("SELECT state FROM schedd_workers WHERE id = :id"), {"id": worker}
        ).scalar_one()
    assert state == DRAINING


@pytest.mark.case(2, 4)
def test_an_expired_lease_that_no_worker_reclaimed_still_holds(bare: Bare, clock: FakeClock) -> None:
    worker = bare.worker("a")
    (task_id,) = bare.task()
    (claimed,) = bare.claim(worker)
    clock.advance(3600)
    done = bare.finish(worker, bare.outcome(claimed))
    assert done.ended == {task_id: TaskState.SUCCESS}
    bare.reap()
    assert bare.history(task_id) == [(1, "succeeded")]


@pytest.mark.case(5)
def test_of_two_stale_reads_one_wins(bare: Bare) -> None:
    """Both workers are in the middle of their transactions when they look for the one task."""
    names = [bare.worker(name) for name in "abcdef"]
    ids = bare.task(count=3)
    barrier = threading.Barrier(len(names))
    won: dict[int, list[int]] = {}

    def one(worker: int) -> None:
        barrier.wait()
        won[worker] = [c.id for c in bare.claim(worker)]

    threads = [threading.Thread(target=one, args=(worker,)) for worker in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(i for each in won.values() for i in each) == ids
    for worker, mine in won.items():
        assert all(bare.row(i).worker == worker and bare.row(i).claim == 1 for i in mine)


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
class TestOnPostgreSQL:
    """What can only be met where writers overlap."""

    @pytest.mark.case(5)
    def test_a_claim_passes_over_rows_that_an_open_transaction_claims(self, bare: Bare) -> None:
        first, second = bare.worker("a"), bare.worker("b")
        ids = bare.task(count=2)
        with bare.store.write() as tx:
            (mine,) = bare.claim(first, 1, tx.connection)
            (other,) = bare.claim(second)  # does not wait
        assert sorted((mine.id, other.id)) == ids

    def test_a_row_that_a_caller_holds_is_deferred_and_written_later(self, bare: Bare) -> None:
        worker = bare.worker("a")
        held, free = bare.task(count=2)
        (child,) = bare.task(held)
        claimed = {c.id: c for c in bare.claim(worker)}
        outcomes = [bare.outcome(claimed[i]) for i in (held, free)]
        with bare.store.write() as tx:
            spec = TaskSpec("kind", "{}", "kind", edges=[EdgeSpec(held, When.SUCCESS, Otherwise.FAIL)])
            (second_child,) = enqueue(tx.at(bare.clock.now()), [spec])
            done = bare.finish(worker, *outcomes)
            assert (done.ended, done.lost) == ({free: TaskState.SUCCESS}, [])
            assert done.deferred == [outcomes[0]]
            assert bare.row(held).state == st.CLAIMED
            assert bare.finish(worker, *done.deferred).deferred == done.deferred
        done = bare.finish(worker, *done.deferred)
        assert (done.ended, done.deferred, done.ready) == ({held: TaskState.SUCCESS}, [], 2)
        assert {bare.row(child).state, bare.row(second_child).state} == {st.SCHEDULED}

    def test_who_writes_without_locking_first_waits_a_moment_for_a_caller(self, bare: Bare) -> None:
        """Then it says so: nothing is written, and the caller writes again without waiting."""
        worker = bare.worker("a")
        held, free, parent = bare.task(count=3)
        (child,) = bare.task(parent)
        claimed = {c.id: c for c in bare.claim(worker)}
        with bare.store.write() as tx:
            tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": held})
            assert bare.finish_quickly(worker, *map(bare.outcome, claimed.values())) is None
        with bare.store.write() as tx:
            tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": child})
            assert bare.finish_quickly(worker, bare.outcome(claimed[parent])) is None
            assert bare.finish_quickly(worker, bare.outcome(claimed[free])) is not None
        assert bare.finish(worker, *map(bare.outcome, claimed.values())).ready == 1

    @pytest.mark.case(33)
    @pytest.mark.parametrize("skip_locks", [True, False])
    def test_a_child_of_what_is_being_written_is_released(
        self, bare: Bare, skip_locks: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A transaction that waited for a row sees, once it has it, what the holder has committed."""
        monkeypatch.setattr("scheduler.store.tasks.complete._ROW_LOCK_TIMEOUT", "10s")
        worker = bare.worker("a")
        (parent,) = bare.task()
        (claimed,) = bare.claim(worker)
        with bare.store.write() as tx:
            spec = TaskSpec("kind", "{}", "kind", edges=[EdgeSpec(parent, When.SUCCESS, Otherwise.FAIL)])
            (child,) = enqueue(tx.at(bare.clock.now()), [spec])
            done = bare.finish_meanwhile(worker, bare.outcome(claimed), skip_locks=skip_locks)
        assert done.result(10).deferred == ([] if skip_locks else [bare.outcome(claimed)])
        assert skip_locks or bare.finish(worker, bare.outcome(claimed)).ready == 1
        assert bare.row(child).state == st.SCHEDULED

    @pytest.mark.case(33)
    @pytest.mark.parametrize("skip_locks", [True, False])
    def test_who_comes_to_await_what_is_being_written_is_woken(
        self, bare: Bare, skip_locks: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scheduler.store.tasks.complete._ROW_LOCK_TIMEOUT", "10s")
        worker, never = bare.worker("a"), 2**60
        awaited, waiter = bare.task(count=2)
        claimed = {c.id: c for c in bare.claim(worker)}
        with bare.store.write() as tx:  # another worker's turn, which answers await_task()
            tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": awaited})
            head = waits.StoredWait(waiter, "w", None, never, claimed[waiter].claim)
            waits.register(tx.at(bare.clock.now()), [head])
            waits.register_items(tx.at(bare.clock.now()), [(waiter, "w", awaited)])
            done = bare.finish_meanwhile(worker, bare.outcome(claimed[awaited]), skip_locks=skip_locks)
        assert skip_locks or done.result(10).deferred
        assert skip_locks or bare.finish(worker, bare.outcome(claimed[awaited])).ended
        done.result(10)
        bare.finish(worker, bare.outcome(claimed[waiter], AttemptEnd.SUSPENDED, st.SUSPENDED, run_at=never))
        assert bare.row(waiter).run_at <= bare.clock.now()

    def test_how_long_to_wait_for_rows_is_no_longer_said_behind_the_write(self, bare: Bare) -> None:
        worker = bare.worker("a")
        bare.task(count=2)
        claimed = bare.claim(worker)
        with bare.store.write() as tx:
            tx.connection.execute(sa.text("SET LOCAL lock_timeout = '7s'"))
            for one, skip_locks in zip(claimed, (True, False), strict=True):
                finish(tx.at(bare.clock.now()), worker, [bare.outcome(one)], skip_locks=skip_locks)
                assert tx.connection.execute(sa.text("SHOW lock_timeout")).scalar() == "7s"

    def test_a_held_child_defers_its_parent_only(self, bare: Bare) -> None:
        worker = bare.worker("a")
        parent, free = bare.task(count=2)
        (child,) = bare.task(parent)
        claimed = {c.id: c for c in bare.claim(worker)}
        outcomes = [bare.outcome(claimed[i]) for i in (parent, free)]
        with bare.store.write() as tx:
            tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": child})
            done = bare.finish(worker, *outcomes)
            assert (set(done.ended), done.deferred) == ({free}, [outcomes[0]])
        assert bare.finish(worker, *done.deferred).ready == 1

    @pytest.mark.parametrize("end", [st.SUCCESS, st.DEAD])
    def test_a_held_grandchild_does_not_hold_up_the_cycle(self, bare: Bare, end: int) -> None:
        """A failed task's end goes on down: it must not wait for a transaction that holds a row there either."""
        worker = bare.worker("a")
        (parent,) = bare.task()
        (child,) = bare.task(parent)
        (grandchild,) = bare.task(child)
        (claimed,) = bare.claim(worker)
        outcome = bare.outcome(claimed, AttemptEnd.DEAD if end == st.DEAD else AttemptEnd.SUCCEEDED, end)
        with bare.store.write() as tx:
            tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": grandchild})
            with bare.store.write() as tx2:
                tx2.connection.execute(sa.text("SET LOCAL lock_timeout = '2s'"))
                done = finish(tx2.at(bare.clock.now()), worker, [outcome])
        if done.deferred:
            done = bare.finish(worker, *done.deferred)
        states = [TaskState.from_code(bare.row(i).state) for i in (parent, child, grandchild)]
        if end == st.DEAD:
            assert states == [TaskState.DEAD, TaskState.FAILED, TaskState.FAILED]
        else:
            assert states == [TaskState.SUCCESS, TaskState.SCHEDULED, TaskState.WAITING]

    @pytest.mark.parametrize("depth", [2, 3, 7])
    def test_a_locked_row_far_below_defers_only_what_reaches_it(self, bare: Bare, depth: int) -> None:
        worker = bare.worker("a")
        parents = bare.task(count=3)
        rows = {parent: [parent] for parent in parents}
        for _ in range(depth):
            for below in rows.values():
                below += bare.task(below[-1])
        shared = rows[parents[1]][1:2] + bare.task(rows[parents[0]][1], rows[parents[1]][1])  # two ways lead down there
        for _ in range(depth):
            shared += bare.task(shared[-1])
        claimed = {c.id: c for c in bare.claim(worker)}
        outcomes = [bare.outcome(claimed[i], AttemptEnd.DEAD, st.DEAD) for i in parents]
        with bare.store.write() as tx:
            tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": shared[-1]})
            with bare.store.write() as tx2:
                tx2.connection.execute(sa.text("SET LOCAL lock_timeout = '2s'"))
                done = finish(tx2.at(bare.clock.now()), worker, outcomes)
            assert done.deferred == outcomes[:2]
            assert set(done.ended) == {parents[2]}
            assert {bare.row(i).state for i in rows[parents[2]][1:]} == {st.FAILED}
            assert {bare.row(i).state for i in rows[parents[0]][1:] + shared[1:]} == {st.WAITING}
        bare.finish(worker, *done.deferred)
        assert {bare.row(i).state for i in [*chain.from_iterable(rows.values()), *shared]} == {st.DEAD, st.FAILED}

    @pytest.mark.parametrize("what", ["stamp", "mark_running", "reap"])
    def test_nothing_else_in_a_cycle_waits_for_a_caller(self, bare: Bare, clock: FakeClock, what: str) -> None:
        worker = bare.worker("a")
        held, free = bare.task(count=2)
        claimed = {c.id: c for c in bare.claim(worker)}
        clock.advance(31)
        with bare.store.write() as tx:
            tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": held})
            with bare.store.write() as tx2:
                tx2.connection.execute(sa.text("SET LOCAL lock_timeout = '2s'"))
                if what == "stamp":
                    beats = [(i, claimed[i].claim, 5.0, None) for i in (held, free)]
                    stamped = control.stamp(tx2.at(clock.now()), worker, beats)
                    assert stamped == {(held, 1), (free, 1)}
                elif what == "mark_running":
                    mark_running(tx2, worker, [(i, 1, clock.now()) for i in (held, free)])
                else:
                    reaper.reap(tx2.at(clock.now()))
            if what == "stamp":
                assert (bare.row(held).progress, bare.row(free).progress) == (None, 5.0)
            else:
                after = st.RUNNING if what == "mark_running" else st.SCHEDULED
                assert (bare.row(held).state, bare.row(free).state) == (st.CLAIMED, after)
        if what == "reap":
            bare.reap()
            assert bare.row(held).state == st.SCHEDULED
            assert bare.history(held) == [(1, "lost")]


def test_what_a_cancelled_task_spawned_ends_cancelled_also_below_what_fails_with_it(bare: Bare) -> None:
    (parent,) = bare.task()
    (first,) = bare.task(parent)
    (second,) = bare.task(first)
    (third,) = bare.task(second)
    with bare.store.write() as tx:
        children.adopt(tx, [(first, parent), (second, parent)])
        release(tx.at(bare.clock.now()), [(parent, TaskState.CANCELLED)])
    assert [bare.row(i).state for i in (first, second, third)] == [st.FAILED, st.CANCELLED, st.FAILED]
