"""Connections for single statements stay open in between: who may use one, and which are not kept."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.errors import StoreUnavailableError
from scheduler.ports import SystemClock
from scheduler.store.db import pg_connections as wires
from scheduler.store.db.autocommit import MAX_KEPT, AutocommitPool
from scheduler.store.db.database import Database as Store
from scheduler.store.db.notifier import make_notifier
from scheduler.store.db.statements import run
from scheduler.store.db.write_gate import WriteGate
from scheduler.testing import FakeClock
from support.databases import Database, PostgresDatabases
from support.fleet import until
from support.proxy import Proxy

on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)


@task
def work(ctx: Context) -> None: ...


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store(database.url, SystemClock())
    yield made
    made.dispose()


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(work)
    yield made
    made.close()


def singles(store: Store) -> AutocommitPool:
    store.open()
    assert store._singles is not None
    return store._singles


def kept(store: Store) -> list[Any]:
    """The driver's connections, the one that is used next last."""
    return [raw for _, raw, _ in singles(store)._kept]


def used(store: Store) -> Any:
    """The driver's connection that a statement went over."""
    with store.alone() as connection:
        assert run(connection, "SELECT 1", {}) == [(1,)]
        return connection.connection.dbapi_connection


def closed(raw: Any) -> bool:
    if not isinstance(raw, sqlite3.Connection):
        return bool(raw.closed)
    try:
        raw.execute("SELECT 1").close()
    except sqlite3.ProgrammingError:
        return True
    return False


def keep(store: Store, count: int) -> list[Any]:
    """Have so many kept."""
    taken = [singles(store).take() for _ in range(count)]
    for one in taken:
        singles(store).put_back(*one)
    return [raw for _, raw in taken]


def end_sessions(database: Database, raws: list[Any]) -> None:
    """As a server that restarts does."""
    with psycopg.connect(database.url.replace("postgresql+psycopg:", "postgresql:"), autocommit=True) as server:
        for raw in raws:
            ended = server.execute("SELECT pg_terminate_backend(%s, 10000)", [raw.info.backend_pid])
            assert ended.fetchone() == (True,)


def test_the_same_connection_is_used_again_and_no_other_caller_gets_it(store: Store) -> None:
    first = used(store)
    assert used(store) is first
    assert kept(store) == [first]
    with store.write() as tx:
        other = tx.connection.connection.dbapi_connection
        assert other is not first
        assert getattr(other, "autocommit", False) in (False, -1)  # sqlite3's is not used
    assert used(store) is first


