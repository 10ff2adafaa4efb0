"""Sockets: those that a path names, who is at their other end, and sending without waiting."""

from __future__ import annotations

import errno
import socket
import struct
import sys

# Flags that a system lacks are 0.
AT_ONCE: int = getattr(socket, "MSG_DONTWAIT", 0) | getattr(socket, "MSG_NOSIGNAL", 0)


def unix(kind: int = socket.SOCK_STREAM) -> socket.socket:
    """A socket that a path names. Raises OSError."""
    if sys.platform == "win32":
        raise OSError(errno.EAFNOSUPPORT, "Unix sockets need Linux or macOS; listen at 127.0.0.1:PORT")
    return socket.socket(socket.AF_UNIX, kind)


def bind_after_others(made: socket.socket) -> None:
    """Let it be bound to a port whose last connections have just ended; never to one where a program listens."""
    if sys.platform == "win32":  # whose SO_REUSEADDR shares the port; closed ones do not keep it there
        made.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def peer_of(end: socket.socket) -> tuple[int, int] | None:
    """The process and the user at the other end of a Unix socket; None where the kernel does not say."""
    if sys.platform != "linux" or end.family != socket.AF_UNIX:
        return None
    pid, uid, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return pid, uid
