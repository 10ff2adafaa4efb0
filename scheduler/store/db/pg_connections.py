"""The connections to a PostgreSQL server as wires that can be dead without a word, or go through a pooler."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scheduler.forking import after_fork
from scheduler.store.db import deadline
from scheduler.store.db.deadline import Deadline
from scheduler.store.db.lazy import sa

# A peer that is gone without a word (a host without power, a firewall that forgot) is noticed in half a minute.
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_CONNECT_TIMEOUT = 10  # seconds
_TRUSTED = 1.0  # seconds that a connection may have lain in the pool without being tried before it is used
_IDLE_SINCE = "schedd_idle_since"
_EVERY: weakref.WeakSet[PgConnections] = weakref.WeakSet()
_every_mutex = threading.RLock()
_CANCELLING = 0.15  # seconds that the server is given to end the statements of connections that are cut


def with_settings(found: Mapping[str, Any], query: Mapping[str, Any], application_name: str) -> dict[str, Any]:
    """The driver's arguments ``found`` for a URL with this query, with our own settings.

    Of several hosts the one is meant that takes writes, unless the URL says otherwise.
    """
    own: dict[str, Any] = {
        "connect_timeout": _CONNECT_TIMEOUT,
        "client_encoding": "UTF8",
        **{name: value for name, value in KEEPALIVES.items() if name not in query},
    }
    if "," in str(found.get("host", "")):
        own["target_session_attrs"] = query.get("target_session_attrs", "read-write")
    return {**found, **own, "application_name": application_name}


def through_pooler(raw: Any) -> bool:
    """Whether something stands between this psycopg connection (in autocommit) and the server.

    A pooler makes up the process id that it gives its clients when they connect.
    """
    row = raw.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return bool(row[0] != raw.info.backend_pid)


class PgConnections:
    """Makes the connections of one store, and can cut those on which a thread waits in vain."""

    def __init__(self, made: Callable[[Any], None] = lambda _: None) -> None:
        """``made`` is called with each new connection, which is in autocommit then. What it raises, connecting does."""
        import psycopg

        from scheduler.store.db.synchronous import SynchronousConnection

        self._made = made
        self._driver = SynchronousConnection
        self.inherited = False  # by a forked process
        self.pooled = False  # the last connection was made through a pooler
        self._peers: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
        self._connecting: set[int] = set()
        self._mutex = threading.RLock()  # the collector may give a connection back in between
        self.errors = psycopg.Error
        with _every_mutex:
            _EVERY.add(self)
        after_fork(self, PgConnections._on_fork)

    def _on_fork(self) -> None:
        self.inherited = True

    def serve(self, engine: sa.Engine) -> None:
        """Make the connections of this SQLAlchemy engine, and look after them."""
        self._ping = engine.dialect.do_ping
        sa.event.listen(engine, "do_connect", lambda _dialect, _record, args, params: self.connect(*args, **params))
        sa.event.listen(engine, "checkout", self._checked_out)
        sa.event.listen(engine, "checkin", self._checked_in)

    def connect(self, *args: Any, **params: Any) -> Any:
        """A new connection, which this thread uses. ``args``, ``params``: of psycopg. Raises one of ``errors``."""
        from psycopg import OperationalError

        connect = partial(self._driver.connect, *args, **params)
        limit = deadline.current()
        thread = threading.get_ident()
        self._connecting.add(thread)
        try:
            # An attempt to connect cannot be cut: there is no socket yet to be shut down.
            if limit is None:
                raw = connect()
            else:
                limit.start()
                raw = deadline.in_time(connect, limit.left, lambda late: late.close())
        except TimeoutError as error:
            raise OperationalError("the server does not answer") from error
        finally:
            self._connecting.discard(thread)
        peer = _peer(raw)
        with self._mutex:
            self._peers[raw] = peer
            raw.user = thread
        try:
            raw.autocommit = True
            self.pooled = through_pooler(raw)
            if self.pooled:
                raw.prepare_threshold = None  # the next statement may meet another server process
            else:
                self._compile_nothing(raw)
            self._made(raw)
            raw.autocommit = False
        except BaseException:
            raw.close()
            raise
        return raw

    def _compile_nothing(self, raw: Any) -> None:
        """The server compiles statements that it expects to be dear: for seconds, where ours take milliseconds.

        Not through a pooler, which would hand the setting on to other clients.
        """
        with contextlib.suppress(self.errors):  # a server of PostgreSQL's protocol without the setting
            raw.execute("SET jit = off", prepare=False)

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
        raw.user = threading.get_ident()
        if raw.distrusted:
            raise self.errors("this connection was cut, or leads to a server that takes no writes any more")
        if since is not None and time.monotonic() - since > _TRUSTED:
            raw.settle()
            self._ping(raw)

    def idle(self, raw: Any) -> None:
        """No thread uses it any more."""
        raw.user = None

    def distrust(self) -> None:
        """Use none of the present connections again: their server takes no writes any more, another one may."""
        with self._mutex:
            for raw in self._peers:
                raw.distrusted = True

    def trusts(self, raw: Any) -> bool:
        """Whether this connection was not cut, and was made since the last :meth:`distrust`."""
        return not getattr(raw, "distrusted", False)

    def used_by(self, thread: int) -> list[Any]:
        """The connections that this thread uses."""
        with self._mutex:
            return [raw for raw in self._peers if raw.user == thread]

    def sessions_of(self, thread: int) -> set[int]:
        """The server's process ids of the connections that this thread uses and has not closed meanwhile."""
        found = set[int]()
        for raw in self.used_by(thread):
            with contextlib.suppress(self.errors):
                found.add(raw.info.backend_pid)
        return found

    def busy(self, thread: int) -> bool:
        """Whether this thread uses a connection, or makes one."""
        return thread in self._connecting or bool(self.used_by(thread))

    def cut(self, thread: int, *, idle: bool = True) -> int:
        """Shut down the connections that this thread uses; ``idle``: also those that lie idle, which it may be trying
        out. A thread that waits on one of them gets an error. Returns how many.

        The server is asked to end what it does for them: a session that waits for a lock does not read its socket.
        """
        with self._mutex:
            used = self.used_by(thread)
            others = [raw for raw in self._peers if idle and raw.user is None]
            found = [(raw, self._peers.get(raw)) for raw in (*used, *others)]
            for raw, _ in found:
                raw.distrusted = True  # the pool hands out none of them again
        cancel(used)
        return sum(shut_down(raw, peer) for raw, peer in found)


