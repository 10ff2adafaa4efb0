"""A whole copy of a SQLite file, while others work on it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.store.db.sqlite_files import is_full, quoted
from scheduler.system import files

PAGES = 2000  # copied, or given back, at a time, so that writers never wait for long
_STEPS = 100_000  # of SQLite's machine between two checks for a stop, while a copy is verified


def backup_sqlite(path: Path, target: Path, progress: Callable[[int, int], object] | None = None) -> int:
    """Copy a SQLite database file while others work on it, whole or not at all. Returns the copy's size.

    The copy is of one moment, the first; until the end the WAL is not taken back. Its owner alone may read it.
    ``progress``: called with the pages copied and all there are, many times a second; what it raises ends the copying,
    and is raised here.

    Raises SchedulerError if the copy cannot be written, StoreUnavailableError if there is no such file.
    """
    looked = progress or (lambda done, pages: None)
    raised: list[BaseException] = []

    def checking() -> int:
        """SQLite asks in the middle of a statement, and would swallow what is raised."""
        try:
            looked(1, 1)
        except BaseException as error:
            raised.append(error)
        return len(raised)

    if not path.exists():
        raise StoreUnavailableError(f"there is no database {path}")
    # An unguessable name: SQLite would follow a link that is there already, and overwrite another file.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | files.CLOEXEC, 0o600))
        source = sqlite3.connect(f"file:{quoted(path)}?mode=rw", uri=True, timeout=10)
        with closing(source), closing(sqlite3.connect(draft)) as copy:
            # In a transaction, since it would begin anew after each write, and in a busy store never end.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(copy, pages=PAGES, progress=lambda _, left, pages: looked(pages - left, pages))
            source.rollback()
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, with nothing beside it
            copy.set_progress_handler(checking, _STEPS)
            damage = [row[0] for row in copy.execute("PRAGMA quick_check(1)") if row[0] != "ok"]
        if damage:
            raise SchedulerError(f"the copy is damaged, so the database is too: {damage[0]}")
        with draft.open("r+b") as file:
            files.sync(file.fileno())
        draft.chmod(path.stat().st_mode & 0o600)  # not before: a write-protected file has a copy, too
        os.link(draft, target)  # fails if another process has made the target
    except FileExistsError:
        raise SchedulerError(f"{target} exists already; name another file") from None
    except (OSError, sqlite3.Error) as error:
        if raised:
            raise raised[0] from None
        detail = error.strerror if isinstance(error, OSError) else str(error)  # without the draft's name
        detail = "the disk is full: free some space" if isinstance(error, sqlite3.Error) and is_full(target) else detail
        raise SchedulerError(f"cannot back up to {target}: {detail}") from None
    finally:
        for leftover in (draft, draft.with_name(draft.name + "-journal")):
            leftover.unlink(missing_ok=True)
    return target.stat().st_size
