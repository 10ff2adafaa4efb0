"""Sockets that others connect to: taking an address, and a bounded number of connections, none of which waits forever.

Strangers may open as many connections as they like, and send nothing, or half of a request. A listener keeps ``MOST``
of them. The next one takes the place of the connection that its client has let wait longest.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
import time
from collections.abc import Callable, Iterator

from scheduler.config.addresses import ListenAddress
from scheduler.system import LINUX, files, locks, sockets
from scheduler.system.processes import file_limits

MOST = 1000  # connections of one listener
PART_OF_FILES = 8  # of the files that the process may open, one listener takes this part at most
BACKLOG = 512  # connections that the kernel keeps until they are accepted
AT_A_TIME = 64  # connections accepted before others get a turn
HEAD_SECONDS = 10.0  # that the head of a request may take to arrive
BODY_SECONDS = 60.0  # that its body may take, where the application does not ask for less
READ_SECONDS = 30.0  # for which a client may leave an answer unread
SWEEP_EVERY = 1.0
RETRY_SECONDS = 0.5  # before it accepts again, once no file could be opened
FULL_SECONDS = 0.02  # and once there was no place
GRACE_SECONDS = 0.25  # for which a connection keeps its place, whoever comes
SAY_EVERY = 60.0  # seconds between two lines that say so
LOCK_SECONDS = 2.0  # that another program may take to bind a socket in the same directory
SOCKET_MODE = 0o660
UNIX = "unix"  # a peer at a Unix socket has the address unix:UID
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

logger = logging.getLogger("scheduler.connections")


class Listening:
    """A socket that listens. ``url``: where; ``path``: of a Unix socket."""

    def __init__(self, made: socket.socket, url: str, path: str | None = None) -> None:
        self.socket, self.url, self.path = made, url, path
        self._inode = None if path is None else os.stat(path).st_ino

    def close(self) -> None:
        """Close it, and remove its path, unless that has become another's."""
        self.socket.close()
        if self.path is not None:
            with contextlib.suppress(OSError):
                if os.stat(self.path).st_ino == self._inode:
                    os.unlink(self.path)


def bind(address: ListenAddress, scheme: str = "http") -> Listening:
    """Take an address and listen there. Raises OSError."""
    if address.path is not None:
        return Listening(bind_unix(address.path), f"unix:{address.path}", address.path)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        sockets.bind_after_others(made)
        made.bind((address.host, address.port))
        made.listen(BACKLOG)
    except BaseException:
        made.close()
        raise
    return Listening(made, f"{scheme}://{ListenAddress(*made.getsockname()[:2])}")


def bind_unix(path: str, mode: int = SOCKET_MODE) -> socket.socket:
    """Listen at a path. Takes the place of a socket whose program has ended, and of nothing else. Raises OSError."""
    made = sockets.unix()
    try:
        with contextlib.suppress(*() if LINUX else (OSError,)):  # macOS gives a socket no rights before it has a path
            files.set_mode(made.fileno(), path, mode)  # so it never has more than these, whatever the umask is
        with _alone_in(os.path.dirname(path)):
            _remove_stale(path)
            made.bind(path)
            made.listen(BACKLOG)  # in here: until it listens, it looks like one whose program has ended
        os.chmod(path, mode)
    except BaseException:
        made.close()
        raise
    return made


