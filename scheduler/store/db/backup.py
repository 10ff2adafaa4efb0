"""Looking after a database as a whole: its revision, its health, a copy of it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.errors import ConfigError, SchedulerError, StoreUnavailableError
from scheduler.store.db import migrate
from scheduler.store.db.database import Database
from scheduler.store.db.engines import make_engine
from scheduler.store.db.errors import cause, translate
from scheduler.store.db.writable import no_writes

_PAGES = 2000  # copied, or given back, at a time, so that writers never wait for long
_STEPS = 100_000  # of SQLite's machine between two checks for a stop, while a copy is verified


class Health(NamedTuple):
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


def health(database: Database) -> Health:
    """Look at a database without changing it. Raises StoreUnavailableError."""
    if database.missing():
        return Health(None, migrate.HEAD, 0, ())
    engine, _ = make_engine(database.url)
    try:
        with engine.connect().execution_options(schedd_reads=True) as connection:
            revision = migrate.current(connection)
            lost = migrate.missing_tables(connection) if revision is not None else []
            damage = tuple(f"the table {name} is missing" for name in lost)
            if database.dialect.name == "sqlite":
                rows = connection.execute(sa.text("PRAGMA quick_check(5)")).fetchall()
                damage += tuple(str(row[0]) for row in rows if row[0] != "ok")
                size = sum(p.stat().st_size for p in _files(database) if p.exists())
            else:
                size = connection.execute(sa.text("SELECT pg_database_size(current_database())")).scalar_one()
            return Health(revision, migrate.HEAD, int(size), damage, no_writes(connection))
    except sa.exc.SQLAlchemyError as error:
        raise translate(error, database.url) from cause(error)
    finally:
        engine.dispose()


def upgrade_plan(database: Database) -> str:
    """The SQL that an upgrade would run; empty if there is nothing to do. Changes nothing."""
    engine = sa.create_engine("sqlite://") if database.missing() else make_engine(database.url)[0]
    try:
        return migrate.upgrade_sql(engine)
    except sa.exc.SQLAlchemyError as error:
        raise translate(error, database.url) from cause(error)
    finally:
        engine.dispose()


def upgrade(database: Database) -> None:
    """Bring the database to this program's revision. Raises StoreUnavailableError."""
    engine, _ = make_engine(database.url)
    try:
        migrate.upgrade_engine(engine)
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
                raw.executescript(f"PRAGMA incremental_vacuum({_PAGES})")  # execute() would do a single page
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


def backup_sqlite(path: Path, target: Path, progress: Callable[[int, int], object] | None = None) -> int:
    """Copy a SQLite database file while others work on it, whole or not at all. Returns the copy's size.

    The copy is of one moment, the first; until the end the WAL is not taken back. Its owner alone may read it.
    ``progress``: called with the pages copied and all there are, many times a second; what it raises ends the copying,
    and is raised here.

    Raises SchedulerError if the copy cannot be written, StoreUnavailableError if there is no such file.
    """
    looked = progress or (lambda done, pages: None)
    raised: list[BaseException] = []

    def checking() -> int:
        """SQLite asks in the middle of a statement, and would swallow what is raised."""
        try:
            looked(1, 1)
        except BaseException as error:
            raised.append(error)
        return len(raised)

    if not path.exists():
        raise StoreUnavailableError(f"there is no database {path}")
    # An unguessable name: SQLite would follow a link that is there already, and overwrite another file.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, path.stat().st_mode & 0o600))
        source = sqlite3.connect(f"file:{_quoted(path)}?mode=rw", uri=True, timeout=10)
        with closing(source), closing(sqlite3.connect(draft)) as copy:
            # In a transaction, since it would begin anew after each write, and in a busy store never end.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(copy, pages=_PAGES, progress=lambda _, left, pages: looked(pages - left, pages))
            source.rollback()
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, with nothing beside it
            copy.set_progress_handler(checking, _STEPS)
            damage = [row[0] for row in copy.execute("PRAGMA quick_check(1)") if row[0] != "ok"]
        if damage:
            raise SchedulerError(f"the copy is damaged, so the database is too: {damage[0]}")
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.link(draft, target)  # fails if another process has made the target
    except FileExistsError:
        raise SchedulerError(f"{target} exists already; name another file") from None
    except (OSError, sqlite3.Error) as error:
        if raised:
            raise raised[0] from None
        detail = error.strerror if isinstance(error, OSError) else error  # without the draft's name
        raise SchedulerError(f"cannot back up to {target}: {detail}") from None
    finally:
        for leftover in (draft, draft.with_name(draft.name + "-journal")):
            leftover.unlink(missing_ok=True)
    return target.stat().st_size


def _files(database: Database) -> list[Path]:
    path = database.path
    return [] if path is None else [path, path.with_name(path.name + "-wal")]


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
