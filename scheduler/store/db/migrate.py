"""Migrations: which revision a database has, and bringing it to ours. Alembic is imported only to migrate.

A program works on its own schema and on the next one, so that a fleet can be upgraded one worker after the other: each
migration leaves the program before it working (docs/guides/upgrading.md).
"""

from __future__ import annotations

import functools
import io
import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from scheduler.errors import SchedulerError, StoreUnavailableError, shown_as
from scheduler.model.actor import actor
from scheduler.model.texts import listed, rfc3339
from scheduler.model.worker_states import STOPPED
from scheduler.ports import FOREVER, SystemClock
from scheduler.store.db import older_forms
from scheduler.store.db.engines import make_engine
from scheduler.store.db.errors import StoreError, UnusableDatabaseError, cause, translate
from scheduler.store.db.schema_version import HEAD as HEAD
from scheduler.store.db.schema_version import SQLITE_TABLES, VERSION_ROWS, VERSION_TABLE, knows
from scheduler.store.db.sqlite_copy import backup_sqlite
from scheduler.store.db.table_names import TABLES
from scheduler.store.db.urls import parse_url
from scheduler.system.processes import user

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger("scheduler.store")
_FIRST = "0001"  # revisions are counted from here, and none is left out
_REVISION = re.compile(r"\d{4}")
_PG_LOCK = 7237123446  # any fixed number: serialises daemons that start at once
LOCK_TIMEOUT = 0.5  # seconds that a migration waits for a table, and keeps others waiting behind it
ALONE_PAUSE = 0.1  # seconds between checks whether another upgrade has ended
TELL_AFTER = 20  # checks after which the wait is logged: making an index has no time limit
_ALEMBIC = threading.Lock()  # alembic has one context for the whole process, whatever database it is about
_BREAKING = frozenset({"0011"})  # migrations that the program before them cannot work on
_TRY_AGAIN = ("55P03", "40P01")  # lock_not_available, deadlock_detected
LOCK_TRIES, LOCK_PAUSE = 120, 1.0  # how often, and seconds in between


@shown_as(StoreUnavailableError)
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
    version = connection.execute(sa.text(VERSION_ROWS)).scalar()
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


def ensure(engine: sa.Engine, auto_migrate: bool, now: int | None = None, *, looks: bool = False) -> None:
    """Check the revision; migrate if it is older and ``auto_migrate``, unless it only ``looks``.

    Raises StoreUnavailableError.
    """
    with engine.connect().execution_options(schedd_reads=True) as connection:
        refuse_encoding(connection)
        version = current(connection)
        refuse_elsewhere(connection, version)
        lost = missing_tables(connection) if works_on(version) else []
    if lost:
        raise MissingTablesError(lacks(lost, version))
    if works_on(version):
        return
    refuse_newer(version)
    if looks or not auto_migrate:
        setting = "" if looks else " (or set auto_migrate = true in [store])"
        raise StoreUnavailableError(f"{older(version)}: run `schedctl db upgrade`{setting}")
    upgrade_engine(engine, by_hand=False, now=now)


def older(version: str | None) -> str:
    """The sentence about a database that an upgrade would bring to this program's schema, without its remedy."""
    if version is None:
        return "the database is not migrated"
    return f"the database has the older schema {version}, this program needs {HEAD}"


def refuse_encoding(connection: sa.Connection) -> None:
    """Raise StoreUnavailableError for a PostgreSQL database that cannot keep every text."""
    raw: Any = connection.connection.driver_connection
    encoding = raw.info.parameter_status("server_encoding") if connection.dialect.name == "postgresql" else None
    if encoding not in (None, "UTF8"):
        raise UnusableDatabaseError(
            f"the database has the encoding {encoding}, and schedd needs UTF8: "
            "make another one with CREATE DATABASE name TEMPLATE template0 ENCODING 'UTF8'"
        )


def refuse_elsewhere(connection: sa.Connection, version: str | None) -> None:
    """Raise StoreUnavailableError if the tables are in a schema of PostgreSQL that ``search_path`` does not reach."""
    if version is not None or connection.dialect.name != "postgresql":
        return
    sql = (
        "SELECT string_agg(quote_ident(nspname), ', ' ORDER BY nspname), current_setting('search_path') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relname = :table AND relkind IN ('r', 'p')"
    )
    found, path = connection.execute(sa.text(sql), {"table": VERSION_TABLE}).one()
    if found is not None:
        raise StoreUnavailableError(
            f"schedd's tables are in the schema {found}, which this user's search_path ({path}) does not reach: "
            f"ALTER ROLE CURRENT_USER SET search_path = {found}"
        )


