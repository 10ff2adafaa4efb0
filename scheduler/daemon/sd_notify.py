"""Notifies systemd: ready, a status line, alive. Does nothing without systemd."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, MutableMapping

from scheduler.system import sockets

SEND_TIMEOUT = 0.25  # seconds that systemd may take to make room for a message
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class SystemdNotifier:
    """Sends sd_notify messages to ``address``; ``watchdog``: the interval in seconds, None if none is set."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self.address = address if address and address[0] in "/@" else None
        self.watchdog = watchdog

    @classmethod
    def take(cls, environ: MutableMapping[str, str] = os.environ) -> SystemdNotifier:
        """Read the environment and remove its variables: commands that tasks run are not the service."""
        notifier = cls(environ.get("NOTIFY_SOCKET"), watchdog_interval(environ))
        for name in _VARIABLES:
            environ.pop(name, None)
        return notifier

    def send(self, *lines: str) -> bool:
        """Send ``NAME=value`` lines as one message; returns whether it arrived. Never raises, never waits long."""
        if self.address is None:
            return False
        address = "\0" + self.address[1:] if self.address[0] == "@" else self.address
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with sockets.unix(socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT)
                sender.connect(address)
                sender.sendall(text.encode(errors="replace"))
        except OSError:
            return False
        return True

    def ready(self, status: str = "") -> bool:
        """The service is up (or has reloaded)."""
        return self.send("READY=1", *([f"STATUS={status}"] if status else []))

    def reloading(self) -> bool:
        """The service reloads its configuration; :meth:`ready` ends that."""
        return self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> bool:
        """The service is going down."""
        return self.send("STOPPING=1", f"STATUS={status}")

    def extend(self, seconds: float) -> bool:
        """Ask systemd for more time to start, reload or stop."""
        return self.send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")


def watchdog_interval(environ: Mapping[str, str]) -> float | None:
    """The seconds within which systemd expects a watchdog ping; None if it expects none."""
    text, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not (text.isascii() and text.isdigit() and int(text)) or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 1_000_000