def test_threads_that_store_at_once_use_one_each(jobs: Scheduler) -> None:
    ids: list[int] = []

    def schedule() -> None:
        ids.extend(jobs.task(work).schedule() for _ in range(50))

    threads = [threading.Thread(target=schedule) for _ in range(2 * MAX_KEPT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ids) == sorted(t.id for t in jobs.list_tasks(limit=1000))
    assert len(set(ids)) == len(threads) * 50
    assert 1 <= len(kept(jobs.database)) <= MAX_KEPT


def test_no_more_are_kept_than_a_few(store: Store) -> None:
    raws = keep(store, MAX_KEPT + 3)
    assert kept(store) == raws[:MAX_KEPT]
    pool: Any = store.open().pool
    assert pool.checkedout() == MAX_KEPT
    assert pool.checkedin() == 3, "the others are the pool's"
    if store.dialect.name == "postgresql":
        assert all(raw.autocommit for raw in raws[:MAX_KEPT])
        assert not any(raw.autocommit for raw in raws[MAX_KEPT:])


@on_postgres
def test_after_a_restart_of_the_server_no_caller_sees_an_error(
    database: Database, jobs: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.task(work).schedule()
    dead = keep(jobs.database, MAX_KEPT)
    end_sessions(database, dead)
    time.sleep(wires._TRUSTED + 0.1)
    jobs.task(work).schedule()
    assert len(jobs.list_tasks()) == 2
    (raw,) = kept(jobs.database)
    assert raw not in dead
    assert all(closed(one) for one in dead)
    assert not [record for record in caplog.records if record.name.startswith("sqlalchemy")]


@on_postgres
def test_one_is_tried_only_after_it_has_lain_for_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    raw = used(store)
    assert store._wires is not None
    monkeypatch.setattr(store._wires, "_ping", tried.append)
    monkeypatch.setattr(wires, "_TRUSTED", 60.0)
    assert used(store) is raw
    assert not tried
    monkeypatch.setattr(wires, "_TRUSTED", -1.0)
    assert used(store) is raw
    assert tried == [raw]


@on_postgres
def test_it_is_cut_under_the_thread_that_uses_it_now(store: Store) -> None:
    """And not under the one that did before, nor while another one uses it."""
    raw = used(store)
    inside, go, failed = threading.Event(), threading.Event(), threading.Event()

    def wait_in_vain() -> None:
        with store.alone() as connection:
            assert connection.connection.dbapi_connection is raw
            inside.set()
            assert go.wait(20)
            run(connection, "SELECT 1", {})
            run(connection, "SELECT pg_sleep(60)", {})

    def fail() -> None:
        with pytest.raises(StoreUnavailableError):
            wait_in_vain()
        failed.set()

    thread = threading.Thread(target=fail)
    thread.start()
    assert inside.wait(20)
    with store.open().connect():  # what lies in the pool is cut, too
        assert store.cut(threading.get_ident()) == 1, "the pool's; not the one that it used before"
    go.set()
    assert thread.ident is not None
    deadline = time.monotonic() + 20
    while not failed.wait(0.05) and time.monotonic() < deadline:
        store.cut(thread.ident)
    thread.join(20)
    assert failed.is_set()
    assert not kept(store)
    assert closed(raw)


@on_postgres
def test_one_that_lies_idle_is_cut_like_one_in_the_pool(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = used(store)
    assert store.cut(-1) >= 1
    monkeypatch.setattr(wires, "_TRUSTED", -1.0)  # it is tried, and found dead
    assert used(store) is not raw


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_whose_block_raises_is_not_kept(store: Store, error: type[BaseException]) -> None:
    raw = used(store)
    with pytest.raises(error), store.alone():
        raise error
    assert not kept(store)
    assert used(store) is not raw


def test_whose_statement_fails_is_not_kept_and_the_error_is_explained(store: Store) -> None:
    raw = used(store)
    with pytest.raises(StoreUnavailableError, match="not migrated"), store.alone() as connection:
        run(connection, "SELECT 1 FROM nowhere", {})
    assert not kept(store)
    assert closed(raw)
    with pytest.raises(StoreUnavailableError, match="not migrated"), store.alone() as connection:
        connection.execute(sa.text("SELECT 1 FROM nowhere"))
    used(store)


@on_postgres
def test_one_that_breaks_unseen_is_not_kept(database: Database, store: Store) -> None:
    with store.alone() as connection:
        raw: Any = connection.connection.dbapi_connection
        end_sessions(database, [raw])
        with pytest.raises(sa.exc.DBAPIError):
            run(connection, "SELECT 1", {})
    assert not kept(store)
    assert used(store) is not raw


@on_postgres
def test_one_that_gets_lost_comes_back_to_the_pool_as_it_was(store: Store) -> None:
    """An exception may come between any two instructions."""
    connection, raw = singles(store).take()
    assert raw.autocommit
    del connection
    assert not raw.autocommit
    with store.write() as tx:
        assert tx.connection.connection.dbapi_connection is raw


def test_what_went_through_sqlalchemy_leaves_no_transaction(store: Store) -> None:
    with store.alone() as connection:
        connection.execute(sa.text("SELECT 1"))
        assert connection.in_transaction()
    assert not kept(store)
    with store.alone() as connection:
        assert not connection.in_transaction()


@on_postgres
def test_the_clock_is_compared_now_and_then(store: Store) -> None:
    raw = used(store)
    store.server_clock._calibrated = None
    with store.alone() as connection:
        assert store.server_clock._calibrated is not None
        assert connection.connection.dbapi_connection is raw
        assert not connection.in_transaction()
    assert kept(store) == [raw]
    assert raw.autocommit


def test_dispose_closes_them_and_those_that_come_back_later(store: Store) -> None:
    lying, in_use = keep(store, 2)
    old = singles(store)
    with store.alone() as connection:
        assert connection.connection.dbapi_connection is in_use
        store.dispose()
        assert closed(lying)
        run(connection, "SELECT 1", {})
        new = singles(store)
    assert closed(in_use)
    assert old is not new
    assert not old._kept
    assert not new._kept
    assert used(store) not in (lying, in_use)


@pytest.mark.posix
@pytest.mark.parametrize("end", ["it uses the database", "it only closes"])
def test_a_forked_child_leaves_them_to_its_parent(jobs: Scheduler, end: str) -> None:
    keep(jobs.database, 2)
    mine = kept(jobs.database)
    child = os.fork()
    if child == 0:
        right = False
        try:
            if end == "it uses the database":
                jobs.task(work).schedule()
                assert not set(kept(jobs.database)) & set(mine)
            jobs.close()
            right = not any(closed(raw) for raw in mine)
        finally:
            os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert kept(jobs.database) == mine
    for _ in mine:
        assert used(jobs.database) is mine[-1]
    jobs.task(work).schedule()
    assert kept(jobs.database) == mine
    assert len(jobs.list_tasks()) == (2 if end == "it uses the database" else 1)


INSERT = "INSERT INTO schedd_events (name, emitted_at) VALUES (?, ?)"


@on_sqlite
def test_a_row_is_inserted_by_the_one_that_is_kept(store: Store) -> None:
    raw = used(store)
    assert [store.insert_alone(lambda name=name: (INSERT, [name, 1])) for name in "abc"] == [1, 2, 3]
    assert kept(store) == [raw]
    assert not raw.in_transaction
    assert store._gate.enter(timeout=0.0)
    store._gate.leave()


@on_sqlite
def test_whose_insert_fails_is_closed_and_the_gate_is_left(store: Store) -> None:
    raw = used(store)
    with pytest.raises(StoreUnavailableError, match="not migrated"):
        store.insert_alone(lambda: ("INSERT INTO nowhere VALUES (?)", [1]))
    assert not kept(store)
    assert closed(raw)
    assert store._gate.enter(timeout=0.0)
    store._gate.leave()
    assert store.insert_alone(lambda: (INSERT, ["a", 1])) == 1
    assert len(kept(store)) == 1


@on_sqlite
def test_the_time_is_read_once_no_other_connection_writes(database: Database) -> None:
    clock = FakeClock()
    jobs = Scheduler.for_testing(url=database.url, clock=clock)
    jobs.register(work)
    used(jobs.database)
    assert jobs.database.socket_directory is not None
    assert jobs.database._gate._turn is not None
    with WriteGate(jobs.database.socket_directory).hold():
        caller = threading.Thread(target=lambda: jobs.task(work).after(1).schedule())
        caller.start()
        until(jobs.database._gate._turn._mutex.locked)
        clock.advance(2)
    caller.join(20)
    (stored,) = jobs.list_tasks()
    assert stored.created_at.timestamp() * 1e6 == clock.now()
    assert stored.run_at.timestamp() * 1e6 == clock.now() + 1e6
    jobs.close()


@on_sqlite
def test_a_caller_interrupted_as_it_inserts_leaves_nothing_behind(store: Store) -> None:
    class Interrupted:
        def execute(self, *_: object) -> None:
            raise KeyboardInterrupt

    connection, raw = singles(store).take()
    singles(store)._kept.append((connection, Interrupted(), 0.0))
    with pytest.raises(KeyboardInterrupt):
        store.insert_alone(lambda: (INSERT, ["a", 1]))
    assert not kept(store)
    assert closed(raw)
    assert store._gate.enter(timeout=0.0)
    store._gate.leave()


@on_sqlite
def test_an_insert_connection_that_no_thread_keeps_is_closed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = used(store)
    ((its, _, _),) = singles(store)._kept
    monkeypatch.setattr(singles(store), "_has_room", lambda: False)
    assert store.insert_alone(lambda: (INSERT, ["a", 1])) == 1
    assert not kept(store)
    assert its.closed
    monkeypatch.undo()
    with store.write() as tx:  # it went back to the pool
        assert tx.connection.connection.dbapi_connection is raw


@on_sqlite
def test_no_more_are_kept_than_there_is_use_for(store: Store) -> None:
    taken = [singles(store).take() for _ in range(MAX_KEPT + 1)]

    class WhileOthersComeBack:
        in_transaction = False

        def execute(self, *statement: Any) -> Any:
            for one in taken[1:]:
                singles(store).put_back(*one)
            return taken[0][1].execute(*statement)

    singles(store)._kept.append((taken[0][0], WhileOthersComeBack(), 0.0))
    assert store.insert_alone(lambda: (INSERT, ["a", 1])) == 1
    assert kept(store) == [raw for _, raw in taken[1:]]


@pytest.mark.parametrize("runs", [False, True])
def test_a_single_task_is_notified(jobs: Scheduler, database: Database, runs: bool) -> None:
    """By a program that only stores as by one that runs tasks itself, and hears of its own."""
    other = Store(database.url, SystemClock())
    other.open()
    notifier = make_notifier(other)
    notified = threading.Event()
    notifier.listen("listener", notified.set)
    until(lambda: notifier.works)
    if runs:
        jobs.start()
        jobs.wait([jobs.task(work).schedule()], 20)
        until(lambda: not jobs.engine.engine_state.held)
    notified.clear()
    new = jobs.task(work).after(0.01).schedule()  # so that it is none that starts as it is stored
    assert notified.wait(20)
    if runs:
        assert jobs.wait([new], 20)[new].state == "success"
    notifier.close()
    other.dispose()


@on_sqlite
def test_what_inserts_while_the_others_are_closed_is_not_kept(store: Store) -> None:
    old = singles(store)
    old.close()
    assert old.insert(INSERT, ["a", 1]) == 1
    assert not old._kept


@on_sqlite
def test_the_gate_is_passed_before_it_is_used_and_left_whatever_happens(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inside() -> bool:
        assert store._gate._turn is not None
        return store._gate._turn._mutex.locked()

    def seeing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            seen.append(inside())
            return real(*args)

        return call

    def fail(_: AutocommitPool) -> Any:
        raise sa.exc.OperationalError("", None, Exception("disk I/O error"))

    seen: list[bool] = []
    used(store)
    monkeypatch.setattr(AutocommitPool, "take", seeing(AutocommitPool.take))
    monkeypatch.setattr(AutocommitPool, "put_back", seeing(AutocommitPool.put_back))
    with store.alone():
        assert inside()
    assert seen == [True, True]
    assert not inside()
    with pytest.raises(RuntimeError), store.alone():
        raise RuntimeError
    assert not inside()
    monkeypatch.setattr(AutocommitPool, "take", fail)
    with pytest.raises(StoreUnavailableError, match="the disk reported an error"), store.alone():
        pass
    assert not inside()


@on_sqlite
def test_a_kept_connection_blocks_no_checkpoint(database: Database, jobs: Scheduler) -> None:
    """It reads no more: a reader holds back what was written since."""
    jobs.task(work).schedule()
    (raw,) = kept(jobs.database)
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("UPDATE schedd_tasks SET state = state")
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    assert kept(jobs.database) == [raw]
    assert not raw.in_transaction


@on_postgres
def test_through_a_pooler_nothing_is_prepared_on_one(database: Database, postgres_databases: PostgresDatabases) -> None:
    name = database.url.partition("?")[0].rpartition("/")[2]
    with Proxy(postgres_databases.socket, pooling=True) as proxy:
        jobs = Scheduler(proxy.url(name))
        jobs.register(work)
        for _ in range(20):
            jobs.task(work).schedule()
        assert kept(jobs.database)  # two, if the connection that notifies for all of them was there at the same moment
        for raw in kept(jobs.database):
            assert raw.prepare_threshold is None
            assert raw.autocommit
        assert jobs.database.pooled
        assert len(jobs.list_tasks()) == 20
        jobs.close()


def test_a_statement_without_rows_returns_none(store: Store) -> None:
    with store.alone() as connection:
        assert run(connection, "UPDATE schedd_tasks SET state = state", {}) == []
        assert run(connection, "SELECT 1 AS one, 'a' AS a WHERE 1 = 0", {}) == []
        assert run(connection, "SELECT 1 AS one, 'a' AS a", {}) == [(1, "a")]


def together(store: Store, count: int) -> None:
    """So many single statements at once."""
    barrier = threading.Barrier(count)

    def one() -> None:
        with store.alone() as connection:
            barrier.wait(30)
            run(connection, "SELECT 1", {})

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


@on_postgres
def test_kept_connections_take_no_room_from_others(store: Store) -> None:
    together(store, 4)
    assert len(kept(store)) == MAX_KEPT
    held = [store.connect() for _ in range(25)]
    for connection in held:
        connection.close()


@on_postgres
def test_who_waits_for_the_pools_last_one_gets_what_comes_back(store: Store) -> None:
    held = [store.connect() for _ in range(24 + MAX_KEPT)]
    begun, done = threading.Event(), threading.Event()

    def second() -> None:
        begun.set()
        used(store)
        done.set()

    other = threading.Thread(target=second, daemon=True)
    with store.alone() as connection:
        run(connection, "SELECT 1", {})
        other.start()
        assert begun.wait(30)
        pool: Any = store.open().pool
        while not pool._line._waiting:  # until it waits there
            time.sleep(0.001)
    assert done.wait(10)
    for connection in held:
        connection.close()


@on_postgres
def test_a_dead_wire_is_waited_for_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try of a connection whose server is silent takes half a minute: one is enough to trust none of them."""
    held = [store.connect() for _ in range(3)]
    used(store)
    for connection in held:
        connection.close()
    tried: list[Any] = []

    def dead(raw: Any) -> None:
        tried.append(raw)
        raw.close()  # as the driver does when the wire is given up
        raise psycopg.OperationalError("timed out")

    assert store._wires is not None
    monkeypatch.setattr(store._wires, "_ping", dead)
    monkeypatch.setattr(wires, "_TRUSTED", -1.0)
    used(store)
    assert len(tried) == 1


@on_postgres
def test_a_restart_costs_those_who_store_one_call(
    database: Database, jobs: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "_TRUSTED", 60.0)  # used untried, however long the sessions take to end
    jobs.task(work).schedule()
    together(jobs.database, 8)
    pool: Any = jobs.database.open().pool
    end_sessions(database, [*kept(jobs.database), *(record.dbapi_connection for record in pool._pool.queue)])
    failed = 0
    for _ in range(12):
        try:
            jobs.task(work).schedule()
        except StoreUnavailableError:
            failed += 1
    assert failed == 1


@on_sqlite
def test_an_interrupted_wait_at_the_gate_leaves_it_open(jobs: Scheduler) -> None:
    jobs.task(work).schedule()
    directory = jobs.database.socket_directory
    assert directory is not None
    turn = os.open(directory / "turn", os.O_RDWR)
    fcntl.flock(turn, fcntl.LOCK_EX)
    interrupt = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        jobs.task(work).schedule()
    gate = jobs.database._gate
    assert gate._next is not None
    assert gate._turn is not None
    assert not gate._next._mutex.locked()
    assert not gate._turn._mutex.locked()
    os.close(turn)
    jobs.task(work).schedule()


@on_postgres
def test_a_connection_that_the_collector_finds_is_given_back(store: Store) -> None:
    """In the midst of the wires' own books, as they note a new one under their lock."""
    used(store)
    assert store._wires is not None

    class Collecting(weakref.WeakKeyDictionary[Any, object]):
        def __setitem__(self, key: Any, value: object) -> None:
            gc.collect()
            super().__setitem__(key, value)

    cycle: list[Any] = [store.connect()]
    cycle.append(cycle)
    store._wires._peers = Collecting(store._wires._peers)
    gc.disable()
    try:
        del cycle
        done = threading.Event()

        def use() -> None:
            store.connect().close()
            done.set()

        threading.Thread(target=use, daemon=True).start()
        assert done.wait(10)
    finally:
        gc.enable()


@on_sqlite
def test_a_dropped_scheduler_leaves_no_descriptor(database: Database) -> None:
    def drop() -> None:
        made = Scheduler(database.url)
        made.register(work)
        made.task(work).schedule()

    def open_ones() -> int:
        for _ in range(3):
            gc.collect()
        return len(os.listdir("/proc/self/fd"))

    drop()
    before = open_ones()
    for _ in range(5):
        drop()
    assert open_ones() <= before  # fewer: what earlier tests left may be closed meanwhile


@on_sqlite
def test_a_dropped_scheduler_has_closed_its_connections(database: Database) -> None:
    """Since Python 3.13 an open one is complained about when it is collected."""
    made = Scheduler(database.url)
    made.register(work)
    made.task(work).schedule()
    closed: list[int] = []
    sa.event.listen(made.database.open(), "close", lambda raw, record: closed.append(id(raw)))
    del made
    gc.collect()
    assert closed


@on_sqlite
def test_a_program_that_ends_complains_of_no_connection(database: Database) -> None:
    program = f"from scheduler import Scheduler; jobs = Scheduler({database.url!r}); print(jobs.list_tasks())"
    ended = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("[]\n", "")


@on_postgres
@pytest.mark.case(78)
def test_a_connection_that_was_cut_is_not_handed_out(store: Store) -> None:
    """As late as right after the last answer, when neither the driver nor the pool can see it yet."""
    with store.alone() as connection:
        run(connection, "SELECT 1", {})
        assert store.cut(threading.get_ident()) >= 1
    with store.alone() as connection:
        assert run(connection, "SELECT 1", {}) == [(1,)]


@on_postgres
def test_a_program_that_drops_its_scheduler_is_told_of_nothing(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLAlchemy rolls its connection back, which has an answer to a notification that nobody has read."""
    jobs = Scheduler(database.url)
    jobs.register(work)
    for _ in range(2):
        jobs.task(work).schedule()
    del jobs
    gc.collect()
    assert caplog.messages == []
