"""Migrations: which revision a database has, and bringing it to ours. Alembic is imported only to migrate.

A program works on its own schema and on the next one, so that a fleet can be upgraded one worker after the other: each
migration leaves the program before it working (docs/guides/upgrading.md).
"""

from __future__ import annotations

import io
import itertools
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from scheduler.errors import StoreUnavailableError
from scheduler.model.actor import actor
from scheduler.model.texts import listed
from scheduler.ports import SystemClock
from scheduler.store.db.process_user import user
from scheduler.store.schema import metadata

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger("scheduler.store")
HEAD = "0012"
_FIRST = "0001"  # revisions are counted from here, and none is left out
_REVISION = re.compile(r"\d{4}")
VERSION_TABLE = "schedd_version"
_PG_LOCK = 7237123446  # any fixed number: serialises daemons that start at once
LOCK_TIMEOUT = 0.5  # seconds that a migration waits for a table, and keeps others waiting behind it
ALONE_PAUSE = 0.1  # seconds between checks whether another upgrade has ended
TELL_AFTER = 20  # checks after which the wait is logged: making an index has no time limit
_ALEMBIC = threading.Lock()  # alembic has one context for the whole process, whatever database it is about
LOCK_TRIES, LOCK_PAUSE = 120, 1.0  # how often, and seconds in between


class MissingTablesError(StoreUnavailableError):
    """A migrated database lacks tables; the text names them."""


def current(connection: sa.Connection) -> str | None:
    """The database's revision, None if it was never migrated.

    Raises StoreUnavailableError if tables with our names are there that no schedd has made.
    """
    version = _version(connection)
    if version is None and _columns(connection, "schedd_tasks"):
        version = _version(connection)  # another process may have migrated it just now
        if version is None:
            raise _foreign("a table schedd_tasks, and no revision")
    if version is not None and (not _REVISION.fullmatch(version) or version < _FIRST):
        raise _foreign(f"the unknown revision {version[:40]!r}")
    return version


def _version(connection: sa.Connection) -> str | None:
    columns = _columns(connection, VERSION_TABLE)
    if not columns:
        return None
    if "version_num" not in columns:
        raise _foreign(f"a table {VERSION_TABLE} of another form")
    version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if version is None else str(version)


def _columns(connection: sa.Connection, table: str) -> set[str]:
    """The columns of a table or view; empty if there is none. SQLAlchemy's inspector takes far longer to ask."""
    if connection.dialect.name == "sqlite":
        sql = "SELECT name FROM pragma_table_info(:table)"
    else:
        sql = (
            "SELECT attname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE c.relname = :table "
            "AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND pg_table_is_visible(c.oid) AND attnum > 0 "
            "AND NOT attisdropped"
        )
    return {row[0] for row in connection.execute(sa.text(sql), {"table": table})}


def _foreign(what: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the database has {what}: no schedd made that; is it another program's, or a restore that is not complete?"
    )


def ensure(engine: sa.Engine, auto_migrate: bool) -> None:
    """Check the revision; migrate if it is older and ``auto_migrate``. Raises StoreUnavailableError."""
    with engine.connect().execution_options(schedd_reads=True) as connection:
        version = current(connection)
        lost = missing_tables(connection) if works_on(version) else []
    if lost:
        raise MissingTablesError(lacks(lost, version))
    if works_on(version):
        return
    refuse_newer(version)
    if not auto_migrate:
        state = "is not migrated" if version is None else f"has the older schema {version}, this program needs {HEAD}"
        raise StoreUnavailableError(
            f"the database {state}: run `schedctl db upgrade` (or set auto_migrate = true in [store])"
        )
    upgrade_engine(engine)


def lacks(lost: list[str], version: str | None) -> str:
    """What is wrong with a migrated database that lacks these tables, and what to do."""
    return f"the database lacks {listed(lost)}, though its schema is {version}: stop schedd and restore a backup"


def missing_tables(connection: sa.Connection) -> list[str]:
    """Which of our tables are not there, of a database that has been migrated."""
    if connection.dialect.name == "sqlite":
        sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
    else:
        sql = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)"
    there = {row[0] for row in connection.execute(sa.text(sql))}
    return sorted(set(metadata.tables) - there)


def works_on(version: str | None) -> bool:
    """Whether this program works on a database of this revision: its own, and the one after it."""
    return version is not None and version in (HEAD, f"{int(HEAD) + 1:04}")


def refuse_newer(version: str | None) -> None:
    """Raise StoreUnavailableError for a revision that this program does not know and cannot work on."""
    if version is not None and version > HEAD and not works_on(version):
        raise StoreUnavailableError(
            f"the database has schema {version}, newer than this program's {HEAD}: upgrade schedd on this machine"
        )


