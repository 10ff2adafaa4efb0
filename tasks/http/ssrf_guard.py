"""Which addresses a request that comes with a task may go to: those of the public network, and what is allowed."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import TypeAlias

from scheduler import PermanentError
from scheduler.tasks.http.errors import Unreachable

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")  # all of IPv6 that was ever given out
# What is not public: the special-purpose registries of the IANA as a whole, without regard to what Python's own lists
# have, which differ by version. Of IPv6 what lies in 2000::/3, for the rest is refused anyway; what stands for an IPv4
# address (IPv4-mapped, NAT64) is judged by that one.
SPECIAL: tuple[Network, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared, of carriers; a cloud's metadata
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local; most clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; a cloud's metadata
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays, deprecated
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
            "168.63.129.16/32",  # in no registry: another cloud's metadata, which looks public
            "2001::/23",  # protocol assignments: Teredo, benchmarks, AMT, AS112, ORCHID, drones
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)


class AddressRules:
    """``allowed``: networks (``10.0.0.0/8``), addresses, or names of hosts, besides what is public."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for entry in allowed:
            try:
                self._networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self._names.add(entry.rstrip(".").lower())

    def admit(self, host: str, address: Address) -> bool:
        """Whether a connection to this address of the host may be made."""
        if host.rstrip(".").lower() in self._names:
            return True
        inner = _inner(address)
        if any(one in network for one in {address, inner} for network in self._networks):
            return True
        return _is_public(inner)

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host that may be connected to, in the order of the resolver.

        The connection has to go to one of these, and not to the name again: it may lead elsewhere by then. Raises
        Unreachable for a name without an address, PermanentError if none of its addresses is allowed.
        """
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            detail = error.strerror if isinstance(error, socket.gaierror) else "not a name"
            raise Unreachable(f"{host} has no address: {detail}") from None
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        admitted = [str(address) for address in dict.fromkeys(addresses) if self.admit(host, address)]
        if not admitted:
            raise PermanentError(
                f"{host} is at {', '.join(map(str, dict.fromkeys(addresses)))}, which is not public; "
                "what is meant to be reached has to be in [http] allow"
            )
        return admitted


def _is_public(address: Address) -> bool:
    if any(address in network for network in SPECIAL):
        return False
    return address.version == 4 or address in _UNICAST


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address really stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
