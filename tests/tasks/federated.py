"""What a server of a federation adds to its schedd: the HTTP side. A task module; see test_federation.py.

``$FEDERATED`` is the directory in which it notes what it was asked for, and where it listens; ``$FEDERATED_REFUSES``
the statuses that the inbox answers first, before it takes anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import uvicorn

from scheduler import Scheduler
from scheduler.tasks import ActionVerifierTask
from scheduler.tasks.actions.tokens import action_id_of, public_keys
from scheduler.tasks.files.blob_store import BlobStore

TENANT = 7
PATIENCE = 60.0  # seconds


def setup(jobs: Scheduler) -> None:
    """Called by the daemon once its store is there."""
    Site(jobs, Path(os.environ["FEDERATED"])).start()


class Site:
    """What others can ask of this server, at ``/<its name>/api/``."""

    def __init__(self, jobs: Scheduler, place: Path) -> None:
        self.jobs, self.place = jobs, place
        self.name = jobs.settings["actions"]["name"]
        self.pem = Path(jobs.settings["actions"]["key_file"]).read_bytes()
        self.blobs = BlobStore(jobs.settings["files"]["blobs"])
        self.refuses = [int(status) for status in os.environ.get("FEDERATED_REFUSES", "").split()]

    def start(self) -> None:
        """From here on it takes connections; they are served as soon as uvicorn is ready."""
        bound = socket.create_server(("127.0.0.1", 0))
        (self.place / "port").write_text(str(bound.getsockname()[1]))
        server = uvicorn.Server(uvicorn.Config(self.app, interface="asgi3", log_level="error", lifespan="off"))
        threading.Thread(target=server.run, args=([bound],), daemon=True).start()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        with (self.place / "asked").open("a") as asked:
            asked.write(f"{scope['method']} {scope['path']}\n")
        status, kind, answer = await asyncio.to_thread(self._answer, scope["method"], scope["path"], body)
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        _, domain, rest = path.split("/", 2)
        if domain != self.name:
            return 404, "text/plain", b"another server"
        if (method, rest) == ("POST", "api/inbox"):
            return (self.refuses.pop(0) if self.refuses else self._take(body)), "text/plain", b""
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
