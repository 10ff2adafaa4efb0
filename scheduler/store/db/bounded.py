"""Reads for pages: a transaction that only reads, in which no statement takes longer than a bound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scheduler.errors import SchedulerError, StoreUnavailableError, shown_as
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx

_CANCELED = "57014"  # PostgreSQL's code of a statement that took too long
_STEPS = 20_000  # of SQLite's virtual machine between two looks at the clock: about a millisecond
_WAITS = 5  # times as long on the clock: a read on SQLite waits for a processor and for the disk


@shown_as(SchedulerError)
class ReadTooLongError(SchedulerError):
    """A statement took longer than a page may wait for it."""


@contextmanager
def bounded_read(database: Database, seconds: float) -> Iterator[Tx]:
    """As ``database.read()``, with no statement longer than ``seconds``, and on PostgreSQL none that writes.

    On SQLite the bound is of the thread's processor time for all statements together: beside busy tasks the clock would
    end reads that are quick. Raises ReadTooLongError, StoreUnavailableError.
    """
    over = False
    raw: Any = None
    try:
        with database.read() as tx:
            if tx.dialect.name == "postgresql":
                tx.run("SET TRANSACTION READ ONLY")
                tx.run(f"SET LOCAL statement_timeout = {round(seconds * 1000)}")
            else:
                spent, deadline = time.thread_time() + seconds, time.monotonic() + _WAITS * seconds

                def late() -> int:
                    nonlocal over
                    over = time.thread_time() > spent or time.monotonic() > deadline
                    return int(over)

                raw = tx.connection.connection.dbapi_connection
                raw.set_progress_handler(late, _STEPS)
            try:
                yield tx
            finally:
                if raw is not None:
                    raw.set_progress_handler(None, 0)
    except StoreUnavailableError as error:
        cause = error.__cause__
        origin = getattr(cause, "orig", cause)  # the driver's own error
        if over or getattr(origin, "sqlstate", None) == _CANCELED:
            raise ReadTooLongError(f"the database took longer than {seconds:g} s to answer") from error
        raise


def change_token(tx: Tx) -> str:
    """A text that is another one once another connection has committed a change; cheap to read.

    On PostgreSQL any change of the server counts. On SQLite only answers of one connection compare.
    """
    postgres = tx.dialect.name == "postgresql"
    found = tx.rows("SELECT CAST(pg_current_snapshot() AS text)" if postgres else "PRAGMA data_version")
    return str(found[0][0])
