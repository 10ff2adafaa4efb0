"""A SQLite store read by Python's own driver, for commands that only read: SQLAlchemy's import is most of their time.

It reads usual stores and nothing else. A URL, a file or a schema that is not usual is left to Database, which says
what is wrong. Later errors are told in Database's words, too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from scheduler.ports import Clock
from scheduler.store.db import deadline
from scheduler.store.db.deadline import Deadline
from scheduler.store.db.dialect import DIALECTS, sqlite_too_old
from scheduler.store.db.identity import SameStore
from scheduler.store.db.schema_version import HEAD, SQLITE_TABLES, VERSION_ROWS
from scheduler.store.db.sqlite_files import LOOK_PRAGMAS, SQLITE_BUSY_MS, uri_to_look
from scheduler.store.db.table_names import TABLES
from scheduler.store.db.tx import Tx

_SCHEME = "sqlite:///"
_UNUSUAL = frozenset("?#%\n")  # options, or characters that the full way reads its own way


class StoreReader(Protocol):
    """A store that a command only reads: a Database, or a FileReader."""

    @property
    def clock(self) -> Clock: ...

    def look(self) -> object: ...

    def now(self) -> int: ...

    def read(self) -> AbstractContextManager[Tx]: ...


class FileReader:
    """The file of a usual store, open. :func:`open_file` makes it."""

    def __init__(self, url: str, path: Path, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.asked = ""  # the last statement
        self._url = url
        self._same = SameStore(None, path, clock.now)
        self._same.begin(looks=True)
        # No waiting yet: a file that is locked is left to Database, which waits.
        self.raw = sqlite3.connect(
            uri_to_look(path), uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            for pragma in LOOK_PRAGMAS:
                self.raw.execute(f"PRAGMA {pragma}")
            self._same.made(self.raw)
        except BaseException:
            self.raw.close()
            raise

    def is_usual(self) -> bool:
        """Whether this is a whole store of this program's schema. Raises sqlite3.Error."""
        return {name for (name,) in self.raw.execute(SQLITE_TABLES)}.issuperset(TABLES) and self.raw.execute(
            VERSION_ROWS
        ).fetchall() == [(HEAD,)]

    def look(self) -> None:
        """It is open."""

    def now(self) -> int:
        """Wall time in microseconds."""
        return self.clock.now()

    def within(self, seconds: float, *, each: bool = False) -> Deadline:
        """As ``Database.within``."""
        return Deadline(seconds, lambda: None, each=each)

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """A transaction that only reads, without a lock. Raises StoreUnavailableError."""
        deadline.begin()
        self._same.check_file()
        try:
            limit = deadline.current()
            self.raw.execute(f"PRAGMA busy_timeout = {round(1000 * deadline.left(SQLITE_BUSY_MS / 1000))}")
            if limit is not None:
                limit.interrupts(self.raw)
            self.raw.execute("BEGIN")
            try:
                yield _FileTx(self, self.now())
            finally:
                self.raw.rollback()
        except sqlite3.Error as error:
            self._raise_explained(error)

    def close(self) -> None:
        """Close the file."""
        self.raw.close()

    def _raise_explained(self, error: sqlite3.Error) -> None:
        """Raise what Database would."""
        import sqlalchemy as sa

        from scheduler.store.db.errors import cause, translate
        from scheduler.store.db.urls import parse_url

        raised = sa.exc.DBAPIError.instance(self.asked, None, error, sqlite3.Error)
        assert isinstance(raised, sa.exc.SQLAlchemyError)
        raise translate(raised, parse_url(self._url)) from cause(raised)


def open_file(url: str, clock: Clock) -> FileReader | None:
    """A reader of the store at this URL; None if it is not a usual one, or cannot be opened at once."""
    path = url.removeprefix(_SCHEME)
    if not url.startswith(_SCHEME) or path.startswith((":memory:", "file:")) or not _UNUSUAL.isdisjoint(path):
        return None
    try:
        found = Path(path).absolute()
        if not found.is_file() or found.stat().st_size == 0 or sqlite_too_old() is not None:
            return None
        reader = FileReader(url, found, clock)
    except (OSError, ValueError, sqlite3.Error):
        return None
    try:
        if reader.is_usual():
            return reader
    except sqlite3.Error:
        pass
    reader.close()
    return None


class _FileTx(Tx):
    """A transaction of a FileReader: statements go to the driver as they are, rows come as SQLAlchemy's look."""

    __slots__ = ("_reader",)

    def __init__(self, reader: FileReader, now: int) -> None:
        self._reader = reader
        self.dialect = DIALECTS["sqlite"]
        self.now = now

    def at(self, now: int) -> Tx:
        return _FileTx(self._reader, now)

    @property
    def path(self) -> Path:
        return self._reader.path

    def run(self, sql: str, /, **params: object) -> Any:
        return _Result(self._execute(sql, params))

    def rows(self, sql: str, /, **params: object) -> list[tuple[Any, ...]]:
        return self._execute(sql, params).fetchall()

    def _execute(self, sql: str, params: dict[str, Any]) -> sqlite3.Cursor:
        self._reader.asked = sql
        return self._reader.raw.execute(sql, params)


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

    def __init__(self, cursor: sqlite3.Cursor) -> None:
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
