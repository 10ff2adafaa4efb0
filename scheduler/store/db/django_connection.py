"""The store's own statements on a connection of Django's, in the transaction that is open there.

Knows Django's connection by what it can do, and imports nothing of Django: a program that has one has loaded it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Protocol

import sqlalchemy as sa

from scheduler.errors import ConfigError
from scheduler.store.db.errors import cause, translate

_NAMES = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}


class OfDjango(Protocol):
    """A connection of Django's, as far as it shows."""

    vendor: str
    alias: str
    in_atomic_block: bool
    settings_dict: Any

    def ensure_connection(self) -> None: ...


class _Driver:
    """The driver's connection, without what ends a transaction: that is Django's to do."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def execute(self, *given: Any) -> Any:
        return self._raw.execute(*given)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class DjangoConnection(sa.Connection):
    """A connection of Django's, for the store's statements."""

    def __init__(self, engine: sa.Engine, given: Any) -> None:
        super().__init__(engine)
        self._given = given

    def notify_after_commit(self, notify: Callable[[], None], channel: str | None) -> None:
        """Wake workers once Django commits, once for all tasks. On PostgreSQL by this connection: ``notify`` would make
        another one, which a database of tests would still have when it is to be dropped."""
        given = self._given

        def quietly() -> None:
            if not given.schedd_notifies:
                return  # another task of this commit has done it
            given.schedd_notifies = False
            with suppress(Exception):  # polling is behind it
                if given.vendor == "postgresql" and channel is not None:
                    with given.cursor() as cursor:
                        cursor.execute(f"NOTIFY {channel}")
                else:
                    notify()

        given.schedd_notifies = True  # by each task: Django forgets those calls whose savepoint rolls back
        given.on_commit(quietly)


def is_django(given: Any) -> bool:
    """Whether this is a connection of Django's, such as ``connections["default"]``."""
    return all(hasattr(given, name) for name in ("vendor", "ensure_connection", "in_atomic_block", "settings_dict"))


@contextmanager
def on_django(given: Any, *, reads: bool = False) -> Iterator[DjangoConnection]:
    """The store's connection in the transaction that is open on Django's, else in one of its own. ``reads``: only.

    What fails within is rolled back to where this began, and Django's transaction can go on. Raises ConfigError for a
    database or a driver that is not ours, StoreUnavailableError.
    """
    vendor = str(given.vendor)
    if vendor not in _NAMES:
        raise ConfigError(f"connection= is to {vendor}; schedd lives in SQLite or PostgreSQL")
    atomic: Any = sys.modules["django.db.transaction"]
    with atomic.atomic(using=given.alias):
        raw = given.connection
        if vendor == "postgresql" and type(raw).__module__.partition(".")[0] != "psycopg":
            raise ConfigError("connection= is Django's over psycopg2; schedd needs psycopg 3: pip install psycopg")
        url = sa.make_url(f"{_NAMES[vendor]}://")
        driver: Any = _Driver(raw)
        engine = sa.Engine(sa.NullPool(lambda: driver, reset_on_return=None), _dialect(vendor), url)
        made = DjangoConnection(engine, given)
        try:
            with made, made.begin():
                if vendor == "sqlite" and not reads:
                    _wait_for_turn(made)
                yield made
        except sa.exc.SQLAlchemyError as error:
            raise translate(error, _url_of(given)) from cause(error)


def _wait_for_turn(own: sa.Connection) -> None:
    """Begin with a write of nothing, which waits while a worker writes.

    A transaction that has read and then writes does not wait on SQLite: once another one has written, it fails.
    """
    try:
        own.exec_driver_sql("UPDATE schedd_store SET epoch = epoch WHERE 0")
    except sa.exc.OperationalError as error:
        if "no such table" not in str(error.orig):  # they are made in this transaction
            raise


@cache
def _dialect(vendor: str) -> sa.Dialect:
    """Not asked of any server: nothing of what it would say matters for the store's statements."""
    kind: Any = sa.make_url(f"{_NAMES[vendor]}://").get_dialect()
    options = {"use_native_hstore": False} if vendor == "postgresql" else {}
    made: sa.Dialect = kind(dbapi=kind.import_dbapi(), **options)
    return made


def _url_of(given: Any) -> sa.URL:
    """For errors, without a password."""
    settings = given.settings_dict
    return sa.URL.create(_NAMES[given.vendor], host=settings.get("HOST") or None, database=str(settings.get("NAME")))
