"""A server of a federation: a schedd with its own key and stores behind a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from scheduler import Scheduler
from scheduler.tasks import BUILTIN, ActionVerifierTask
from scheduler.tasks.action_store import ActionStore
from scheduler.tasks.blobs import BlobStore
from scheduler.tasks.tokens import action_id_of, public_keys

TENANT = 7
PATIENCE = 30.0  # seconds
on_failure: list[Callable[[str], None]] = []  # told the kind of each attempt that raises, before that is recorded


@contextmanager
def around(ctx: Any) -> Iterator[None]:
    """``around_run`` of the schedulers; at the top of a module, since child processes have to find it."""
    try:
        yield
    except BaseException:
        for told in on_failure:
            told(ctx.kind)
        raise


class Server(uvicorn.Server):
    """In a thread, on a socket that is bound already. Until ``start`` connections are refused."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, interface="asgi3", log_level="error", lifespan="off"))
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self.run, args=([self.socket],), daemon=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def end(self) -> None:
        self.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(PATIENCE)
        self.socket.close()


class Instance:
    """``refusals``: statuses that the inbox answers first, before it takes anything; ``asked``: what was asked for."""

    def __init__(self, place: Path, name: str, refusals: list[int] | None = None) -> None:
        self.place, self.name = place, name
        self.refusals = refusals or []
        self.asked: list[str] = []
        (place / "incoming").mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP384R1())
        self.pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (place / "key.pem").write_bytes(self.pem)
        self.blobs, self.actions = BlobStore(place / "blobs"), ActionStore(place / "actions")
        self.server = Server(self.app)
        self.jobs: Scheduler

    def begin(self, peer: Instance, follows: list[str]) -> None:
        """Start the scheduler; its requests go to ``peer``, whoever is asked for."""
        self.jobs = Scheduler(
            f"sqlite:///{self.place}/jobs.db",
            processes=1,
            around_run=around,
            settings={
                "files": {"blobs": str(self.blobs.root), "roots": [str(self.place / "incoming")]},
                "http": {"allow": ["127.0.0.1"]},
                "actions": {
                    "name": self.name,
                    "key_file": str(self.place / "key.pem"),
                    "directory": str(self.actions.root),
                    "inbox": f"{peer.server.url}/{{recipient}}/api/inbox",
                    "keys": f"{peer.server.url}/{{issuer}}/api/me/keys",
                    "files": f"{peer.server.url}/{{issuer}}/api/files/{{file_id}}",
                    "following": follows,
                },
            },
        )
        for kind in BUILTIN.values():
            self.jobs.register(kind)
        self.jobs.start()

    def end(self) -> None:
        self.server.end()
        self.jobs.stop_now()
        self.jobs.close()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.asked.append(f"{scope['method']} {scope['path']}")
        status, kind, answer = await asyncio.to_thread(self._answer, scope["method"], scope["path"], body)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        _, domain, rest = path.split("/", 2)
        if domain != self.name:
            return 404, "text/plain", b"another server"
        if (method, rest) == ("POST", "api/inbox"):
            return (self.refusals.pop(0) if self.refusals else self._take(body)), "text/plain", b""
        if (method, rest) == ("GET", "api/me/keys"):
            return 200, "application/json", json.dumps({"keys": public_keys(self.pem)}).encode()
        file_id = rest.removeprefix("api/files/")
        known = self.blobs.metadata(TENANT, file_id)
        if known is None:
            return 404, "text/plain", b"no such file"
        return 200, known["content_type"], self.blobs.path(file_id).read_bytes()

    def _take(self, body: bytes) -> int:
        token = json.loads(body)["token"]
        self.jobs.task(ActionVerifierTask(TENANT, token)).key(action_id_of(token)).with_automatic_retry().schedule()
        return 202
