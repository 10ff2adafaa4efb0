"""Looking after a database as a whole: its revision, its health, a copy of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.store.db import migrate
from scheduler.store.db.database import Database
from scheduler.store.db.engines import make_engine
from scheduler.store.db.errors import cause, translate
from scheduler.store.db.sqlite_copy import PAGES, backup_sqlite
from scheduler.store.db.tx import Tx
from scheduler.store.db.writable import no_writes


class StoreHealth(NamedTuple):
    """``revision``: None if never migrated; ``wanted``: this program's; ``damage``: what is broken."""

    revision: str | None
    wanted: str
    size: int
    damage: tuple[str, ...]
    no_writes: str | None = None  # why it takes none

    @property
    def current(self) -> bool:
        """Whether nothing is to be done before this program works on it."""
        return migrate.works_on(self.revision) and not self.damage


def health(database: Database, *, usable: bool = False) -> StoreHealth:
    """Look at a database without changing it. Raises StoreUnavailableError; ``usable``: also for one that no upgrade
    would make usable as it is."""
    if database.missing():
        return StoreHealth(None, migrate.HEAD, 0, ())
    engine, _ = make_engine(database.url, looks=True)
    try:
        with engine.connect().execution_options(schedd_reads=True) as connection:
            revision = migrate.current(connection)
            if usable:
                migrate.refuse_encoding(connection)
                migrate.refuse_elsewhere(connection, revision)
            lost = migrate.lost_tables(connection, revision)
            damage = tuple(f"the table {name} is missing" for name in lost)
            if database.dialect.name == "sqlite":
                rows = connection.execute(sa.text("PRAGMA quick_check(5)")).fetchall()
                damage += tuple(str(row[0]) for row in rows if row[0] != "ok")
                size = sum(p.stat().st_size for p in _files(database) if p.exists())
            else:
                size = connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one()
            return StoreHealth(revision, migrate.HEAD, int(size), damage, no_writes(Tx(connection, 0)))
    except sa.exc.SQLAlchemyError as error:
        raise translate(error, database.url) from cause(error)
    finally:
        engine.dispose()


def upgrade_plan(database: Database) -> str:
    """The SQL that an upgrade would run; empty if there is nothing to do. Changes nothing."""
    engine = sa.create_engine("sqlite://") if database.missing() else make_engine(database.url, looks=True)[0]
    try:
        return migrate.upgrade_sql(engine)
    except sa.exc.SQLAlchemyError as error:
        raise translate(error, database.url) from cause(error)
    finally:
        engine.dispose()


def upgrade(database: Database, *, beside: bool = False) -> Path | None:
    """Bring the database to this program's revision. Returns the copy that was made of an older SQLite file.

    ``beside``: make the tables though another schema of the server has them, too. Raises SchedulerError.
    """
    engine, _ = make_engine(database.url)
    try:
        return migrate.upgrade_engine(engine, now=database.clock.now(), beside=beside)
    except sa.exc.SQLAlchemyError as error:
        raise translate(error, database.url) from cause(error)
    finally:
        engine.dispose()


def older_workers(database: Database) -> list[str]:
    """Live workers whose programs were made for an older schema than this one's. Raises StoreUnavailableError."""
    engine, _ = make_engine(database.url, looks=True)
    try:
        with engine.connect() as connection:
            return migrate.older_workers(connection, database.clock.now())
    except sa.exc.SQLAlchemyError as error:
        raise translate(error, database.url) from cause(error)
    finally:
        engine.dispose()


def shrink(database: Database) -> int:
    """Give the space that is free inside a SQLite file back to the file system. Returns how many bytes.

    On PostgreSQL its own vacuum does that. Raises StoreUnavailableError.
    """
    path = database.path
    if path is None:
        return 0
    try:
        with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as raw:
            (size,) = raw.execute("PRAGMA page_size").fetchone()
            (first,) = (left,) = raw.execute("PRAGMA freelist_count").fetchone()
            free = left + 1
            while 0 < left < free:
                free = left
                raw.executescript(f"PRAGMA incremental_vacuum({PAGES})")  # execute() would do a single page
                (left,) = raw.execute("PRAGMA freelist_count").fetchone()
    except sqlite3.Error as error:
        raise StoreUnavailableError(f"cannot give back space of {path}: {error}") from error
    return int((first - left) * size)


def backup(database: Database, target: Path) -> int:
    """Copy a SQLite database while others work on it, whole or not at all. Returns the copy's size.

    Raises ConfigError for PostgreSQL, SchedulerError if the copy cannot be written, StoreUnavailableError.
    """
    path = database.path
    if path is None:
        raise ConfigError("backup copies SQLite files; for PostgreSQL use pg_dump, or your server's own backups")
    return backup_sqlite(path, target)


def _files(database: Database) -> list[Path]:
    path = database.path
    return [] if path is None else [path, path.with_name(path.name + "-wal")]
