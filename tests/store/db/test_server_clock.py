"""Scheduling runs on the server's clock: what a jump of either clock does; and errors that quote what is stored."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from scheduler.model.times import SECOND
from scheduler.store.db.database import Database as Store
from scheduler.store.db.errors import StoreError
from scheduler.testing import FakeClock, engine_of
from support.bench import Bench, notify_and_step

on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


class Machine(FakeClock):
    """A machine's clock, which is compared with the server's."""

    steps = False


@on_postgres
@pytest.mark.case(47)
def test_a_jump_of_the_machines_clock_is_made_up_for_at_once(bench: Bench) -> None:
    bench.clock = Machine()
    notify_and_step(bench.jobs)
    early = bench.step("early").after(1800).schedule()
    for by in (3600, -7200):
        bench.clock.jump(by)
        notify_and_step(bench.jobs)
        assert abs(bench.jobs.database.now() - time.time() * SECOND) < 10 * SECOND
        assert bench.drain() == []
    assert bench.state(early) == "scheduled"


@on_postgres
@pytest.mark.case(47)
def test_after_a_jump_of_the_servers_clock_no_worker_is_reaped(bench: Bench) -> None:
    bench.clock = Machine()
    engine = engine_of(bench.jobs)
    notify_and_step(bench.jobs)
    other = bench.worker()
    notify_and_step(other)
    bench.step("task").schedule()
    notify_and_step(other)
    (held,) = engine_of(other).engine_state.held
    bench.jobs.database.server_clock.offset -= 3600 * SECOND  # as it was before the server's clock jumped by an hour
    bench.execute("UPDATE schedd_workers SET lease_until = lease_until - :jump", jump=3600 * SECOND)
    engine.periodic.timers.bring_forward("renew")
    engine.lease.no_reaping_until = 0.0  # it has been there for long
    for _ in range(3):
        bench.clock.advance(3)
        engine.periodic.timers.bring_forward("reap")
        notify_and_step(bench.jobs)
    with bench.jobs.database.read() as tx:
        states = tx.connection.exec_driver_sql("SELECT state FROM schedd_workers ORDER BY id").fetchall()
    assert [row[0] for row in states] == [0, 0]
    assert bench.state(held[0]) == "claimed"


@on_postgres
@pytest.mark.case(20, 22, 47)
def test_ages_of_dead_letters_are_by_the_servers_clock_from_the_first_call(bench: Bench) -> None:
    """A program's first call, on a machine whose clock is off; ages are what decides what is purged."""
    bench.clock = Machine()  # it stands still, long before or after the server's
    bench.clock.jump(time.time() - bench.clock.now() / SECOND + 7200)
    (dead,) = bench.die("task")
    assert bench.worker().dead_letters.list(older_than=3600) == []
    assert bench.worker().dead_letters.purge(older_than=3600) == 0
    bench.clock.jump(-14400)
    assert bench.worker().dead_letters.replay_all() == [dead]
    bench.drain()
    bench.clock.jump(-3600)
    assert bench.worker().retry_failed(kind="Step") == [dead]


class Answers:
    """A connection on which the server's time comes after so many seconds, ``skew`` before or behind the machine's."""

    def __init__(self, clock: Machine, there: float, back: float, skew: float) -> None:
        self.clock, self.there, self.back, self.skew = clock, there, back, skew

    def execute(self, _statement: object) -> Answers:
        self.clock.advance(self.there)
        self.stamp = self.clock.now() + round(self.skew * SECOND)
        self.clock.advance(self.back)
        return self

    def scalar_one(self) -> int:
        return self.stamp


@pytest.mark.parametrize(("there", "back"), [(6.0, 0.0), (0.0, 6.0), (3.0, 3.0)])
def test_a_slow_answer_does_not_spoil_what_is_known_of_the_servers_clock(there: float, back: float) -> None:
    """A question that was held up for six seconds would make tasks start up to three seconds early."""
    clock = Machine()
    store = Store("postgresql+psycopg://nobody@/nowhere", clock)

    def measured(*answer: float) -> float:
        store.calibrate(Answers(clock, *answer))  # type: ignore[arg-type]
        return store.offset / SECOND

    assert measured(0.001, 0.001, 20.0) == pytest.approx(20.0, abs=0.01)
    assert measured(there, back, 20.0) == pytest.approx(20.0, abs=0.01)
    assert measured(there, back, 20.5) == pytest.approx(20.5, abs=3.01), "as near as it can be known"
    assert measured(there, back, 90.0) == pytest.approx(90.0, abs=3.01)
    assert measured(0.001, 0.001, 90.0) == pytest.approx(90.0, abs=0.01)


@on_postgres
def test_an_error_that_quotes_a_value_is_not_taken_for_a_lost_connection(bench: Bench) -> None:
    with pytest.raises(sa.exc.DataError) as caught:
        bench.execute("SELECT CAST('SSL EOF deadlock detected' AS integer)")
    assert not isinstance(caught.value, StoreError)
