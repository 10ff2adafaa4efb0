"""Connections that never say what they want, in great numbers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

HALF_HEAD = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_BODY = (
    b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nwebhook-id: 1\r\n"
    b"content-type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\ntoken="
)


@contextlib.contextmanager
def strangers(url: str, idle: int, heads: int, bodies: int, path: str = "/login") -> Iterator[list[socket.socket]]:
    """Open so many connections to ``url``: that send nothing, half of a head, and half of a body to ``path``."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 0)
    said = [b""] * idle + [HALF_HEAD] * heads + [HALF_BODY % path.encode()] * bodies
    made: list[socket.socket] = []
    try:
        for text in said:
            end = socket.create_connection(address, timeout=30)
            made.append(end)
            with contextlib.suppress(OSError):  # it may have been closed by then
                end.sendall(text)
        yield made
    finally:
        for end in made:
            end.close()
