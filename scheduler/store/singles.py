"""Connections for single statements, which stay checked out of the pool in between.

To check one out, switch autocommit on and off and give it back took longer than all the rest of our side of one INSERT.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import sqlalchemy as sa

from scheduler.store.failures import explain
from scheduler.store.wires import Wires, let_go

MOST = 2  # that are kept; more at once are checked out and given back


class Singles:
    """Those of one engine, on PostgreSQL (where there are ``wires``) in autocommit. Last in, first out.

    ``room``: how many connections the pool makes at most.
    """

    def __init__(
        self, engine: sa.Engine, wires: Wires | None, calibrate: Callable[[sa.Connection], None], room: int
    ) -> None:
        self.engine = engine
        self._wires = wires
        self._calibrate = calibrate
        self._room = room
        self._kept: deque[tuple[sa.Connection, Any, float]] = deque()  # with the driver's, and since when
        self._mutex = threading.RLock()  # a signal's handler may come in between
        self._closed = False

    def take(self) -> tuple[sa.Connection, Any]:
        """One, and the driver's own. Raises what SQLAlchemy raises."""
        connection, raw = self._kept_one() or self._new_one()
        if self._wires is not None:
            try:
                self._calibrate(connection)
                if connection.in_transaction():
                    connection.rollback()  # SQLAlchemy's idea of a transaction: the server has none
            except BaseException:
                let_go(connection)
                raise
        return connection, raw

    def _kept_one(self) -> tuple[sa.Connection, Any] | None:
        try:
            connection, raw, since = self._kept.pop()
        except IndexError:
            return None
        if self._wires is not None:
            try:
                self._wires.taken(raw, since)
            except self._wires.errors:
                self.drop(connection, raw)
                return None
        return connection, raw

    def _new_one(self) -> tuple[sa.Connection, Any]:
        connection = self.engine.connect()
        if self._wires is not None:
            # Not the driver's autocommit alone: the pool is to take it back whichever way it comes there.
            connection.execution_options(isolation_level="AUTOCOMMIT")
        return connection, connection.connection.dbapi_connection

    def put_back(self, connection: sa.Connection, raw: Any) -> None:
        """Keep it, if it is fit and there is room, and nobody may be waiting for one of the pool's."""
        if connection.in_transaction() or (self._wires is not None and raw.closed):
            self.drop(connection, raw)
            return
        if self._wires is not None:
            self._wires.idle(raw)  # first: from then on another thread may take it
        pool: Any = self.engine.pool
        with self._mutex:
            if not self._closed and len(self._kept) < MOST and pool.checkedout() < self._room:
                self._kept.append((connection, raw, time.monotonic()))
                return
        if self._closed:
            let_go(connection)
        else:
            connection.close()

    def drop(self, connection: sa.Connection, raw: Any) -> None:
        """Close it for good. If it has lost its server, so have those that lay there longer, here and in the pool, and
        nobody is to wait for each of them to find out."""
        if self._wires is not None and raw.closed:
            with suppress(sa.exc.SQLAlchemyError):
                connection.exec_driver_sql("SELECT 1")  # so that SQLAlchemy learns of it
            self._let_all_go()
        let_go(connection)

    def close(self) -> None:
        """Close those that are kept, and from now on those that come back."""
        with self._mutex:
            self._closed = True
        self._let_all_go()

    def _let_all_go(self) -> None:
        with suppress(IndexError):  # there is none left
            while True:
                let_go(self._kept.pop()[0])


class Single:
    """A context: one of them, while ``passage`` is held. Raises StoreUnavailableError."""

    __slots__ = ("_connection", "_passage", "_raw", "_singles")

    def __init__(self, singles: Singles, passage: AbstractContextManager[None]) -> None:
        self._singles = singles
        self._passage = passage

    def __enter__(self) -> sa.Connection:
        self._passage.__enter__()
        try:
            self._connection, self._raw = self._singles.take()
        except BaseException as error:
            self._leave(error)
            raise
        return self._connection

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            if error is None:
                self._singles.put_back(self._connection, self._raw)
            else:
                self._singles.drop(self._connection, self._raw)
        except BaseException as more:
            error = more
            raise
        finally:
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        self._passage.__exit__(None, None, None)
        if isinstance(error, sa.exc.SQLAlchemyError):
            raise explain(error, self._singles.engine.url) from error