def lacks(lost: list[str], version: str | None) -> str:
    """What is wrong with a migrated database that lacks these tables, and what to do."""
    return f"the database lacks {listed(lost)}, though its schema is {version}: stop schedd and restore a backup"


def missing_tables(connection: sa.Connection) -> list[str]:
    """Which of our tables are not there, of a database that has been migrated."""
    if connection.dialect.name == "sqlite":
        sql = SQLITE_TABLES
    else:
        sql = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)"
    there = {row[0] for row in connection.execute(sa.text(sql))}
    return sorted(set(TABLES) - there)


def lost_tables(connection: sa.Connection, version: str | None) -> list[str]:
    """Which tables are not there that a store of this revision has to have."""
    if version is None:
        return []
    missing = missing_tables(connection)
    return missing if version >= HEAD else [name for name in missing if name in older_forms.always_there()]


def works_on(version: str | None) -> bool:
    """Whether this program works on a database of this revision: its own, and the one after it."""
    return knows(HEAD, version)


def refuse_newer(version: str | None) -> None:
    """Raise StoreUnavailableError for a revision that this program does not know and cannot work on."""
    if version is not None and version > HEAD and not works_on(version):
        raise StoreUnavailableError(
            f"the database has schema {version}, newer than this program's {HEAD}: upgrade schedd on this machine"
        )


def upgrade(url: str) -> None:
    """Bring the database at ``url`` to HEAD. Raises StoreUnavailableError, ConfigError."""
    engine, _ = make_engine(parse_url(url))
    try:
        upgrade_engine(engine)
    except sa.exc.SQLAlchemyError as error:
        raise translate(error, engine.url) from cause(error)
    finally:
        engine.dispose()


def upgrade_engine(
    engine: sa.Engine, *, by_hand: bool = True, now: int | None = None, beside: bool = False
) -> Path | None:
    """Bring the database to HEAD, alone: others that try wait, and then find it done. Raises SchedulerError.

    All steps are one transaction: whatever goes wrong, the database stays as it was. Returns where the copy is that was
    made of an older SQLite file. ``by_hand``: workers that work on the next schema, too, may be live; else none.
    ``beside``: whether another schema of the server may have schedd's tables, too. ``now``: of the leases.
    """
    refused = functools.partial(_refuse, by_hand=by_hand, now=now, beside=beside)
    if engine.dialect.name == "postgresql":
        _upgrade_online(engine, refused)
        return None
    copy = None
    try:
        with engine.begin() as connection:  # BEGIN IMMEDIATE keeps others out
            version = current(connection)
            refused(connection, version)
            if not works_on(version):
                copy = None if version is None else _copy(engine, version)
                _steps(connection, version)
            elif version == HEAD and _is_odd(connection):
                older_forms.amend(connection, HEAD, _columns_at)
            for statement in _missing_indexes(connection):
                connection.exec_driver_sql(statement)
    except Exception:
        if copy is not None:  # the next try makes one of its own: on a small disk they would take all that is left
            copy.unlink(missing_ok=True)
        raise
    if copy is not None and not by_hand:
        log.warning("the database went from schema %s to %s; a copy from before is %s", version, HEAD, copy)
    return copy


def make_on(connection: sa.Connection) -> None:
    """Make the store in the caller's transaction, where the database has none. Raises StoreUnavailableError."""
    version = current(connection)
    if version is not None:
        refuse_newer(version)
        raise StoreUnavailableError(f"{older(version)}: run `schedctl db upgrade`")
    refuse_encoding(connection)
    refuse_elsewhere(connection, version)
    connection.dialect.initialize(connection)  # migrations look at what is there
    _steps(connection, version)


def _is_odd(connection: sa.Connection) -> bool:
    """Whether a store of this revision is not in its form: an earlier checkout has brought it there."""
    from scheduler.store.schema import metadata  # which takes a command a while to make

    found = older_forms.columns_of(connection)
    lacks_some = any(set(table.c.keys()) - found.get(name, set()) for name, table in metadata.tables.items())
    return lacks_some or older_forms.has_old_graphs(connection, found)


