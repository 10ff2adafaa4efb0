"""Making an SQLAlchemy engine for each database, and setting up its connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.store.dialect import sqlite_too_old
from scheduler.store.pool import FairPool
from scheduler.store.singles import MOST
from scheduler.store.statement import run, tell_answer
from scheduler.store.transaction import Transaction
from scheduler.store.wires import KEEPALIVES, Wires

SQLITE_BUSY_MS = 10_000
_SQLITE_BUSY = 5  # the error code of "database is locked"
_PG_CONNECT_TIMEOUT = 10
# What is kept for single statements takes nobody's room; of a server's sessions five at most are idle.
_POOL = {
    "postgresql": {"pool_size": 5 - MOST, "max_overflow": 20 + 2 * MOST},
    "sqlite": {"pool_size": 5, "max_overflow": 40 + MOST},
}


def make_engine(url: sa.URL) -> tuple[sa.Engine, Wires | None]:
    """An engine without a connection yet, and the wires of one to a server.

    Raises ConfigError, StoreUnavailableError.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url), None
    engine = _postgresql_engine(url)
    return engine, Wires(engine)


def _set_up(raw: Any) -> None:
    """Set a new connection to a SQLite file up; does no harm when it is done again."""
    raw.isolation_level = None  # we begin ourselves: the driver would begin late, and never IMMEDIATE
    cursor = raw.cursor()
    # It has an effect only before the first table, and waits for whoever writes.
    if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    # WAL and FULL: a commit survives a loss of power.
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "temp_store=MEMORY",
        "cache_size=-32000",
        "journal_size_limit=67108864",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _patiently(work: Callable[[], None]) -> None:
    """Of programs that open a new file at the same moment SQLite tells some at once, without waiting, that it is locked
    (only one can turn WAL on): they try again for as long as it would wait."""
    deadline = time.monotonic() + SQLITE_BUSY_MS / 1000
    while True:
        try:
            return work()
        except Exception as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY
            if not busy or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def _postgresql_engine(url: sa.URL) -> sa.Engine:
    try:
        engine = sa.create_engine(
            url,
            poolclass=FairPool,
            **_POOL["postgresql"],
            isolation_level="READ COMMITTED",
            connect_args={
                "connect_timeout": _PG_CONNECT_TIMEOUT,
                "application_name": "schedd",
                **{name: value for name, value in KEEPALIVES.items() if name not in url.query},
            },
        )
    except ModuleNotFoundError as error:
        raise ConfigError(f"{url.drivername} needs a driver: pip install 'schedd[postgres]'") from error
    sa.event.listen(engine, "after_cursor_execute", tell_answer)
    return engine


def _sqlite_engine(url: sa.URL) -> sa.Engine:
    problem = sqlite_too_old()
    if problem is not None:
        raise StoreUnavailableError(problem)
    parent = Path(url.database or "").absolute().parent
    if not parent.is_dir():
        raise StoreUnavailableError(f"cannot open {url.database}: the directory {parent} does not exist; create it")
    engine = sa.create_engine(
        url,
        connect_args={
            "check_same_thread": False,
            "timeout": SQLITE_BUSY_MS / 1000,
            "cached_statements": 512,
        },
        poolclass=FairPool,
        **_POOL["sqlite"],
    )

    @sa.event.listens_for(engine, "connect")
    def on_connect(raw: Any, _record: Any) -> None:
        _patiently(lambda: _set_up(raw))

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        reads = connection.get_execution_options().get("schedd_reads", False)
        begin = "BEGIN" if reads else "BEGIN IMMEDIATE"
        if isinstance(connection, Transaction):
            connection.about_to_begin()
            connection.exec_driver_sql(begin)
            connection.begun()
        else:
            run(connection, begin, {})

    return engine
