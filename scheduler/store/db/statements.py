"""The hot path's statements, given to the driver itself: SQLAlchemy costs some 40 us a statement and 1 us a row.

Transactions, connections and errors stay SQLAlchemy's: what the driver raises comes out as SQLAlchemy would raise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from scheduler.store.db.lazy import sa

if TYPE_CHECKING:
    from scheduler.store.db.tx import Tx

SQL_TYPES = {int: "bigint", float: "double precision", str: "text"}
_MAX_ROWS = 256  # rows of one statement on SQLite, where each row is text of the statement
_STEP = 8  # the number of rows is a multiple of this where rows may be filled up
_INSERTED = 1024  # values of one INSERT on SQLite: more take no less time
ANSWERED = "schedd_answered"  # in a connection's info (PostgreSQL): to be called with each answer
_ROWS = "j"
_NAMED = re.compile(r"%\((\w+)\)s")
_AMONG = re.compile(r"\{among (\w+)\}")
Columns = tuple[tuple[str, type], ...]
_DRIVERS = {("sqlite", "pysqlite"), ("postgresql", "psycopg")}
_INFO = 20  # of logging, whose import a command that reads a file does without


NOTIFY = "SELECT 1 FROM pg_notify($1, $2)"  # with a Notice


class Notice(NamedTuple):
    """A notification, to be sent in a transaction of its own right behind a statement."""

    channel: str
    payload: str


def run(connection: sa.Connection, sql: str, params: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Execute one statement with ``:name`` parameters; all its rows. Raises sqlalchemy.exc.DBAPIError.

    Begins no transaction by itself, as SQLAlchemy would: there has to be one.
    """
    text, order = compiled(sql, connection.dialect)
    return _raw(connection, text, params if order is None else [params[name] for name in order])


def run_over(
    tx: Tx, sql: str, columns: Columns, rows: Sequence[Sequence[object]], /, **params: object
) -> list[tuple[Any, ...]]:
    """Execute a statement that begins with ``WITH {rows}`` over rows, which it sees as the table ``j``.

    ``{among t}`` in front of a condition says that ids of ``t`` are among those of the rows, their first column: a
    condition of the table's own, for PostgreSQL, which may else read all of it for a join with ``j``. A plan that was
    made while there were few tasks is kept until the table is analysed.

    In one statement on PostgreSQL, where the rows are arrays; on SQLite in powers of two, so that few texts serve all
    lengths (VALUES takes a third of the time that rows as one JSON text do). Raises sqlalchemy.exc.DBAPIError.
    """
    return run_across(tx, sql, columns, [*zip(*rows, strict=True)], None, **params) if rows else []


def run_across(
    tx: Tx,
    sql: str,
    columns: Columns,
    values: Sequence[Sequence[object]],
    blank: Sequence[object] | None,
    /,
    **params: object,
) -> list[tuple[Any, ...]]:
    """:func:`run_over` rows that are given by their columns, which takes a sixth of the time to bind on SQLite.

    ``blank``: a row that brings nothing about. On SQLite rows are filled up with it, so that one statement does.
    """
    total = len(values[0])
    if not total:
        return []
    if tx.dialect.name == "postgresql":
        arrays = {
            f"{_ROWS}{i}": _array(column, kind)
            for i, (column, (_, kind)) in enumerate(zip(values, columns, strict=True))
        }
        return tx.rows(_over_arrays(sql, columns), **params, **arrays)
    connection = tx.connection
    names = tuple(name for name, _ in columns)
    given: list[tuple[Any, ...]] = []
    at = 0
    for count in _sizes(total, whole=blank is None):
        text, order = _over_values(sql, names, count, connection.dialect)
        bound = [*(blank or (None,) * len(columns))] * count
        part = min(count, total - at) * len(columns)
        for i, column in enumerate(values):
            bound[i : part : len(columns)] = column[at : at + count]
        bound += [params[name] for name in order]
        given += _raw(connection, text, bound)
        at += count
    return given


def change_across(
    tx: Tx,
    sql: str,
    columns: Columns,
    values: Sequence[Sequence[object]],
    blank: Sequence[object],
    /,
    **params: object,
) -> int:
    """Like :func:`run_across` for a statement that returns nothing, on SQLite: the number of rows it changed."""
    driver: Any = tx.connection.connection.dbapi_connection
    before: int = driver.total_changes
    run_across(tx, sql, columns, values, blank, **params)
    changed: int = driver.total_changes - before
    return changed


