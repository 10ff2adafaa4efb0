"""A SQLite store read by Python's own driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler.ports import Clock
from scheduler.store.db import deadline
from scheduler.store.db.deadline import Deadline
from scheduler.store.db.dialect import sqlite_too_old
from scheduler.store.db.identity import SameStore
from scheduler.store.db.plain_reader import PlainReader, PlainTx
from scheduler.store.db.schema_version import HEAD, SQLITE_TABLES, VERSION_ROWS
from scheduler.store.db.sqlite_files import LOOK_PRAGMAS, SQLITE_BUSY_MS, uri_to_look
from scheduler.store.db.table_names import TABLES
from scheduler.store.db.tx import Tx

_SCHEME = "sqlite:///"
_UNUSUAL = frozenset("?#%\n")  # options, or characters that the full way reads its own way


class FileReader(PlainReader):
    """The file of a store. :func:`file_reader` makes it."""

    dialect = "sqlite"

    def __init__(self, url: str, path: Path, clock: Clock) -> None:
        super().__init__(url, clock, sqlite3.Error)
        self._path = path
        self._same = SameStore(None, path, clock.now)

    @property
    def path(self) -> Path:
        return self._path

    def is_usual(self) -> bool:
        try:
            if not self._path.is_file() or self._path.stat().st_size == 0 or sqlite_too_old() is not None:
                return False
            self._same.begin(looks=True)
            # No waiting: a file that is locked is left to Database, which waits.
            self.raw = raw = sqlite3.connect(
                uri_to_look(self._path), uri=True, timeout=0, isolation_level=None, check_same_thread=False
            )
            for pragma in LOOK_PRAGMAS:
                raw.execute(f"PRAGMA {pragma}")
            self._same.made(raw)
            if {name for (name,) in raw.execute(SQLITE_TABLES)}.issuperset(TABLES) and raw.execute(
                VERSION_ROWS
            ).fetchall() == [(HEAD,)]:
                return True
        except (OSError, ValueError, sqlite3.Error):
            pass
        self.close()
        return False

    def within(self, seconds: float, *, each: bool = False) -> Deadline:
        return Deadline(seconds, lambda: None, each=each)

    @contextmanager
    def read(self) -> Iterator[Tx]:
        deadline.begin()
        self._same.check_file()
        try:
            limit = deadline.current()
            self.raw.execute(f"PRAGMA busy_timeout = {round(1000 * deadline.left(SQLITE_BUSY_MS / 1000))}")
            if limit is not None:
                limit.interrupts(self.raw)
            self.raw.execute("BEGIN")
            try:
                yield PlainTx(self, self.now())
            finally:
                self.raw.rollback()
        except sqlite3.Error as error:
            self._raise_explained(error)


def file_reader(url: str, clock: Clock) -> FileReader | None:
    """A reader of the store at this URL; None if the URL is not that of a file, or says more."""
    path = url.removeprefix(_SCHEME)
    if not url.startswith(_SCHEME) or path.startswith((":memory:", "file:")) or not _UNUSUAL.isdisjoint(path):
        return None
    try:
        return FileReader(url, Path(path).absolute(), clock)
    except OSError:  # the directory is gone
        return None
