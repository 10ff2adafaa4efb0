"""Making an SQLAlchemy engine for each database, and setting up its connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.store.db import deadline
from scheduler.store.db.autocommit import MAX_KEPT
from scheduler.store.db.dialect import sqlite_too_old
from scheduler.store.db.handler_transaction import Transaction
from scheduler.store.db.pg_connections import PgConnections, with_settings
from scheduler.store.db.pool import FairPool
from scheduler.store.db.sqlite_files import LOOK_PRAGMAS, SQLITE_BUSY_MS, make_private, uri_to_look
from scheduler.store.db.statements import run, tell_answer
from scheduler.system import files

_LIMITED = "schedd_limited"  # in a connection's info: it waits for others for a shorter time than usual
_SQLITE_BUSY = 5  # the error code of "database is locked"
# Connections for single statements come on top of the pool's; five sessions of a server at most are idle.
_POOL = {
    "postgresql": {"pool_size": 5 - MAX_KEPT, "max_overflow": 20 + 2 * MAX_KEPT},
    "sqlite": {"pool_size": 5, "max_overflow": 40 + MAX_KEPT},
}


def _nothing(*_: object) -> None: ...


def make_engine(
    url: sa.URL,
    made: Callable[[Any], None] = _nothing,
    before: Callable[[], None] = _nothing,
    *,
    application_name: str = "schedd",
    connections: int | None = None,
    looks: bool = False,
) -> tuple[sa.Engine, PgConnections | None]:
    """An engine without a connection yet, and the wires of one to a server.

    ``made`` is called with each new connection of the driver (to a server: in autocommit), ``before`` before one to a
    file is made; what they raise, connecting does. ``application_name``: in the server's list of sessions.
    ``connections``: to a server, at once; None: as many as the threads of a program may want. ``looks``: connections
    that leave a file as it is.

    Raises ConfigError, StoreUnavailableError.
    """
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, made, before, looks), None
    engine = _postgresql_engine(url, application_name, connections)
    wires = PgConnections(made)
    wires.serve(engine)
    return engine, wires


def load_driver(url: sa.URL) -> None:
    """Import what :func:`make_engine` needs: it takes a program that starts longer than the server takes to answer."""
    with suppress(ImportError):  # make_engine says which one is missing
        url.get_dialect().import_dbapi()


def _set_up(raw: Any, looks: bool) -> None:
    """Set a new connection to a SQLite file up; does no harm when it is done again."""
    raw.isolation_level = None  # we begin ourselves: the driver would begin late, and never IMMEDIATE
    cursor = raw.cursor()
    if looks:
        for pragma in LOOK_PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()
        return
    # It has an effect only before the first table, and waits for a writer.
    if cursor.execute("PRAGMA page_count").fetchone()[0] == 0:
        cursor.execute("PRAGMA auto_vacuum=INCREMENTAL")
    # WAL and FULL: a commit survives a loss of power.
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "temp_store=MEMORY",
        "cache_size=-32000",
        "journal_size_limit=67108864",
        *files.FULL_SYNC,
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _patiently(work: Callable[[], None]) -> None:
    """Turn WAL on, trying again while the file is locked.

    Of programs that open a new file at once, one turns WAL on; SQLite refuses the others without waiting.
    """
    until = time.monotonic() + deadline.left(SQLITE_BUSY_MS / 1000)
    while True:
        try:
            return work()
        except Exception as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == _SQLITE_BUSY
            if not busy or time.monotonic() >= until:
                raise
            time.sleep(0.01)


def server_arguments(url: sa.URL, application_name: str) -> dict[str, Any]:
    """What the driver's connect() is given for this URL, whichever way it spells its hosts, with our own settings."""
    _, found = url.get_dialect()().create_connect_args(url)
    return with_settings(found, url.query, application_name)


def _postgresql_engine(url: sa.URL, application_name: str, connections: int | None) -> sa.Engine:
    sizes = _POOL["postgresql"] if connections is None else {"pool_size": connections, "max_overflow": 0}
    try:
        engine = sa.create_engine(
            url,
            poolclass=FairPool,
            **sizes,
            isolation_level="READ COMMITTED",
            connect_args=server_arguments(url, application_name),
        )
    except ModuleNotFoundError as error:
        raise ConfigError(f"{url.drivername} needs a driver: pip install 'schedd[postgres]'") from error
    sa.event.listen(engine, "after_cursor_execute", tell_answer)
    return engine


def _sqlite_engine(url: sa.URL, made: Callable[[Any], None], before: Callable[[], None], looks: bool) -> sa.Engine:
    problem = sqlite_too_old()
    if problem is not None:
        raise StoreUnavailableError(problem)
    path = Path(url.database or "")
    parent = path.absolute().parent
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

    @sa.event.listens_for(engine, "do_connect")
    def on_do_connect(_dialect: Any, _record: Any, arguments: list[Any], params: dict[str, Any]) -> None:
        before()
        if not looks:
            make_private(path)
        else:
            arguments[:] = [uri_to_look(path)]
            params["uri"] = True

    @sa.event.listens_for(engine, "connect")
    def on_connect(raw: Any, _record: Any) -> None:
        _patiently(lambda: _set_up(raw, looks))
        made(raw)

    @sa.event.listens_for(engine, "do_connect")
    def before_connect(_dialect: Any, _record: Any, _args: Any, params: Any) -> None:
        params["timeout"] = deadline.left(SQLITE_BUSY_MS / 1000)

    @sa.event.listens_for(engine, "checkout")
    def on_checkout(raw: Any, record: Any, _proxy: Any) -> None:
        limit = deadline.current()
        if limit is not None or record.info.pop(_LIMITED, False):
            raw.execute(f"PRAGMA busy_timeout = {round(1000 * deadline.left(SQLITE_BUSY_MS / 1000))}")
        if limit is not None:
            record.info[_LIMITED] = True
            limit.interrupts(raw)

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