def insert(tx: Tx, table: str, columns: Columns, chunks: Iterable[Sequence[object]]) -> None:
    """Insert many new rows, the fastest way there is: COPY on PostgreSQL. Raises sqlalchemy.exc.DBAPIError.

    ``chunks``: each the values of some rows, one row's after the other's. A tuple for each row would be one more object
    that Python's garbage collector has to visit, and those of a large batch make it visit all objects.
    PostgreSQL stores one chunk while the next is made. In a caller's transaction that is watched all rows go through
    SQLAlchemy.
    """
    connection = tx.connection
    direct = tx.ours or is_unwatched(connection)
    if direct and connection.dialect.name == "postgresql" and chunks:
        _copy(connection, table, columns, chunks)
        return
    for values in chunks:
        across = Across(columns, values)
        if direct:
            _insert_values(connection, table, across)
            continue
        names = [*across.varying, *across.constant]
        text = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
        varying = zip(*across.varying.values(), strict=True)
        given = [dict(zip(across.varying, row, strict=True)) | across.constant for row in varying]
        connection.execute(sa.text(text), given)


class Across:
    """Rows by their columns: those that vary, and those that hold one value for all rows.

    Most columns of a batch do. To bind or copy that value once for all of them spares most of the time.
    """

    def __init__(self, columns: Columns, values: Sequence[object]) -> None:
        self.count = len(values) // len(columns)
        self.varying: dict[str, Sequence[object]] = {}
        self.constant: dict[str, object] = {}  # without NULL, which is there all the same
        for i, (name, _) in enumerate(columns):
            column = values[i :: len(columns)]
            first = column[0]
            if not self.varying or column[-1] != first or column.count(first) != self.count:
                self.varying[name] = column  # the first one, too: there has to be one
            elif first is not None:
                self.constant[name] = first