@contextlib.contextmanager
def _alone_in(directory: str) -> Iterator[None]:
    """Keep other programs of ours from binding a socket in this directory meanwhile."""
    handle = os.open(directory, os.O_RDONLY | files.DIRECTORY | files.CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                locks.lock(handle)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:  # a stranger's lock: the checks of _remove_stale hold all the same
                    break
                time.sleep(0.01)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(handle)


def _remove_stale(path: str) -> None:
    """Remove the socket of a program that has ended. Raises OSError if one listens, or another file is there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket is there; remove it, or name another path")
    with sockets.unix() as probe:
        probe.setblocking(False)  # one that lives and has no room for more does not answer at once
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except PermissionError:
            raise OSError(errno.EACCES, "another user's socket is there") from None
        except OSError:
            pass
    raise OSError(errno.EADDRINUSE, "another program listens there")


class Connection:
    """One connection of an :class:`Acceptor`. Its protocol says when it waits for its client, and when it does not."""

    def __init__(self, acceptor: Acceptor, end: socket.socket) -> None:
        self._acceptor = acceptor
        self._socket: socket.socket | None = end  # until there is a transport
        self.task: asyncio.Task[object] | None = None
        self.transport: asyncio.BaseTransport | None = None
        self.proven = False  # whether a request of it has been answered with success
        self.since = self.until = 0.0

    def opened(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self.transport, self._socket = transport, None

    def waits(self, seconds: float) -> None:
        """It waits for its client from now on, so long at most."""
        self.since = time.monotonic()
        self.until = self.since + seconds
        self._acceptor.waiting(self)

    def busy(self) -> None:
        """It waits for this program."""
        self._acceptor.not_waiting(self)

    def closed(self) -> None:
        """The connection is gone."""
        self._acceptor.remove(self)

    def end(self) -> None:
        """Close it at once."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()
        elif self._socket is not None:  # in the handshake of TLS, which ends by this
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if self.task is not None:
                self.task.cancel()

    def failed(self) -> None:
        """There was no connection after all."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.closed()


class Acceptor:
    """Accepts connections in an event loop. ``make`` makes the protocol of one.

    Protocols call :meth:`Connection.opened` and :meth:`~Connection.closed`, and say when they wait.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[Connection], asyncio.Protocol],
        name: str,
        tls: ssl.SSLContext | None = None,
        most: int | None = None,
    ) -> None:
        most_files = file_limits()[0]
        allowed = MOST if most_files < 0 else min(MOST, most_files // PART_OF_FILES)
        self._most = max(8, allowed) if most is None else most
        self._listening, self._make, self._name, self._tls = listening, make, name, tls
        self._loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        # In the order in which they began to wait; who has been served before keeps a half of the places.
        self._strangers: dict[Connection, None] = {}
        self._proven: dict[Connection, None] = {}
        self._next: socket.socket | None = None  # accepted, without a place yet
        self._accepting = self._closed = False
        self._said = -SAY_EVERY
        self._sweeper: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._accept_again()
        self._sweep()

    def close(self) -> None:
        """Accept nothing more, and close the connections that wait for their client."""
        self._closed = True
        self._pause()
        for timer in (self._sweeper, self._retry):
            if timer is not None:
                timer.cancel()
        for one in [*self._strangers, *self._proven]:
            one.end()
        if self._next is not None:
            self._next.close()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""

    # What connections say

    def waiting(self, one: Connection) -> None:
        """See :meth:`Connection.waits`."""
        self.not_waiting(one)
        if one in self._all:
            (self._proven if one.proven else self._strangers)[one] = None

    def not_waiting(self, one: Connection) -> None:
        """See :meth:`Connection.busy`."""
        self._strangers.pop(one, None)
        self._proven.pop(one, None)

    def remove(self, one: Connection) -> None:
        """See :meth:`Connection.closed`."""
        self.not_waiting(one)
        self._all.discard(one)

    # Accepting

    def _accept_again(self) -> None:
        self._retry = None
        if not self._closed and not self._accepting:
            self._accepting = True
            self._loop.add_reader(self._listening, self._accept)
            if self._next is not None:
                self._accept()

    def _pause(self, seconds: float | None = None) -> None:
        """Accept nothing, for so long."""
        if self._accepting:
            self._accepting = False
            self._loop.remove_reader(self._listening)
        if seconds is not None:
            self._retry = self._loop.call_later(seconds, self._accept_again)

    def _accept(self) -> None:
        for _ in range(AT_A_TIME):
            if self._next is None:
                try:
                    self._next, _ = self._listening.accept()
                except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                    return
                except OSError as error:
                    self._no_room(error)
                    return
                self._next.setblocking(False)
            if len(self._all) >= self._most and not self._evict():
                self._pause(FULL_SECONDS)  # each one is being answered, or has just come
                return
            end, self._next = self._next, None
            self._open(end)

    def _no_room(self, error: OSError) -> None:
        """Nothing can be accepted: usually, the process has too many files open."""
        if error.errno in _EXHAUSTED:
            for _ in range(AT_A_TIME):
                self._evict()
        now = time.monotonic()
        if now - self._said >= SAY_EVERY:
            self._said = now
            logger.warning(
                "the %s takes no connections for now: %s; the process may open %d files",
                *(self._name, error.strerror or error, file_limits()[0]),
            )
        self._pause(RETRY_SECONDS)

    def _open(self, end: socket.socket) -> None:
        one = Connection(self, end)
        self._all.add(one)
        one.waits(HEAD_SECONDS)
        timeout = HEAD_SECONDS if self._tls is not None else None
        one.task = self._loop.create_task(
            self._loop.connect_accepted_socket(
                lambda: self._make(one), end, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        )
        one.task.add_done_callback(lambda task: self._opened(one, task))

    def _opened(self, one: Connection, task: asyncio.Task[object]) -> None:
        if task.cancelled() or task.exception() is not None:  # such as a handshake that failed
            one.failed()

    # Closing

    def _evict(self) -> bool:
        """Close the connection that has waited longest for its client; False if none has waited for a while."""
        many = len(self._strangers) > self._most // 2
        long_ago = time.monotonic() - GRACE_SECONDS
        for victims in (self._strangers, self._proven) if many else (self._proven, self._strangers):
            one = next(iter(victims), None)
            if one is not None and one.since <= long_ago:
                self.remove(one)
                one.end()
                return True
        return False

    def _sweep(self) -> None:
        """Close connections whose client has taken too long."""
        now = time.monotonic()
        for one in [one for group in (self._strangers, self._proven) for one in group if one.until < now]:
            self.remove(one)
            one.end()
        if not self._closed:
            self._sweeper = self._loop.call_later(SWEEP_EVERY, self._sweep)
