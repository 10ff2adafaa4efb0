"""Whether the database takes writes: a standby, a read-only file and a full disk answer everything else."""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa

from scheduler.store.db import rights
from scheduler.store.db.dialect import prepared
from scheduler.store.db.sqlite_files import is_full

# The default: a transaction that only reads, as the console's, says nothing about the server.
_SERVER = "SELECT pg_is_in_recovery() AS standby, current_setting('default_transaction_read_only') = 'on' AS read_only"


def no_writes(connection: sa.Connection) -> str | None:
    """Why the database takes no writes, and what to do; None if it should take them."""
    if connection.dialect.name == "sqlite":
        return _file_refuses(Path(connection.engine.url.database or "").absolute())
    row = connection.execute(prepared(_SERVER)).one()
    if row.standby:
        return "the server takes no writes, it is a standby: promote it, or name the primary in [store] url"
    if row.read_only:
        return "the server takes no writes: set default_transaction_read_only = off for it, this user and database"
    return rights.lacking(connection) or rights.too_few_connections(connection)


def _file_refuses(path: Path) -> str | None:
    for one in (path, path.parent):  # the write-ahead log is made beside the file
        if not os.access(one, os.W_OK):
            return f"{one} cannot be written by this user: see its owner and mode, and whether the disk is read-only"
    return f"the disk of {path} is full: free some space" if is_full(path) else None
