"""Every difference between SQLite and PostgreSQL.

Hot statements are written once over fragments that come from here. Rows are bound as one JSON text, so that a
batch is one statement on both databases.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from scheduler.model.spec import plain
from scheduler.store.db.lazy import sa

_SQL_TYPES = {int: "bigint", float: "double precision", str: "text"}
_encoder = msgspec.json.Encoder(enc_hook=plain)


def bind_rows(rows: Sequence[Sequence[Any]] | Sequence[int]) -> str:
    """Rows (or ids) as the one JSON text that :meth:`Dialect.rows` and :meth:`Dialect.ids` read."""
    return _encoder.encode(rows).decode()


class Asked(Protocol):
    """A ``Tx``, as far as a dialect asks it."""

    def rows(self, sql: str, /, **params: object) -> list[tuple[Any, ...]]: ...


class Dialect:
    """What the statements need to know of the database they run on."""

    name = ""
    skip_locked = ""  # appended to a SELECT that locks what it reads, passing over rows others hold
    lock = ""  # the same, but waiting for them
    share = ""  # holds rows as they are until the transaction ends
    share_free = ""  # the same, passing over rows that others are changing
    next_claim = "{t}claim + 1"  # of a task that is claimed; above ``:above`` where the store may have epochs

    def rows(self, columns: Mapping[str, type], param: str = "rows") -> str:
        """A FROM item over the JSON rows bound to ``:param``, with these columns."""
        raise NotImplementedError

    def ids(self, param: str = "ids") -> str:
        """A subquery over the JSON ids bound to ``:param``."""
        raise NotImplementedError

    def among(self, column: str, param: str = "ids") -> str:
        """The condition that a column is one of the ids bound to ``:param`` by :meth:`bind_ids`; unlike a join with
        :meth:`ids` one that PostgreSQL looks up by an index."""
        raise NotImplementedError

    def few(self, select: str, _column: str) -> str:
        """A FROM item over the one column that ``select`` finds, of which there are few."""
        return f"({select})"

    def by_index(self, _name: str) -> str:
        """After a table: read it by this index, which SQLite does not find out without statistics."""
        return ""

    def bind_ids(self, ids: Sequence[int]) -> str:
        """Ids as :meth:`among` reads them."""
        return bind_rows(ids)

    def reserve_ids(self, tx: Asked, count: int) -> Sequence[int]:
        """``count`` task ids, ascending, that no other caller gets."""
        raise NotImplementedError

    def lock_names(self, tx: Asked, names: Iterable[str], *, shared: bool = False) -> set[str]:
        """Those of these names that could be locked at once, until the transaction ends, against others that do."""
        return set(names)  # a transaction that writes is alone

    def await_name(self, tx: Asked, name: str) -> None:
        """Lock a name like that, waiting for its holder."""

    def forget_plans(self, connection: sa.Connection) -> None:
        """Let this connection's statements be planned anew: their plans are of when the tables were smaller."""


class SQLite(Dialect):
    name = "sqlite"

    def rows(self, columns: Mapping[str, type], param: str = "rows") -> str:
        picked = ", ".join(f"value->>{i} AS {name}" for i, name in enumerate(columns))
        return f"(SELECT {picked} FROM json_each(:{param}))"

    def ids(self, param: str = "ids") -> str:
        return f"(SELECT value FROM json_each(:{param}))"

    def among(self, column: str, param: str = "ids") -> str:
        return f"{column} IN {self.ids(param)}"

    def by_index(self, name: str) -> str:
        return f"INDEXED BY {name}"

    def reserve_ids(self, tx: Asked, count: int) -> Sequence[int]:
        sql = "UPDATE sqlite_sequence SET seq = seq + :n WHERE name = 'schedd_tasks' RETURNING seq"
        ((last,),) = tx.rows(sql, n=count)
        return range(int(last) - count + 1, int(last) + 1)


