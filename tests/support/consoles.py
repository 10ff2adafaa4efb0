"""Consoles for tests: asked without a server, or served in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from scheduler import Scheduler
from scheduler.config.model import Config, ConsoleSection, StoreSection
from scheduler.console import app, principal
from scheduler.console.gate import Gate
from scheduler.console.roles import Principal
from scheduler.console.serve import ConsoleServer
from support.databases import Database

ORIGIN = {"origin": "http://127.0.0.1", "host": "127.0.0.1"}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def ask(
    gate: Any,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    form: Mapping[str, Any] | None = None,
    body: bytes | None = None,
    client: tuple[str, int] | None = ("127.0.0.1", 1),
    root_path: str = "",
    scope_type: str = "http",
) -> Answer:
    """Ask an ASGI app as a server does, in a thread of its own."""
    given = {"host": "127.0.0.1", **(headers or {})}
    if form is not None:
        body = urlencode(form, doseq=True).encode()
        given.setdefault("content-type", "application/x-www-form-urlencoded")
    where, _, query = path.partition("?")
    scope = {
        "type": scope_type,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": root_path + where,
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "root_path": root_path,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
        "client": client,
        "server": ("127.0.0.1", 80),
    }
    sent: list[Any] = []
    left = [{"type": "http.request", "body": body or b"", "more_body": False}]

    async def receive() -> Any:
        return left.pop() if left else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(gate(scope, receive, send))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    if sent[0]["type"] == "websocket.close":
        return Answer(sent[0]["code"], {}, b"")
    pairs = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
    cookies = tuple(value for name, value in pairs if name == "set-cookie")
    return Answer(sent[0]["status"], dict(pairs), b"".join(m.get("body", b"") for m in sent[1:]), cookies)


def post(gate: Gate, path: str, **form: Any) -> Answer:
    """Send a form from a page of the console's own."""
    return ask(gate, "POST", path, form=form, headers=ORIGIN)


@contextmanager
def console_on(
    database: Database, role: str | Callable[[Any], Principal | None] = "admin", **settings: Any
) -> Iterator[Gate]:
    """A mounted console, in which the visitor has a role."""
    jobs = Scheduler(database.url)
    who = role if callable(role) else lambda scope: principal("ada", role)
    try:
        yield app(jobs, who, settings=ConsoleSection(**settings))
    finally:
        jobs.close()


@contextmanager
def served(database: Database, *, listen: str = "127.0.0.1:0", **settings: Any) -> Iterator[ConsoleServer]:
    """A console on a port of its own, as ``schedctl console`` serves it. ``server.url`` is without a link."""
    with serving(Config(store=StoreSection(url=database.url), console=ConsoleSection(**settings)), listen) as server:
        yield server


@contextmanager
def serving(config: Config, listen: str = "127.0.0.1:0") -> Iterator[ConsoleServer]:
    """The same with a whole configuration."""
    server = ConsoleServer(config, listen, tell=lambda url: None)
    server.opened = server.bind()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run, name="console")
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


def link(server: ConsoleServer) -> str:
    """A new link for one use."""
    return f"{server.url}?t={server.auth.new_link()}"  # type: ignore[attr-defined]
