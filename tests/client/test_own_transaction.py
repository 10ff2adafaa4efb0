"""A task that is stored in a caller's own transaction: what watches that transaction sees it."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.store.db.statements import is_unwatched
from support.fleet import Fleet
from support.statements import listen

INTO = "INSERT INTO schedd_tasks"
EVENTS = ("before_execute", "after_execute", "before_cursor_execute", "after_cursor_execute")


@task
def work(ctx: Context, n: int = 0) -> None: ...


@pytest.fixture
def jobs(fleet: Fleet) -> Scheduler:
    return fleet.worker(work)


@pytest.fixture
def engine(fleet: Fleet) -> Iterator[sa.Engine]:
    made = sa.create_engine(fleet.database.url)
    yield made
    made.dispose()


def count(jobs: Scheduler) -> int:
    return len(jobs.list_tasks())


def test_nobody_watches_most_transactions(jobs: Scheduler, engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert not is_unwatched(connection), "SQLAlchemy has not begun"
        jobs.task(work, 1).schedule(connection=connection)
        assert is_unwatched(connection)
        inner = connection.begin_nested()
        jobs.task(work, 2).schedule(connection=connection)
        inner.rollback()
        jobs.task(work, 3).schedule(connection=connection)
        connection.commit()
    assert sorted(json.loads(each.payload)["n"] for each in jobs.list_tasks()) == [1, 3]


def test_what_is_rolled_back_stores_nothing(jobs: Scheduler, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
        jobs.task(work).schedule(connection=connection)
        connection.rollback()
    assert count(jobs) == 0


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("where", ["engine", "connection"])
def test_a_listener_sees_it(jobs: Scheduler, engine: sa.Engine, event: str, where: str) -> None:
    seen: list[str] = []

    def listener(_: Any, *given: Any) -> None:
        seen.append(str(given[0] if "cursor" not in event else given[1]))

    with engine.begin() as connection:
        sa.event.listen(engine if where == "engine" else connection, event, listener)
        connection.exec_driver_sql("SELECT 1")
        jobs.task(work).schedule(connection=connection)
        assert any(text.startswith(INTO) for text in seen)
    assert count(jobs) == 1


@pytest.mark.parametrize("how", ["echo", "logging"])
def test_a_log_of_statements_has_it(jobs: Scheduler, fleet: Fleet, caplog: pytest.LogCaptureFixture, how: str) -> None:
    if how == "logging":
        caplog.set_level(logging.INFO, "sqlalchemy.engine")
    engine = sa.create_engine(fleet.database.url, echo=how == "echo")
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
        jobs.task(work).schedule(connection=connection)
    engine.dispose()
    assert any(INTO in record.getMessage() for record in caplog.records)
    assert count(jobs) == 1


def test_a_handler_of_errors_is_asked(jobs: Scheduler, engine: sa.Engine) -> None:
    sa.event.listen(engine, "handle_error", lambda context: None)
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
        assert not is_unwatched(connection)
        jobs.task(work).schedule(connection=connection)
    assert count(jobs) == 1


def test_who_executes_statements_instead_is_asked(jobs: Scheduler, engine: sa.Engine) -> None:
    seen: list[str] = []
    sa.event.listen(engine, "do_execute", lambda cursor, statement, parameters, context: seen.append(statement))
    with engine.begin() as connection:
        jobs.task(work).schedule(connection=connection)
    assert any(text.startswith(INTO) for text in seen)
    assert count(jobs) == 1


@pytest.mark.parametrize("watched", [False, True])
def test_all_that_a_transaction_asks_goes_one_way(
    jobs: Scheduler, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """A replacement, a chain, an event and a message as well as a single task."""
    direct: list[str] = []
    seen: list[str] = []
    parent, held = jobs.task(work).schedule(), jobs.task(work, 1).key("k").schedule()
    with engine.begin() as connection:
        if watched:
            sa.event.listen(connection, "before_cursor_execute", lambda *given: seen.append(given[2]))
        connection.exec_driver_sql("SELECT 1")
        with monkeypatch.context() as patch:
            listen(patch, before=lambda text, _: direct.append(text))
            if not watched:  # by a listener
                execute = sa.Connection.execute

                def asks(self: sa.Connection, statement: Any, *given: Any) -> Any:
                    seen.append(str(statement))
                    return execute(self, statement, *given)

                patch.setattr(sa.Connection, "execute", asks)
            again = jobs.task(work, 2).key("k", conflict="replace").depend_on(parent)
            assert again.schedule(connection=connection) == held
            child = jobs.task(work, 3).depend_on(held).schedule(connection=connection)
            jobs.emit_event("paid", connection=connection)
            jobs.publish("orders", {"n": 1}, group="one", connection=connection)
    asked, other = (seen, direct) if watched else (direct, seen)
    for text in ("t.held_key =", "UPDATE schedd_tasks SET state =", "INTO schedd_edges", "INTO schedd_events"):
        assert any(text in one for one in asked), text
    assert not [text for text in other if "schedd_" in text and not text.startswith("SELECT")]
    assert (jobs.get_task(held).payload, count(jobs)) == ('{"n":2}', 4)
    assert [edge.parent for edge in jobs.get_task_dependencies(child)] == [held]


class _Noting(sqlite3.Cursor):
    seen: list[str]

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        self.seen.append(sql)
        return super().execute(sql, parameters)


class _Wrapped:
    """A connection of the driver's as instrumentation wraps it, which sees what cursors execute."""

    def __init__(self, raw: sqlite3.Connection, seen: list[str]) -> None:
        self.raw, self.seen = raw, seen

    def cursor(self) -> sqlite3.Cursor:
        made = self.raw.cursor(_Noting)
        made.seen = self.seen
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_who_wraps_the_drivers_connection_sees_it(jobs: Scheduler) -> None:
    seen: list[str] = []
    path = str(jobs.database.path)
    engine = sa.create_engine("sqlite://", creator=lambda: _Wrapped(sqlite3.connect(path), seen))
    with engine.begin() as connection:
        jobs.task(work).schedule(connection=connection)
    engine.dispose()
    assert any(text.startswith(INTO) for text in seen)
    assert count(jobs) == 1


