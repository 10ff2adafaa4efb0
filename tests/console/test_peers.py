"""Who asks, behind a proxy."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

from scheduler.console.auth import ProxyAuth
from scheduler.console.roles import BUILT_IN
from scheduler.console.security import Peer, Peers
from scheduler.http_server import bears


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


def test_a_proxy_that_comes_by_ipv4_to_an_address_of_ipv6_is_trusted() -> None:
    """A console that listens at [::] sees it as ::ffff:10.0.0.7."""
    peers = Peers(["10.0.0.0/8", "fd00::/8"])
    asked = [("::ffff:10.0.0.7", True), ("::ffff:192.0.2.1", False), ("fd00::1", True), ("2001:db8::1", False)]
    assert [peers.of({"client": (at, 1), "headers": []}).trusted for at, _ in asked] == [fits for _, fits in asked]


def identified(*headers: tuple[str, str], secret: str | None = None) -> tuple[str, str] | None:
    auth = ProxyAuth(BUILT_IN, {"Büro": "operator", "admins": "admin", "*": "viewer"}, secret)
    sent = [(name.encode(), value.encode()) for name, value in headers]
    who = asyncio.run(auth.identify(Request({"type": "http", "headers": sent}), Peer("10.0.0.7", None, True, "c")))
    return None if who is None else (who.name, who.role)


def test_names_and_groups_of_a_proxy_are_utf_8() -> None:
    user, groups = ("x-forwarded-user", "José"), ("x-forwarded-groups", "users, Büro")
    assert identified(user, groups) == ("José (proxy)", "operator")
    assert identified(user, groups, ("x-schedd-proxy-secret", "größer"), secret="größer") == (
        "José (proxy)",
        "operator",
    )


@pytest.mark.parametrize("name", ["x-forwarded-user", "x-forwarded-groups"])
def test_of_two_headers_one_may_be_the_clients_own(name: str) -> None:
    sent = [("x-forwarded-user", "ada"), ("x-forwarded-groups", "users")]
    assert identified(*sent) == ("ada (proxy)", "viewer")
    assert identified((name, "admins"), *sent) is None


def test_a_bearer_token_is_utf_8() -> None:
    headers = {"authorization": f"Bearer {'größer'.encode().decode('latin-1')}"}  # as servers read headers
    assert bears("größer", headers)
    assert not bears("größe", headers)
