"""A single statement on PostgreSQL by libpq itself, in one round trip, with a notification behind its commit.

The driver's execute() makes a cursor, looks up how each value is written and how each column is read: of a call that
stores a task that took more than half of the processor time. How an answer is waited for stays the driver's, and with
it Ctrl-C. The answer to a notification is read with that to the next statement: nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import capabilities
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus
from psycopg.waiting import Ready, Wait

from scheduler.store.db.statements import NOTIFY, Notice

_INTEGER, _INFERRED = 20, 0  # types of parameters: int8; what the statement says
# Their formats. The bytes of a text are the same in both, but only in binary they may hold a NUL.
_TEXT, _BINARY = 0, 1
Row = list[bytes | None]  # as texts
_MOST = 100  # statements that one connection keeps prepared, as many as the driver


class _Prepared(NamedTuple):
    name: bytes  # empty: sent whole each time
    formats: list[int]  # not a tuple, which psycopg 3.2 refuses


class Singles:
    """What is known of one connection: its statements, by their texts, and what of its answers is not read yet."""

    __slots__ = ("entered", "known", "planned", "unread")

    def __init__(self) -> None:
        self.known: dict[str, _Prepared] = {}
        self.entered = False
        self.planned = float("-inf")  # since when the server may keep plans (monotonic)
        self.unread = 0  # statements whose answers were not waited for


def one_row(
    raw: Any,
    text: str,
    values: Sequence[int | str],
    notice: Notice | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Row:
    """Carry out a statement with ``$1`` for its first value, on a connection without a transaction.

    Returns its first row, nothing without a row. A ``notice`` that fails is lost. ``meanwhile`` is called while the
    server works. Raises psycopg.Error; the connection is of no use then. A caller that gives it to others calls
    :func:`settle` first.
    """
    singles: Singles = raw.singles
    if not (singles.entered or _is_pipelined(raw)):
        if meanwhile is not None:
            meanwhile()
        return _by_driver(raw, text, values, notice)
    _send(raw, text, values)
    results: list[Any] = []
    unread = singles.unread
    if notice is not None:
        _send(raw, NOTIFY, notice)
        singles.unread = 1
    else:
        singles.unread = 0
    if meanwhile is not None:
        meanwhile()
    try:
        raw.wait(_fetched(raw.pgconn, unread, results))
    except psycopg.DatabaseError:
        _refuse(results)  # what the server said before it closed the connection
        raise
    _refuse(results)
    result = results[-1]
    return [result.get_value(0, column) for column in range(result.nfields)] if result.ntuples else []


def send_notice(raw: Any, notice: Notice) -> None:
    """Notify without waiting for the answer, as :func:`one_row` does behind a statement. Raises psycopg.Error."""
    if not _is_pipelined(raw):
        with psycopg.RawCursor(raw) as cursor:
            cursor.execute(NOTIFY, notice)
        return
    _read_unread(raw)  # which has long arrived
    raw.pgconn.consume_input()  # raises if the server has closed it
    _send(raw, NOTIFY, notice)
    raw.singles.unread = 1
    raw.wait(_sent(raw.pgconn))


def plan_anew(raw: Any, now: float) -> None:
    """Have the server forget its plans. ``now``: monotonic. Raises psycopg.Error."""
    raw.singles.planned = now
    one_row(raw, "DISCARD PLANS", ())


def _is_pipelined(raw: Any) -> bool:
    """Whether it takes statements without waiting for the answers before them, from now on: libpq 14 and later."""
    singles: Singles = raw.singles
    if not singles.entered and capabilities.has_pipeline():
        raw.pgconn.enter_pipeline_mode()
        singles.entered = True
    return singles.entered


def _refuse(results: Sequence[Any]) -> None:
    """Raise the error that is among the results."""
    for result in results:
        if result.status == ExecStatus.FATAL_ERROR:
            raise error_from_result(result)


def settle(raw: Any) -> None:
    """Have the connection as the driver knows it. Raises psycopg.Error."""
    singles: Singles = raw.singles
    if singles.entered:
        _read_unread(raw)
        raw.pgconn.exit_pipeline_mode()
        singles.entered = False


def _read_unread(raw: Any) -> None:
    singles: Singles = raw.singles
    if singles.unread:
        raw.wait(_fetched(raw.pgconn, singles.unread - 1, []))
        singles.unread = 0


def _by_driver(raw: Any, text: str, values: Sequence[int | str], notice: Notice | None) -> Row:
    with psycopg.RawCursor(raw) as cursor:
        row = cursor.execute(text.encode(), values).fetchone()
        if notice is not None:
            with suppress(psycopg.DatabaseError):
                cursor.execute(NOTIFY, notice)
    return [None if value is None else str(value).encode() for value in row or ()]


def _send(raw: Any, text: str, values: Sequence[int | str]) -> None:
    """Send a statement that is a transaction of its own."""
    pgconn, known = raw.pgconn, raw.singles.known
    prepared = known.get(text)
    bound = [value.encode() if isinstance(value, str) else b"%d" % value for value in values]
    if prepared is None:
        formats = [_BINARY if isinstance(value, str) else _TEXT for value in values]
        # Behind a pooler the next statement may meet another process of the server.
        named = raw.prepare_threshold is not None and len(known) < _MOST
        prepared = _Prepared(b"schedd_%d" % len(known) if named else b"", formats)
        if named:
            known[text] = prepared
            pgconn.send_prepare(prepared.name, text.encode(), _types(formats))
    if prepared.name:
        pgconn.send_query_prepared(prepared.name, bound, prepared.formats)
    else:
        pgconn.send_query_params(text.encode(), bound, _types(prepared.formats), prepared.formats)
    pgconn.pipeline_sync()


def _types(formats: Sequence[int]) -> list[int]:
    return [_INFERRED if each == _BINARY else _INTEGER for each in formats]


def _sent(pgconn: Any) -> Generator[Wait, Ready, None]:
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()


def _fetched(pgconn: Any, before: int, results: list[Any]) -> Generator[Wait, Ready, None]:
    """Read the results of a statement, behind those of so many others ``before`` it."""
    yield from _sent(pgconn)
    while True:
        while pgconn.is_busy():
            while not (yield Wait.R):
                pass
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status != ConnStatus.OK:
                raise psycopg.OperationalError("the connection is lost")
        elif result.status == ExecStatus.PIPELINE_SYNC:
            if not before:
                return
            before -= 1
        elif not before or _ends_session(result):
            results.append(result)


def _ends_session(result: Any) -> bool:
    """It says why the server closes the connection: an error in a notification alone does not matter."""
    if result.status != ExecStatus.FATAL_ERROR:
        return False
    return result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) in (b"FATAL", b"PANIC")
