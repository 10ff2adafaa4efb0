"""Waiting and what is waited for, in transactions that overlap: neither overlooks the other, and none waits in vain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.state import TaskState
from scheduler.ports import FOREVER
from scheduler.store.db.tx import Tx
from scheduler.store.durable import events, waits
from scheduler.store.durable.events import EventEmit
from scheduler.store.requests import handle as requests
from scheduler.store.requests.request import AttemptRequest
from scheduler.store.tasks.claim import Claimed
from scheduler.store.tasks.complete import finish
from scheduler.testing import FakeClock
from support.bare_workers import Bare
from support.bench import Side
from support.databases import Database

EVENT = "approved"


@pytest.fixture
def bare(database: Database, clock: FakeClock) -> Iterator[Bare]:
    made = Bare(database.url, clock)
    yield made
    made.store.dispose()


class Waiter:
    """A claimed task that asks for an event, and is suspended."""

    def __init__(self, bare: Bare) -> None:
        self.bare = bare
        self.worker = bare.worker("a")
        (self.id,) = bare.task()
        (self.claimed,) = bare.claim(self.worker)

    def ask(self, connection: sa.Connection, claimed: Claimed | None = None) -> Any:
        claim = (claimed or self.claimed).claim
        args = {"name": "$event", "seq": 1, "event": EVENT, "timeout": None}
        now = self.bare.clock.now()
        asked = [AttemptRequest(self.id, claim, "await_event", args)]
        (given,), _ = requests.answer(Tx(connection, now), self.worker, asked)
        return given

    def suspend(self, connection: sa.Connection) -> Any:
        c, now = self.claimed, self.bare.clock.now()
        outcome = Outcome(
            c.id, c.claim, c.attempt, AttemptEnd.SUSPENDED, st.SUSPENDED, c.claimed_at, now, now, run_at=FOREVER
        )
        return finish(Tx(connection, now), self.worker, [outcome])

    def wake_missed(self) -> int:
        with self.bare.store.write() as tx:
            return waits.wake_missed(tx.at(self.bare.clock.now()))

    @property
    def due(self) -> bool:
        row = self.bare.row(self.id)
        return bool(row.state == TaskState.SUSPENDED.code and row.run_at <= self.bare.clock.now())


def emit(bare: Bare, connection: sa.Connection | None = None) -> int:
    if connection is not None:
        return events.emit(Tx(connection, bare.clock.now()), [EventEmit(EVENT, "1")])[1]
    with bare.store.write() as tx:
        return emit(bare, tx.connection)


@pytest.mark.case(54)
def test_an_emit_waits_for_who_has_just_begun_to_wait(bare: Bare) -> None:
    waiter = Waiter(bare)
    with bare.store.write() as tx:
        assert "until" in waiter.ask(tx.connection)
        other = Side(lambda: emit(bare))
    assert other.result() == 0  # it is running still
    with bare.store.write() as tx:
        waiter.suspend(tx.connection)
    assert waiter.due


@pytest.mark.case(54)
def test_who_begins_to_wait_while_it_is_being_emitted_asks_again(bare: Bare, database: Database) -> None:
    waiter = Waiter(bare)

    def ask() -> Any:
        with bare.store.write() as tx:
            return waiter.ask(tx.connection)

    with bare.store.write() as tx:
        emit(bare, tx.connection)
        other = Side(ask)
        if not database.is_sqlite:
            assert other.result() is None  # and it did not wait for this transaction to end
    answer = other.result() or ask()
    assert answer["value"] == "1"


@pytest.mark.case(54)
@pytest.mark.parametrize("first", ["suspends", "emits"])
def test_being_suspended_while_it_is_being_emitted(bare: Bare, database: Database, first: str) -> None:
    waiter = Waiter(bare)
    with bare.store.write() as tx:
        waiter.ask(tx.connection)

    def suspend() -> Any:
        with bare.store.write() as tx:
            return waiter.suspend(tx.connection)

    with bare.store.write() as tx:
        if first == "suspends":
            waiter.suspend(tx.connection)
            other = Side(lambda: emit(bare))
            if not database.is_sqlite:
                assert other.result() == 0  # its row is held: not waited for
        else:
            emit(bare, tx.connection)
            other = Side(suspend)
            if not database.is_sqlite:
                assert len(other.result().deferred) == 1
    other.result()
    if first == "emits" and not database.is_sqlite:
        suspend()
    if not waiter.due:
        assert first == "suspends"
        assert not database.is_sqlite
        assert waiter.wake_missed() == 1
    assert waiter.due
    assert waiter.wake_missed() == 0


@pytest.mark.case(54)
def test_a_row_that_a_caller_holds_is_woken_later(bare: Bare, database: Database) -> None:
    """A session with an open depend_on on the suspended task keeps neither the emit nor the cycle waiting."""
    if database.is_sqlite:
        waiter = Waiter(bare)
        with bare.store.write() as tx:
            waiter.ask(tx.connection)
            waiter.suspend(tx.connection)
        assert emit(bare) == 1
        assert waiter.due
        return
    waiter = Waiter(bare)
    with bare.store.write() as tx:
        waiter.ask(tx.connection)
        waiter.suspend(tx.connection)
    with bare.store.write() as tx:
        tx.connection.execute(sa.text("SELECT 1 FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": waiter.id})
        assert Side(lambda: emit(bare)).result() == 0
        assert waiter.wake_missed() == 0
    assert waiter.wake_missed() == 1
    assert waiter.due


@pytest.mark.case(4, 54)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_claim_that_another_transaction_changes_is_asked_about_again(bare: Bare) -> None:
    """He may be taking it back: nothing is written for it meanwhile."""
    waiter = Waiter(bare)
    with bare.store.connect() as session, session.begin():
        session.execute(sa.text("SELECT 1 FROM schedd_tasks WHERE id = :id FOR UPDATE"), {"id": waiter.id})
        with bare.store.write() as tx:
            assert waiter.ask(tx.connection) is None
    with bare.store.write() as tx:
        assert "until" in waiter.ask(tx.connection)


@pytest.mark.case(57)
def test_a_stale_claim_registers_and_records_nothing(bare: Bare, clock: FakeClock) -> None:
    waiter = Waiter(bare)
    other = bare.worker("b")
    clock.advance(31)
    with bare.store.write() as tx:
        tx.connection.execute(
            sa.text("UPDATE schedd_workers SET lease_until = :far WHERE id = :id"), {"far": FOREVER, "id": other}
        )
    bare.reap()
    assert bare.claim(other)
    entry = {"name": "s", "seq": 1, "value": "1", "started_at": None, "note": None}
    emitting = {"name": "$e", "seq": 2, "event": EVENT, "payload": None}
    sleeping = {"name": "$s", "seq": 3, "until": 5}
    asked = [
        AttemptRequest(waiter.id, 1, "record", entry),
        AttemptRequest(waiter.id, 1, "emit", emitting),
        AttemptRequest(waiter.id, 1, "sleep", sleeping),
        AttemptRequest(waiter.id, 1, "beat", {"percent": 5.0}),
        AttemptRequest(waiter.id, 2, "record", entry),  # nor the old worker under the new claim
    ]
    with bare.store.write() as tx:
        assert waiter.ask(tx.connection) == {"held": False}
        answers, woken = requests.answer(tx.at(clock.now()), waiter.worker, asked)
    assert (answers, woken) == ([{"held": False}] * 5, 0)
    with bare.store.read() as tx:
        for table in ("schedd_checkpoints", "schedd_waits", "schedd_events"):
            assert tx.connection.execute(sa.text(f"SELECT * FROM {table}")).fetchall() == []


@pytest.mark.case(52)
def test_one_request_that_cannot_be_carried_out_spoils_no_other(bare: Bare, clock: FakeClock) -> None:
    worker = bare.worker("a")
    ids = bare.task(count=3)
    bare.claim(worker)
    entry = {"name": "s", "seq": 1, "value": "1", "started_at": None, "note": None}
    asked = [AttemptRequest(i, 1, "record", entry | ({"type": "no number"} if i == ids[1] else {})) for i in ids]
    with bare.store.write() as tx:
        answers, _ = requests.answer(tx.at(clock.now()), worker, asked, one_by_one=True)
    assert ["error" in (a or {}) for a in answers] == [False, True, False]
    with bare.store.read() as tx:
        assert tx.connection.execute(sa.text("SELECT count(*) FROM schedd_checkpoints")).scalar() == 2
