"""Sockets between the engine and its child processes."""

from __future__ import annotations

import socket


def blocking_pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """Two connected ones without a timeout.

    With ``socket.setdefaulttimeout``, which a task's module may have called, their descriptors would not block, and so
    would not in the process that inherits one.
    """
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for one in pair:
        one.settimeout(None)
    return pair