def _refuse(connection: sa.Connection, version: str | None, *, by_hand: bool, now: int | None, beside: bool) -> None:
    refuse_encoding(connection)
    refuse_newer(version)
    if not beside:
        refuse_elsewhere(connection, version)
    if version is not None and not works_on(version):
        _refuse_beside_workers(connection, version, by_hand, now)


def _refuse_beside_workers(connection: sa.Connection, version: str, by_hand: bool, now: int | None) -> None:
    """Raise StoreError while workers live that could not go on with this program's schema."""
    live = _live(connection, now)
    if by_hand and not _BREAKING & {f"{number:04}" for number in range(int(version) + 1, int(HEAD) + 1)}:
        live = [row for row in live if int(_knows(row.pools) or version) + 1 < int(HEAD)]
    if live:
        names = listed([_label(row) for row in live])
        kind, them = ("worker", "it") if len(live) == 1 else ("workers", "them")
        raise StoreError(
            f"{older(version)}, and {kind} {names} of an older schedd cannot go on with that: nothing was changed; "
            f"stop {them} first (the last lease ends at "
            f"{rfc3339(max(row.lease_until for row in live), exact=False)})",
            heals=True,
        )


def _live(connection: sa.Connection, now: int | None) -> Sequence[sa.Row[Any]]:
    if connection.dialect.name == "postgresql":
        now = round(
            1e6 * connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())::float8")).scalar_one()
        )
    sql = (
        "SELECT id, host, pid, version, pools, lease_until FROM schedd_workers "
        f"WHERE state < {STOPPED} AND lease_until > :now AND lease_until < {FOREVER} ORDER BY id"
    )
    return connection.execute(sa.text(sql), {"now": SystemClock().now() if now is None else now}).all()


def _label(row: sa.Row[Any]) -> str:
    return f"{row.id} ({row.host}:{row.pid}, schedd {row.version})"


def older_workers(connection: sa.Connection, now: int) -> list[str]:
    """Live workers whose programs were made for an older schema than this one: they go on beside it, and no later."""
    return [_label(row) for row in _live(connection, now) if (_knows(row.pools) or "") < HEAD]


def _knows(pools: str) -> str | None:
    """The schema that a worker's program says it was made for."""
    try:
        found = json.loads(pools).get("schema")
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) and _REVISION.fullmatch(found) else None


def _copy(engine: sa.Engine, version: str) -> Path:
    """Copy the SQLite file, to which no other writes at present, beside itself. Raises SchedulerError."""
    path = Path(engine.url.database or "")
    target = path.with_name(f"{path.name}-schema-{version}.backup")
    for number in itertools.count(2):
        if not target.exists():
            break
        target = path.with_name(f"{path.name}-schema-{version}-{number}.backup")
    try:
        backup_sqlite(path, target)
    except SchedulerError as error:
        if re.search("disk is full|No space left", str(error)) is None:
            raise
        raise StoreError(str(error), True) from None
    return target


def _steps(connection: sa.Connection, version: str | None, later: list[str] | None = None) -> None:
    """All steps, in the caller's transaction. ``later``: gets the statements of indexes that are made afterwards."""
    if version is not None:
        older_forms.amend(connection, version, _columns_at)
    _run_alembic(connection, later)
    _record(connection, version)


def _upgrade_online(engine: sa.Engine, refused: Callable[[sa.Connection, str | None], None]) -> None:
    """In one transaction that does not wait for long for a table; indexes of full tables are made after it.

    A session that waits for a lock on a table blocks all that come after it. So the upgrade gives up soon when
    another's long transaction is in its way, and is tried again.
    """
    with _alone(engine):
        for attempt in range(LOCK_TRIES):
            try:
                later = _upgrade_once(engine, refused)
                break
            except sa.exc.OperationalError as error:
                if getattr(error.orig, "sqlstate", None) not in _TRY_AGAIN:
                    raise
                if attempt == 0:
                    log.warning("a migration waits for another session's long transaction to end")
                time.sleep(LOCK_PAUSE)
        else:
            raise StoreUnavailableError(
                "the database could not be upgraded: long transactions hold its tables; see pg_stat_activity, and try "
                "again"
            )
        _make_indexes(engine, later)


