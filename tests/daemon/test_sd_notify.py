"""Messages to systemd, sent to a socket such as systemd's."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.daemon.sd_notify import SystemdNotifier, watchdog_interval


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@schedd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + address[1:] if address[0] == "@" else address)
        receiver.settimeout(10)
        yield receiver, address


def test_messages_arrive(listener: tuple[socket.socket, str]) -> None:
    receiver, address = listener
    notifier = SystemdNotifier(address)
    assert notifier.ready("42 tasks wait")
    assert receiver.recv(4096) == b"READY=1\nSTATUS=42 tasks wait"
    assert notifier.send("WATCHDOG=1")
    assert receiver.recv(4096) == b"WATCHDOG=1"
    assert notifier.reloading()
    first, second = receiver.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert second.removeprefix("MONOTONIC_USEC=").isdigit()
    assert notifier.extend(1.5)
    assert receiver.recv(4096) == b"EXTEND_TIMEOUT_USEC=1500000"


def test_a_status_is_one_line(listener: tuple[socket.socket, str]) -> None:
    receiver, address = listener
    assert SystemdNotifier(address).stopping("two\nlines \udcff")
    assert receiver.recv(4096) == b"STOPPING=1\nSTATUS=two lines ?"


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative", "/nowhere/notify", "/" + "x" * 200])
def test_without_systemd_nothing_happens(address: str | None) -> None:
    assert not SystemdNotifier(address).ready()


def test_the_variables_are_not_handed_on_to_commands() -> None:
    environ = {
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    notifier = SystemdNotifier.take(environ)
    assert (notifier.address, notifier.watchdog) == ("/run/systemd/notify", 60)
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        (None, None, None),
        ("", "", None),
        ("0", None, None),
        ("-5", None, None),
        ("soon", None, None),
        ("²", None, None),
        ("500000", None, 0.5),
        ("500000", "1", None),
        ("500000", "self", 0.5),
    ],
)
def test_the_watchdog_interval(usec: str | None, pid: str | None, seconds: float | None) -> None:
    values = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": str(os.getpid()) if pid == "self" else pid}
    assert watchdog_interval({name: value for name, value in values.items() if value is not None}) == seconds
