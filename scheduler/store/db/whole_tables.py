"""Whole tables, read and written in bulk, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa

from scheduler.errors import SchedulerError
from scheduler.store.db.tx import Tx

Row = Sequence[Any]  # a row's values, in the order of the table's columns
_CHUNK = 1000  # rows that are read, or written to SQLite, at a time
_LOCK_WAIT = "10s"  # for a transaction of another program to end


def keep_writers_out(tx: Tx, tables: Sequence[sa.Table]) -> None:
    """Until this transaction ends no other one changes these tables; readers go on.

    On SQLite a transaction that writes does so by itself. Raises sqlalchemy.exc.DBAPIError after 10 s of waiting.
    """
    if tx.dialect.name == "postgresql":
        tx.run(f"SET LOCAL lock_timeout = '{_LOCK_WAIT}'")
        tx.run(f"LOCK TABLE {', '.join(table.name for table in tables)} IN EXCLUSIVE MODE")


def is_empty(tx: Tx, table: sa.Table) -> bool:
    """Whether a table has no rows."""
    return not tx.run(f"SELECT 1 FROM {table.name} LIMIT 1").fetchall()


def read(tx: Tx, table: sa.Table) -> Iterator[Row]:
    """All rows of a table, in the order of its primary key."""
    wanted = sa.select(*table.c).order_by(*table.primary_key.columns)
    with tx.connection.execute(wanted, execution_options={"yield_per": _CHUNK}) as found:
        for part in found.partitions():
            yield from part


def write(tx: Tx, table: sa.Table, rows: Iterable[Row]) -> None:
    """Append rows to a table. Raises SchedulerError for one that does not fit, sqlalchemy.exc.DBAPIError."""
    raw: Any = tx.connection.connection.dbapi_connection
    names = ", ".join(f'"{column.name}"' for column in table.c)
    if tx.dialect.name == "postgresql":
        _translated(tx, table, lambda: _copy(raw, f"COPY {table.name} ({names}) FROM STDIN", rows))
        return
    text = f"INSERT INTO {table.name} ({names}) VALUES ({', '.join('?' * len(table.c))})"
    left = iter(rows)
    while part := list(islice(left, _CHUNK)):
        _translated(tx, table, lambda part=part: raw.executemany(text, part))  # type: ignore[misc]


def _copy(raw: Any, text: str, rows: Iterable[Row]) -> None:
    with raw.cursor() as cursor, cursor.copy(text) as copy:
        for row in rows:
            copy.write_row(row)


def _translated(tx: Tx, table: sa.Table, work: Callable[[], object]) -> None:
    """What the driver raises comes out as SQLAlchemy raises it, and a row that does not fit as SchedulerError."""
    driver: Any = tx.connection.dialect.loaded_dbapi
    try:
        work()
    except (driver.IntegrityError, driver.DataError) as error:
        detail = str(error).splitlines()[0]
        raise SchedulerError(f"{table.name}: the database does not take a row: {detail}") from None
    except driver.Error as error:
        raise sa.exc.DBAPIError(f"rows of {table.name}", None, error) from error


def last_number(tx: Tx, table: sa.Table) -> int:
    """The last id that the database has given out in a table that it numbers; 0: none yet."""
    (column,) = table.primary_key.columns
    if tx.dialect.name == "postgresql":
        # A sequence that has given out nothing has is_called false and the first number to come.
        name = tx.run(f"SELECT pg_get_serial_sequence('{table.name}', '{column.name}')").scalar_one()
        found = tx.run(f"SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END FROM {name}").scalar_one()
        return int(found)
    found = tx.run("SELECT seq FROM sqlite_sequence WHERE name = :name", name=table.name).scalar()
    return int(found or 0)


def go_on_after(tx: Tx, table: sa.Table, number: int) -> None:
    """The database numbers the next row of this table ``number`` + 1."""
    (column,) = table.primary_key.columns
    if tx.dialect.name == "postgresql":
        tx.run(f"SELECT setval(pg_get_serial_sequence('{table.name}', '{column.name}'), :next, false)", next=number + 1)
        return
    tx.run("DELETE FROM sqlite_sequence WHERE name = :name", name=table.name)
    tx.run("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :number)", name=table.name, number=number)
