"""The identity of the store: which one it is, and its epoch, which a failover or a restore that loses commits ends.

A promoted standby has a timeline of its own, and another server another system identifier. Who sees a new one first
begins an epoch: ids, of tasks and of workers, and the numbers of claims go on far above, so that nothing that was lost
shares one with what comes. Where the server does not answer (a permission, a managed server), the epoch stays as it is.

And whether connections still lead to the store that was opened: the same file, or a server of the same history.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.errors import StoreReplacedError
from scheduler.store.db.errors import StoreError
from scheduler.store.db.statements import raise_as_sqlalchemy
from scheduler.store.db.table_names import NUMBERED

if TYPE_CHECKING:
    import logging

    import sqlalchemy as sa

STEP = 1_000_000_000  # ids of a new epoch begin at a multiple of it: readable, and above whatever was lost
CLAIMS = 1_000_000  # likewise of the numbers of claims
_SYSTEM = "(SELECT CAST(system_identifier AS text) FROM pg_control_system())"
_TIMELINE = "CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
_READ = "SELECT store, epoch, since, server, timeline, first_id FROM schedd_store ORDER BY epoch"
_NAME = "UPDATE schedd_store SET server = coalesce(server, %s), timeline = coalesce(timeline, %s) WHERE epoch = %s"
_BEGIN = (
    "INSERT INTO schedd_store (epoch, store, since, server, timeline, first_id) VALUES (%s, %s, %s, %s, %s, %s) "
    "ON CONFLICT (epoch) DO NOTHING"
)
_PUSH = "SELECT setval(s, (nextval(s) / %s + 1) * %s) FROM CAST(pg_get_serial_sequence(%s, %s) AS regclass) s"
_FIRST = "UPDATE schedd_store SET first_id = %s WHERE epoch = %s"
# The server refuses a statement for what it is or for whom it comes from; the connection is as good as before.
_REFUSED = ("42", "25", "0A", "55")


class Identity(NamedTuple):
    """``server``, ``timeline``: on which the epoch began (PostgreSQL), None if the server does not tell; ``since``:
    when (microseconds); ``first_ids``: the lowest task ids of epochs 2, 3 and so on."""

    store: str
    epoch: int
    since: int
    server: str | None
    timeline: str | None
    first_ids: tuple[int, ...] = ()

    def epoch_of(self, task_id: int) -> int:
        """The epoch in which this task was stored."""
        return 1 + bisect_right(self.first_ids, task_id)

    @property
    def claims_above(self) -> int:
        """The number above which the numbers of this epoch's claims are."""
        return (self.epoch - 1) * CLAIMS


class StoreServer(NamedTuple):
    """What the server says of itself; None for what it does not tell."""

    system: str | None
    timeline: str | None

    def differs(self, known: Identity) -> bool:
        """Whether it is another one than that of the epoch, or has been promoted since."""
        pairs = (self.system, known.server), (self.timeline, known.timeline)
        return any(mine is not None and its is not None and mine != its for mine, its in pairs)

    def is_behind(self, known: Identity) -> bool:
        """Whether it was the primary before the epoch that is known."""
        if self.timeline is None or known.timeline is None or self.system != known.server:
            return False
        return self.timeline < known.timeline


def identity_in(rows: Sequence[Sequence[Any]]) -> Identity | None:
    """The identity that these rows of ``schedd_store`` tell, oldest epoch first; None without any."""
    if not rows:
        return None
    store, epoch, since, server, timeline, _ = rows[-1]
    return Identity(store, epoch, since, server, timeline, tuple(row[5] for row in rows[1:]))


def read(raw: Any) -> Identity | None:
    """What the database says (the driver's own connection); None if it has no such table yet, or lost its row."""
    try:
        return identity_in(raw.execute(_READ).fetchall())
    except Exception as error:
        if _refused(error) or "no such table" in str(error):
            return None
        raise


