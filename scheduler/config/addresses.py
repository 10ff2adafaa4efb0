"""Addresses to listen at, as they are configured: ``127.0.0.1:9464``, ``[::1]:9464`` or ``unix:/run/schedd.sock``."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import NamedTuple

from scheduler.errors import ConfigError

_TCP = r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>\d{1,5})"
_FORM = "expected HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464, or unix:/an/absolute/path"
OPEN_CONSOLE = (
    "the console does not listen on an address that others can reach without an auth: set [console] auth to "
    '"token", "basic" or "proxy", or listen on 127.0.0.1 or a Unix socket'
)
MAX_SOCKET_PATH = 107  # bytes that the kernel takes


class ListenAddress(NamedTuple):
    """Where to listen. ``path``: of a Unix socket, else None; port 0: one that is free."""

    host: str
    port: int
    path: str | None = None

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """An address as it is configured. Raises ConfigError that says what is wrong with it."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not os.path.isabs(path) or path.endswith("/"):
            raise ConfigError(f"{text}: {_FORM}")
        if len(os.fsencode(path)) > MAX_SOCKET_PATH:
            raise ConfigError(f"{text}: the path of a socket has {MAX_SOCKET_PATH} bytes at most")
        return ListenAddress("", 0, path)
    match = re.fullmatch(_TCP, text)
    if match is None or int(match["port"]) > 65_535:
        raise ConfigError(f"{text}: {_FORM}")
    if match["six"] is not None:
        try:
            ipaddress.IPv6Address(match["six"])
        except ValueError:
            raise ConfigError(f"{text}: {match['six']} is not an IPv6 address") from None
    host = match["six"] or match["host"]
    if not host:
        raise ConfigError(f"{text}: name the address to listen at: 127.0.0.1 for this machine only, 0.0.0.0 for all")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(f"{text}: {host} is not the name of a host") from None
    return ListenAddress(host, int(match["port"]))
