"""Sockets between the engine and its child processes."""

from __future__ import annotations

import socket


def socket_pair(kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets without a timeout.

    If a task's module has called ``socket.setdefaulttimeout``, new sockets have non-blocking descriptors, also in the
    process that inherits one.
    """
    pair = socket.socketpair(socket.AF_UNIX, kind)
    for one in pair:
        one.settimeout(None)
    return pair
