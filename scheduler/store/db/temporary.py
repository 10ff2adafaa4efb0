"""Databases for tests, on a user's PostgreSQL server or as files: each one migrated, empty, and gone afterwards."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from scheduler.errors import ConfigError
from scheduler.store.db.errors import cause, translate
from scheduler.store.db.migrate import upgrade
from scheduler.store.db.urls import parse_url, shown


class TemporaryFiles:
    """Copies of one migrated SQLite file in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._template = directory / "template.db"

    def make(self, directory: Path) -> str:
        """The URL of a new database in this directory. Raises StoreUnavailableError."""
        if not self._template.exists():
            upgrade(f"sqlite:///{self._template}")
            with closing(sqlite3.connect(self._template)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the file is all there is
        path = directory / "jobs.db"
        shutil.copy(self._template, path)
        return f"sqlite:///{path}"


class TemporaryDatabases:
    """Databases beside the one at ``url``, copied from a migrated one that is made first. Its role makes databases.

    Raises ConfigError, StoreUnavailableError.
    """

    def __init__(self, url: str) -> None:
        self._url = parse_url(url)
        if self._url.get_backend_name() != "postgresql":
            raise ConfigError(f"{shown(self._url)} is not a URL of PostgreSQL")
        self._engine = sa.create_engine(self._url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        self._prefix = f"schedd_test_{secrets.token_hex(4)}"
        self._template: str | None = None
        self._made = 0

    def make(self) -> str:
        """The URL of a new database."""
        if self._template is None:
            template = f"{self._prefix}_template"
            self._run(f"CREATE DATABASE \"{template}\" ENCODING 'UTF8' TEMPLATE template0")
            self._template = template
            upgrade(self._url_of(template))
        self._made += 1
        name = f"{self._prefix}_{self._made}"
        self._run(f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        return self._url_of(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever is still connected to it."""
        self._run(f'DROP DATABASE IF EXISTS "{parse_url(url).database}" WITH (FORCE)')

    def close(self) -> None:
        """Remove the template."""
        if self._template is not None:
            self._run(f'DROP DATABASE IF EXISTS "{self._template}" WITH (FORCE)')
            self._template = None
        self._engine.dispose()

    def _url_of(self, name: str) -> str:
        return self._url.set(database=name).render_as_string(hide_password=False)

    def _run(self, sql: str) -> None:
        try:
            with self._engine.connect() as connection:
                connection.exec_driver_sql(sql)
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, self._url) from cause(error)