def let_go(connection: sa.Connection | None) -> None:
    """Close it for good: the pool is not to have it, with its settings. Never raises."""
    if connection is not None:
        with contextlib.suppress(Exception):
            connection.invalidate()
        with contextlib.suppress(Exception):
            connection.close()


def every() -> list[PgConnections]:
    """Those of all engines that this process has made itself."""
    with _every_mutex:
        return [wires for wires in _EVERY if not wires.inherited]


def within(seconds: float, *, each: bool = False) -> Deadline:
    """As ``Database.within``, for connections to servers."""
    thread = threading.get_ident()
    return Deadline(seconds, lambda: [wires.cut(thread, idle=False) for wires in every()], each=each)


def cancel(raws: Sequence[Any]) -> None:
    """Ask the server to end the statements of these psycopg connections. Returns soon, also if it does not answer."""

    def ask(raw: Any) -> None:
        with contextlib.suppress(Exception):
            raw.cancel_safe(timeout=_CANCELLING)

    asking = [threading.Thread(target=ask, args=[raw], name="schedd-cancel", daemon=True) for raw in raws]
    until = time.monotonic() + _CANCELLING
    with contextlib.suppress(RuntimeError):  # no thread can be had
        for one in asking:
            one.start()
        for one in asking:
            one.join(max(0.0, until - time.monotonic()))


def _peer(raw: Any) -> object:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(raw.pgconn.socket)) as wire:
        return wire.getpeername()
    return None


def shut_down(raw: Any, peer: object = None) -> bool:
    """End a psycopg connection while another thread waits on it.

    ``peer``: where it must lead to, if its descriptor may have been closed and be another file's by now.
    """
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(raw.pgconn.socket)) as wire:
        if peer is None or wire.getpeername() == peer:
            wire.shutdown(socket.SHUT_RDWR)
            return True
    return False  # closed meanwhile
