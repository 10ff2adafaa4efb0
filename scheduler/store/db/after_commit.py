"""Notifies once a caller's own transaction has committed.

A NOTIFY inside the commit would hold a lock of the whole server over its flush, so that all callers commit one after
the other. SQLAlchemy tells of a commit just before it, and a listener costs each statement of a caller's connection. So
the transaction itself, once it has stored a task, is made one that notifies after its commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import sqlalchemy as sa

from scheduler.store.db.django_connection import DjangoConnection
from scheduler.store.db.notifier import CHANNEL

Notify = Callable[[], None]
# What each transaction that has stored a task notifies once it has committed; one that rolls back takes it along.
_OWED: weakref.WeakKeyDictionary[sa.RootTransaction, dict[Notify, None]] = weakref.WeakKeyDictionary()


def notify_after_commit(connection: sa.Connection, notify: Notify, *, others: bool = True) -> None:
    """Notify once the caller's own transaction has committed; once, however many tasks are in it.

    ``others``: whether workers of other processes are to be told, where that goes by the caller's connection.
    """
    if isinstance(connection, DjangoConnection):
        connection.notify_after_commit(notify, CHANNEL if others else None)
        return
    transaction = connection.get_transaction()
    if transaction is None or _is_committed(connection):
        _notify(connection, [notify])
        return
    owed = _OWED.get(transaction)
    if owed is None:
        with contextlib.suppress(TypeError):  # a transaction that is none of SQLAlchemy's own: workers poll
            kind: Any = type(transaction)
            transaction.__class__ = _notifying(kind)
        owed = _OWED[transaction] = {}
    owed[notify] = None


class _Notifying(sa.RootTransaction):
    """What such a transaction does besides; ``commit()`` is public, and each way to commit goes through it."""

    __slots__ = ()

    def commit(self) -> None:
        connection = self.connection
        super().commit()
        _notify(connection, _OWED.pop(self, ()))


@cache
def _notifying(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Notifying, kind), {"__slots__": ()})


def _notify(connection: sa.Connection, owed: Iterable[Notify]) -> None:
    for notify in owed:
        with contextlib.suppress(Exception):  # polling is behind it
            if connection.dialect.is_async:
                asyncio.get_running_loop().run_in_executor(None, notify)  # the event loop waits for no server
            else:
                notify()


def _is_committed(connection: sa.Connection) -> bool:
    """Whether what was just stored is committed already: the caller's connection is in autocommit."""
    raw: Any = connection.connection.dbapi_connection
    return getattr(raw, "autocommit", None) is True or getattr(raw, "in_transaction", None) is False
