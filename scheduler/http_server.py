"""An HTTP server in a thread of its own, for small ASGI applications: the door, and the gateway of jobs. By uvicorn."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn

from scheduler.config.addresses import parse_listen
from scheduler.errors import ConfigError

MAX_HEADERS = 32 * 1024
STOP_SECONDS = 3
LISTEN_BACKLOG = 512
READ_TIMEOUT = 30.0  # seconds that a body may take to arrive
SOCKET_MODE = 0o660


class TooLarge(Exception):
    """A body has more bytes than may be."""


class HttpServer:
    """Serves ``app`` at ``listen`` between :meth:`start` and :meth:`stop`. ``url``: where it answers, once started.

    ``name``: of what is served, for errors and the thread. ``cert``, ``key``: files for TLS. Raises ConfigError.
    """

    def __init__(self, app: Any, listen: str, name: str, cert: str | None = None, key: str | None = None) -> None:
        self._app = app
        self._listen = listen
        self._name = name
        self._tls = (cert, key)
        self._address = parse_listen(listen)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.url = ""

    def start(self) -> None:
        """Take the address and serve. Raises ConfigError if the address, or a file for TLS, cannot be had."""
        cert, key = self._tls
        settings = uvicorn.Config(
            self._app,
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADERS,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        try:
            settings.load()
        except OSError as error:  # ssl.SSLError is one
            why = error.strerror or error
            raise ConfigError(f"the {self._name} cannot use the certificate {cert} and its key: {why}") from None
        try:
            listening = self._bind()
        except OSError as error:
            raise ConfigError(f"the {self._name} cannot listen on {self._listen}: {error.strerror or error}") from None
        self._server = uvicorn.Server(settings)
        serve = self._server.run
        self._thread = threading.Thread(target=serve, args=([listening],), name=f"schedd-{self._name}", daemon=True)
        self._thread.start()

    def _bind(self) -> socket.socket:
        address = self._address
        if address.path is not None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            Path(address.path).unlink(missing_ok=True)
            made.bind(address.path)
            os.chmod(address.path, SOCKET_MODE)
            self.url = f"unix:{address.path}"
        else:
            host = address.host or "127.0.0.1"
            made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, address.port))
            scheme = "http" if self._tls[0] is None else "https"
            self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{made.getsockname()[1]}"
        made.listen(LISTEN_BACKLOG)
        return made

    def stop(self) -> None:
        """Take nothing more; requests under way are answered."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS + 1)


async def body_of(receive: Any, most: int, headers: Mapping[str, str]) -> bytes:
    """The body of a request. Raises TooLarge; TimeoutError if it does not arrive in time, or its sender leaves."""
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise TooLarge
    return await asyncio.wait_for(_body(receive, most), READ_TIMEOUT)


async def _body(receive: Any, most: int) -> bytes:
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
        if not event.get("more_body"):
            return b"".join(parts)


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
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
