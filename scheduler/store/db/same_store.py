"""Whether connections still lead to the store that was opened: the same file, or a server of the same history."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from scheduler.errors import StoreReplacedError
from scheduler.store.db import identity
from scheduler.store.db.errors import StoreError
from scheduler.store.db.identity import Identity
from scheduler.store.db.statements import raise_as_sqlalchemy


class _OpenFile:
    """The SQLite file of one opening: a thread that looks at it while another opens the store anew judges the old one.

    ``id``: device and inode, from the first connection on; ``replaced``: once the path has led to another file.
    """

    id: tuple[int, int] | None = None
    replaced: StoreReplacedError | None = None


class SameStore:
    """Remembers the identity of the open store. ``path``: of a SQLite file, None on PostgreSQL; ``now``: its clock."""

    def __init__(self, url: sa.URL, path: Path | None, now: Callable[[], int]) -> None:
        self._url = url
        self._path = path
        self._now = now
        self.identity: Identity | None = None  # as it was last looked at; None: the server or the schema has none
        self._file = _OpenFile()
        self._looks = False  # a new epoch is left to those that write

    def begin(self, *, looks: bool = False) -> None:
        """The store is opened anew: whatever file is there now is the right one. ``looks``: nothing is written."""
        self._file = _OpenFile()
        self._looks = looks

    def made(self, raw: Any) -> None:
        """A connection was made: it may lead to another server than the last one, or to another file."""
        if self._path is not None:
            file = self._file
            if file.id is None:
                file.id = _file_at(self._path)
            self.check_file()
            return
        if self._looks:
            return
        server, known = identity.ask_server(raw), self.identity
        if known is not None and server.is_behind(known):
            raise StoreError(
                f"store {self._url}: the server that answers is on timeline {server.timeline}, and was the primary "
                f"before timeline {known.timeline}: stop it, or start this program again if that is meant",
                heals=True,
            )
        if known is None or server.differs(known):
            self._adopt(identity.look(raw, server, self._now()))

    def look(self, connection: sa.Connection) -> None:
        """Read the identity of the store that this connection leads to. Raises what SQLAlchemy raises."""
        raw: Any = connection.connection.dbapi_connection
        try:
            if self._path is not None or self._looks:
                self._adopt(identity.read(raw))
                if self._path is None:
                    connection.rollback()
                return
            with no_transaction(connection):
                self._adopt(identity.look(raw, identity.ask_server(raw), self._now()))
        except connection.dialect.loaded_dbapi.Error as error:
            raise_as_sqlalchemy(connection, "the identity of the store", error)

    def _adopt(self, found: Identity | None) -> None:
        if found is not None and found != self.identity:  # else the same object: it is compared often
            self.identity = found

    def check_file(self) -> None:
        """Raise StoreReplacedError if the path of the open SQLite file leads to another one by now, or to none."""
        file = self._file
        if file.replaced is None and file.id is not None:
            assert self._path is not None
            found = _file_at(self._path)
            if found == file.id:
                return
            what = "was deleted" if found is None else "was replaced by another one"
            file.replaced = StoreReplacedError(
                f"the database {self._path.absolute()} {what} while it was open: nothing more is written to either; "
                "start this program again, on the file that is to be used"
            )
        if file.replaced is not None and file is self._file:
            raise StoreReplacedError(str(file.replaced))


def _file_at(path: Path) -> tuple[int, int] | None:
    """Device and inode of what is there; None if nothing is."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def no_transaction(connection: sa.Connection) -> Iterator[None]:
    """Inside, each statement is a transaction of its own (PostgreSQL)."""
    raw: Any = connection.connection.dbapi_connection
    raw.autocommit = True
    try:
        yield
    finally:
        connection.rollback()  # SQLAlchemy's idea of a transaction: the server has none
        if raw.closed:
            connection.invalidate()
        else:
            raw.autocommit = False
