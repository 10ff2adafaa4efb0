"""Notifies once a caller's own transaction has committed.

SQLAlchemy tells of a commit just before it. A NOTIFY inside the commit would hold a lock of the whole server over its
flush, so that all callers commit one after the other. So a thread watches the driver's connection for a moment.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa

from scheduler.store.db.django_connection import DjangoConnection
from scheduler.store.db.notifier import CHANNEL

THREAD = "schedd-commits"  # the name of the thread
_EVERY = 0.0005  # seconds between two looks at commits that are under way
_LONGEST = 1.0  # of a commit that is watched: then it notifies in any case, and polling covers the rest
_BLIND = 0.02  # after which it notifies where the driver does not tell
_LINGER = 5.0  # until a thread without a commit to watch ends
_IDLE = 0  # libpq's PQTRANS_IDLE


class _Commit(NamedTuple):
    over: Callable[[], bool | None]  # None: the driver does not tell
    notify: Callable[[], None]
    since: float

    def due(self, now: float) -> bool:
        try:
            over = self.over()
        except Exception:  # the driver's connection is closed, and so its transaction over
            over = True
        return now - self.since > (_BLIND if over is None else _LONGEST) or bool(over)


class _Watch:
    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._commits: list[_Commit] = []
        self._runs = False

    def add(self, commit: _Commit) -> None:
        with self._changed:
            self._commits.append(commit)
            if self._runs:
                self._changed.notify()
                return
            try:
                threading.Thread(target=self._serve, name=THREAD, daemon=True).start()
                self._runs = True
            except RuntimeError:  # no thread can be started: workers poll
                self._commits.clear()

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._commits and not self._changed.wait(_LINGER) and not self._commits:
                    self._runs = False
                    return
                now = time.monotonic()
                due = [commit for commit in self._commits if commit.due(now)]
                self._commits = [commit for commit in self._commits if commit not in due]
            for notify in dict.fromkeys(commit.notify for commit in due):
                with contextlib.suppress(Exception):  # the scheduler may be gone by then, and polling is behind it
                    notify()
            time.sleep(_EVERY)


_watch = _Watch()
_ARMED: weakref.WeakSet[sa.Connection] = weakref.WeakSet()  # those that notify when they commit


def _forget() -> None:
    global _watch
    _watch = _Watch()  # a fork takes no thread along


os.register_at_fork(after_in_child=_forget)


def notify_after_commit(connection: sa.Connection, notify: Callable[[], None], *, others: bool = True) -> None:
    """Notify once the caller's own transaction has committed; once, however many tasks are in it.

    ``others``: whether workers of other processes are to be told, where that goes by the caller's connection.
    """
    if isinstance(connection, DjangoConnection):
        connection.notify_after_commit(notify, CHANNEL if others else None)
        return
    if connection in _ARMED:
        return

    def soon(committing: sa.Connection) -> None:
        _ARMED.discard(committing)
        _watch.add(_Commit(_how_it_goes(committing), notify, time.monotonic()))

    _ARMED.add(connection)  # after a rollback, too: its next commit notifies, which does no harm
    sa.event.listen(connection, "commit", soon, once=True)


def _how_it_goes(connection: sa.Connection) -> Callable[[], bool | None]:
    """Says whether the transaction that is open on a connection now is over, without a round trip."""
    raw: Any = connection.connection.dbapi_connection
    if hasattr(raw, "in_transaction"):
        return lambda: not raw.in_transaction
    if hasattr(raw, "pgconn"):
        return lambda: raw.pgconn.transaction_status == _IDLE
    return lambda: None
