"""Readers of a store by the database's own driver, for commands that only read: SQLAlchemy takes most of their time.

They read usual stores and nothing else. A URL or a schema that is not usual is left to Database, which says
what is wrong. Later errors are told in Database's words, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, Protocol

from scheduler.ports import Clock
from scheduler.store.db.deadline import Deadline
from scheduler.store.db.dialect import DIALECTS
from scheduler.store.db.tx import Tx


class StoreReader(Protocol):
    """A store that a command only reads: a Database, or a reader by a driver alone."""

    @property
    def clock(self) -> Clock: ...

    def look(self) -> object: ...

    def now(self) -> int: ...

    def read(self) -> AbstractContextManager[Tx]: ...


class PlainReader(ABC):
    """The base of the readers. One that is not usual is closed, and left to Database."""

    dialect = ""

    def __init__(self, url: str, clock: Clock, errors: type[Exception]) -> None:
        self.clock = clock
        self.asked = ""  # the last statement
        self.raw: Any = None  # the driver's connection
        self._url = url
        self._errors = errors

    @abstractmethod
    def is_usual(self) -> bool:
        """Whether this is a whole store of this program's schema. Called once, first of all.

        Raises StoreUnavailableError for a server that cannot be reached.
        """

    @abstractmethod
    def within(self, seconds: float, *, each: bool = False) -> Deadline:
        """As ``Database.within``."""

    @abstractmethod
    def read(self) -> AbstractContextManager[Tx]:
        """A transaction that only reads. Raises StoreUnavailableError."""

    @property
    def path(self) -> Path:
        """The file of a SQLite database."""
        raise NotImplementedError

    def execute(self, sql: str, params: dict[str, Any]) -> Any:
        """Give the driver a statement with ``:name`` parameters. Returns its cursor."""
        self.asked = sql
        return self.raw.execute(sql, params)

    def look(self) -> PlainReader:
        """It is open."""
        return self

    def now(self) -> int:
        """The store's time in microseconds."""
        return self.clock.now()

    def close(self) -> None:
        """Close the connection."""
        if self.raw is not None:
            self.raw.close()

    def _raise_explained(self, error: Exception) -> NoReturn:
        """Raise what Database would."""
        import sqlalchemy as sa

        from scheduler.store.db.errors import cause, translate
        from scheduler.store.db.urls import parse_url

        raised = sa.exc.DBAPIError.instance(self.asked or None, None, error, self._errors)
        assert isinstance(raised, sa.exc.SQLAlchemyError)
        raise translate(raised, parse_url(self._url)) from cause(raised)


class PlainTx(Tx):
    """A transaction of a reader: statements go to the driver, rows come as SQLAlchemy's look."""

    __slots__ = ("_reader",)

    def __init__(self, reader: PlainReader, now: int) -> None:
        self._reader = reader
        self.dialect = DIALECTS[reader.dialect]
        self.now = now

    def __getattr__(self, name: str) -> NoReturn:  # no AttributeError, which tells of a broken row
        raise NotImplementedError(f"a reader's transaction has no {name}")

    def at(self, now: int) -> Tx:
        return PlainTx(self._reader, now)

    @property
    def path(self) -> Path:
        return self._reader.path

    def run(self, sql: str, /, **params: object) -> Any:
        return _Result(self._reader.execute(sql, params))

    def rows(self, sql: str, /, **params: object) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._reader.execute(sql, params).fetchall()
        return found


class _Row(tuple[Any, ...]):
    """A row with its columns as attributes."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    @property
    def _mapping(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _asdict(self) -> dict[str, Any]:
        return self._mapping


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> type[_Row]:
    columns = {name: property(itemgetter(i)) for i, name in enumerate(names)}
    return type("_Row", (_Row,), {**columns, "__slots__": (), "_fields": names})


class _Result:
    """The rows of a statement, with those of SQLAlchemy's methods that reads use."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._made: Callable[[tuple[Any, ...]], _Row] = _row_type(tuple(name for name, *_ in cursor.description))

    def __iter__(self) -> Iterator[_Row]:
        return map(self._made, self._cursor)

    def all(self) -> list[_Row]:
        return list(self)

    fetchall = all

    def first(self) -> _Row | None:
        row = self._cursor.fetchone()
        self._cursor.close()
        return None if row is None else self._made(row)

    def one_or_none(self) -> _Row | None:
        (row,) = self.all() or (None,)
        return row

    def one(self) -> _Row:
        (row,) = self
        return row

    def scalar(self) -> Any:
        row = self.first()
        return None if row is None else row[0]

    def scalar_one(self) -> Any:
        return self.one()[0]

    def scalars(self) -> _Scalars:
        return _Scalars(row[0] for row in self)


class _Scalars:
    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        return self._values

    def all(self) -> list[Any]:
        return list(self._values)
