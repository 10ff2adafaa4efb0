"""The pool of connections: who has waited longest is served first."""

from __future__ import annotations

import sys
import threading
from collections import deque

import pytest
import sqlalchemy as sa
from faults.harness import until

from scheduler import Scheduler, StoreUnavailableError
from scheduler.store.db.pool import FairPool, FairQueue
from support.databases import Database

PATIENCE = 30.0


@pytest.fixture
def jobs(database: Database) -> Scheduler:
    return Scheduler(database.url)


def pool_of(jobs: Scheduler) -> FairPool:
    pool = jobs.database.open().pool
    assert isinstance(pool, FairPool)
    return pool


def test_who_waits_is_served_before_who_comes_later(jobs: Scheduler) -> None:
    engine = jobs.database.open()
    pool = pool_of(jobs)
    held = [engine.connect() for _ in range(pool._places)]
    served: list[int] = []

    def wait(number: int) -> None:
        with engine.connect():
            served.append(number)

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        until(lambda: len(pool._line._waiting) == number + 1, "it waits")  # noqa: B023
    held.pop().close()
    with engine.connect():  # one that asks at the very moment when another comes back
        assert served == [0, 1, 2]
    for thread in threads:
        thread.join(PATIENCE)
    assert len(pool._line._free) == 1
    for connection in held:
        connection.close()
    assert len(pool._line._free) == pool._places
    jobs.close()


def test_who_cannot_wait_any_longer_takes_no_place_along(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, pool = jobs.database.open(), pool_of(jobs)
    held = [engine.connect() for _ in range(pool._places)]
    monkeypatch.setattr(pool, "_timeout", 0.05)
    with pytest.raises(StoreUnavailableError, match=f"all {pool._places} connections of this process are in use"):
        jobs.list_tasks()
    for connection in held:
        connection.close()
    assert (len(pool._line._free), len(pool._line._waiting)) == (pool._places, 0)
    assert jobs.list_tasks() == []
    jobs.close()


def test_a_connection_that_cannot_be_made_takes_no_place(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, pool = jobs.database.open(), pool_of(jobs)
    pool.dispose()

    def refuse(*_: object) -> None:
        raise sa.exc.OperationalError("connect", {}, Exception("refused"))

    monkeypatch.setattr(pool, "_create_connection", refuse)
    with pytest.raises(sa.exc.OperationalError):
        engine.connect()
    assert len(pool._line._free) == pool._places
    jobs.close()


def test_a_lost_and_a_detached_connection_give_their_places_back(jobs: Scheduler) -> None:
    engine, pool = jobs.database.open(), pool_of(jobs)
    lost, detached = engine.connect(), engine.connect()
    lost.invalidate()
    lost.close()
    detached.detach()
    detached.close()
    assert len(pool._line._free) == pool._places
    jobs.close()


def test_a_place_that_came_too_late_is_not_lost() -> None:
    line = FairQueue(1)
    assert line.enter(0.0)
    assert not line.enter(0.0)
    turn = threading.Lock()
    turn.acquire()
    line._waiting.append(turn)
    line.leave()  # it is handed over while its turn's patience ends
    assert line._was_handed_over(turn)
    line.leave()
    assert line.enter(0.0)


def test_a_place_that_comes_back_in_the_midst_of_it_is_not_lost() -> None:
    """As the collector may give one back, in the same thread, between any two steps."""
    line = FairQueue(1)
    assert line.enter(0.0)

    class Interrupting(deque[threading.Lock]):
        def append(self, turn: threading.Lock) -> None:
            line.leave()
            super().append(turn)

    line._waiting = Interrupting()
    assert line.enter(0.0)
    assert not line._free

    class Emptied(deque[threading.Lock]):
        def popleft(self) -> threading.Lock:
            if len(self) == 1:
                given = super().popleft()
                given.release()
            return super().popleft()

    line._waiting = Emptied()
    line.leave()
    assert line.enter(0.0)
    assert len(line._free) == 1, "whom it was meant for had a place already: it is there for the next"


def test_all_who_hurry_get_their_turn() -> None:
    line, inside, most = FairQueue(3), [0], [0]
    mutex = threading.Lock()

    def hurry() -> None:
        for _ in range(300):
            assert line.enter(PATIENCE)
            with mutex:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            with mutex:
                inside[0] -= 1
            line.leave()

    threads = [threading.Thread(target=hurry) for _ in range(12)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    sys.setswitchinterval(interval)
    assert (len(line._free), len(line._waiting), inside) == (3, 0, [0])
    assert most[0] <= 3


@pytest.mark.parametrize("handed_over", [True, False])
def test_one_that_is_interrupted_takes_no_place_along(monkeypatch: pytest.MonkeyPatch, handed_over: bool) -> None:
    line = FairQueue(1)
    pass_on = line._pass_on

    def interrupt() -> None:
        monkeypatch.undo()
        if handed_over:
            pass_on()
        raise KeyboardInterrupt

    monkeypatch.setattr(line, "_pass_on", interrupt)
    with pytest.raises(KeyboardInterrupt):
        line.enter(0.0)
    assert (len(line._free), len(line._waiting)) == (1, 0)


def test_what_sqlalchemy_tells_of_it_comes_from_sqlalchemys_own_logger(jobs: Scheduler) -> None:
    """Which is kept quiet; and a program that embeds the scheduler knows it by that name."""
    with jobs.database.read() as tx:
        assert tx.connection.engine.pool.logger.name.startswith("sqlalchemy.pool")
