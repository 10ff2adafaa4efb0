"""Serves a daemon's metrics and health checks over HTTP, in a thread of its own. It never asks the database.

It needs the standard library only: each request has a connection of its own, and no body.
"""

from __future__ import annotations

import asyncio
import io
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from typing import TYPE_CHECKING, Protocol, cast

from scheduler.config.addresses import ListenAddress, parse_listen
from scheduler.connections import READ_SECONDS, Acceptor, Connection, Listening, bind
from scheduler.system import loops
from scheduler.telemetry import prometheus
from scheduler.telemetry.health import Vitals, not_alive, not_ready, not_started

if TYPE_CHECKING:
    from scheduler.telemetry.metrics import Family
    from scheduler.telemetry.registry import MetricsRegistry

RETRY_EVERY_S = 15.0  # between tries to listen where another program listens
STOP_TIMEOUT_S = 2.0
MAX_HEAD = 32 * 1024  # bytes of a request
_HOST_IN_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]*)(:\d+)?")
_REQUEST = re.compile(rb"([A-Z]{1,20}) (/[\x21-\x7e]*) HTTP/1\.[01]\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")

logger = logging.getLogger("scheduler.daemon")


class Watched(Protocol):
    """What it needs of an engine."""

    @property
    def metrics(self) -> MetricsRegistry | None: ...

    def health(self) -> Vitals: ...


Engine = Callable[[], Watched | None]


@contextmanager
def listening(configured: str, engine: Engine) -> Iterator[None]:
    """Serve at ``configured``, which is ``[metrics] listen``, until the end of the block.

    ``engine``: None until there is one. An address that is taken is only logged, and tried again: monitoring must not
    keep tasks from running.
    """
    listener = Listener(parse_listen(configured), engine)
    listener.start()
    try:
        yield
    finally:
        listener.close()


class Listener:
    """See the module. ``url``: where it answers; empty while it does not."""

    def __init__(self, address: ListenAddress, engine: Engine) -> None:
        self._address = address
        self._over = threading.Event()
        self._listening: Listening | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._answers = Answers(address, engine)
        self._thread = threading.Thread(target=self._run, name="schedd-metrics", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers; empty while it does not."""
        return "" if self._listening is None else self._listening.url

    def start(self) -> None:
        """Listen, and serve in a thread; log the address, or why it cannot be had."""
        self._try(first=True)
        self._thread.start()

    def _run(self) -> None:
        while self._listening is None:
            if self._over.wait(RETRY_EVERY_S):
                return
            self._try(first=False)
        try:
            loops.run(self._serve(self._listening))
        finally:
            self._listening.close()

    def _try(self, *, first: bool) -> None:
        try:
            listening = bind(self._address)
        except OSError as error:
            if first:
                logger.error(
                    "no metrics and no health checks: cannot listen at %s (%s); tasks run all the same, and it is "
                    "tried again every %g s: set [metrics] listen to another address, or end what listens there",
                    *(self._address, error.strerror or error, RETRY_EVERY_S),
                )
            return
        logger.info("metrics and health checks at %s", listening.url)
        self._listening = listening

    async def _serve(self, listening: Listening) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        acceptor = Acceptor(listening.socket, lambda one: _Request(one, self._answers), "metrics listener")
        if not self._over.is_set():
            await self._stop.wait()
        acceptor.close()

    def close(self) -> None:
        """Serve no more."""
        self._over.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # it is closed already
                loop.call_soon_threadsafe(stop.set)
        self._thread.join(STOP_TIMEOUT_S)


class Answers:
    """What each path is answered."""

    def __init__(self, address: ListenAddress, engine: Engine) -> None:
        self._engine = engine
        self._loopback = address.loopback and address.path is None
        self._registry = prometheus.make_registry(self._read, process=True)

    def _read(self) -> Iterable[Family]:
        engine = self._engine()
        registry = None if engine is None else engine.metrics
        return () if registry is None else registry.snapshot()

    def allows(self, host: str | None) -> bool:
        """Whether a request for this host is answered.

        At a loopback address only one for an address or localhost: a web page whose name was made to lead here is
        another site to a browser, which would let it read the answer.
        """
        if not self._loopback or host is None:
            return True
        match = _HOST_IN_HEADER.fullmatch(host)
        name = "" if match is None else match[1]
        return name == "localhost" or name.startswith("[") or re.fullmatch(r"[\d.]+", name) is not None

    def get(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        """The status, content type and body for a path."""
        if path == "/metrics":
            body, content_type = prometheus.render(self._registry, accept)
            return HTTPStatus.OK, content_type, body
        check = _CHECKS.get(path)
        if check is None:
            return HTTPStatus.NOT_FOUND, _TEXT, b"there are /metrics, /livez, /readyz and /startupz\n"
        engine = self._engine()
        wrong = check(None if engine is None else engine.health())
        status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
        return status, _TEXT, "".join(f"{line}\n" for line in wrong or ["ok"]).encode()


_TEXT = "text/plain; charset=utf-8"
_CHECKS: dict[str, Callable[[Vitals | None], list[str]]] = {
    "/livez": not_alive,
    "/readyz": not_ready,
    "/startupz": not_started,
}


class _Request(asyncio.Protocol):
    """One connection: takes one request, answers it, and closes."""

    def __init__(self, connection: Connection, answers: Answers) -> None:
        self._connection, self._answers = connection, answers
        self._head = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connection.opened(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.closed()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._head += data
        if _HEAD_END.search(self._head) is None and len(self._head) <= MAX_HEAD:
            return
        try:
            answer = self._answer()
        except Exception:
            logger.debug("a request for metrics failed", exc_info=True)
            answer = _response(HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"")
        self._connection.waits(READ_SECONDS)  # until the answer has been read
        self._transport.write(answer)
        self._transport.close()

    def _answer(self) -> bytes:
        line = _REQUEST.match(self._head)
        if line is None or len(self._head) > MAX_HEAD:
            return _response(HTTPStatus.BAD_REQUEST, _TEXT, b"this is no request\n")
        try:
            headers = parse_headers(io.BytesIO(self._head[line.end() :]))
        except HTTPException:
            return _response(HTTPStatus.BAD_REQUEST, _TEXT, b"this is no request\n")
        method, path = line[1], line[2].partition(b"?")[0].decode()
        if method not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.NOT_IMPLEMENTED, _TEXT, b"get it\n")
        if self._answers.allows(headers.get("Host")):
            status, content_type, body = self._answers.get(path, headers.get("Accept", ""))
        else:
            status, content_type = HTTPStatus.MISDIRECTED_REQUEST, _TEXT
            body = b"ask for an address, such as 127.0.0.1, or for localhost\n"
        return _response(status, content_type, body, body_too=method == b"GET")


def _response(status: HTTPStatus, content_type: str, body: bytes, *, body_too: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Server: schedd",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (body if body_too else b"")
