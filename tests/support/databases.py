"""Databases for the tests: a test that takes one runs on SQLite and on PostgreSQL.

In rooms whose subject stands above SQL and its locks, it runs on one of them, which its name decides, unless it is
marked ``both_databases``: see ``is_left_out``. ``pytest --every-database`` runs all of them on both.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sqlite3
import tempfile
import zlib
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
# Rooms whose subject is SQL, or its locks, or what a kill leaves behind. Of each other room, a file or two are marked
# both_databases, and the rest runs on one.
ON_BOTH = {"store", "engine/dispatch", "engine/maintenance", "faults", "stateful", "transports"}
# Files of these rooms whose subject is a rule above SQL, such as when schedules fire or what a child process may do.
# The list was chosen by coverage: what only a file executes in store/ keeps it on both (decision 0359).
_ABOVE_SQL = {
    "engine/dispatch": "direct_starts fair_kinds fair_priorities fairness log_levels pauses planner quarantine ranks "
    "rate_limit requests short_first unregistered_kinds",
    "engine/maintenance": "backfill catch_up changed_times intervals recurring_graphs schedule_failures "
    "schedule_sets schedules stalls",
    "faults": "isolation isolation_context isolation_daemon isolation_leftovers isolation_subtasks own_context "
    "own_directory own_surroundings timeouts users_modules",
    "store": "rollups",
    "store/admin": "bulk cleanup copy kept_results replay replay_many retention",
    "store/graph": "dependencies removed_parents revival truth_table",
    "store/tasks": "keys_of_retried replace replace_in_batches rerun traces",
}
ON_ONE = {f"{room}/test_{name}.py" for room, names in _ABOVE_SQL.items() for name in names.split()}
# What executors do on PostgreSQL is tried by make executors.
ON_SQLITE = {"executors"}
# One of so many tests runs on PostgreSQL, where each costs more than twice as much.
ONE_OF = 6
ONE_OF_NEAR_SQL = 4  # in files of ON_ONE
LEFT_OUT = pytest.StashKey[Callable[[pytest.Item], bool]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sqlite-only", action="store_true", help="leave out the tests that need PostgreSQL")
    parser.addoption("--every-database", action="store_true", help="run each test that takes a database on both")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sqlite-only"):
        config.stash[LEFT_OUT] = needs_postgresql
    else:
        config.stash[LEFT_OUT] = (lambda item: False) if config.getoption("--every-database") else is_left_out


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [config.stash[LEFT_OUT](item) for item in items]
    config.hook.pytest_deselected(items=[item for item, out in zip(items, left_out, strict=True) if out])
    items[:] = [item for item, out in zip(items, left_out, strict=True) if not out]


def is_left_out(item: pytest.Item) -> bool:
    """Whether this is the second run of a test for which one database is enough."""
    callspec = getattr(item, "callspec", None)
    here = callspec.params.get("dialect") if callspec is not None else None
    if here not in DIALECTS or any("dialect" in str(mark.args[0]) for mark in item.iter_markers("parametrize")):
        return False  # it takes none, or says itself on which it runs
    rooms = _rooms_of(item.path)
    if item.get_closest_marker("one_is_enough") or (
        rooms & ON_SQLITE and not item.get_closest_marker("both_databases")
    ):
        return bool(here != "sqlite")
    if item.get_closest_marker("both_databases"):
        return False
    if not rooms & ON_BOTH:
        return bool(here != chosen(item.nodeid, ONE_OF))
    return bool(rooms & ON_ONE and here != chosen(item.nodeid, ONE_OF_NEAR_SQL))


@functools.cache  # of all the tests of a file
def _rooms_of(path: Path) -> set[str]:
    """And the file itself."""
    place = path.relative_to(TESTS)
    return {str(one) for one in (place, *place.parents)}


def chosen(name: str, one_of: int) -> str:
    """The database on which a test of this name runs where one is enough: the same in each run, and for both of its
    names. One test of so many runs on PostgreSQL."""
    for dialect in DIALECTS:
        name = name.replace(dialect, "")
    return "sqlite" if zlib.crc32(name.encode()) % one_of else "postgresql"


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

    def keep_rows_of_migrations(self, name: str) -> None:
        with self._connect(name) as connection:
            connection.execute(KEEP)

    def reset(self, name: str) -> None:
        """Empty a migrated database; on a session that stays, as a new one costs more than all that it does."""
        import psycopg

        try:
            self._session(name).execute("select kept.reset()")
        except psycopg.OperationalError:  # a test ended all sessions there are
            self._sessions.pop(name).close()
            self._session(name).execute("select kept.reset()")

    def _session(self, name: str) -> Any:
        if name not in self._sessions:
            made = self._sessions[name] = self._connect(name)
            made.execute("set lock_timeout = '10s'")
            made.execute("set session_replication_role = 'replica'")  # no order of foreign keys to keep
        return self._sessions[name]


# What migrations made, and a function that brings a database back to it. Emptying the empty tables too would take eight
# times as long, and TRUNCATE fifty times as long as DELETE in a table of few pages.
KEEP = """
create schema kept;
create table kept.tables as select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r';
create table kept.filled (name text);

create function kept.find_filled() returns setof text language plpgsql as $$
begin
    return query execute (
        select string_agg(format('select %1$L where exists (select from %1$s)', oid::regclass), ' union all ')
        from pg_class
        where relnamespace = 'public'::regnamespace and relkind = 'r' and relname <> 'alembic_version'
    );
end $$;

do $$
declare
    place text;
begin
    for place in select * from kept.find_filled() loop
        insert into kept.filled values (place);
        execute format('create table kept.%s as table %s', place, place);
    end loop;
end $$;

create function kept.reset() returns void language plpgsql as $$
declare
    place text;
begin
    perform pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid();
    for place in
        select oid::regclass from pg_class
        where relnamespace = 'public'::regnamespace and relkind = 'r' and relname not in (table kept.tables)
    loop -- a test's own, that it left
        execute format('drop table %s cascade', place);
    end loop;
    for place in select * from kept.find_filled() loop
        if pg_relation_size(place) > 65536 then
            execute format('truncate %s cascade', place);
        else
            execute format('delete from %s', place);
        end if;
    end loop;
    perform setval(seqrelid, seqstart, false) from pg_sequence where pg_sequence_last_value(seqrelid) is not null;
    for place in select seqrelid::regclass from pg_sequence where seqincrement <> 1 loop
        execute format('alter sequence %s increment by 1', place);
    end loop;
    for place in select oid::regclass from pg_class where 'autovacuum_enabled=off' = any (reloptions) loop
        execute format('alter table %s reset (autovacuum_enabled)', place);
    end loop;
    for place in select name from kept.filled loop
        execute format('insert into %s table kept.%s', place, place);
    end loop;
end $$;
"""
