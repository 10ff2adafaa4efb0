"""Notifiers: they wake idle engines of other processes. Notifications may get lost; every engine polls, too.

SQLite: each engine has a mailbox ``<incarnation>.sock`` in ``<db>.notify/`` and holds the lock of
``<incarnation>.lock``; a free lock proves that its owner is dead. PostgreSQL: LISTEN and NOTIFY.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from scheduler.backoff import Backoff
from scheduler.ports import Spawner, spawn_thread
from scheduler.store.db.database import Database
from scheduler.store.db.engines import server_arguments
from scheduler.store.db.errors import driver_text
from scheduler.store.db.pg_connections import shut_down, through_pooler
from scheduler.store.db.sqlite_files import make_socket_directory
from scheduler.store.db.statements import Notice
from scheduler.system.mailboxes import Mailboxes
from scheduler.system.waiting import waits_for

log = logging.getLogger("scheduler.engine")
CHANNEL = "schedd"
ENDS_CHANNEL = "schedd_ends"  # to programs that subscribe to ends
ENDS_SUFFIX = ".ends"  # of their sockets
ENDS_LOCK = 7237123, 446  # the advisory lock that they share, so that engines know that there are some
ENDS_EVERY = 0.02  # seconds between two notifications of ends of one process
_DEBOUNCE = 0.003  # seconds between NOTIFYs of one process: each takes a global lock at commit
_STREAM = 4  # times as many, at most, where one follows the other as soon as it may
_GROWTH = 1.25  # with each of these
_LATE = 1  # of that time more: a thread sends what no statement has carried along until then, at three times the price
_LINGER = 10  # of these times without a notification, until the thread that waits for one ends
_PROBE = 2.0  # seconds until a notification must have come through a pooler
_POOLED_RETRY_S = 300.0  # seconds until it is tried again
_LOOK = 2.0  # seconds between checks that the connection works, and its server still takes writes
_ANSWER = 10.0  # seconds for the server's answer to that
_PAUSE = 2.0  # seconds between tries to listen, at most: at a failover the fleet is to be awake again soon
_SERVER = (
    "SELECT pg_is_in_recovery() OR CAST(current_setting('transaction_read_only') AS boolean), "
    "EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted "
    f"AND classid = {ENDS_LOCK[0]} AND objid = {ENDS_LOCK[1]} "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))"
)
_TICKS = 20_000_000, 1_100_000_000  # nanoseconds, and a little more: of the kernel's clock; of old file systems


def _settled(changed: int, now: int) -> bool:
    """Whether a directory that has this time (nanoseconds) would have another one if it were changed now: file systems
    count in ticks, and what comes in the same one is not to go unseen from then on. Whole seconds are those of one that
    knows nothing finer."""
    return now - changed > _TICKS[changed % 1_000_000_000 == 0]


class _Pooled(Exception):
    """A pooler stands between us and the server, and passes no notifications on."""


class _ReadOnly(Exception):
    """The server takes no writes: it is a standby, or was demoted."""


class Carried(NamedTuple):
    """A notification that a statement carries along, for itself and all who had asked by then."""

    notice: Notice
    asked: int


class _Apart:
    """A notifier whose notifications go apart from the statements that store tasks."""

    def carried(self) -> Carried | None:
        """The notification that a statement which stores a task sends once it is committed; None: call ``notify()``."""
        return None

    def was_carried(self, carried: Carried) -> None:
        """Note that it was committed, and has notified."""


class NullNotifier(_Apart):
    """The notifier where none can be had: engines poll."""

    works = False
    expensive = False  # whether notifying costs more than reading who listens

    def listen(self, incarnation: str, wake: Callable[[], None]) -> None: ...

    def notify(self) -> None: ...

    def notify_ends(self) -> None:
        """Tasks have ended: wake the programs that subscribe to that."""

    def dead_peers(self) -> list[str]:
        return []

    def close(self) -> None: ...


class SocketNotifier(_Apart):
    """Mailboxes beside a SQLite file."""

    works = True
    expensive = False

    def __init__(self, directory: Path, spawn: Spawner = spawn_thread) -> None:
        self._boxes = Mailboxes(directory)
        self._spawn = spawn
        self._listener: socket.socket | None = None
        self._own = ""
        self._farewell = secrets.token_bytes(16)  # so that no other sender can make it deaf
        self._seen: tuple[int, list[str], list[str]] = (0, [], [])

    def listen(self, incarnation: str, wake: Callable[[], None]) -> None:
        self._own = incarnation
        self._boxes.hold(f"{incarnation}.lock")
        self._listener = listener = self._boxes.bind(f"{incarnation}.sock")
        farewell = self._farewell

        def serve() -> None:
            while True:
                try:
                    message = listener.recv(17)
                except OSError:
                    return
                if message == farewell:
                    return
                wake()

        self._spawn(serve, "schedd-listener")

    def notify(self) -> None:
        try:
            sockets = self._sockets()
        except OSError:
            return  # closed meanwhile, or the directory is gone: they poll
        for name in sockets:
            if name == f"{self._own}.sock":
                continue
            try:
                self._boxes.send(name, b"!")
            except (BlockingIOError, FileNotFoundError):
                pass  # its buffer is full, so it wakes anyway; or it is just leaving
            except OSError:
                pass  # its process is gone; the reaper removes it

    def _sockets(self) -> list[str]:
        changed = self._boxes.changed_at()
        if self._seen[0] != changed or not changed:
            settled = _settled(changed, time.time_ns())
            names = self._boxes.names()
            of = [[n for n in names if n.endswith(suffix)] for suffix in (".sock", ENDS_SUFFIX)]
            self._seen = (changed if settled else 0, of[0], of[1])
        return self._seen[1]

    def notify_ends(self) -> None:
        try:
            self._sockets()
        except OSError:
            return
        for name in self._seen[2]:
            try:
                self._boxes.send(name, b"!")
            except ConnectionRefusedError:  # its program is gone
                with contextlib.suppress(OSError):
                    self._boxes.remove(name)
            except OSError:
                pass  # its buffer is full, so it wakes anyway; or it is just leaving

    def dead_peers(self) -> list[str]:
        """Incarnations on this host whose process is gone; what they left in the directory is removed."""
        dead: list[str] = []
        try:
            names = self._boxes.names()
        except OSError:  # the directory is gone: leases show it
            return dead
        for name in names:
            if not name.endswith(".lock") or name == f"{self._own}.lock":
                continue
            with contextlib.suppress(OSError):
                incarnation = name.removesuffix(".lock")
                if self._boxes.remove_dead(name, f"{incarnation}.sock"):
                    dead.append(incarnation)
        return dead

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._boxes.send(f"{self._own}.sock", self._farewell)
            self._listener.close()
            self._listener = None
        if self._own:
            self._boxes.release(*(f"{self._own}{suffix}" for suffix in (".sock", ".lock", ".sock.new", ".lock.new")))
            self._own = ""
        self._boxes.close()


class PgNotifier(_Apart):
    """LISTEN on a connection of its own, NOTIFY through the pool, debounced with a trailing edge.

    A notification names its sender, which is not woken by it.
    """

    expensive = True

    def __init__(self, database: Database, spawn: Spawner = spawn_thread, *, of_ends: bool = False) -> None:
        """``of_ends``: listens to ends, as a program that subscribes to them does, instead of new tasks."""
        self._of_ends = of_ends
        self._ends_wanted = False  # there are such programs
        self._ends_due = threading.Event()
        self._ends_thread: threading.Thread | None = None
        self._database = database
        self._spawn = spawn
        self._closed = threading.Event()
        self._connection: Any = None
        self._own = ""
        self._last = float("-inf")
        self._apart = _DEBOUNCE  # seconds from there to the next one, at least
        self._asked = 0  # how many callers have asked
        self._told = 0  # and for how many of them it has notified
        self._looks = False  # a thread checks, within _LATE, whether a caller has asked
        self._mutex = threading.Lock()
        self._open = threading.Lock()  # held until it closes: to wait for an event takes twice the processor time
        self._open.acquire()
        self.works = False

    def listen(self, incarnation: str, wake: Callable[[], None]) -> None:
        self._own = incarnation

        def serve() -> None:
            logged, backoff = "", Backoff(0.1, _PAUSE)
            while not self._closed.is_set():
                try:
                    self._listen_once(incarnation, wake)
                    logged = ""
                    backoff.reset()
                except Exception as error:
                    if self._closed.is_set():
                        return
                    text = driver_text(error, self._database.url).splitlines()[0]
                    pooled = isinstance(error, _Pooled)
                    if self.works or (pooled and logged != text):
                        logged = ""
                    self.works = False
                    if not logged:
                        log.warning("no notifications from PostgreSQL, polling instead: %s", text)
                        logged = text
                    pause = backoff.next()
                    self._closed.wait(_POOLED_RETRY_S if pooled else pause)

        self._spawn(serve, "schedd-listener")

    def _listen_once(self, incarnation: str, wake: Callable[[], None]) -> None:
        import psycopg

        def heard(notification: psycopg.Notify) -> None:
            if notification.payload != incarnation:
                wake()

        with psycopg.connect(autocommit=True, **server_arguments(self._database.url, "schedd listener")) as raw:
            self._connection = raw
            raw.prepare_threshold = None
            self._look(raw)
            if through_pooler(raw):
                self._probe(raw, f"{CHANNEL}_{incarnation}")
            if self._of_ends:
                raw.execute(f"LISTEN {ENDS_CHANNEL}")
                raw.execute("SELECT pg_advisory_lock_shared(%s, %s)", ENDS_LOCK)
            else:
                raw.execute(f"LISTEN {CHANNEL}")
            self.works = True
            raw.add_notify_handler(heard)  # those that come with other answers
            wake()  # for notifications sent before it listened
            own = incarnation.encode()
            readable = waits_for(raw.fileno())  # the driver's own wait wakes many times a second
            look_at = time.monotonic() + _LOOK
            while not self._closed.is_set():
                # The driver's notifies() takes an idle worker, whose caches are cold, 45 us more.
                raw.pgconn.consume_input()
                while (notification := raw.pgconn.notifies()) is not None:
                    if notification.extra != own:
                        wake()
                left = look_at - time.monotonic()
                if left > 0 and readable(left):
                    continue
                try:
                    self._look(raw)
                except _ReadOnly:
                    self._database.distrust()
                    wake()
                    raise
                look_at = time.monotonic() + _LOOK

    def _look(self, raw: Any) -> None:
        """Raises for a connection that is gone without a word; _ReadOnly if the server takes no writes: callers notify
        another server then."""
        alarm = threading.Timer(_ANSWER, shut_down, [raw])  # an answer that does not come is none, too
        alarm.daemon = True
        alarm.start()
        try:
            ((read_only, self._ends_wanted),) = raw.execute(_SERVER)
        finally:
            alarm.cancel()
        if read_only:
            raise _ReadOnly("the server takes no writes; looking for one that does")

    def _probe(self, raw: Any, channel: str) -> None:
        """Whether notifications come through a pooler: they do where each client keeps its server process.

        Rung by another connection, since a pooler passes on what comes while a statement of the client's own runs.
        """
        raw.execute(f'LISTEN "{channel}"')
        self._notify(channel)
        heard = any(True for _ in raw.notifies(timeout=_PROBE, stop_after=1))
        raw.execute(f'UNLISTEN "{channel}"')
        if not heard:
            raise _Pooled(
                "the way to the server leads through a connection pooler in transaction mode, which passes no "
                "notifications on; give [store] url the server itself to be woken at once"
            )

    def notify(self) -> None:
        with self._mutex:
            self._asked += 1
            if self._looks or self._closed.is_set():
                return
            now = time.monotonic()
            if now < self._last + self._apart:
                with contextlib.suppress(RuntimeError):  # no thread can be started: it notifies now
                    self._looks = True
                    self._spawn(self._notify_late, "schedd-notifier")
                    return
                self._looks = False
            self._told = self._asked
            self._begin(now)
        self._notify()

    def _begin(self, now: float) -> None:
        """A notification goes now. In a stream they go further apart: eight callers that each stored a task every 4 ms
        spent half of their time, and of the server's, on NOTIFY."""
        streams = now < self._last + 2 * self._apart
        self._last, self._apart = now, min(_STREAM * _DEBOUNCE, _GROWTH * self._apart) if streams else _DEBOUNCE

    def carried(self) -> Carried | None:
        with self._mutex:
            now = time.monotonic()
            if self._closed.is_set() or now < self._last + self._apart:
                return None
            self._begin(now)
            return Carried(Notice(CHANNEL, self._own), self._asked)

    def was_carried(self, carried: Carried) -> None:
        with self._mutex:
            self._told = max(self._told, carried.asked)

    def _notify_late(self) -> None:
        """Notify for callers that asked too soon after the last time, unless a later statement has told of them.

        It goes on looking for a moment: to make a thread for each of a thousand calls a second takes longer than the
        rest of them.
        """
        still, last = 0, self._last
        while still < _LINGER:
            late = self._apart + _LATE * _DEBOUNCE
            wait = self._last + late - time.monotonic() if self._asked > self._told else late
            if self._open.acquire(timeout=max(0.0, wait)):
                return
            with self._mutex:
                now = time.monotonic()
                due = self._asked > self._told and now >= self._last + self._apart + _LATE * _DEBOUNCE
                if due:
                    self._told = self._asked
                    self._begin(now)
                still = 0 if self._asked > self._told or self._last != last else still + 1
                last = self._last
                self._looks = still < _LINGER
            if due:
                self._notify()

    def notify_ends(self) -> None:
        if not self._ends_wanted or self._closed.is_set():
            return
        self._ends_due.set()
        if self._ends_thread is None:
            with contextlib.suppress(RuntimeError):  # no thread can be had: they look by themselves
                self._ends_thread = self._spawn(self._notify_of_ends, "schedd-ends")

    def _notify_of_ends(self) -> None:
        while not self._closed.wait(ENDS_EVERY):
            self._ends_due.wait()
            self._ends_due.clear()
            self._notify(ENDS_CHANNEL)

    def _notify(self, channel: str = CHANNEL) -> None:
        if self._closed.is_set():
            return  # a late timer must not open the database anew
        try:
            self._database.notify(Notice(channel, self._own))
        except Exception as error:  # lossy by design: the others poll
            log.debug("could not notify: %s", driver_text(error, self._database.url))

    def dead_peers(self) -> list[str]:
        return []

    def close(self) -> None:
        with self._mutex:
            owed = self._asked > self._told and not self._closed.is_set()
            self._told = self._asked
        if owed:
            self._notify()
        with contextlib.suppress(RuntimeError):  # it was closed before
            self._open.release()
        self._closed.set()
        self._ends_due.set()
        connection, self._connection = self._connection, None
        if connection is not None:
            shut_down(connection)  # wakes the listening thread, which closes it then


Notifier = NullNotifier | SocketNotifier | PgNotifier


def make_notifier(database: Database, spawn: Spawner = spawn_thread, *, quiet: bool = False) -> Notifier:
    """The notifier that fits the database; if there can be none, a NullNotifier, logged unless ``quiet``."""
    database.open()
    if not database.notifies:
        return NullNotifier()
    if database.dialect.name == "postgresql":
        return PgNotifier(database, spawn)
    directory = database.socket_directory
    assert directory is not None
    assert database.path is not None
    try:
        make_socket_directory(directory, database.path)
        return SocketNotifier(directory, spawn)
    except OSError as error:
        log.log(logging.DEBUG if quiet else logging.WARNING, "no notifier (%s): idle engines poll instead", error)
        return NullNotifier()