def end_session(connection: sa.Connection) -> None:
    pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with connection.engine.connect() as other:
        assert other.exec_driver_sql(f"SELECT pg_terminate_backend({pid}, 5000)").scalar_one()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("watched", [False, True])
def test_sqlalchemy_learns_of_a_connection_that_is_lost(jobs: Scheduler, engine: sa.Engine, watched: bool) -> None:
    if watched:
        sa.event.listen(engine, "before_cursor_execute", lambda *_: None)
    with engine.connect() as connection:
        end_session(connection)
        assert is_unwatched(connection) is not watched
        with pytest.raises(sa.exc.OperationalError, match="terminating") as raised:
            jobs.task(work).schedule(connection=connection)
        assert raised.value.connection_invalidated
        assert connection.invalidated
        connection.rollback()
        assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1, "on a connection that is made anew"

    def lose() -> None:
        with engine.begin() as connection:
            end_session(connection)
            jobs.task(work).schedule(connection=connection)

    with pytest.raises(sa.exc.OperationalError, match="terminating"):
        lose()


REFUSING = {
    "sqlite": "CREATE TRIGGER refuses BEFORE INSERT ON schedd_tasks BEGIN SELECT RAISE(ABORT, 'full house'); END",
    "postgresql": "ALTER TABLE schedd_tasks ADD CONSTRAINT \"full house\" CHECK (kind = 'no other') NOT VALID",
}


def test_what_the_database_refuses_is_sqlalchemys_error(jobs: Scheduler, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(REFUSING[engine.dialect.name])
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
        assert is_unwatched(connection)
        with pytest.raises(sa.exc.IntegrityError, match="full house") as raised:
            jobs.task(work).schedule(connection=connection)
        assert INTO in str(raised.value)
        connection.rollback()
    assert count(jobs) == 0
