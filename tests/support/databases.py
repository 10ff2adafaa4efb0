"""Databases for the tests: a test that takes one runs on SQLite and on PostgreSQL.

In rooms whose subject stands above the store, it runs on SQLite alone, unless it is marked ``both_databases`` or shows
a case: see ``is_left_out``. ``pytest --every-database`` runs all of them on both.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import postgres_server
from support.leftovers import stopping_engines
from support.session import TESTS, directory_in_memory, files_directory, locked, shared_directory

DIALECTS = ("sqlite", "postgresql")
# A test's mark: what it is about touches no database, only something has to hold its tasks.
one_database = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
# Rooms whose subject stands above the store. A file or two of each are marked both_databases.
ABOVE_THE_STORE = {"alerts", "cli", "client", "console", "daemon", "executors", "messages", "telemetry"}
LEFT_OUT = pytest.StashKey[Callable[[pytest.Item], bool]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sqlite-only", action="store_true", help="leave out the tests that need PostgreSQL")
    parser.addoption("--every-database", action="store_true", help="run each test that takes a database on both")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sqlite-only"):
        config.stash[LEFT_OUT] = needs_postgresql
    else:
        config.stash[LEFT_OUT] = (lambda item: False) if config.getoption("--every-database") else is_left_out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [config.stash[LEFT_OUT](item) for item in items]
    config.hook.pytest_deselected(items=[item for item, out in zip(items, left_out, strict=True) if out])
    items[:] = [item for item, out in zip(items, left_out, strict=True) if not out]


def is_left_out(item: pytest.Item) -> bool:
    """Whether this is the second run of a test for which one database is enough."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or callspec.params.get("dialect") != "postgresql":
        return False
    if any("dialect" in str(mark.args[0]) for mark in item.iter_markers("parametrize")):
        return False  # it says itself on which it runs
    if item.get_closest_marker("one_is_enough"):
        return True
    if item.get_closest_marker("both_databases") or item.get_closest_marker("case"):
        return False
    return item.path.relative_to(TESTS).parts[0] in ABOVE_THE_STORE


def needs_postgresql(item: pytest.Item) -> bool:
    """Whether this test runs on PostgreSQL, or asks for the run's server."""
    callspec = getattr(item, "callspec", None)
    on_it = callspec is not None and "postgresql" in callspec.params.values()
    return on_it or "postgres_databases" in getattr(item, "fixturenames", ())


@dataclass(frozen=True)
class Database:
    """Where a test's tasks are kept."""

    url: str
    dialect: str

    @property
    def is_sqlite(self) -> bool:
        return self.dialect == "sqlite"

    @property
    def path(self) -> Path:
        """The file of an SQLite database."""
        assert self.is_sqlite
        return Path(self.url.removeprefix("sqlite:///"))


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """Every database fixture is built on this one; to run on one of them only, parametrise it indirectly."""
    return str(request.param)


