"""The hot path's statements, given to the driver itself: SQLAlchemy costs some 40 us a statement and 1 us a row.

Transactions, connections and errors stay SQLAlchemy's: what the driver raises comes out as SQLAlchemy would raise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NoReturn

import sqlalchemy as sa

_SQL_TYPES = {int: "bigint", float: "double precision", str: "text"}
_MOST = 256  # rows of one statement on SQLite, where each row is text of the statement
_INSERTED = 64  # rows of one INSERT on SQLite: more take no less time
_ROWS = "j"
_AMONG = re.compile(r"\{among (\w+)\}")
Columns = tuple[tuple[str, type], ...]


def run(connection: sa.Connection, sql: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Execute one statement with ``:name`` parameters; all its rows. Raises sqlalchemy.exc.DBAPIError.

    Begins no transaction by itself, as SQLAlchemy would: there has to be one.
    """
    text, order = _compiled(sql, connection.dialect)
    return _raw(connection, text, params if order is None else [params[name] for name in order])


def run_over(
    connection: sa.Connection,
    sql: str,
    columns: Columns,
    rows: Sequence[Sequence[object]],
    params: Mapping[str, object],
) -> list[tuple[Any, ...]]:
    """Execute a statement that begins with ``WITH {rows}`` over rows, which it sees as the table ``j``.

    ``{among t}`` in front of a condition says that ids of ``t`` are among those of the rows, their first column: a
    condition of the table's own, for PostgreSQL, which may else read all of it for a join with ``j``. A plan that was
    made while there were few tasks is kept for as long as nobody analyses the table.

    In one statement on PostgreSQL, where the rows are arrays; on SQLite in powers of two, so that few texts serve all
    lengths (VALUES takes a third of the time that rows as one JSON text do). Raises sqlalchemy.exc.DBAPIError.
    """
    if not rows:
        return []
    if connection.dialect.name == "postgresql":
        arrays = {
            f"{_ROWS}{i}": _array(values, kind)
            for i, (values, (_, kind)) in enumerate(zip(zip(*rows, strict=True), columns, strict=True))
        }
        text, _ = _compiled(_over_arrays(sql, columns), connection.dialect)
        return _raw(connection, text, {**params, **arrays})
    names = tuple(name for name, _ in columns)
    given: list[tuple[Any, ...]] = []
    at = 0
    for count in _powers(len(rows)):
        text, order = _over_values(sql, names, count, connection.dialect)
        bound = [*chain.from_iterable(rows[at : at + count]), *(params[name] for name in order)]
        given += _raw(connection, text, bound)
        at += count
    return given


def change_over(
    connection: sa.Connection,
    sql: str,
    columns: Columns,
    rows: Sequence[Sequence[object]],
    params: Mapping[str, object],
) -> int:
    """Like :func:`run_over` for a statement that returns nothing, on SQLite: the number of rows it changed."""
    driver: Any = connection.connection.dbapi_connection
    before: int = driver.total_changes
    run_over(connection, sql, columns, rows, params)
    changed: int = driver.total_changes - before
    return changed


def insert(
    connection: sa.Connection, table: str, columns: Columns, rows: Sequence[Sequence[object]], *, ours: bool
) -> None:
    """Insert many new rows, the fastest way there is: COPY on PostgreSQL. Raises sqlalchemy.exc.DBAPIError.

    ``ours``: the connection is the store's; another one may have any driver, and watches what goes through SQLAlchemy.
    """
    columns, rows = _filled(columns, rows)
    names = ", ".join(name for name, _ in columns)
    if not ours:
        text = f"INSERT INTO {table} ({names}) VALUES ({', '.join(f':{name}' for name, _ in columns)})"
        connection.execute(sa.text(text), [dict(zip((c for c, _ in columns), row, strict=True)) for row in rows])
        return
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql":
        text = f"COPY {table} ({names}) FROM STDIN"
        try:
            with driver.cursor() as cursor, cursor.copy(text) as copy:
                for row in rows:
                    copy.write_row(row)
        except Exception as error:
            _raise_as_sqlalchemy(connection, text, error)
        return
    one = f"({', '.join('?' * len(columns))})"
    at = 0
    for count in _powers(len(rows), _INSERTED):
        text = f"INSERT INTO {table} ({names}) VALUES {', '.join([one] * count)}"
        _raw(connection, text, list(chain.from_iterable(rows[at : at + count])))
        at += count


def _filled(columns: Columns, rows: Sequence[Sequence[object]]) -> tuple[Columns, Sequence[Sequence[object]]]:
    """Without the columns that no row fills, which are NULL all the same: binding a NULL costs SQLite's driver 0.4 us,
    as much as storing a number, and COPY its text."""
    across = list(zip(*rows, strict=True))
    filled = [i for i, values in enumerate(across) if values.count(None) < len(values)]
    if len(filled) == len(columns):
        return columns, rows
    return tuple(columns[i] for i in filled), list(zip(*(across[i] for i in filled), strict=True))


def _raise_as_sqlalchemy(connection: sa.Connection, text: str, error: Exception) -> NoReturn:
    errors: Any = connection.dialect.loaded_dbapi
    if not isinstance(error, errors.Error):
        raise error
    raise sa.exc.DBAPIError.instance(text, None, error, errors.Error, dialect=connection.dialect) from error


def _raw(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
    driver: Any = connection.connection.dbapi_connection
    try:
        cursor = driver.execute(text, bound)
        return cursor.fetchall() if cursor.description is not None else []
    except Exception as error:  # no context manager here: it would cost as much as the rest
        _raise_as_sqlalchemy(connection, text, error)


@lru_cache(maxsize=256)
def _compiled(sql: str, dialect: sa.Dialect) -> tuple[str, tuple[str, ...] | None]:
    """The driver's own text, and the order of its parameters if it has no names for them."""
    compiled: Any = sa.text(sql).compile(dialect=dialect)
    return str(compiled), None if compiled.positiontup is None else tuple(compiled.positiontup)


@lru_cache(maxsize=64)
def _over_arrays(sql: str, columns: Columns) -> str:
    names = ", ".join(name for name, _ in columns)
    arrays = ", ".join(f"CAST(:{_ROWS}{i} AS {_SQL_TYPES[kind]}[])" for i, (_, kind) in enumerate(columns))
    among = rf"\1.id = ANY(CAST(:{_ROWS}0 AS bigint[])) AND"
    return _AMONG.sub(among, sql).replace("{rows}", f"{_ROWS}({names}) AS (SELECT * FROM unnest({arrays}))")


@lru_cache(maxsize=256)
def _over_values(sql: str, names: tuple[str, ...], count: int, dialect: sa.Dialect) -> tuple[str, tuple[str, ...]]:
    text, order = _compiled(_AMONG.sub("", sql), dialect)
    assert text.lstrip().startswith("WITH {rows}"), "the rows' parameters come first"
    row = f"({', '.join('?' * len(names))})"
    values = ", ".join([row] * count)
    return text.replace("{rows}", f"{_ROWS}({', '.join(names)}) AS (VALUES {values})"), order or ()


def _powers(count: int, most: int = _MOST) -> Iterator[int]:
    while count:
        size = min(most, 1 << (count.bit_length() - 1))
        yield size
        count -= size


def _array(values: Iterable[object], kind: type) -> str:
    """The text of a PostgreSQL array: the driver's own way takes as long for one number."""
    if kind is str:
        return "{" + ",".join("NULL" if v is None else _quoted(str(v)) for v in values) + "}"
    return "{" + ",".join("NULL" if v is None else str(v) for v in values) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
