"""Migrations: what they make is what schema.py says, on both databases; when they run, and when they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from scheduler import Context, Scheduler, StoreUnavailableError, task
from scheduler.ports import SystemClock
from scheduler.store import schema
from scheduler.store.db import migrate
from scheduler.store.db.database import Database as Store
from scheduler.testing import drain
from support.databases import Database

ROOT = Path(__file__).parents[3]


@task
def ping(ctx: Context) -> str:
    return "pong"


@contextmanager
def opened(database: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine(database.url)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def connected(database: Database) -> Iterator[sa.Connection]:
    with opened(database) as engine, engine.connect() as connection:
        yield connection


_PG_DEFINITIONS = """
SELECT 'column ' || table_name || '.' || column_name, concat_ws(' ', ordinal_position, data_type, is_nullable,
       column_default, collation_name) FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'constraint ' || conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint
          WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'table ' || relname, concat_ws(' ', relkind, reloptions::text) FROM pg_class
          WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S', 'v', 'm')
"""


def definitions(database: Database) -> dict[str, str]:
    """Everything the database itself knows of our tables, by name, apart from alembic's own."""
    with connected(database) as connection:
        if database.is_sqlite:
            found = connection.execute(
                sa.text(
                    "SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
                )
            )
        else:
            found = connection.execute(sa.text(_PG_DEFINITIONS))
        # A column that was added later follows what SQLite kept of the statement, blanks and all.
        every = {str(name): " ".join(re.sub(r"([(),])", r" \1 ", str(text)).split()) for name, text in found}
    return {name: text for name, text in every.items() if migrate.VERSION_TABLE not in name}


def test_a_migrated_database_is_what_the_schema_says(database: Database, empty_database: Database) -> None:
    with opened(empty_database) as engine:
        schema.metadata.create_all(engine)
    wanted, found = definitions(empty_database), definitions(database)
    assert len(wanted) > 20
    assert found == wanted


def test_alembic_finds_nothing_to_add(database: Database) -> None:
    with connected(database) as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": migrate.VERSION_TABLE}
        )
        ours = [d for d in compare_metadata(context, schema.metadata) if "schedd_version" not in str(d)]
    assert ours == []


def test_the_comparison_sees_a_difference(empty_database: Database) -> None:
    """A column, an index predicate or a default that differs does not go unseen."""
    with opened(empty_database) as engine:
        schema.metadata.create_all(engine)
    before = definitions(empty_database)
    statements = [
        "DROP INDEX ix_schedd_tasks_ready",
        "CREATE INDEX ix_schedd_tasks_ready ON schedd_tasks (queue, lane, priority, run_at, id) WHERE state IN (1, 2)",
        "ALTER TABLE schedd_kinds ADD COLUMN extra integer DEFAULT 5",
    ]
    with opened(empty_database) as engine, engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    after = definitions(empty_database)
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert "index ix_schedd_tasks_ready" in changed
    assert any("schedd_kinds" in name for name in changed)