@pytest.fixture
def database(dialect: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of this test alone: migrated, and empty."""
    if dialect == "sqlite":
        template: Path = request.getfixturevalue("_sqlite_template")
        with _short_directory() as directory:
            shutil.copy(template, directory / "jobs.db")
            with stopping_engines():
                yield Database(f"sqlite:///{directory / 'jobs.db'}", dialect)
    else:
        server: PostgresDatabases = request.getfixturevalue("postgres_databases")
        with stopping_engines():
            yield Database(server.migrated(), dialect)


@pytest.fixture
def empty_database(dialect: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database without any table; on SQLite the file does not exist yet."""
    if dialect == "sqlite":
        with _short_directory() as directory:
            yield Database(f"sqlite:///{directory / 'jobs.db'}", dialect)
    else:
        server: PostgresDatabases = request.getfixturevalue("postgres_databases")
        name = server.create()
        yield Database(server.url(name), dialect)
        server.drop(name)


@pytest.fixture
def store_url(database: Database) -> str:
    return database.url


class _short_directory:
    """A directory with a short path: socket paths beside an SQLite database have to fit into 107 bytes.

    In memory where there is room, as each commit waits for the disk otherwise.
    """

    def __enter__(self) -> Path:
        self._path = tempfile.mkdtemp(prefix="t", dir=files_directory())
        return Path(self._path)

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _migrate(url: str) -> None:
    from scheduler.store.db.migrate import upgrade

    upgrade(url)


@pytest.fixture(scope="session")
def _sqlite_template() -> Path:
    """One migrated file per run, which each test copies."""
    template = shared_directory() / "template.db"
    with locked("template.lock"):
        if not template.exists():
            draft = template.with_name("draft.db")
            _migrate(f"sqlite:///{draft}")
            with closing(sqlite3.connect(draft)) as connection:
                connection.execute("pragma wal_checkpoint(truncate)")  # so that the file is all there is
            draft.rename(template)
    return template


@pytest.fixture(scope="session")
def postgres_databases() -> PostgresDatabases:
    with locked("postgres.lock"):
        if not postgres_server.data_of(shared_directory()).exists():
            postgres_server.start(shared_directory(), place=directory_in_memory())
    return PostgresDatabases(shared_directory(), os.environ.get("PYTEST_XDIST_WORKER", "main"))


class PostgresDatabases:
    """The databases of one pytest worker on the run's server."""

    def __init__(self, directory: Path, worker: str) -> None:
        self._directory = directory
        self._worker = worker
        self._numbers = itertools.count(1)
        self._migrated: str | None = None
        self._made: dict[str, set[str]] = {}  # the migrations' tables, by the database
        self._sessions: dict[str, Any] = {}  # of reset(), by the database

    def url(self, name: str) -> str:
        return postgres_server.url(self._directory, name)

    @property
    def socket(self) -> Path:
        """The server's Unix socket."""
        return postgres_server.data_of(self._directory) / ".s.PGSQL.5432"

    def create(self) -> str:
        name = f"schedd_{self._worker}_{next(self._numbers)}"
        with self._connect("postgres") as connection:
            connection.execute(f'create database "{name}"')
        return name

    def drop(self, name: str) -> None:
        with self._connect("postgres") as connection:
            connection.execute(f'drop database "{name}" with (force)')

    def migrated(self) -> str:
        """The worker's migrated database, emptied of what the last test left."""
        if self._migrated is None:
            name = self.create()
            _migrate(self.url(name))
            self.keep_rows_of_migrations(name)
            self._migrated = name
        else:
            self.reset(self._migrated)
        return self.url(self._migrated)

    def _connect(self, name: str) -> Any:
        import psycopg

        return psycopg.connect(
            host=str(postgres_server.data_of(self._directory)),
            user="postgres",
            dbname=name,
            autocommit=True,
            connect_timeout=10,
        )

    def _tables(self, connection: Any, schema: str = "public") -> list[str]:
        rows = connection.execute(
            "select quote_ident(relname) from pg_class where relnamespace = to_regnamespace(%s) and relkind = 'r'"
            " and relname <> 'alembic_version'",
            (schema,),
        )
        return [name for (name,) in rows]

    def _filled(self, connection: Any) -> list[str]:
        """The tables with rows in them; emptying the empty ones too would take eight times as long."""
        tables = self._tables(connection)
        checks = [f"select '{table}' where exists (select from {table})" for table in tables]
        return [name for (name,) in connection.execute(" union all ".join(checks))] if checks else []

    def keep_rows_of_migrations(self, name: str) -> None:
        with self._connect(name) as connection:
            self._made[name] = set(self._tables(connection))
            connection.execute("create schema kept")
            for table in self._filled(connection):
                connection.execute(f"create table kept.{table} as table public.{table}")

    def reset(self, name: str) -> None:
        """Empty a migrated database; on a session that stays, as a new one costs more than all that it does."""
        import psycopg

        try:
            self._reset(self._session(name), name)
        except psycopg.OperationalError:  # a test ended all sessions there are
            self._sessions.pop(name).close()
            self._reset(self._session(name), name)

    def _session(self, name: str) -> Any:
        if name not in self._sessions:
            made = self._sessions[name] = self._connect(name)
            made.execute("set lock_timeout = '10s'")
            made.execute("set session_replication_role = 'replica'")  # no order of foreign keys to keep
        return self._sessions[name]

    def _reset(self, connection: Any, name: str) -> None:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        for table in set(self._tables(connection)) - self._made[name]:  # of a test's own, that it left
            connection.execute(f"drop table {table} cascade")
        kept = self._tables(connection, "kept")
        spent = {*self._filled(connection), *kept}
        if spent:
            connection.execute(f"truncate {', '.join(sorted(spent))} restart identity cascade")
        used = connection.execute(
            "select seqrelid::regclass::text from pg_sequence"
            " where pg_sequence_last_value(seqrelid) is not null or seqincrement <> 1"
        )
        for (sequence,) in used.fetchall():
            connection.execute(f"alter sequence {sequence} increment by 1 restart")
        stopped = "select oid::regclass::text from pg_class where 'autovacuum_enabled=off' = any(reloptions)"
        for (table,) in connection.execute(stopped).fetchall():
            connection.execute(f"alter table {table} reset (autovacuum_enabled)")
        for table in kept:
            connection.execute(f"insert into {table} select * from kept.{table}")
