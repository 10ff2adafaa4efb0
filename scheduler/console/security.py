"""What stands between a request and a page: peers, hosts, origins, limits, and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from scheduler.connections import UNIX
from scheduler.errors import ConfigError

_MAX_ADDRESSES = 10_000  # addresses whose failures are remembered
_LOCAL_NAMES = frozenset({"localhost", "testserver.localhost"})


class Peer(NamedTuple):
    """Where a request comes from. ``uid``: of the process at the other end of a Unix socket. ``trusted``: a proxy whose
    headers are believed. ``client``: who asks, as that proxy says."""

    address: str
    uid: int | None
    trusted: bool
    client: str


class Peers:
    """Says which peers are trusted proxies: networks, addresses, or ``unix`` for whatever comes by the Unix socket."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._unix = False
        self._networks = []
        for one in trusted:
            if one == UNIX:
                self._unix = True
                continue
            try:
                self._networks.append(ipaddress.ip_network(one, strict=False))
            except ValueError:
                raise ConfigError(
                    f'[console] trusted_proxies: {one!r} is no address, no network, and not "unix"'
                ) from None

    @property
    def any(self) -> bool:
        """Whether any proxy is trusted."""
        return self._unix or bool(self._networks)

    def of(self, scope: Mapping[str, Any]) -> Peer:
        """The peer of a request."""
        client = scope.get("client")
        address = str(client[0]) if client else ""
        uid = None
        if address.startswith(f"{UNIX}:"):
            uid, trusted = int(address.removeprefix(f"{UNIX}:")), self._unix
        else:
            trusted = self._is_proxy(address)
        peer = UNIX if uid is not None else address
        return Peer(peer, uid, trusted, (trusted and self._forwarded_for(scope)) or address)

    def _is_proxy(self, address: str) -> bool:
        try:
            at = ipaddress.ip_address(address)
        except ValueError:
            return False
        at = getattr(at, "ipv4_mapped", None) or at  # at [::] clients of IPv4 come as ::ffff:192.0.2.1
        return any(at in network for network in self._networks)

    def _forwarded_for(self, scope: Mapping[str, Any]) -> str:
        """The last address of X-Forwarded-For that is no proxy of ours: what stands before it anyone may have sent."""
        lines = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        for one in reversed(",".join(lines).split(",")):
            text = one.strip()[:64]
            if text and not self._is_proxy(text):
                return text
        return ""


def hosts_of(listen: str | None, more: Iterable[str]) -> frozenset[str]:
    """The names that a Host header may have, beside addresses and localhost."""
    host = (listen or "").rpartition(":")[0].strip("[]").lower()
    return frozenset({*_LOCAL_NAMES, *(name.lower() for name in more), *([host] if host else [])})


def host_allowed(header: str, names: frozenset[str]) -> bool:
    """Whether a Host header names us: an address, or a name of ours. A page of another site that had its own name
    lead here (DNS rebinding) comes with that name."""
    host = header.lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    else:
        host = host.partition(":")[0]
    if host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Whether a browser sent this from a page of ours. Sec-Fetch-Site says so; it is missing on plain HTTP but for
    localhost, where Origin does."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin", "")
    scheme, sign, netloc = origin.partition("://")
    return bool(sign) and scheme in ("http", "https") and bool(host) and netloc.lower() == host.lower()


class Failures:
    """Counts failed log-ins by whom they are of: ``most`` in a minute are too many."""

    WINDOW = 60.0

    def __init__(self, most: int = 5) -> None:
        self.most = most
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()

    def refuses(self, address: str) -> bool:
        """Whether there were too many failures of this one."""
        times = self._seen.get(address)
        if times is None:
            return False
        now = time.monotonic()
        while times and times[0] < now - self.WINDOW:
            times.popleft()
        return len(times) >= self.most

    def add(self, address: str) -> None:
        """Record a failure."""
        self._seen.setdefault(address, deque(maxlen=self.most)).append(time.monotonic())
        self._seen.move_to_end(address)
        while len(self._seen) > _MAX_ADDRESSES:
            self._seen.popitem(last=False)


class Signer:
    """Signs what a cookie carries, with a key of this process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def seal(self, use: str, value: Mapping[str, Any], seconds: float) -> str:
        """A text that :meth:`open` reads back, for this use only, within so many seconds."""
        plain = json.dumps({**value, "until": time.time() + seconds}, separators=(",", ":"), ensure_ascii=False)
        text = plain.encode("utf-8", "replace")
        return f"{urlsafe_b64encode(text).decode().rstrip('=')}.{self._mark(use, text)}"

    def open(self, use: str, sealed: str) -> dict[str, Any] | None:
        """What was sealed; None for a text that is not ours, or too old."""
        body, _, mark = sealed.partition(".")
        try:
            text = urlsafe_b64decode(body + "=" * (-len(body) % 4))
        except ValueError:
            return None
        if not hmac.compare_digest(mark.encode("utf-8", "replace"), self._mark(use, text).encode()):
            return None
        value: dict[str, Any] = json.loads(text)
        return value if value["until"] > time.time() else None

    def _mark(self, use: str, text: bytes) -> str:
        return hmac.new(self._key, use.encode() + b"\0" + text, hashlib.sha256).hexdigest()


def security_headers(frame_ancestors: Iterable[str]) -> dict[str, str]:
    """The headers of every answer."""
    ancestors = " ".join(frame_ancestors) or "'none'"
    return {
        "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        f"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}",
        "x-content-type-options": "nosniff",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
