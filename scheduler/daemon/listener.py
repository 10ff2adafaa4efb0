"""Serves a daemon's metrics and health checks over HTTP, in threads of its own. It never asks the database."""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.config.addresses import ListenAddress, parse_listen
from scheduler.telemetry import prometheus
from scheduler.telemetry.health import Vitals, not_alive, not_ready, not_started

if TYPE_CHECKING:
    from scheduler.telemetry.metrics import Family
    from scheduler.telemetry.registry import MetricsRegistry

RETRY_EVERY_S = 15.0  # between tries to listen where another program listens
REQUEST_TIMEOUT_S = 5.0  # that a client may take to send or to read the next part
MAX_REQUESTS = 8  # at a time; more are refused
SOCKET_MODE = 0o660
_HOST_IN_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]*)(:\d+)?")

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
    """See the module."""

    def __init__(self, address: ListenAddress, engine: Engine) -> None:
        self._address = address
        self._over = threading.Event()
        self._server: _Server | None = None
        self._answers = Answers(address, engine)

    def start(self) -> None:
        """Listen, and serve in a thread; log the address, or why it cannot be had."""
        self._try(first=True)
        threading.Thread(target=self._run, name="schedd-metrics", daemon=True).start()

    def _run(self) -> None:
        while self._server is None:
            if self._over.wait(RETRY_EVERY_S):
                return
            self._try(first=False)
        self._server.serve_forever(poll_interval=0.5)

    def _try(self, *, first: bool) -> None:
        try:
            server = _Server(self._address, self._answers)
        except OSError as error:
            if first:
                logger.error(
                    "no metrics and no health checks: cannot listen at %s (%s); tasks run all the same, and it is "
                    "tried again every %g s: set [metrics] listen to another address, or end what listens there",
                    *(self._address, error.strerror or error, RETRY_EVERY_S),
                )
            return
        logger.info("metrics and health checks at %s", server.where)
        self._server = server

    def close(self) -> None:
        """Serve no more."""
        self._over.set()
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


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


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        self._answer(body_too=True)

    def do_HEAD(self) -> None:
        self._answer(body_too=False)

    def _answer(self, *, body_too: bool) -> None:
        answers = self.server.answers
        if answers.allows(self.headers.get("Host")):
            path = self.path.partition("?")[0]
            status, content_type, body = answers.get(path, self.headers.get("Accept", ""))
        else:
            status, content_type = HTTPStatus.MISDIRECTED_REQUEST, _TEXT
            body = b"ask for an address, such as 127.0.0.1, or for localhost\n"
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body_too:
            self.wfile.write(body)

    def version_string(self) -> str:
        return "schedd"

    def address_string(self) -> str:
        return str(self.client_address)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s: %s", self.address_string(), format % args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: ListenAddress, answers: Answers) -> None:
        self.answers = answers
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        self._path = address.path
        self._inode = 0
        if address.path is not None:
            self.address_family = socket.AF_UNIX
            _remove_stale(address.path)
            super().__init__(address.path, _Handler)  # type: ignore[arg-type]
        else:
            self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            super().__init__((address.host, address.port), _Handler)

    @property
    def where(self) -> str:
        """Where it listens, as a URL or path."""
        if self._path is not None:
            return f"unix:{self._path}"
        return f"http://{ListenAddress(*self.socket.getsockname()[:2])}"

    def server_bind(self) -> None:
        if self._path is None:
            super().server_bind()
        else:
            self.socket.bind(self._path)
            os.chmod(self._path, SOCKET_MODE)
            self._inode = os.stat(self._path).st_ino
            self.server_name, self.server_port = "unix", 0

    def server_close(self) -> None:
        super().server_close()
        if self._path is not None:
            with suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request for metrics failed", exc_info=True)


def _remove_stale(path: str) -> None:
    """Remove the socket of a program that has ended. Raises OSError if one listens, or another file is there."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(17, "another file is there")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            else:
                raise OSError(98, "another program listens there")
