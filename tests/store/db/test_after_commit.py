"""Notifications follow the commit of a caller's own transaction: inside they take a lock that all commits share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from scheduler import Context, Scheduler, task
from scheduler.store.db import after_commit
from scheduler.store.db.after_commit import notify_after_commit
from scheduler.store.db.django_connection import DjangoConnection
from scheduler.store.db.notifier import CHANNEL
from support.databases import Database
from support.fleet import until
from support.own_server import OwnServer

PATIENCE = 60
CALLERS = 8
on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
# The commit of a caller ends once a standby that is not there has it: so one can look at it for as long as it takes.
NO_STANDBY = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'"
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name <> 'probe'"
PROBE = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'probe'"
# Beside locks of tables and rows, which callers' own statements take, too, and which do not exclude each other.
LOCKS = f"SELECT locktype FROM pg_locks WHERE locktype IN ('object', 'advisory') AND granted AND pid IN ({WAITING})"


@task
def work(ctx: Context) -> None: ...


def plain(url: str) -> str:
    """The URL of a database as its driver takes it."""
    return url.replace("postgresql+psycopg:", "postgresql:")


class Callers:
    """Programs that store a task on a server whose commits stand still when told to."""

    def __init__(self, server: OwnServer) -> None:
        self.server = server
        self.url = server.migrated()
        self.jobs = Scheduler(self.url)
        self.jobs.register(work)
        self.engine = sa.create_engine(self.url, pool_size=CALLERS)
        with self.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE orders (id bigserial)")
        self.alone()  # all that is done once is done

    @contextlib.contextmanager
    def commits_held(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as threads:
            self._set(NO_STANDBY)
            try:
                while not self._holds(threads.submit(self._probe)):  # its own processes take the setting in a moment
                    pass
                yield
            finally:
                self._set("ALTER SYSTEM RESET synchronous_standby_names")

    def _holds(self, probe: Future[None]) -> bool:
        until(lambda: probe.done() or self.server.sql(PROBE), PATIENCE)
        return not probe.done()

    def _probe(self) -> None:
        with psycopg.connect(plain(self.url), autocommit=True, application_name="probe") as connection:
            connection.execute("INSERT INTO orders DEFAULT VALUES")

    def _set(self, statement: str) -> None:
        self.server.sql(statement)
        self.server.sql("SELECT pg_reload_conf()")

    def waiting(self) -> int:
        return len(self.server.sql(WAITING))

    def alone(self) -> None:
        self.jobs.task(work).schedule()

    def batch(self) -> None:
        with self.jobs.batch() as batch:
            first = batch.task(work)
            batch.task(work).depend_on(first)

    def own(self) -> None:
        with self.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders DEFAULT VALUES")
            self.jobs.task(work).schedule(connection=connection)

    def own_graph(self) -> None:
        with Session(self.engine) as session, session.begin():
            session.execute(sa.text("INSERT INTO orders DEFAULT VALUES"))
            with self.jobs.batch(connection=session) as batch:
                first = batch.task(work)
                batch.task(work).key(str(threading.get_ident())).depend_on(first)

    def in_two_phases(self) -> None:
        with self.engine.connect() as connection:
            transaction = connection.begin_twophase(f"{threading.get_ident()}")
            self.jobs.task(work).schedule(connection=connection)
            transaction.prepare()
            transaction.commit()

    def notified_inside(self) -> None:
        with self.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders DEFAULT VALUES")
            connection.exec_driver_sql(f"NOTIFY {CHANNEL}")

    def close(self) -> None:
        self.jobs.close()
        self.engine.dispose()


@pytest.fixture(scope="module")
def callers() -> Iterator[Callers]:
    with OwnServer(max_prepared_transactions="20") as server, contextlib.closing(Callers(server)) as made:
        yield made


@pytest.mark.case(106, pure=True)
@pytest.mark.parametrize("how", ["alone", "batch", "own", "own_graph", "in_two_phases"])
def test_callers_flush_side_by_side_and_are_heard_of_afterwards(callers: Callers, how: str) -> None:
    call: Callable[[], None] = getattr(callers, how)
    with (
        psycopg.connect(plain(callers.url), autocommit=True) as ear,
        ThreadPoolExecutor(CALLERS) as threads,
    ):
        with callers.commits_held():
            ear.execute(f"LISTEN {CHANNEL}")
            calls = [threads.submit(call) for _ in range(CALLERS)]
            until(lambda: callers.waiting() == CALLERS, PATIENCE)  # all of them wait for the flush, none for another
            assert callers.server.sql(LOCKS) == []
            assert [*ear.notifies(timeout=0)] == []
        for each in calls:
            each.result(PATIENCE)
        assert [*ear.notifies(timeout=PATIENCE, stop_after=1)]


def test_a_notification_inside_a_commit_would_hold_a_lock_of_the_server(callers: Callers) -> None:
    """So the test before this one can see it."""
    with ThreadPoolExecutor(2) as threads:
        with callers.commits_held():
            calls = [threads.submit(callers.notified_inside) for _ in range(2)]
            until(lambda: callers.waiting() == 1, PATIENCE)
            assert callers.server.sql(LOCKS) == [("object",)]
        for each in calls:
            each.result(PATIENCE)


@pytest.fixture
def engine(database: Database) -> Iterator[sa.Engine]:
    made = sa.create_engine(database.url)
    with made.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id int PRIMARY KEY)")
    yield made
    made.dispose()


class Notified:
    """Counts notifications, and the rows that another connection sees at each."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.seen: list[int] = []

    def __call__(self) -> None:
        with self._engine.connect() as connection:
            self.seen.append(connection.execute(sa.text("SELECT count(*) FROM orders")).scalar_one())