def _upgrade_once(engine: sa.Engine, refused: Callable[[sa.Connection, str | None], None]) -> list[str]:
    """Returns the statements that are still to be executed, each outside of a transaction."""
    later: list[str] = []
    with engine.begin() as connection:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(LOCK_TIMEOUT * 1000)}")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        version = current(connection)
        refused(connection, version)
        if not works_on(version):
            _steps(connection, version, None if version is None else later)
        elif version == HEAD and _is_odd(connection):
            older_forms.amend(connection, HEAD, _columns_at)
        later += _missing_indexes(connection, frozenset(word for statement in later for word in statement.split()))
        later += [statement for statement in _replaced_indexes(connection) if statement not in later]
    return later


def _make_indexes(engine: sa.Engine, statements: Sequence[str]) -> None:
    """An interrupted one leaves an index that is missing or invalid; the next upgrade makes it."""
    if not statements:
        return
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            for statement in ("SET lock_timeout = 0", "SET statement_timeout = 0", *statements):
                connection.exec_driver_sql(statement.replace("%", "%%"))
        finally:
            with suppress(Exception):
                connection.invalidate()  # it has settings that the pool's others have not


def missing_indexes(connection: sa.Connection) -> list[str]:
    """The indexes that this program's schema has and the database has not, or not whole."""
    from scheduler.store.schema import metadata  # which takes a command a while to make

    if connection.dialect.name == "sqlite":
        sql = "SELECT name FROM sqlite_master WHERE type = 'index'"
    else:
        sql = (
            "SELECT relname FROM pg_class JOIN pg_index ON indexrelid = oid "
            "WHERE pg_table_is_visible(indrelid) AND indisvalid"
        )
    there = {row[0] for row in connection.execute(sa.text(sql))}
    return sorted(str(one.name) for table in metadata.tables.values() for one in table.indexes if one.name not in there)


def _missing_indexes(connection: sa.Connection, but: frozenset[str] = frozenset()) -> list[str]:
    """The statements that make them, ``but`` for these, of a database of this program's schema."""
    from scheduler.store.schema import metadata

    if _version(connection) != HEAD:
        return []
    wanted = set(missing_indexes(connection)) - but
    found = [one for table in metadata.sorted_tables for one in table.indexes if one.name in wanted]
    if connection.dialect.name == "sqlite":
        return [str(CreateIndex(one).compile(dialect=connection.dialect)) for one in found]
    made = [str(CreateIndex(one).compile(dialect=connection.dialect)) for one in found]
    return [
        statement
        for one, text in zip(found, made, strict=True)
        for statement in (
            f"DROP INDEX CONCURRENTLY IF EXISTS {one.name}",
            text.replace(" INDEX ", " INDEX CONCURRENTLY ", 1),
        )
    ]


def _replaced_indexes(connection: sa.Connection) -> list[str]:
    """The statements that drop what an interrupted upgrade left of indexes that it had replaced (migrations/online.py).

    They come last: until the new ones are made, the programs use these.
    """
    from scheduler.store.schema import metadata

    if _version(connection) != HEAD:
        return []
    ours = {f"{one.name}_old" for table in metadata.tables.values() for one in table.indexes}
    sql = "SELECT relname FROM pg_class JOIN pg_index ON indexrelid = oid WHERE pg_table_is_visible(indrelid)"
    there = {row[0] for row in connection.execute(sa.text(sql))}
    return [f"DROP INDEX CONCURRENTLY IF EXISTS {name}" for name in sorted(ours & there)]


def _columns_at(version: str) -> older_forms.Columns:
    """The columns that the migrations up to this revision make of each table."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    try:
        with engine.begin() as connection:
            _run_alembic(connection, revision=version)
            return older_forms.columns_of(connection)
    finally:
        engine.dispose()


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
        before = [] if version is None else older_forms.amendments(connection, version, _columns_at)
    config = _alembic_config()
    buffer = config.output_buffer = io.StringIO()
    config.attributes.update(dialect=engine.dialect.name, before=before, later=None if version is None else [])
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


def _run_alembic(connection: sa.Connection, later: list[str] | None = None, revision: str = "head") -> None:
    from alembic import command

    config = _alembic_config()
    config.attributes.update(connection=connection, later=later)
    with _ALEMBIC:
        command.upgrade(config, revision)


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
