"""Serves the console by itself: the address, the link, the sockets, and uvicorn."""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from scheduler.app import Scheduler
from scheduler.config.addresses import parse_listen
from scheduler.config.model import Config
from scheduler.console.auth import LinkAuth, make_auth
from scheduler.console.gate import Gate
from scheduler.console.security import UNIX, Peers
from scheduler.console.visit import Site
from scheduler.errors import ConfigError

DEFAULT_LISTEN = "127.0.0.1:8321"
SOCKET_MODE = 0o660
MAX_HEADERS = 32 * 1024
STOP_SECONDS = 3
BACKLOG = 128
CONNECTIONS = 3  # to a server: two for requests and bulks, one on which the console looks whether anything has changed

logger = logging.getLogger("scheduler.console")


class PeerProtocol(H11Protocol):
    """uvicorn's protocol, which also says which user is at the other end of a Unix socket."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        end = transport.get_extra_info("socket")
        if end is not None and end.family == socket.AF_UNIX:
            credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, uid, _ = struct.unpack("3i", credentials)
            self.client = (f"{UNIX}:{uid}", pid)


class Server:
    """The console's own server. ``url``: where it answers, once :meth:`bind` has been called."""

    def __init__(self, config: Config, listen: str, *, tell: Callable[[str], None]) -> None:
        self._config = config
        self._tell = tell
        self.address = parse_listen(listen)
        settings = msgspec.structs.replace(config.console, listen=listen)
        store = config.store
        self.jobs = Scheduler(store.url, auto_migrate=store.auto_migrate)
        self.jobs.database.application_name = "schedd-console"
        self.jobs.database.connections = CONNECTIONS
        self.auth = make_auth(
            settings,
            self.jobs.database,
            loopback=self.address.loopback and self.address.path is None,
            unix=self.address.path is not None,
            trusts_proxy=Peers(settings.trusted_proxies).any,
        )
        self.gate = Gate(Site(self.jobs, settings, config), self.auth, standalone=True)
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self.url = ""

    def bind(self) -> str:
        """Take the address. Returns the URL, with a link for one use where that is how one gets in.

        Raises ConfigError.
        """
        path = None if self.address.path is None else Path(self.address.path)
        try:
            self._socket = self._bind_unix(path) if path is not None else self._bind_tcp()
        except OSError as error:
            where = path if path is not None else f"{self.address.host}:{self.address.port}"
            raise ConfigError(f"the console cannot listen on {where}: {error.strerror or error}") from None
        self._socket.listen(BACKLOG)  # who comes before the server has started waits
        if path is not None:
            self.url = f"{UNIX}:{path}"
            return self.url
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        self.url = f"http://{host}:{self._socket.getsockname()[1]}{(self._config.console.prefix or '').rstrip('/')}/"
        if isinstance(self.auth, LinkAuth):
            self.auth.show = lambda token: self._tell(f"{self.url}?t={token}")
            return f"{self.url}?t={self.auth.new_link()}"
        return self.url

    def _bind_tcp(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((self.address.host, self.address.port))
        return made

    def _bind_unix(self, path: Path) -> socket.socket:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(path))
                except OSError:
                    path.unlink()  # of a console that was killed
                else:
                    raise OSError(0, "another console listens there")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o777 & ~SOCKET_MODE)
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        os.chmod(path, SOCKET_MODE)
        return made

    def run(self) -> None:
        """Serve until a signal to stop."""
        assert self._socket is not None
        settings = uvicorn.Config(
            self.gate,
            http=PeerProtocol,
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # the gate believes trusted proxies only
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADERS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        self._server = uvicorn.Server(settings)
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def stop(self) -> None:
        """Have :meth:`run` end, from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Close the socket and the database."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            path = None if self.address.path is None else Path(self.address.path)
            if path is not None and path.is_socket():
                path.unlink()
        self.jobs.close()


def serve(
    config: Config, listen: str | None, *, opens: bool, tell: Callable[[str], None], until_stdin_ends: bool = False
) -> None:
    """Serve the console until a signal to stop. ``tell`` prints where it is.

    ``until_stdin_ends``: or until the process that holds the other end of stdin ends. Raises ConfigError.
    """
    server = Server(config, listen or config.console.listen or DEFAULT_LISTEN, tell=tell)
    url = server.bind()
    tell(url)
    if opens:
        import webbrowser

        webbrowser.open(url)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if until_stdin_ends:
        threading.Thread(target=_wait_for_parent, args=(server,), name="console-parent", daemon=True).start()
    server.run()


def _wait_for_parent(server: Server) -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