def insert(connection: sa.Connection, number: int = 1) -> None:
    connection.execute(sa.text(f"INSERT INTO orders VALUES ({number})"))


@pytest.mark.case(106)
@pytest.mark.parametrize("how", ["begin", "connect", "session", "savepoint"])
def test_one_notification_follows_a_commit_however_many_tasks_are_in_it(engine: sa.Engine, how: str) -> None:
    notified = Notified(engine)
    with contextlib.ExitStack() as stack:
        if how == "session":
            session = stack.enter_context(Session(engine))
            connection = session.connection()
        else:
            connection = stack.enter_context(engine.begin() if how == "begin" else engine.connect())
        insert(connection)
        with connection.begin_nested() if how == "savepoint" else contextlib.nullcontext():
            for _ in range(3):
                notify_after_commit(connection, notified)
        assert notified.seen == []
        if how == "session":
            session.commit()
        elif how != "begin":
            connection.commit()
    assert notified.seen == [1]


def test_a_rollback_notifies_nobody_nor_does_the_next_commit(engine: sa.Engine) -> None:
    notified = Notified(engine)
    with engine.connect() as connection:
        insert(connection)
        notify_after_commit(connection, notified)
        connection.rollback()
        insert(connection)
        connection.commit()
        assert notified.seen == []
        insert(connection, 2)
        notify_after_commit(connection, notified)
        connection.commit()
        assert notified.seen == [2]
    with contextlib.suppress(ZeroDivisionError), engine.begin() as connection:
        insert(connection, 3)
        notify_after_commit(connection, notified)
        raise ZeroDivisionError
    assert notified.seen == [2]


def test_what_was_stored_before_a_savepoint_is_told_though_that_rolls_back(engine: sa.Engine) -> None:
    notified = Notified(engine)
    with engine.begin() as connection:
        insert(connection)
        notify_after_commit(connection, notified)
        with connection.begin_nested() as savepoint:
            insert(connection, 2)
            notify_after_commit(connection, notified)
            savepoint.rollback()
    assert notified.seen == [1]


@on_postgres
def test_a_commit_that_fails_notifies_nobody(engine: sa.Engine) -> None:
    notified = Notified(engine)
    with engine.begin() as connection:
        insert(connection)
        connection.exec_driver_sql("CREATE TABLE lines (id int REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
    with engine.connect() as connection:
        connection.exec_driver_sql("INSERT INTO lines VALUES (2)")
        notify_after_commit(connection, notified)
        with pytest.raises(sa.exc.IntegrityError):
            connection.commit()
    assert notified.seen == []


def test_two_schedulers_are_notified_of_one_commit_though_one_fails(engine: sa.Engine) -> None:
    def broken() -> None:
        raise RuntimeError("gone")

    first, second = Notified(engine), Notified(engine)
    with engine.begin() as connection:
        insert(connection)
        for notify in (first, broken, second):
            notify_after_commit(connection, notify)
    assert (first.seen, second.seen) == ([1], [1])


@on_postgres
def test_in_autocommit_the_notification_comes_at_once(engine: sa.Engine) -> None:
    """No commit may ever come."""
    notified = Notified(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        insert(connection)
        notify_after_commit(connection, notified)
        assert notified.seen == [1]


def test_a_connection_that_commits_for_years_keeps_nothing_of_it(engine: sa.Engine) -> None:
    """Each of SQLAlchemy's listeners stays on its connection for good, and slows its statements."""
    notified: list[int] = []
    with engine.connect() as connection:
        for number in range(50):
            insert(connection, number)
            notify_after_commit(connection, lambda: notified.append(1))
            connection.commit()
        insert(connection, 50)
        notify_after_commit(connection, lambda: notified.append(1))
        assert not any([*connection.dispatch.commit, *connection.dispatch.rollback, *engine.dispatch.commit])
    gc.collect()
    assert len(notified) == 50
    assert len(after_commit._OWED) == 0


@pytest.mark.parametrize("session", [True, False])
def test_an_event_loop_does_not_wait_for_the_notification(database: Database, session: bool) -> None:
    done, threads = threading.Event(), []

    def notify() -> None:
        threads.append(threading.current_thread())
        done.set()

    async def program() -> None:
        engine = create_async_engine(database.url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncSession(engine) if session else engine.connect() as own:
            await own.execute(sa.text("CREATE TABLE orders (id int)"))
            await own.execute(sa.text("INSERT INTO orders VALUES (1)"))
            await own.run_sync(lambda c: notify_after_commit(c.connection() if session else c, notify))
            assert threads == []
            await own.commit()
            assert await asyncio.to_thread(done.wait, PATIENCE)
        await engine.dispose()

    asyncio.run(program())
    assert threads != [threading.current_thread()]


class DjangosOwn:
    """A connection of Django's to PostgreSQL, in a transaction."""

    vendor = "postgresql"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.calls: list[Callable[[], None]] = []

    def on_commit(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def commit(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    @contextlib.contextmanager
    def cursor(self) -> Iterator[Any]:
        yield self

    def execute(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("others", [True, False])
def test_djangos_connection_notifies_once_a_commit_unless_notifications_are_left_out(others: bool) -> None:
    own = DjangosOwn()
    woken: list[int] = []

    def store(tasks: int) -> None:
        for _ in range(tasks):
            with DjangoConnection(sa.create_engine("sqlite://"), own) as connection:
                notify_after_commit(connection, lambda: woken.append(1), others=others)

    store(2)
    own.calls.clear()  # as a rollback does
    own.commit()
    assert (own.said, woken) == ([], [])
    for commits in (1, 2):
        store(3)
        own.calls.pop(0)  # as the rollback of a savepoint does
        own.commit()
        assert (own.said, woken) == (([f"NOTIFY {CHANNEL}"] * commits, []) if others else ([], [1] * commits))
