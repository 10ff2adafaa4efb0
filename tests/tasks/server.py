"""A scripted web server for tests, well-behaved or not: real sockets, in threads."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

Handler = Callable[[socket.socket, "Asked"], None]


class Asked(NamedTuple):
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Server:
    """Answers each request by the next of ``answers``, the last one for ever: raw bytes, or a function."""

    def __init__(self, *answers: bytes | Handler, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.asked: list[Asked] = []
        self._answers = list(answers)
        self._tls = tls
        self._socket = socket.create_server((host, 0))
        self.port: int = self._socket.getsockname()[1]
        self._over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                asked = self._read(connection)
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                self.asked.append(asked)
                if callable(answer):
                    answer(connection, asked)
                else:
                    connection.sendall(answer)
        except OSError:
            pass  # the client had enough, or the certificate was not to its liking

    @staticmethod
    def _read(connection: socket.socket) -> Asked:
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                raise OSError("nothing was asked")
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += connection.recv(65536)
        method, path, _ = first.split()
        return Asked(method, path, headers, body)

    def stall(self, connection: socket.socket, asked: Asked) -> None:
        """Say nothing at all."""
        self._over.wait(30)

    def drip(self, connection: socket.socket, asked: Asked) -> None:
        """A byte now and then, without an end."""
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not self._over.wait(0.02):
            connection.sendall(b"x")

    def close(self) -> None:
        self._over.set()
        self._socket.close()


def reset(connection: socket.socket, asked: Asked) -> None:
    """Break off in the middle of a body."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def answer(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """A well-formed answer. Header names with ``_`` for ``-``."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def serving(*answers: bytes | Handler, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    made = Server(*answers, tls=tls)
    try:
        yield made
    finally:
        made.close()