class PostgreSQL(Dialect):
    name = "postgresql"
    skip_locked = "FOR UPDATE OF t SKIP LOCKED"
    lock = "FOR UPDATE OF t"
    share = "FOR SHARE OF t"
    share_free = "FOR SHARE OF t SKIP LOCKED"
    next_claim = "greatest({t}claim, CAST(:above AS bigint)) + 1"

    def rows(self, columns: Mapping[str, type], param: str = "rows") -> str:
        picked = ", ".join(
            f"CAST(value->>{i} AS {_SQL_TYPES[kind]}) AS {name}" for i, (name, kind) in enumerate(columns.items())
        )
        return f"(SELECT {picked} FROM json_array_elements(CAST(:{param} AS json)))"

    def ids(self, param: str = "ids") -> str:
        return f"(SELECT CAST(value AS bigint) FROM json_array_elements_text(CAST(:{param} AS json)))"

    def among(self, column: str, param: str = "ids") -> str:
        # Made once, before the rows are looked at, and expected to hold ten ids. Of an array in the condition itself
        # the statistics of a table that was not analysed yet say that a hundred ids are half of all there is: it was
        # read whole, in each cycle, and an array that is made of another text was made anew for each row.
        return f"{column} = ANY(ARRAY(SELECT unnest(CAST(:{param} AS bigint[]))))"

    def few(self, select: str, column: str) -> str:
        # Of an array ten rows are expected: of a table that was never analysed, because it is empty, 550, of a
        # recursion 101. A cross join of such numbers looks so dear that the server compiles it.
        return f"(SELECT unnest(ARRAY({select})) AS {column})"

    def bind_ids(self, ids: Sequence[int]) -> str:
        return "{" + ",".join(map(str, ids)) + "}"

    def reserve_ids(self, tx: Asked, count: int) -> Sequence[int]:
        ((first, last, drawn),) = tx.rows(
            # The sequence is looked up once, not for each id.
            "WITH s AS MATERIALIZED (SELECT CAST(pg_get_serial_sequence('schedd_tasks', 'id') AS regclass) AS ids) "
            "SELECT min(id), max(id), CASE WHEN max(id) - min(id) >= :n THEN array_agg(id) END "
            "FROM (SELECT nextval(s.ids) AS id FROM s, generate_series(1, :n)) drawn",
            n=count,
        )
        return range(first, last + 1) if drawn is None else sorted(drawn)  # others may have drawn some in between

    def lock_names(self, tx: Asked, names: Iterable[str], *, shared: bool = False) -> set[str]:
        numbers = [(name, _number(name)) for name in sorted(set(names))]
        lock = "pg_try_advisory_xact_lock_shared" if shared else "pg_try_advisory_xact_lock"
        source = self.rows({"name": str, "number": int})
        rows = tx.rows(f"SELECT name FROM {source} j WHERE {lock}(number)", rows=bind_rows(numbers))
        return {row[0] for row in rows}

    def await_name(self, tx: Asked, name: str) -> None:
        tx.rows("SELECT pg_advisory_xact_lock(:number)", number=_number(name))

    def forget_plans(self, connection: sa.Connection) -> None:
        connection.execute(prepared("DISCARD PLANS"))


def _number(name: str) -> int:
    """Of an advisory lock: two names that share one wait for each other now and then, which does no harm."""
    import hashlib

    return int.from_bytes(hashlib.blake2b(f"schedd {name}".encode(), digest_size=8).digest(), signed=True)


def fence(states: str, table: str = "t") -> str:
    """The condition that a row of ``table`` is held as the row ``j`` says, by ``:worker``, in one of these states.

    One expression over both, so that PostgreSQL cannot take it for a filter of the table's own: its statistics of held
    rows are always wrong, it would expect one, and compare each of them with each row of ``j``.
    """
    return (
        f"CASE WHEN {table}.claim = j.claim THEN {table}.worker = :worker AND {table}.state + 0 {states} ELSE false END"
    )


DIALECTS: dict[str, Dialect] = {"sqlite": SQLite(), "postgresql": PostgreSQL()}


def dialect_of(connection: sa.Connection) -> Dialect:
    """The dialect of a connection, ours or the caller's."""
    return DIALECTS[connection.dialect.name]


def dialect_named(name: str) -> Dialect | None:
    return DIALECTS.get(name)


@lru_cache(maxsize=256)
def prepared(sql: str) -> sa.TextClause:
    """One text() per statement, so that SQLAlchemy's own caches hold."""
    return sa.text(sql)


MIN_SQLITE = (3, 38, 0)  # ->> and RETURNING with UPDATE … FROM


def sqlite_version() -> str:
    """That of the library which Python uses."""
    return sqlite3.sqlite_version


def sqlite_too_old() -> str | None:
    """A sentence if this Python's SQLite cannot do, else None."""
    if sqlite3.sqlite_version_info >= MIN_SQLITE:
        return None
    wanted = ".".join(map(str, MIN_SQLITE))
    return f"SQLite {sqlite3.sqlite_version} is too old, schedd needs {wanted} or newer"
