"""Migrations: which revision a database has, and bringing it to ours. Alembic is imported only to migrate."""

from __future__ import annotations

import io
from importlib import resources
from typing import TYPE_CHECKING

import sqlalchemy as sa

from scheduler.errors import StoreUnavailableError

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0001"
VERSION_TABLE = "schedd_version"
_PG_LOCK = 7237123446  # any fixed number: serialises daemons that start at once


def current(connection: sa.Connection) -> str | None:
    """The database's revision, None if it was never migrated."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if version is None else str(version)


def ensure(engine: sa.Engine, auto_migrate: bool) -> None:
    """Check the revision; migrate if it is older and ``auto_migrate``. Raises StoreUnavailableError."""
    with engine.connect().execution_options(schedd_reads=True) as connection:
        version = current(connection)
    if version == HEAD:
        return
    refuse_newer(version)
    if not auto_migrate:
        state = "is not migrated" if version is None else f"has the older schema {version}, this program needs {HEAD}"
        raise StoreUnavailableError(
            f"the database {state}: run `schedctl db upgrade` (or set auto_migrate = true in [store])"
        )
    upgrade_engine(engine)


def refuse_newer(version: str | None) -> None:
    """Raise StoreUnavailableError for a revision that this program does not know."""
    if version is not None and version > HEAD:
        raise StoreUnavailableError(
            f"the database has schema {version}, newer than this program's {HEAD}: upgrade schedd on this machine"
        )


def upgrade(url: str) -> None:
    """Bring the database at ``url`` to HEAD. Raises StoreUnavailableError, ConfigError."""
    from scheduler.ports import SystemClock
    from scheduler.store.database import Database

    database = Database(url, SystemClock(), auto_migrate=True)
    database.open()
    database.dispose()


def upgrade_engine(engine: sa.Engine) -> None:
    """Bring the database to HEAD in one transaction, alone: others that try wait, and then find it done."""
    with engine.begin() as connection:  # SQLite: BEGIN IMMEDIATE keeps others out
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:n)"), {"n": _PG_LOCK})
        version = current(connection)
        refuse_newer(version)
        if version == HEAD:
            return
        _run_alembic(connection)


def upgrade_sql(engine: sa.Engine) -> str:
    """The SQL that :func:`upgrade_engine` would run; nothing is changed."""
    from alembic import command

    with engine.connect().execution_options(schedd_reads=True) as connection:
        version = current(connection)
    refuse_newer(version)
    if version == HEAD:
        return ""
    config = _alembic_config()
    buffer = config.output_buffer = io.StringIO()
    config.attributes["dialect"] = engine.dialect.name
    command.upgrade(config, f"{version or 'base'}:head", sql=True)
    return buffer.getvalue()


def _alembic_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(resources.files("scheduler.migrations")).replace("%", "%%"))
    return config


def _run_alembic(connection: sa.Connection) -> None:
    from alembic import command

    config = _alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
