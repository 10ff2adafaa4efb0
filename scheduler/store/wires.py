"""The connections to a PostgreSQL server as wires that can be dead without a word, or go through a pooler."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from typing import Any

import sqlalchemy as sa

# A peer that is gone without a word (a host without power, a firewall that forgot) is noticed in half a minute.
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_TRUSTED = 1.0  # seconds that a connection may have lain in the pool without being tried before it is used
_IDLE_SINCE = "schedd_idle_since"


def through_pooler(raw: Any) -> bool:
    """Whether something stands between this psycopg connection (in autocommit) and the server.

    A pooler makes up the process id that it tells its clients when they connect.
    """
    row = raw.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return bool(row[0] != raw.info.backend_pid)


class Wires:
    """Makes the connections of one SQLAlchemy engine, and can cut those on which a thread waits in vain."""

    def __init__(self, engine: sa.Engine) -> None:
        self.pooled = False  # the last connection was made through a pooler
        self._peers: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
        self._users: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # thread idents
        self._mutex = threading.RLock()  # the collector may give a connection back in between
        self._ping = engine.dialect.do_ping
        self.errors: Any = engine.dialect.loaded_dbapi.Error
        sa.event.listen(engine, "do_connect", self._connect)
        sa.event.listen(engine, "checkout", self._checked_out)
        sa.event.listen(engine, "checkin", self._checked_in)

    def _connect(self, dialect: Any, _record: Any, args: Any, params: Any) -> Any:
        raw = dialect.connect(*args, **params)
        peer = _peer(raw)
        with self._mutex:
            self._peers[raw] = peer
            self._users[raw] = threading.get_ident()
        try:
            raw.autocommit = True
            self.pooled = through_pooler(raw)
            if self.pooled:
                raw.prepare_threshold = None  # the next statement may meet another server process
            raw.autocommit = False
        except BaseException:
            raw.close()
            raise
        return raw

    def _checked_out(self, raw: Any, record: Any, _proxy: Any) -> None:
        try:
            self.taken(raw, record.info.get(_IDLE_SINCE))
        except self.errors as error:
            raise sa.exc.InvalidatePoolError from error  # the pool makes others

    def _checked_in(self, raw: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = time.monotonic()
        if raw is not None:
            self.idle(raw)

    def taken(self, raw: Any, since: float | None) -> None:
        """This thread uses it from now on, which lay idle ``since`` then. Raises one of ``errors`` if it is dead."""
        with self._mutex:
            self._users[raw] = threading.get_ident()
        if since is not None and time.monotonic() - since > _TRUSTED:
            self._ping(raw)

    def idle(self, raw: Any) -> None:
        """Nobody uses it any more."""
        with self._mutex:
            self._users.pop(raw, None)

    def cut(self, thread: int) -> int:
        """Shut down the connections that this thread uses, and those that lie idle, which it may be trying out: whoever
        waits on one of them gets an error. Returns how many."""
        with self._mutex:
            found = [(raw, peer) for raw, peer in self._peers.items() if self._users.get(raw, thread) == thread]
        return sum(shut_down(raw, peer) for raw, peer in found)


def let_go(connection: sa.Connection | None) -> None:
    """Close it for good: the pool is not to have it, with its settings. Never raises."""
    if connection is not None:
        with contextlib.suppress(Exception):
            connection.invalidate()
        with contextlib.suppress(Exception):
            connection.close()


def _peer(raw: Any) -> object:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(raw.pgconn.socket)) as wire:
        return wire.getpeername()
    return None


def shut_down(raw: Any, peer: object = None) -> bool:
    """End a psycopg connection under whoever waits on it in another thread.

    ``peer``: where it must lead to, if its descriptor may have been closed and be another file's by now.
    """
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(raw.pgconn.socket)) as wire:
        if peer is None or wire.getpeername() == peer:
            wire.shutdown(socket.SHUT_RDWR)
            return True
    return False  # closed meanwhile
