"""HTTP servers for ASGI applications, by uvicorn: the door and the gateway of jobs, each in a thread, and the console.

How many connections there are, and how long they wait for their client, :mod:`scheduler.connections` bounds.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from scheduler.config.addresses import parse_listen
from scheduler.connections import BODY_SECONDS, HEAD_SECONDS, READ_SECONDS, UNIX, Acceptor, Connection, Listening, bind
from scheduler.errors import ConfigError
from scheduler.interrupts import StopSignals
from scheduler.system import loops
from scheduler.system.sockets import peer_of

MAX_HEADERS = 32 * 1024
STOP_SECONDS = 2
READ_TIMEOUT = 30.0  # seconds that a body may take to arrive
STRANGER_TIMEOUT = 10.0  # and that of a sender who is known by the whole of it only

# What strangers send is no news: uvicorn warns of each request that is none.
_logger = logging.getLogger("scheduler.http")
_logger.setLevel(logging.ERROR)


class TooLarge(Exception):
    """A body has more bytes than may be."""


class Crowded(Exception):
    """Others send so much at once that this body had to go."""


class Protocol(H11Protocol):
    """uvicorn's protocol. It tells its connection for whom it waits, and says which user is at the other end of a Unix
    socket."""

    def __init__(self, connection: Connection, **given: Any) -> None:
        super().__init__(**given)
        self.logger = _logger
        self._connection = connection
        self._waits: float | None = HEAD_SECONDS  # for its client, so long at most; None: for the application
        self._unread = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connection.opened(transport)
        end = transport.get_extra_info("socket")
        peer = None if end is None else peer_of(end)
        if peer is not None:
            pid, uid = peer
            self.client = (f"{UNIX}:{uid}", pid)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._connection.closed()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._tell()

    def on_response_complete(self) -> None:
        self._connection.proven = True
        self._waits = None  # so that the time of the next head begins now
        super().on_response_complete()
        self._tell()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = True
        self._tell()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread = False
        self._tell()

    def _tell(self) -> None:
        """Say for whom this connection waits, if that is another one now."""
        cycle = self.cycle
        waits: float | None = None
        if self._unread:
            waits = READ_SECONDS
        elif cycle is None or cycle.response_complete:
            waits = HEAD_SECONDS
        elif cycle.more_body:
            waits = BODY_SECONDS
        if waits == self._waits:
            return
        self._waits = waits
        if waits is None:
            self._connection.busy()
        else:
            self._connection.waits(waits)


class BoundedServer(uvicorn.Server):
    """Serves an ASGI application at a socket that listens. ``name``: of what is served, for the log."""

    def __init__(self, app: Any, listening: Listening | None, name: str, **settings: Any) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                loop="asyncio",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEADERS,
                timeout_graceful_shutdown=STOP_SECONDS,
                **settings,
            )
        )
        self.listening = listening
        self._name = name
        self._stop_signals = StopSignals()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is told to stop."""
        loops.run(self.serve(sockets))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets=[])
        assert self.listening is not None
        acceptor = Acceptor(self.listening.socket, self._protocol, self._name, self.config.ssl)
        self.servers.append(cast(Any, acceptor))  # it is closed and waited for as one of asyncio's

    def _protocol(self, connection: Connection) -> asyncio.Protocol:
        state = self.lifespan.state
        return Protocol(connection, config=self.config, server_state=self.server_state, app_state=state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second interrupt stops at once, unless it comes with the first one."""
        if self._stop_signals.counts():
            super().handle_exit(sig, frame)


class HttpServer:
    """Serves ``app`` at ``listen`` between :meth:`start` and :meth:`stop`. ``url``: where it answers, once started.

    ``name``: of what is served, for errors and the thread. ``cert``, ``key``: files for TLS. Raises ConfigError.
    """

    def __init__(self, app: Any, listen: str, name: str, cert: str | None = None, key: str | None = None) -> None:
        self._listen = listen
        self._name = name
        self._tls = (cert, key)
        self._address = parse_listen(listen)
        self._server = BoundedServer(app, None, name, lifespan="off", ssl_certfile=cert, ssl_keyfile=key)
        self._thread: threading.Thread | None = None
        self.url = ""

    def start(self) -> None:
        """Take the address and serve. Raises ConfigError if the address, or a file for TLS, cannot be had."""
        try:
            self._server.config.load()
        except OSError as error:  # ssl.SSLError is one
            why = error.strerror or error
            raise ConfigError(
                f"the {self._name} cannot use the certificate {self._tls[0]} and its key: {why}"
            ) from None
        try:
            listening = bind(self._address, "http" if self._tls[0] is None else "https")
        except OSError as error:
            raise ConfigError(f"the {self._name} cannot listen on {self._listen}: {error.strerror or error}") from None
        self._server.listening, self.url = listening, listening.url
        self._thread = threading.Thread(target=self._run, name=f"schedd-{self._name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._server.run()
        finally:
            assert self._server.listening is not None
            self._server.listening.close()

    def stop(self) -> None:
        """Take nothing more; requests under way are answered."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS + 1)


class Bodies:
    """The bodies of requests. ``most``: bytes of all of them; ``seconds``: that one may take to arrive.

    Where they are more, the one goes that began to arrive first. So nobody keeps others out by bodies that never end.
    """

    def __init__(self, most: int, seconds: float = READ_TIMEOUT) -> None:
        self._most, self._seconds = most, seconds
        self._size = 0
        self._arriving: dict[asyncio.Task[bytes], int] = {}

    @asynccontextmanager
    async def read(self, receive: Any, most: int, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The body of a request, which counts until the end of the block.

        Raises TooLarge; Crowded; TimeoutError if it does not arrive in time, or its sender leaves.
        """
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > most:
            raise TooLarge
        reading = asyncio.ensure_future(self._read(receive, most))
        self._arriving[reading] = 0
        try:
            done, _ = await asyncio.wait({reading}, timeout=self._seconds)
        finally:
            reading.cancel()
            self._size -= self._arriving.pop(reading, 0)
        if not done:
            raise TimeoutError
        if reading.cancelled():
            raise Crowded
        body = reading.result()
        self._size += len(body)
        try:
            yield body
        finally:
            self._size -= len(body)

    async def _read(self, receive: Any, most: int) -> bytes:
        parts, size = [], 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise TimeoutError
            part = event.get("body", b"")
            size += len(part)
            if size > most:
                raise TooLarge
            parts.append(part)
            self._grown(len(part))
            if not event.get("more_body"):
                return b"".join(parts)

    def _grown(self, size: int) -> None:
        task = asyncio.current_task()
        for one in self._arriving:
            if one is task:
                self._arriving[one] += size
                self._size += size
                break
        while self._size > self._most and self._arriving:
            first = next(iter(self._arriving))
            self._size -= self._arriving.pop(first)
            first.cancel()


async def respond(send: Any, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Send an answer; a body is JSON unless ``headers`` say otherwise."""
    given = {"content-type": "application/json", **headers} if body else dict(headers)
    given["content-length"] = str(len(body))
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(name.encode(), value.encode()) for name, value in given.items()]})
    await send({"type": "http.response.body", "body": body})


def headers_of(scope: Any) -> dict[str, str]:
    """The headers of a request, their names in small letters."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def bears(token: str | None, headers: Mapping[str, str]) -> bool:
    """Whether a request's bearer token is this one, compared in constant time."""
    if token is None:
        return False
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), token.encode())
