"""Connections for single statements, which stay checked out of the pool in between.

To check one out, switch autocommit on and off and give it back took longer than all the rest of our side of one INSERT.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from scheduler.store.db.errors import cause, translate
from scheduler.store.db.pg_connections import PgConnections, let_go
from scheduler.store.db.pool import FairPool
from scheduler.store.db.statements import NOTIFY, Notice, raise_as_sqlalchemy
from scheduler.store.db.write_gate import WriteGate

PLANS_KEPT_S = 10.0  # seconds, where the server is not to keep plans for long
MAX_KEPT = 2  # that are kept; more at once are checked out and given back


class AutocommitPool:
    """Those of one engine, on PostgreSQL (where there are ``wires``) in autocommit. Last in, first out."""

    def __init__(
        self,
        engine: sa.Engine,
        wires: PgConnections | None,
        clock_is_due: Callable[[], bool],
        calibrate: Callable[[sa.Connection], None],
    ) -> None:
        pool = engine.pool
        assert isinstance(pool, FairPool)
        self.engine = engine
        self._wires = wires
        self._clock_is_due = clock_is_due
        self._calibrate = calibrate
        self._has_room = pool.has_room
        self._kept: deque[tuple[sa.Connection, Any, float]] = deque()  # with the driver's, and since when
        self._mutex = threading.RLock()  # a signal's handler may come in between
        self._closed = False

    def take(self, *, settled: bool = True) -> tuple[sa.Connection, Any]:
        """One, and the driver's own. Raises what SQLAlchemy raises.

        ``settled``: with all read that the server has answered. :meth:`insert_on_server` and :meth:`notify` do without.
        """
        calibrates = self._wires is not None and self._clock_is_due()
        try:
            connection, raw, since = self._kept.pop()
        except IndexError:
            connection, raw = self._new_one()
        else:
            if self._wires is not None and not self._taken(self._wires, connection, raw, since, settled or calibrates):
                connection, raw = self._new_one()
        if calibrates or (settled and self._wires is not None):
            try:
                if calibrates:
                    self._calibrate(connection)
                if connection.in_transaction():
                    connection.rollback()  # SQLAlchemy's idea of a transaction: the server has none
            except BaseException:
                let_go(connection)
                raise
        return connection, raw

    def _taken(self, wires: PgConnections, connection: sa.Connection, raw: Any, since: float, settled: bool) -> bool:
        try:
            wires.taken(raw, since)
            if settled:
                raw.settle()
        except wires.errors:
            self.drop(connection, raw)
            return False
        return True

    def _new_one(self) -> tuple[sa.Connection, Any]:
        connection = self.engine.connect()
        if self._wires is not None:
            # Not the driver's autocommit alone: the pool is to take it back whichever way it comes there.
            connection.execution_options(isolation_level="AUTOCOMMIT")
        return connection, connection.connection.dbapi_connection

    def put_back(self, connection: sa.Connection, raw: Any) -> None:
        """Keep it, if it is fit and there is room, and no thread waits for one of the pool's."""
        since = 0.0
        if self._wires is None:
            fit = not raw.in_transaction
        elif fit := not (connection.in_transaction() or raw.closed):
            since = time.monotonic()
            self._wires.idle(raw)  # first: from then on another thread may take it
        if not fit:
            self.drop(connection, raw)
            return
        self._keep((connection, raw, since))

    def _keep(self, one: tuple[sa.Connection, Any, float]) -> None:
        with self._mutex:
            if not self._closed and len(self._kept) < MAX_KEPT and self._has_room():
                self._kept.append(one)
                return
        if not self._closed:
            with suppress(Exception):  # one that is lost
                if self._wires is not None:
                    one[1].settle()
                one[0].close()
                return
        let_go(one[0])

    def insert(self, text: str, values: Sequence[object] | Mapping[str, object]) -> int | None:
        """SQLite: take one, insert a row, and put it back; straight on, for right after a flush of the log each call is
        dear. Returns the row's id, None if it was ignored. Raises what SQLAlchemy raises."""
        try:
            kept = self._kept.pop()
        except IndexError:
            kept = *self._new_one(), 0.0
        try:
            cursor = kept[1].execute(text, values)
            made: int | None = cursor.lastrowid if cursor.rowcount else None
        except BaseException as error:
            self.drop(kept[0], kept[1])
            raise_as_sqlalchemy(kept[0], text, error)
        self._keep(kept)
        return made

    def insert_on_server(
        self,
        make: Callable[[], tuple[str, Sequence[int | str]]],
        notice: Notice | None,
        meanwhile: Callable[[], None] | None,
        planning: float | None,
    ) -> int | None:
        """PostgreSQL: the same by a statement with ``$1`` for the first value and RETURNING id.

        ``make``: the statement and its values, called once the clock is compared. ``notice``: what is notified once
        the row is committed. ``meanwhile`` is called while the server works. ``planning``: now (monotonic), if
        the server is not to keep its plans for long.
        """
        connection, raw = self.take(settled=False)
        text = ""
        try:
            if planning is not None and planning - raw.singles.planned > PLANS_KEPT_S:
                raw.plan_anew(planning)
            text, values = make()
            row = raw.one_row(text, values, notice, meanwhile)
        except BaseException as error:
            self.drop(connection, raw)
            raise_as_sqlalchemy(connection, text, error)
        self._keep_unsettled(connection, raw)
        return int(row[0]) if row else None

    def notify(self, notice: Notice) -> None:
        """PostgreSQL: notify without waiting for the answer. Raises what SQLAlchemy raises."""
        connection, raw = self.take(settled=False)
        try:
            raw.send_notice(notice)
        except BaseException as error:
            self.drop(connection, raw)
            raise_as_sqlalchemy(connection, NOTIFY, error)
        self._keep_unsettled(connection, raw)

    def _keep_unsettled(self, connection: sa.Connection, raw: Any) -> None:
        raw.user = None  # first: from then on another thread may take it
        self._keep((connection, raw, time.monotonic()))

    def drop(self, connection: sa.Connection, raw: Any) -> None:
        """Close it for good. If it has lost its server, so have those that lay there longer, here and in the pool, and
        no caller is to wait for each of them to find out."""
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


class AutocommitConnection:
    """A context: one of them, once through the ``gate``. Raises StoreUnavailableError."""

    __slots__ = ("_connection", "_entered", "_gate", "_raw", "_singles")

    def __init__(self, singles: AutocommitPool, gate: WriteGate) -> None:
        self._singles = singles
        self._gate = gate

    def __enter__(self) -> sa.Connection:
        self._entered = self._gate.enter()
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
        if self._entered:
            self._gate.leave()
        if isinstance(error, sa.exc.SQLAlchemyError):
            raise translate(error, self._singles.engine.url) from cause(error)