def ask_server(raw: Any) -> StoreServer:
    """Ask a PostgreSQL server, on a connection in autocommit."""
    try:
        return StoreServer(*raw.execute(f"SELECT {_SYSTEM}, {_TIMELINE}", prepare=False).fetchone())
    except Exception as error:
        if not _refused(error):
            raise
    return StoreServer(_ask(raw, _SYSTEM), _ask(raw, _TIMELINE))


def _ask(raw: Any, what: str) -> str | None:
    try:
        found: str | None = raw.execute(f"SELECT {what}", prepare=False).fetchone()[0]
        return found
    except Exception as error:
        if not _refused(error):
            raise
        return None


def look(raw: Any, server: StoreServer, now: int) -> Identity | None:
    """The identity of the store behind this connection to ``server``, in autocommit; begins an epoch if it is due.

    None if the database has no tables yet.
    """
    known = read(raw)
    if known is None:
        return None
    try:
        if server.differs(known):
            _begin_epoch(raw, known, server, now)
        elif (known.server is None and server.system) or (known.timeline is None and server.timeline):
            raw.execute(_NAME, (server.system, server.timeline, known.epoch))
        else:
            return known
    except Exception as error:
        if not _refused(error):
            raise
        _log().debug("the identity of the store cannot be written: %s", error)
        return known
    return read(raw)


def _begin_epoch(raw: Any, last: Identity, server: StoreServer, now: int) -> None:
    epoch = last.epoch + 1
    system, timeline = server.system or last.server, server.timeline or last.timeline
    with raw.transaction():
        # Others that see it too wait here, and then find it done.
        if not raw.execute(_BEGIN, (epoch, last.store, now, system, timeline, 0)).rowcount:
            return
        pushed = _push(raw)
        raw.execute(_FIRST, (pushed + 1, epoch))
    _log().error(
        "the server has changed (system %s, timeline %s; before %s, %s): commits may have been lost; epoch %d begins, "
        "with task ids above %d",
        *(system, timeline, last.server, last.timeline, epoch, pushed),
    )


def _push(raw: Any) -> int:
    """Let all ids go on far above. Returns the number above which those of tasks are."""
    pushed = 0
    for table in NUMBERED:
        try:
            with raw.transaction():
                ((last,),) = raw.execute(_PUSH, (STEP, STEP, table, "id")).fetchall()
        except Exception as error:
            if not _refused(error):
                raise
            _log().warning("the ids of %s do not go on far above, as the sequence may not be set: %s", table, error)
            ((last,),) = raw.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchall()
        pushed = last if table == NUMBERED[0] else pushed
    return int(pushed)


def _log() -> logging.Logger:
    import logging  # which a command that reads a file does without

    return logging.getLogger("scheduler.store")


def _refused(error: Exception) -> bool:
    return str(getattr(error, "sqlstate", None) or "")[:2] in _REFUSED


class _OpenFile:
    """The SQLite file of one opening: a thread that looks at it while another opens the store anew judges the old one.

    ``id``: device and inode, from the first connection on; ``replaced``: once the path has led to another file.
    """

    id: tuple[int, int] | None = None
    replaced: StoreReplacedError | None = None


class SameStore:
    """Remembers the identity of the open store. ``path``: of a SQLite file, None on PostgreSQL; ``now``: its clock."""

    def __init__(self, url: sa.URL | None, path: Path | None, now: Callable[[], int]) -> None:
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
        server, known = ask_server(raw), self.identity
        if known is not None and server.is_behind(known):
            raise StoreError(
                f"store {self._url}: the server that answers is on timeline {server.timeline}, and was the primary "
                f"before timeline {known.timeline}: stop it, or start this program again if that is meant",
                heals=True,
            )
        if known is None or server.differs(known):
            self._adopt(look(raw, server, self._now()))

    def look(self, connection: sa.Connection) -> None:
        """Read the identity of the store that this connection leads to. Raises what SQLAlchemy raises."""
        raw: Any = connection.connection.dbapi_connection
        try:
            if self._path is not None or self._looks:
                self._adopt(read(raw))
                if self._path is None:
                    connection.rollback()
                return
            with no_transaction(connection):
                self._adopt(look(raw, ask_server(raw), self._now()))
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