def upgrade(url: str) -> None:
    """Bring the database at ``url`` to HEAD. Raises StoreUnavailableError, ConfigError."""
    from scheduler.store.db.database import Database

    database = Database(url, SystemClock(), auto_migrate=True)
    database.open()
    database.dispose()


def upgrade_engine(engine: sa.Engine) -> None:
    """Bring the database to HEAD, alone: others that try wait, and then find it done. Raises StoreUnavailableError.

    On SQLite in one transaction. On PostgreSQL others go on working meanwhile: see :func:`_upgrade_online`.
    """
    if engine.dialect.name == "postgresql":
        _upgrade_online(engine)
        return
    with engine.begin() as connection:  # BEGIN IMMEDIATE keeps others out
        version = current(connection)
        refuse_newer(version)
        if not works_on(version):
            _run_alembic(connection)
            _record(connection, version)


def _upgrade_online(engine: sa.Engine) -> None:
    """Each migration in transactions of its own, and none waits for long for a table.

    A session that waits for a lock on a table blocks all that come after it. So a migration gives up soon when
    another's long transaction is in its way, and is tried again.
    """
    with _alone(engine):
        for attempt in range(LOCK_TRIES):
            try:
                _upgrade_once(engine)
                return
            except sa.exc.OperationalError as error:
                if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
                    raise
                if attempt == 0:
                    log.warning("a migration waits for another session's long transaction to end")
                time.sleep(LOCK_PAUSE)
        raise StoreUnavailableError(
            "the database could not be upgraded: long transactions hold its tables; see pg_stat_activity, and try again"
        )


def _upgrade_once(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        version = current(connection)
        refuse_newer(version)
        if works_on(version):
            return
        connection.exec_driver_sql(f"SET lock_timeout = {round(LOCK_TIMEOUT * 1000)}")
        connection.commit()
        try:
            _run_alembic(connection)
            _record(connection, version)
            connection.exec_driver_sql("RESET lock_timeout")
            connection.commit()
        except BaseException:
            with suppress(Exception):
                connection.rollback()
                connection.invalidate()  # it has settings that the pool's others have not
            raise


@contextmanager
def _alone(engine: sa.Engine) -> Iterator[None]:
    """Hold the lock of upgrades, by a transaction in which nothing else happens.

    CREATE INDEX CONCURRENTLY waits for all snapshots. So no session waits for the lock within a statement, and it
    is taken by the simple protocol: a statement with parameters keeps its snapshot until the next one.
    """
    for look in itertools.count():
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            if raw.execute(f"SELECT pg_try_advisory_xact_lock({_PG_LOCK})").fetchone()[0]:
                yield
                return
        if look == TELL_AFTER:
            log.warning("another program upgrades the database: this one waits for it; see pg_stat_activity")
        time.sleep(ALONE_PAUSE)


def upgrade_sql(engine: sa.Engine) -> str:
    """The SQL that :func:`upgrade_engine` would run; nothing is changed."""
    from alembic import command

    with engine.connect().execution_options(schedd_reads=True) as connection:
        version = current(connection)
    refuse_newer(version)
    if works_on(version):
        return ""
    config = _alembic_config()
    buffer = config.output_buffer = io.StringIO()
    config.attributes["dialect"] = engine.dialect.name
    with _ALEMBIC:
        command.upgrade(config, f"{version or 'base'}:head", sql=True)
    return buffer.getvalue()


def scripts() -> str:
    """The directory of the migrations."""
    return str(resources.files("scheduler.migrations"))


def _alembic_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", scripts().replace("%", "%%"))
    return config


def _run_alembic(connection: sa.Connection) -> None:
    from alembic import command

    config = _alembic_config()
    config.attributes["connection"] = connection
    with _ALEMBIC:
        command.upgrade(config, "head")


def _record(connection: sa.Connection, before: str | None) -> None:
    """Record an upgrade in the audit, which lies above; nothing of a database that is new."""
    if before is None:
        return
    who = actor()
    connection.execute(
        sa.text(
            "INSERT INTO schedd_audit (at, action, actor, via, reason, subject, detail) "
            "VALUES (:at, 'db upgrade', :actor, :via, :reason, 'store', :detail)"
        ),
        {
            "at": SystemClock().now(),
            "actor": who.name if who.name is not None else user(),
            "via": who.via,
            "reason": who.reason,
            "detail": f'{{"before":"{before}","after":"{_version(connection)}"}}',
        },
    )
