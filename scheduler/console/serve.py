"""Serves the console by itself: the address, the link, the sockets, and uvicorn."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

import msgspec

from scheduler import interpreter
from scheduler.app import Scheduler
from scheduler.config.addresses import parse_listen
from scheduler.config.model import Config
from scheduler.connections import Listening, bind
from scheduler.console.auth import LinkAuth, make_auth
from scheduler.console.gate import Gate
from scheduler.console.security import Peers
from scheduler.console.visit import Site
from scheduler.errors import ConfigError
from scheduler.http_server import BoundedServer
from scheduler.nonblocking import unblocked
from scheduler.system.signals import stop_self

DEFAULT_LISTEN = "127.0.0.1:8321"
CONNECTIONS = 3  # to a server: two for requests and bulks, one on which the console looks whether anything has changed


class ConsoleServer:
    """The console's own server. ``url``: where it answers, once :meth:`bind` has been called."""

    def __init__(self, config: Config, listen: str, *, tell: Callable[[str], None]) -> None:
        self._config = config
        self._tell = tell
        self.address = parse_listen(listen)
        settings = msgspec.structs.replace(config.console, listen=listen)
        store = config.store
        self.jobs = Scheduler(store.url, auto_migrate=False)
        self.jobs.database.application_name = "schedd-console"
        self.jobs.database.connections = CONNECTIONS
        self.auth = make_auth(
            settings,
            self.jobs.desk,
            loopback=self.address.loopback and self.address.path is None,
            unix=self.address.path is not None,
            trusts_proxy=Peers(settings.trusted_proxies).any,
        )
        if config.api.enabled and isinstance(self.auth, LinkAuth):
            raise ConfigError(
                '[api] needs [console] auth: "token", "basic", "proxy" or "local"; a link for one use is for browsers'
            )
        self.gate = Gate(Site(self.jobs, settings, config), self.auth, standalone=True)
        self._listening: Listening | None = None
        self._server: BoundedServer | None = None
        self.url = ""

    def bind(self) -> str:
        """Take the address. Returns the URL, with a link for one use where that is how one gets in.

        Raises ConfigError.
        """
        try:
            self._listening = bind(self.address)
        except OSError as error:
            raise ConfigError(
                f"the console cannot listen on {self.address}: {error.strerror or error}; "
                "--listen, or [console] listen, names another address"
            ) from None
        if self._listening.path is not None:
            self.url = self._listening.url
            return self.url
        self.url = f"{self._listening.url}{(self._config.console.prefix or '').rstrip('/')}/"
        if isinstance(self.auth, LinkAuth):
            self.auth.show = lambda token: self._tell(f"{self.url}?t={token}")
            return f"{self.url}?t={self.auth.new_link()}"
        return self.url

    def run(self) -> None:
        """Serve until a signal to stop."""
        self._server = BoundedServer(self.gate, self._listening, "console", lifespan="on")
        try:
            self._server.run()
        finally:
            self.close()

    def stop(self) -> None:
        """Have :meth:`run` end, from another thread."""
        if self._server is not None:
            self._server.should_exit = True

    def close(self) -> None:
        """Close the socket and the database."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.gate.close()  # a server that stops while it starts has not told it
        self.jobs.close()


def serve(
    config: Config, listen: str | None, *, opens: bool, tell: Callable[[str], None], until_stdin_ends: bool = False
) -> None:
    """Serve the console until a signal to stop. ``tell`` prints where it is.

    ``until_stdin_ends``: or until the process that holds the other end of stdin ends. Raises ConfigError.
    """
    interpreter.raise_file_limit()
    server = ConsoleServer(config, listen or config.console.listen or DEFAULT_LISTEN, tell=tell)
    url = server.bind()
    tell(url)
    if opens:
        import webbrowser

        webbrowser.open(url)
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=unblocked(sys.stderr)
    )
    if until_stdin_ends:
        threading.Thread(target=_wait_for_parent, args=(server,), name="console-parent", daemon=True).start()
    server.run()


def _wait_for_parent(server: ConsoleServer) -> None:
    while os.read(0, 4096):
        pass
    stop_self()
