"""Database errors as one clear sentence that says what to do."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import TracebackType

from scheduler.errors import StoreUnavailableError, shown_as
from scheduler.model.redact import redact
from scheduler.store.db import deadline
from scheduler.store.db.lazy import sa
from scheduler.store.db.sqlite_files import is_full
from scheduler.store.db.urls import secrets_of, shown

_COLLIDED = "the transaction collided with another"
_FULL_DISK = "the disk is full: free some space"
_MISFIT = "its tables are not this program's: its schema was changed while this ran, or not by schedd"
_NOT_MIGRATED = "the database is not migrated: run `schedctl db upgrade`"
_LOCKED = "another session holds a lock that the statement needs"
_ADVICE: tuple[tuple[str, str, bool], ...] = (
    # what the driver says, what we say, whether waiting may heal it
    (r"database or disk is full|No space left on device|Disk quota exceeded", _FULL_DISK, True),
    (r"database is locked|database table is locked", "the database is locked by another program", True),
    (
        r"attempt to write a readonly database|readonly",
        "the database is read-only: check the file's and directory's owner",
        False,
    ),
    (
        r"unable to open database file",
        "the database cannot be opened: check that it is a file, and that you may read and write it and its directory",
        False,
    ),
    (r"file is not a database|malformed", "the file is not a (healthy) SQLite database", False),
    (r"disk I/O error|Input/output error", "the disk reported an error", True),
    (r"no such column|has no column named|column .* does not exist", _MISFIT, True),
    (
        r"no such table|relation .* does not exist",
        _NOT_MIGRATED,
        False,
    ),
    (
        r"password authentication failed|no password supplied",
        "the server refused the user or password",
        False,
    ),
    (r"no pg_hba.conf entry", "the server takes no such connection: see its pg_hba.conf", False),
    (
        r"certificate|private key file|SSL, but|invalid ssl",
        "TLS with the server fails: check sslmode and the certificates in [store] url",
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
        r"server_login_retry|server conn crashed|pgbouncer cannot connect|pooler is shut|query_wait_timeout"
        r"|client_login_timeout|server login failed|server connection closed|server shutting down|connect failed",
        "the connection pooler has no connection to the server",
        True,
    ),
    (
        r"timeout expired|timed out|No route to host|is unreachable|Host is down|Connection reset|Broken pipe"
        r"|Temporary failure",
        "the server cannot be reached",
        True,
    ),
    (
        r"could not fork|out of memory|Cannot allocate memory|Too many open files|Resource temporarily unavailable",
        "the server or this machine lacks memory, processes or files",
        True,
    ),
    (r"not currently accepting connections", "the server lets nobody into this database", True),
    (
        r"too many clients|remaining connection slots|too many connections|no more connections allowed",
        "the server takes no more connections",
        True,
    ),
    (
        r"in a read-only transaction|cannot execute .* during recovery",
        "the server takes no writes: it is a standby, or set to be read-only",
        True,
    ),
    (r"lock timeout", _LOCKED, True),
    (r"may not be on the standby", "the wait for the standby was cancelled", True),
    (r"statement timeout", "the server's statement_timeout ended the statement", True),
    (r"permission denied", "the database user lacks a permission", False),
    (r"deadlock detected|could not serialize", _COLLIDED, True),
    (
        r"server closed the connection|terminating connection|connection .*lost|SSL|EOF|the database system is",
        "the connection to the server was lost",
        True,
    ),
)


@shown_as(StoreUnavailableError)
class StoreError(StoreUnavailableError):
    """A StoreUnavailableError that knows whether waiting may ``heal`` it. ``brief``: it without the driver's text,
    which differs from statement to statement; ``locked``: another session's lock was in the way; ``misfit``: the tables
    are not as this program expects them."""

    def __init__(self, text: str, heals: bool, *, brief: str | None = None) -> None:
        super().__init__(text)
        self.heals = heals
        self.brief = text if brief is None else brief
        self.collided = _COLLIDED in text
        self.locked = _LOCKED in text
        self.misfit = _MISFIT in text or _NOT_MIGRATED in text


def driver_text(error: BaseException, url: sa.URL) -> str:
    """What a driver's error says, without a secret of the URL; never empty.

    The error itself is cleaned, too: it is the cause of what is raised, and a traceback shows that.
    """
    secrets = secrets_of(url)
    for one in (error, getattr(error, "orig", None)):
        if one is not None:
            one.args = tuple(redact(arg, secrets) if isinstance(arg, str) else arg for arg in one.args)
    return str(getattr(error, "orig", None) or error).strip() or type(error).__name__


def cause(error: sa.exc.SQLAlchemyError) -> BaseException:
    """What an explained error is raised from: the driver's own, without the frames and causes that led to it, which
    say nothing to the reader of the traceback."""
    found: BaseException = getattr(error, "orig", None) or error
    found.__cause__ = found.__context__ = None
    return found.with_traceback(None)


def translate(error: sa.exc.SQLAlchemyError, url: sa.URL) -> Exception:
    """What to raise for a database error: trouble with the store, or the error itself if it is a bug of ours."""
    if isinstance(error, (sa.exc.IntegrityError, sa.exc.DataError)):
        return error  # their texts quote values, which may read like anything
    where = shown(url)
    limit = deadline.current()
    if limit is not None and limit.left == 0:
        return StoreError(f"store {where}: no answer within {limit.seconds + deadline.GRACE:g} s", True)
    text = driver_text(error, url)
    first = text.splitlines()[0]
    text = " ".join(text.splitlines())
    if re.search(r"disk I/O error|unable to open database file", text) and is_full(Path(url.database or "")):
        return StoreError(f"store {where}: {_FULL_DISK} ({first})", True, brief=f"store {where}: {_FULL_DISK}")
    for pattern, advice, heals in _ADVICE:
        if re.search(pattern, text, re.IGNORECASE):
            return StoreError(f"store {where}: {advice} ({first})", heals, brief=f"store {where}: {advice}")
    if isinstance(error, sa.exc.DBAPIError) and error.statement is None:  # nothing was asked yet: the URL does not fit
        return StoreError(f"store {where}: cannot connect: {first}; check [store] url", False)
    if "syntax error" in text:
        return error
    if isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError)) or getattr(
        error, "connection_invalidated", False
    ):
        return StoreError(f"store {where}: {first}", True)
    return error


STATUS = 5  # of schedd and schedctl, too, for a store that cannot be used


@shown_as(StoreUnavailableError)
class UnusableDatabaseError(StoreUnavailableError):
    """Only another database helps. Where in the program it was met tells nothing, so no traceback hides the text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if sys.excepthook is sys.__excepthook__:  # another's hook knows what to do with errors
            sys.excepthook = _end


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, UnusableDatabaseError) or os.environ.get("SCHEDD_DEBUG", "") not in ("", "0"):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"{kind.__module__}.{kind.__qualname__}: {error}", file=sys.stderr, flush=True)
    if not hasattr(sys, "ps1"):  # a session at the prompt goes on
        raise SystemExit(STATUS)