def _insert_values(connection: sa.Connection, table: str, across: Across) -> None:
    constants = tuple(across.constant.values())
    names = ", ".join([*across.constant, *across.varying])
    picked = ", ".join([*["?"] * len(constants), *(f"column{i + 1}" for i in range(len(across.varying)))])
    one = f"({', '.join('?' * len(across.varying))})"
    bound = list(chain.from_iterable(zip(*across.varying.values(), strict=True)))
    at = 0
    for count in _sizes(across.count, _INSERTED // len(across.varying)):
        text = f"INSERT INTO {table} ({names}) SELECT {picked} FROM (VALUES {', '.join([one] * count)})"
        size = count * len(across.varying)
        _raw(connection, text, [*constants, *bound[at : at + size]])
        at += size


def _copy(connection: sa.Connection, table: str, columns: Columns, chunks: Iterable[Sequence[object]]) -> None:
    """COPY with a text of our own: the driver's rows take each value by itself, also where all are the same."""
    driver: Any = connection.connection.dbapi_connection
    text = f"COPY {table} ({', '.join(name for name, _ in columns)}) FROM STDIN"
    try:
        with driver.cursor() as cursor, cursor.copy(text) as copy:
            for values in chunks:
                copy.write(_copied_rows(columns, Across(columns, values)))
    except Exception as error:
        raise_as_sqlalchemy(connection, text, error)


def _copied_rows(columns: Columns, across: Across) -> str:
    fields = (
        "%s" if name in across.varying else _copied([across.constant.get(name)])[0].replace("%", "%%")
        for name, _ in columns
    )
    row = "\t".join(fields) + "\n"
    return "".join([row % varying for varying in zip(*map(_copied, across.varying.values()), strict=True)])


def _copied(values: Sequence[object]) -> Sequence[str]:
    """A column's values in COPY's text format (https://www.postgresql.org/docs/current/sql-copy.html, Text Format)."""
    if None in values:
        return ["\\N" if value is None else _copied([value])[0] for value in values]
    if not isinstance(values[0], str):
        return [str(value) for value in values]
    text = "\0".join(map(str, values))  # as one, which is quick; PostgreSQL stores no NUL
    for special, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(special, escaped)
    return text.split("\0")


def is_unwatched(connection: sa.Connection) -> bool:
    """Whether statements in a caller's transaction may go to the driver itself.

    It is a driver of the store's, and no event, echo or instrumentation of SQLAlchemy's would miss them, nor one that
    wraps the driver's connection: what it sees are cursors.
    """
    dialect = connection.dialect
    seen: Any = connection.dispatch
    asked: Any = dialect.dispatch
    return (
        (dialect.name, dialect.driver) in _DRIVERS
        and not dialect.is_async
        and connection.in_transaction()
        and not connection.engine.logger.isEnabledFor(_INFO)
        and not (seen.before_cursor_execute or seen.after_cursor_execute or seen.before_execute or seen.after_execute)
        and not (asked.handle_error or asked.do_execute)
        and hasattr(type(connection.connection.dbapi_connection), "execute")
    )


def tell_answer(connection: sa.Connection, *_: object) -> None:
    """Call what waits in ``connection`` for a sign of the server; SQLAlchemy's own statements come here as an event."""
    answered = connection.info.get(ANSWERED)
    if answered is not None:
        answered()


def raise_as_sqlalchemy(connection: sa.Connection, text: str, error: BaseException) -> NoReturn:
    """Raise the driver's error as SQLAlchemy would; an error that is not the driver's, as it is.

    SQLAlchemy learns of a connection that is lost in a transaction, as it would from a statement of its own. Else the
    rollback fails and hides the reason, and the pool gives away others to a server that is gone.
    """
    errors: Any = connection.dialect.loaded_dbapi
    if not isinstance(error, errors.Error):
        raise error
    lost: Any = error
    if connection.in_transaction() and connection.dialect.is_disconnect(
        lost, connection.connection.dbapi_connection, None
    ):
        with suppress(sa.exc.SQLAlchemyError):
            connection.exec_driver_sql("SELECT 1")
    raised: BaseException = sa.exc.DBAPIError.instance(
        text,
        None,
        lost,
        errors.Error,
        connection_invalidated=connection.invalidated,
        dialect=connection.dialect,
    )
    raise raised from error


def _raw(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
    driver: Any = connection.connection.dbapi_connection
    try:
        cursor = driver.execute(text, bound)
        if connection.dialect.name == "sqlite":
            return cursor.fetchall() if cursor.description is not None else []
        tell_answer(connection)
        # psycopg's description makes an object of each column.
        return cursor.fetchall() if cursor.pgresult.nfields else []
    except Exception as error:  # no context manager here: it would cost as much as the rest
        raise_as_sqlalchemy(connection, text, error)


def one_row(connection: sa.Connection, text: str, values: Sequence[int | str]) -> list[bytes | None]:
    """Carry out a statement on PostgreSQL that is a transaction of its own, by libpq: a third of the driver's time.

    On a connection without a transaction; ``$1`` is the first value. Returns the first row as texts, nothing without
    a row. Raises sqlalchemy.exc.DBAPIError.
    """
    driver: Any = connection.connection.dbapi_connection
    try:
        row: list[bytes | None] = driver.one_row(text, values)
        driver.settle()
    except Exception as error:
        raise_as_sqlalchemy(connection, text, error)
    tell_answer(connection)
    return row


@lru_cache(maxsize=64)
def numbered(sql: str, dialect: sa.Dialect) -> tuple[str, tuple[str, ...]]:
    """The text with ``$1`` for :func:`one_row`, and the parameters' names in the order of these numbers."""
    names: dict[str, int] = {}
    text = _NAMED.sub(lambda found: f"${names.setdefault(found[1], len(names) + 1)}", compiled(sql, dialect)[0])
    return text.replace("%%", "%"), tuple(names)


@lru_cache(maxsize=256)
def compiled(sql: str, dialect: sa.Dialect) -> tuple[str, tuple[str, ...] | None]:
    """The driver's own text, and the order of its parameters if it has no names for them."""
    compiled: Any = sa.text(sql).compile(dialect=dialect)
    return str(compiled), None if compiled.positiontup is None else tuple(compiled.positiontup)


@lru_cache(maxsize=64)
def _over_arrays(sql: str, columns: Columns) -> str:
    names = ", ".join(name for name, _ in columns)
    arrays = ", ".join(f"CAST(:{_ROWS}{i} AS {SQL_TYPES[kind]}[])" for i, (_, kind) in enumerate(columns))
    among = rf"\1.id = ANY(CAST(:{_ROWS}0 AS bigint[])) AND"
    return _AMONG.sub(among, sql).replace("{rows}", f"{_ROWS}({names}) AS (SELECT * FROM unnest({arrays}))")


@lru_cache(maxsize=512)
def _over_values(sql: str, names: tuple[str, ...], count: int, dialect: sa.Dialect) -> tuple[str, tuple[str, ...]]:
    text, order = compiled(_AMONG.sub("", sql), dialect)
    assert text.lstrip().startswith("WITH {rows}"), "the rows' parameters come first"
    row = f"({', '.join('?' * len(names))})"
    values = ", ".join([row] * count)
    return text.replace("{rows}", f"{_ROWS}({', '.join(names)}) AS (VALUES {values})"), order or ()


def _sizes(count: int, most: int = _MAX_ROWS, *, whole: bool = True) -> Iterator[int]:
    """Sizes of statements for so many rows: few sizes, so that few texts serve all counts. ``whole``: they add up to
    just as many; else the last one may hold more."""
    while count > 0:
        size = 1 << (count.bit_length() - 1)
        if not whole and size < count < most:
            size = -(-count // _STEP) * _STEP
        yield min(most, size)
        count -= min(most, size)


def _array(values: Iterable[object], kind: type) -> str:
    """The text of a PostgreSQL array: the driver's own way takes as long for one number."""
    if kind is str:
        return "{" + ",".join("NULL" if v is None else _quoted(str(v)) for v in values) + "}"
    return "{" + ",".join("NULL" if v is None else str(v) for v in values) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
