"""Who asks, behind a proxy."""

from __future__ import annotations

from scheduler.console.security import Peers


def test_failures_behind_a_trusted_proxy_are_those_of_its_client() -> None:
    peers = Peers(["10.0.0.0/8"])

    def client(address: str, *forwarded: str) -> str:
        headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
        return peers.of({"client": (address, 1), "headers": headers}).client

    assert client("10.0.0.7", "198.51.100.4") == "198.51.100.4"
    assert client("10.0.0.7", "6.6.6.6, 198.51.100.4, 10.0.0.9") == "198.51.100.4", "the first one may be made up"
    assert client("10.0.0.7", "6.6.6.6", "2001:db8::1") == "2001:db8::1"
    assert client("10.0.0.7") == "10.0.0.7"
    assert client("192.0.2.1", "198.51.100.4") == "192.0.2.1"
