"""The connection that a handler does its own rows with: begun and ended for it, and not for ever."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import sqlalchemy as sa

from scheduler.errors import Collided, PermanentError, TransactionTooLong
from scheduler.store.db.write_gate import WriteGate

LIMIT = 5.0  # seconds that a handler may keep others from writing to a SQLite file
MOST_OPEN = 12
_PLACE_TIMEOUT_S = 60.0  # seconds that one more waits for a place
_STUBBORN = 10.0  # seconds that a statement which is interrupted may take to notice
_TRANSIENT = re.compile(
    r"deadlock detected|could not serialize|database is locked|database table is locked|lock timeout"
)


class Places:
    """So many transactions of handlers may be open at once: the pool has connections for others, too."""

    def __init__(self) -> None:
        self._places = threading.BoundedSemaphore(MOST_OPEN)

    def take(self) -> None:
        """Wait for a place. Raises Collided after a while."""
        if not self._places.acquire(timeout=_PLACE_TIMEOUT_S):
            raise Collided(
                f"{MOST_OPEN} transactions of handlers have been open for {_PLACE_TIMEOUT_S:g} s: "
                "there is no room for another"
            )

    def release(self) -> None:
        self._places.release()


class Transaction(sa.Connection):
    """A connection whose transaction begins with its first statement and is committed for the handler.

    ``result`` becomes the task's result, or the step's value; anything JSON. Rolled back if its block raises.
    """

    result: Any = None

    def __init__(self, engine: sa.Engine, gate: WriteGate, places: Places, limit: float | None, idle: float) -> None:
        places.take()
        try:
            super().__init__(engine)
        except BaseException:
            places.release()
            raise
        self._places = places
        self._beginning = False
        self._idle = max(1, round(idle * 1000))
        self.expired = False
        self.collided = False  # a statement failed as two transactions were in each other's way
        self._gate = gate
        self._limit = limit
        self._passing = contextlib.ExitStack()
        self._busy = threading.RLock()  # a statement is under way, or the end
        self._statement = False
        self._timer: threading.Timer | None = None
        sa.event.listen(self, "before_cursor_execute", self._before)
        sa.event.listen(self, "after_cursor_execute", self._after)

    def commit(self) -> NoReturn:
        """Raises PermanentError."""
        raise PermanentError("ctx.transaction() commits when its block ends; do not commit() it yourself")

    def rollback(self) -> NoReturn:
        """Raises PermanentError."""
        raise PermanentError("ctx.transaction() rolls back when its block raises; do not rollback() it yourself")

    def begin(self) -> Any:
        """A savepoint: the transaction itself ends with the block."""
        return self.begin_nested()

    def _autobegin(self) -> None:
        """What SQLAlchemy calls in front of the first statement, and while its own BEGIN is on the way."""
        if not self._beginning:
            self._beginning = True
            super().begin()
            if self.dialect.name == "postgresql":
                idle = f"SET LOCAL idle_in_transaction_session_timeout = {self._idle}"
                try:
                    self.exec_driver_sql(idle)  # a process that stands still must not keep its locks
                except sa.exc.DBAPIError as error:
                    if error.connection_invalidated:  # it lay in the pool, and nothing was done with it yet
                        raise Collided("the connection had been cut") from error
                    raise

    # SQLite: no other connection writes while it is open, so it has a time limit

    def about_to_begin(self) -> None:
        """SQLite's BEGIN follows."""
        self._passing.enter_context(self._gate.hold())

    def begun(self) -> None:
        if self._limit is not None:
            self._timer = threading.Timer(self._limit, self._expire, [self.connection.dbapi_connection])
            self._timer.daemon = True
            self._timer.start()

    def failed(self, error: BaseException) -> None:
        """A statement raised this."""
        self.collided = self.collided or is_transient(error)
        self._after()

    def _before(self, *_: object) -> None:
        self._busy.acquire()
        if self.expired:
            self._busy.release()
            raise self.too_long()
        self._statement = True

    def _after(self, *_: object) -> None:
        if self._statement:
            self._statement = False
            self._busy.release()

    def _expire(self, raw: Any) -> None:
        """Let the others write. No statement of ours may follow: it would be a transaction of its own."""
        self.expired = True
        until = time.monotonic() + _STUBBORN
        while not self._busy.acquire(timeout=0.02):
            raw.interrupt()
            if time.monotonic() > until:
                return
        try:
            if not self.closed and raw.in_transaction:
                raw.rollback()
            self._passing.close()
        finally:
            self._busy.release()

    def too_long(self) -> TransactionTooLong:
        """The error that says so."""
        return TransactionTooLong(
            f"ctx.transaction() held SQLite's write lock for more than {self._limit:g} s and was rolled back: do what "
            "takes long before it"
        )

    # its end

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Nothing ends it meanwhile. Raises TransactionTooLong if something has."""
        with self._busy:
            if self.expired:
                raise self.too_long()
            # If the handler has done nothing: what follows may go to the driver itself, which begins nothing on SQLite.
            self._autobegin()
            yield

    def commit_now(self) -> None:
        """Commit, and let the others write."""
        super().commit()
        self._passing.close()

    def give_up(self) -> None:
        """Roll back what is not committed, and close."""
        if self._timer is not None:
            self._timer.cancel()
        with self._busy:
            try:
                if not self.closed:
                    try:
                        super().close()
                    except sa.exc.DBAPIError:
                        pass  # the connection has gone, and with it what was not committed
                    finally:
                        self._places.release()
            finally:
                self._passing.close()


def is_transient(error: BaseException | None) -> bool:
    """Whether a database error only says that two transactions were in each other's way."""
    while error is not None:
        if getattr(error, "sqlstate", None) in ("40P01", "40001", "55P03"):
            return True
        ours = isinstance(error, sa.exc.DBAPIError) or type(error).__module__ in ("sqlite3", "psycopg.errors")
        if ours and _TRANSIENT.search(str(getattr(error, "orig", None) or error)):
            return True
        error = error.__cause__
    return False