def test_the_newest_migration_is_the_one_the_program_asks_for() -> None:
    scripts = ScriptDirectory.from_config(migrate._alembic_config())
    assert scripts.get_current_head() == migrate.HEAD
    revisions = [script.revision for script in scripts.walk_revisions()]
    assert revisions == sorted(revisions, reverse=True), "revisions are compared as texts: they have to ascend"


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_sqlite_is_made_and_migrated_on_first_use(empty_database: Database) -> None:
    jobs = Scheduler.for_testing(url=empty_database.url)
    jobs.register(ping)
    builder = jobs.task(ping)
    assert not empty_database.path.exists()  # no I/O before first use
    task_id = builder.schedule()
    assert task_id == 1
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == "pong"
    with connected(empty_database) as connection:
        assert migrate.current(connection) == migrate.HEAD
        assert connection.execute(sa.text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(sa.text("PRAGMA auto_vacuum")).scalar_one() == 2  # incremental
    jobs.close()


def refuses(database: Database, *says: str, **options: Any) -> None:
    store = Store(database.url, SystemClock(), **options)
    with pytest.raises(StoreUnavailableError) as raised:
        store.open()
    text = str(raised.value)
    assert all(part in text for part in says), text
    assert "\n" not in text


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_postgresql_is_migrated_only_when_asked_to(empty_database: Database) -> None:
    for _ in range(2):
        refuses(empty_database, "the database is not migrated", "schedctl db upgrade", "auto_migrate = true")
    assert definitions(empty_database) == {}
    store = Store(empty_database.url, SystemClock(), auto_migrate=True)
    store.open()
    store.dispose()
    Store(empty_database.url, SystemClock()).open().dispose()
    assert definitions(empty_database)


def test_without_permission_nothing_is_migrated(empty_database: Database) -> None:
    says = "there is no database" if empty_database.is_sqlite else "the database is not migrated"
    refuses(empty_database, says, "`schedctl db upgrade`", auto_migrate=False)
    assert not empty_database.is_sqlite or not empty_database.path.exists()
    assert definitions(empty_database) == {}


def set_version(database: Database, version: str) -> None:
    with opened(database) as engine, engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = :v"), {"v": version})


@pytest.mark.parametrize("auto_migrate", [True, False])
def test_a_newer_database_is_refused_and_left_alone(database: Database, auto_migrate: bool) -> None:
    with opened(database) as engine, engine.begin() as connection:
        was = migrate.current(connection)
    before = definitions(database)
    set_version(database, "9999")
    try:
        refuses(database, "schema 9999", f"newer than this program's {migrate.HEAD}", auto_migrate=auto_migrate)
        with opened(database) as engine, pytest.raises(StoreUnavailableError, match="newer than"):
            migrate.upgrade_engine(engine)
        with opened(database) as engine, pytest.raises(StoreUnavailableError, match="newer than"):
            migrate.upgrade_sql(engine)
        assert definitions(database) == before
    finally:
        set_version(database, str(was))  # the database itself is used again by other tests


def test_an_older_database_is_not_used_as_it_is(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    head = migrate.HEAD
    monkeypatch.setattr(migrate, "HEAD", "9999")
    refuses(database, f"older schema {head}", "this program needs 9999", auto_migrate=False)


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    before = definitions(database)
    migrate.upgrade(database.url)
    with opened(database) as engine:
        migrate.upgrade_engine(engine)
        assert migrate.upgrade_sql(engine) == ""
    assert definitions(database) == before


def test_a_dry_run_prints_sql_that_works_and_changes_nothing(empty_database: Database, database: Database) -> None:
    with opened(empty_database) as engine:
        printed = migrate.upgrade_sql(engine)
        assert definitions(empty_database) == {}
        assert "CREATE TABLE schedd_tasks" in printed
        statements = [s.strip() for s in printed.split(";\n") if s.strip()]
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                connection.exec_driver_sql(statement.replace("%", "%%") if not empty_database.is_sqlite else statement)
    assert definitions(empty_database) == definitions(database)
    store = Store(empty_database.url, SystemClock(), auto_migrate=False)
    store.open()  # the version is recorded too
    store.dispose()


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_a_migration_that_fails_leaves_nothing_behind(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = migrate._run_alembic

    def break_off(connection: sa.Connection, *rest: Any) -> None:
        run(connection, *rest)
        raise ZeroDivisionError

    monkeypatch.setattr(migrate, "_run_alembic", break_off)
    store = Store(empty_database.url, SystemClock(), auto_migrate=True)
    with pytest.raises(ZeroDivisionError):
        store.open()
    store.dispose()
    assert definitions(empty_database) == {}
    monkeypatch.undo()
    migrate.upgrade(empty_database.url)
    assert definitions(empty_database)


_START = """
import sys
import threading
from scheduler.ports import SystemClock
from scheduler.store.db.database import Database
from scheduler.store.db import migrate
import alembic.command  # imported now, so that what follows happens at the same time everywhere
migrate.TELL_AFTER = 10**6  # however long the machine takes, nobody logs that it waits
print("ready", flush=True)
sys.stdin.readline()
Database(sys.argv[1], SystemClock(), auto_migrate=True).open()
print("open", flush=True)
"""


def test_processes_that_start_at_once_all_find_it_migrated(empty_database: Database, database: Database) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _START, empty_database.url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in started]
    assert [(process.returncode, *printed) for process, printed in zip(started, ended, strict=True)] == [
        (0, "open\n", "")
    ] * 4
    assert definitions(empty_database) == definitions(database)


def test_threads_migrate_databases_of_their_own_at_once(
    empty_database: Database, database: Database, tmp_path: Path
) -> None:
    urls = [empty_database.url, *(f"sqlite:///{tmp_path / str(number)}.db" for number in range(3))]
    together = threading.Barrier(len(urls))

    def upgrade(url: str) -> None:
        together.wait()
        migrate.upgrade(url)

    with ThreadPoolExecutor(len(urls)) as pool:
        list(pool.map(upgrade, urls))
    assert definitions(empty_database) == definitions(database)
    for url in urls[1:]:
        migrate.upgrade(url)  # finds it done


def test_stored_tasks_keep_their_priority_where_its_column_was_renamed(database: Database) -> None:
    """Also those that a schedule makes later, one by one and as graphs."""
    with Scheduler(database.url) as jobs:
        jobs.register(ping)
        jobs.task(ping).priority("high").schedule()
        jobs.task(ping).priority("high").every(3600).schedule()
        graph = jobs.recurring("graph").every(3600)
        graph.task(ping).priority("high")
        graph.schedule()
    with opened(database) as engine, engine.begin() as connection:  # as the program before it had left them
        for table, new, old in (("schedd_tasks", "priority", "pool"), ("schedd_checkpoints", "type", "sort")):
            connection.exec_driver_sql(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
        for table, column in (
            *(("schedd_kinds", "options"), ("schedd_schedules", "options")),
            ("schedd_schedules", "graph"),
        ):
            connection.exec_driver_sql(f"""UPDATE {table} SET {column} = replace({column}, '"priority":', '"pool":')""")
        connection.exec_driver_sql(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '0010'")
    migrate.upgrade(database.url)
    with connected(database) as connection:
        assert connection.exec_driver_sql("SELECT priority FROM schedd_tasks").scalars().all() == [0]
        texts = connection.exec_driver_sql("SELECT options, graph FROM schedd_schedules").all()
    stored = [text for row in texts for text in row if text is not None]
    assert sum('"priority":0' in text for text in stored) == 2
    assert not any('"pool":' in text for text in stored)
