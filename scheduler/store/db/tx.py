"""One transaction, as it is handed down to whatever reads or writes in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.store.db import statements
from scheduler.store.db.dialect import DIALECTS, prepared

if TYPE_CHECKING:
    import sqlalchemy as sa


class Tx:
    """A connection with its transaction, the dialect of its database, and the one ``now`` of all that is done in it.

    Made where the transaction is opened: ``Database.write``, ``read``, ``glance``, ``single``, ``change``.
    """

    __slots__ = ("connection", "dialect", "now")
    ours = True  # the store has begun it, on a connection of its own, and on SQLite with the write lock

    def __init__(self, connection: sa.Connection, now: int) -> None:
        self.connection = connection
        self.dialect = DIALECTS[connection.dialect.name]
        self.now = now

    def at(self, now: int) -> Tx:
        """The same transaction at another time, in microseconds."""
        return Tx(self.connection, now)

    @property
    def path(self) -> Path:
        """The file of a SQLite database."""
        return Path(self.connection.engine.url.database or "").absolute()

    def run(self, sql: str, /, **params: object) -> sa.CursorResult[*tuple[Any, ...]]:
        """Execute one statement with ``:name`` parameters. Raises sqlalchemy.exc.DBAPIError."""
        return self.connection.execute(prepared(sql), params)

    def rows(self, sql: str, /, **params: object) -> list[tuple[Any, ...]]:
        """:meth:`run` through the driver itself, for hot paths; on the store's connections only. All rows, as tuples.

        Raises sqlalchemy.exc.DBAPIError.
        """
        connection = self.connection  # as statements.run() does, without its call: a poll of an idle engine makes many
        text, order = statements.compiled(sql, connection.dialect)
        return statements._raw(connection, text, params if order is None else [params[name] for name in order])


class CallersTx(Tx):
    """A transaction of a caller's own: its connection may have another driver, and be watched."""

    __slots__ = ()
    ours = False

    def at(self, now: int) -> Tx:
        return CallersTx(self.connection, now)

    def rows(self, sql: str, /, **params: object) -> list[tuple[Any, ...]]:
        """All rows, as tuples: through the driver itself where nothing watches, else as :meth:`run` asks."""
        if statements.is_unwatched(self.connection):
            return super().rows(sql, **params)
        found = self.run(sql, **params)
        return [tuple(row) for row in found] if found.returns_rows else []
