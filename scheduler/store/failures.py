"""Database errors as one clear sentence that says what to do."""

from __future__ import annotations

import re

import sqlalchemy as sa

from scheduler.errors import StoreUnavailableError

_COLLIDED = "the transaction collided with another"
_ADVICE: tuple[tuple[str, str, bool], ...] = (
    # what the driver says, what we say, whether waiting may heal it
    (r"database or disk is full", "the disk is full: free some space", True),
    (r"database is locked|database table is locked", "the database is locked by another program", True),
    (
        r"attempt to write a readonly database|readonly",
        "the database is read-only: check the file's and directory's owner",
        False,
    ),
    (
        r"unable to open database file",
        "the database file cannot be opened: check that the directory exists and is writable",
        False,
    ),
    (r"file is not a database|malformed", "the file is not a (healthy) SQLite database", False),
    (r"disk I/O error", "the disk reported an error", True),
    (
        r"no such table|relation .* does not exist",
        "the database is not migrated: run `schedctl db upgrade`",
        False,
    ),
    (
        r"password authentication failed|no password supplied",
        "the server refused the user or password",
        False,
    ),
    (r"database \".*\" does not exist", "the server has no such database: create it", False),
    (r"role \".*\" does not exist", "the server has no such user", False),
    (
        r"could not translate host name|Name or service not known|failed to resolve host",
        "the host name cannot be resolved",
        True,
    ),
    (
        r"Connection refused|Is the server running|No such file or directory",
        "nothing answers there: is the server running?",
        True,
    ),
    (
        r"too many clients|remaining connection slots|too many connections",
        "the server takes no more connections",
        True,
    ),
    (
        r"in a read-only transaction|cannot execute .* during recovery",
        "the server takes no writes: it is a standby, or set to be read-only",
        True,
    ),
    (r"statement timeout", "the server's statement_timeout ended the statement", True),
    (r"permission denied", "the database user lacks a permission", False),
    (r"deadlock detected|could not serialize", _COLLIDED, True),
    (
        r"server closed the connection|terminating connection|connection .*lost|SSL|EOF|the database system is",
        "the connection to the server was lost",
        True,
    ),
)


class StoreTrouble(StoreUnavailableError):
    """A StoreUnavailableError that knows whether waiting may ``heal`` it."""

    def __init__(self, text: str, heals: bool) -> None:
        super().__init__(text)
        self.heals = heals
        self.collided = _COLLIDED in text


def explain(error: sa.exc.SQLAlchemyError, url: sa.URL) -> Exception:
    """What to raise for a database error: trouble with the store, or the error itself if it is a bug of ours."""
    if isinstance(error, (sa.exc.IntegrityError, sa.exc.DataError)):
        return error  # their texts quote values, which may read like anything
    where = url.database if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)
    said = str(getattr(error, "orig", None) or error).strip().splitlines()
    first = said[0] if said else type(error).__name__
    text = " ".join(said)
    for pattern, advice, heals in _ADVICE:
        if re.search(pattern, text, re.IGNORECASE):
            return StoreTrouble(f"store {where}: {advice} ({first})", heals)
    if "no such column" in text or "syntax error" in text:
        return error
    if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)) or getattr(
        error, "connection_invalidated", False
    ):
        return StoreTrouble(f"store {where}: {first}", True)
    return error
