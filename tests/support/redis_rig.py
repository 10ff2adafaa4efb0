"""A Redis server of a test's own (Debian's redis-server), on loopback, and what the conformance suite needs of it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VISIBILITY = 0.5  # seconds
STREAM, DEAD = "orders", "orders.dead"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """It flushes each write, so that a kill loses nothing that it has confirmed."""

    def __init__(self, place: Path) -> None:
        program = shutil.which("redis-server")
        assert program is not None, "redis-server is missing. On Debian and Ubuntu: apt-get install redis-server"
        self._program, self._place, self.port = program, place, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        import redis

        options = {"port": self.port, "bind": "127.0.0.1", "dir": self._place, "appendonly": "yes", "save": ""}
        options |= {"appendfsync": "always", "daemonize": "no"}
        argv = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self._process = subprocess.Popen([self._program, *argv], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:  # it loads what it has kept, or is not there yet
                    assert time.monotonic() < deadline
                    time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RedisRig:
    """See ``support.spool.SpoolRig``."""

    name = "redis"
    type_name = "redis"
    factory = "scheduler.transports.redis:RedisSource"
    visibility = VISIBILITY

    def __init__(self, place: Path) -> None:
        self.server = RedisServer(place)
        self.server.start()

    @property
    def table(self) -> str:
        return (
            f'url = "{self.server.url}"\nstream = "{STREAM}"\ndead = "{DEAD}"\nvisibility = {VISIBILITY}\nbatch = 10\n'
        )

    def client(self) -> Any:
        import redis

        return redis.Redis.from_url(self.server.url)

    def send(self, body: bytes, headers: Mapping[str, str] | None = None, message_id: str | None = None) -> str:
        """``message_id``: Redis gives each entry an id of its own, so the same message comes with another one."""
        with self.client() as client:
            return str(client.xadd(STREAM, {**(headers or {}), "body": body}).decode())

    def left(self) -> int:
        with self.client() as client:
            return int(client.xlen(STREAM))

    def dead(self) -> list[bytes]:
        with self.client() as client:
            return [fields[b"body"] for _, fields in client.xrange(DEAD)]

    def stop_server(self) -> None:
        self.server.kill()

    def start_server(self) -> None:
        self.server.start()

    def close(self) -> None:
        self.server.kill()
