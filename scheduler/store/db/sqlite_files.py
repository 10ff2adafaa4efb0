"""The files of a SQLite database: for their owner alone, and one whole file after a clean stop."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

from scheduler.system import files
from scheduler.system.locks import share_range

SQLITE_BUSY_MS = 10_000  # for which a connection waits for others
LOOK_PRAGMAS = ("temp_store=MEMORY", "cache_size=-32000")  # of a connection that leaves the file as it is
_FULL = 1024 * 1024  # bytes that have to be free on the disk of a SQLite file
# Locks of each open connection, as src/os_unix.c of SQLite says: on bytes of the database, and on one of the -shm.
_IN_USE = {"": (0x40000002, 510), "-shm": (128, 1)}
_CLOSE_TIMEOUT = 0.2  # seconds that a stop waits for other processes that have the database open


def make_private(path: Path) -> None:
    """Make the file, empty, for its owner alone, unless it is there. SQLite gives the ``-wal`` and ``-shm`` beside it
    the same mode, so that ``chmod`` of the database is all that it takes to share it.

    An existing file is not opened: to close it would end the locks that SQLite holds in this process.
    """
    with suppress(OSError):  # SQLite tries next, and says what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | files.CLOEXEC, 0o600))


def keep_in_use(path: Path) -> None:
    """Lock the database as an open connection does, until this process ends: it was forked from one that has some.

    SQLite believes in this process that these locks are held, and takes none. The last connection elsewhere would
    remove the ``-wal``, and what is stored here would be lost. The files stay open: to close one would end its locks
    (docs/decisions/0378).
    """
    for suffix, place in _IN_USE.items():
        with suppress(OSError):
            share_range(os.open(f"{path}{suffix}", os.O_RDONLY | files.CLOEXEC), *place)


def make_socket_directory(path: Path, database: Path) -> None:
    """Make the notifier's directory, unless it is there, for users that may write to the database.

    Raises OSError.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    if database.stat().st_mode & stat.S_IWGRP:
        path.chmod(0o770)


def is_full(path: Path) -> bool:
    """Whether the disk of this file has no space for another page of it."""
    with suppress(OSError):
        return files.free_space(path.absolute().parent) < _FULL
    return False


def quoted(path: Path) -> str:
    """The path as in a URI that SQLite opens."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def uri_to_look(path: Path) -> str:
    """The URI of a connection that leaves the file as it is, and nothing beside it."""
    # What is in the write-ahead log belongs to others, or was left by one that died: the last connection that may
    # write brings it into the file. Where there is none, one that may not write would leave one behind.
    mode = "ro" if path.with_name(f"{path.name}-wal").exists() else "rw"
    return f"file:{quoted(path)}?mode={mode}"


def open_to_others(path: Path, sockets: Path) -> list[str]:
    """What of the database any user of the machine may use, each as ``<path> (mode 644)``."""
    found = []
    for one in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm"), sockets):
        with suppress(OSError):
            if files.for_others(one):
                found.append(f"{one} (mode {stat.S_IMODE(one.stat().st_mode):03o})")
    return found


def fold_wal(path: Path) -> None:
    """Bring what is in the ``-wal`` into the database file, so that a copy of that file is whole.

    SQLite does so when the last connection is closed; this one helps where a stray thread still has one. Others that
    read or write go first: it does nothing then, and raises nothing.
    """
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"file:{quoted(path)}?mode=rw", uri=True, timeout=_CLOSE_TIMEOUT)) as raw,
    ):
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
