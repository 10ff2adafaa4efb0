"""What statements read: as the server counts it, and as their plans say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.store.db import statements as statement
from scheduler.store.tasks import claim as claims
from scheduler.testing import engine_of
from support.fleet import rows


class Seen:
    """The statements that cycles give to the driver, one of each text, with their parameters."""

    def __init__(self) -> None:
        self.statements: dict[str, Any] = {}

    def note(self, text: str, bound: Any) -> None:
        if "schedd_tasks" in text and text.lstrip().startswith(("SELECT", "UPDATE", "WITH")):
            self.statements.setdefault(text, dict(bound) if isinstance(bound, dict) else list(bound))

    @contextmanager
    def watch(self, jobs: Scheduler) -> Iterator[None]:
        raw = statement._raw

        def noting(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
            self.note(text, bound)
            return raw(connection, text, bound)

        one_row = claims.one_row

        def noting_row(connection: sa.Connection, text: str, bound: Any) -> list[bytes | None]:
            self.note(text, bound)
            return one_row(connection, text, bound)

        def executed(_conn: Any, _cursor: Any, text: str, bound: Any, *_: Any) -> None:
            self.note(text, bound)

        engine = jobs.database.open()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(statement, "_raw", noting)
            patch.setattr(claims, "one_row", noting_row)
            sa.event.listen(engine, "before_cursor_execute", executed)
            yield
            sa.event.remove(engine, "before_cursor_execute", executed)


def figures(jobs: Scheduler, sql: str) -> Any:
    """What the server has counted, once each session of these jobs has told: by itself each does so seconds later."""
    completion_thread, engine = engine_of(jobs).dispatch.completer.completion_thread, jobs.database.open()
    pool: Any = engine.pool
    idle = [engine.connect() for _ in range(pool.checkedin())]
    for its in (engine_of(jobs)._conn(), completion_thread and completion_thread._connection, *idle):
        if its is not None:
            with jobs.database.write(its) as tx:
                tx.connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    for its in idle:
        its.close()
    return rows(jobs, sql)[0]


def plan(jobs: Scheduler, text: str, bound: Any) -> list[str]:
    """What a statement does, a line for each step: the sort of step and what it reads."""
    if jobs.database.dialect.name == "postgresql":
        return list(_steps(explained(jobs, text, bound)))
    with jobs.database.open().connect() as connection:
        driver: Any = connection.connection.driver_connection
        return [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {text}", bound).fetchall()]


def explained(jobs: Scheduler, text: str, bound: Any) -> dict[str, Any]:
    """PostgreSQL's plan of a statement: its top step."""
    with jobs.database.open().connect() as connection:
        driver: Any = connection.connection.driver_connection
        cursor = psycopg.RawCursor(driver) if "$1" in text else driver
        (found,) = cursor.execute(f"EXPLAIN (FORMAT JSON) {text}", bound).fetchone()
        top: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        return top


def _steps(node: dict[str, Any]) -> Iterator[str]:
    yield f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}"
    for below in node.get("Plans", ()):
        yield from _steps(below)


class Work:
    """What statements cost a database, whatever the machine: SQLite's steps in hundreds, PostgreSQL's pages."""

    def __init__(self) -> None:
        self.done = 0
        self.by: Counter[str] = Counter()  # statement
        self.now = ""

    def add(self, number: int, text: str | None = None) -> None:
        self.done += number
        self.by[self.now if text is None else text] += number


@contextmanager
def work_of(jobs: Scheduler) -> Iterator[Work]:
    """Counts what all connections of these jobs ask of the database meanwhile."""
    found, engine = Work(), jobs.database.open()
    if jobs.database.dialect.name == "sqlite":
        yield from _steps_of(found, engine)
    else:
        yield from _pages_of(found, jobs)


def _steps_of(found: Work, engine: sa.Engine) -> Iterator[Work]:
    watched: set[Any] = set()

    def tick() -> int:
        found.add(1)
        return 0

    def watch(driver: Any) -> None:
        if driver not in watched:
            watched.add(driver)
            driver.set_progress_handler(tick, 100)

    raw = statement._raw

    def noting(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
        watch(connection.connection.driver_connection)
        found.now = text
        return raw(connection, text, bound)

    def executed(conn: sa.Connection, _cursor: Any, text: str, *_: Any) -> None:
        watch(conn.connection.driver_connection)
        found.now = text

    sa.event.listen(engine, "before_cursor_execute", executed)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(statement, "_raw", noting)
            yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", executed)
        for driver in watched:
            driver.set_progress_handler(None, 0)


def _pages_of(found: Work, jobs: Scheduler) -> Iterator[Work]:
    """Each statement is run once more before, explained and rolled back."""
    raw, engine = statement._raw, jobs.database.open()

    def explain(connection: sa.Connection, text: str, bound: Any) -> None:
        if not text.lstrip().startswith(("SELECT", "UPDATE", "WITH", "DELETE")) or "pg_" in text:
            return
        driver: Any = connection.connection.driver_connection
        with driver.transaction(force_rollback=True):
            (told,) = driver.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", bound).fetchone()
        top = (json.loads(told) if isinstance(told, str) else told)[0]["Plan"]
        found.add(top["Shared Hit Blocks"] + top["Shared Read Blocks"], text)

    def noting(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
        explain(connection, text, bound)
        return raw(connection, text, bound)

    def executed(conn: sa.Connection, _cursor: Any, text: str, bound: Any, *_: Any) -> None:
        explain(conn, text, bound)

    sa.event.listen(engine, "before_cursor_execute", executed)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(statement, "_raw", noting)
            yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", executed)
