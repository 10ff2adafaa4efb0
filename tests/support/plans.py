"""What statements read: as the server counts it, and as their plans say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.store.db import statements as statement
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

        def executed(_conn: Any, _cursor: Any, text: str, bound: Any, *_: Any) -> None:
            self.note(text, bound)

        engine = jobs.database.open()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(statement, "_raw", noting)
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
    with jobs.database.open().connect() as connection:
        driver: Any = connection.connection.driver_connection
        if jobs.database.dialect.name == "sqlite":
            return [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {text}", bound).fetchall()]
        (found,) = driver.execute(f"EXPLAIN (FORMAT JSON) {text}", bound).fetchone()
        return list(_steps((json.loads(found) if isinstance(found, str) else found)[0]["Plan"]))


def _steps(node: dict[str, Any]) -> Iterator[str]:
    yield f"{node['Node Type']} {node.get('Relation Name', '')} {node.get('Index Name', '')}"
    for below in node.get("Plans", ()):
        yield from _steps(below)
