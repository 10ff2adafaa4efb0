"""Sockets that listen: whose path they take, how many connections they keep, and which of them go."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from scheduler import connections, interpreter
from scheduler.config.addresses import ListenAddress, parse_listen
from scheduler.connections import HEAD_SECONDS, Acceptor, Connection, bind, bind_unix
from scheduler.daemon.listener import Listener
from scheduler.daemon.signals import Signals
from scheduler.errors import ConfigError
from scheduler.http_server import Bodies, BoundedServer, Crowded, HttpServer, TooLarge

# Unix sockets


def nothing_answers(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s.sock")


def test_the_socket_of_a_program_that_has_ended_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
        killed.listen()
    with bind_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    before = os.umask(0)
    try:
        with bind_unix(path):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        os.umask(0o777)
        with bind_unix(path, 0o600):
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_socket_that_lives_is_not_taken_over(path: str) -> None:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, kind) as other:
            other.bind(path)
            if kind == socket.SOCK_STREAM:
                other.listen(0)
                full = [socket.socket(socket.AF_UNIX) for _ in range(4)]  # so that it has no room for more
                for one in full:
                    one.setblocking(False)
                    one.connect_ex(path)
            inode = os.stat(path).st_ino
            with pytest.raises(OSError, match="another program listens there"):
                bind_unix(path)
            assert os.stat(path).st_ino == inode
            for one in full:
                one.close()
        os.unlink(path)


def test_nothing_but_a_socket_is_removed(path: str, tmp_path: Path) -> None:
    def refused() -> None:
        with pytest.raises(OSError, match="no socket is there"):
            bind_unix(path)
        with pytest.raises(ConfigError, match="no socket is there"):
            HttpServer(nothing_answers, f"unix:{path}", "door").start()
        metrics = Listener(parse_listen(f"unix:{path}"), lambda: None)
        metrics.start()
        assert not metrics.url
        metrics.close()

    Path(path).write_text("dear to somebody")
    refused()
    assert Path(path).read_text() == "dear to somebody"
    os.unlink(path)
    kept = tmp_path / "kept"
    kept.write_text("dear, too")
    for target in (kept, tmp_path / "nowhere"):
        os.symlink(target, path)
        refused()
        os.unlink(path)
    assert kept.read_text() == "dear, too"
    os.mkdir(path)
    refused()
    os.rmdir(path)
    os.mkfifo(path)
    refused()
    with pytest.raises(FileNotFoundError):
        bind_unix(str(tmp_path / "no" / "directory.sock"))


def test_of_two_that_start_together_one_gets_it(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(path)
    taken: list[socket.socket] = []
    ready = threading.Barrier(8)

    def start() -> None:
        ready.wait()
        try:
            taken.append(bind_unix(path))
        except OSError as error:
            assert error.errno == errno.EADDRINUSE  # noqa: PT017

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = taken
    with one, socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_the_path_of_another_is_left_when_this_one_ends(path: str) -> None:
    first = bind(parse_listen(f"unix:{path}"))
    os.unlink(path)
    second = bind(parse_listen(f"unix:{path}"))
    first.close()
    assert os.path.exists(path)
    second.close()
    assert not os.path.exists(path)


# Connections


class Echo(asyncio.Protocol):
    """Answers each line; a connection waits for its client in between."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connection.opened(transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.closed()

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        if data == b"busy":
            self._connection.busy()
        elif data == b"free":
            self._connection.waits(HEAD_SECONDS)
        else:
            self._connection.proven = True
            self._connection.waits(HEAD_SECONDS)
        self._transport.write(data)


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    def __init__(self, most: int) -> None:
        self.listening = bind(ListenAddress("127.0.0.1", 0))
        self.acceptor = Acceptor(self.listening.socket, Echo, "echo", most=most)

    async def connect(self) -> Client:
        host, _, port = self.listening.url.removeprefix("http://").partition(":")
        return await asyncio.open_connection(host, int(port))

    async def says(self, client: Client, text: bytes = b"hello") -> bytes:
        client[1].write(text)
        try:
            return await asyncio.wait_for(client[0].read(100), 10)
        except ConnectionError:
            return b""


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.0)


def run(most: int, work: Callable[[Served], Awaitable[None]]) -> None:
    async def main() -> None:
        served = Served(most)
        try:
            await work(served)
        finally:
            served.acceptor.close()
            served.listening.close()

    asyncio.run(main())


def test_the_one_that_has_let_wait_longest_goes() -> None:
    async def work(served: Served) -> None:
        idle = [await served.connect() for _ in range(4)]
        for _ in range(4):
            newest = await served.connect()
            assert await served.says(newest, b"busy") == b"busy"
            idle.append(newest)
        assert [await served.says(one) for one in idle[:4]] == [b""] * 4

    run(4, work)


def test_who_was_served_before_keeps_a_half() -> None:
    async def work(served: Served) -> None:
        known = [await served.connect() for _ in range(2)]
        for one in known:
            assert await served.says(one) == b"hello"
        for _ in range(20):
            await served.connect()
        assert await served.says(await served.connect()) == b"hello"
        assert [await served.says(one) for one in known] == [b"hello"] * 2

    run(6, work)


def test_those_that_were_served_keep_no_stranger_out() -> None:
    async def work(served: Served) -> None:
        for _ in range(6):
            assert await served.says(await served.connect()) == b"hello"
        for _ in range(3):
            assert await served.says(await served.connect()) == b"hello"

    run(4, work)


def test_while_all_are_being_answered_the_next_one_waits() -> None:
    async def work(served: Served) -> None:
        busy = [await served.connect() for _ in range(3)]
        for one in busy:
            assert await served.says(one, b"busy") == b"busy"
        next_one = await served.connect()
        asking = asyncio.ensure_future(served.says(next_one))
        await asyncio.sleep(0)
        assert not asking.done()
        assert await served.says(busy[0], b"free") == b"free"
        assert await asking == b"hello"

    run(3, work)


def test_who_has_just_come_keeps_a_place_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.3)

    async def work(served: Served) -> None:
        crowd = [await served.connect() for _ in range(12)]
        assert [await served.says(one) for one in crowd[:3]] == [b"hello"] * 3
        assert await served.says(crowd[-1]) == b"hello", "its turn came when others had had theirs"

    run(3, work)


def test_a_client_that_takes_too_long_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(connections, "SWEEP_EVERY", 0.05)

    async def work(served: Served) -> None:
        assert await served.says(await served.connect(), b"") == b""

    run(3, work)


def test_without_a_file_left_it_says_so_once_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "RETRY_SECONDS", 0.01)
    failing = 20

    class Exhausted:
        def __init__(self, made: socket.socket) -> None:
            self._made = made

        def accept(self) -> object:
            nonlocal failing
            failing -= 1
            if failing >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
            return self._made.accept()

        def fileno(self) -> int:
            return self._made.fileno()

    async def work(served: Served) -> None:
        served.acceptor._listening = cast(Any, Exhausted(served.listening.socket))
        assert await served.says(await served.connect()) == b"hello"

    with caplog.at_level(logging.WARNING):
        run(3, work)
    assert [one.message for one in caplog.records if one.name == "scheduler.connections"] == [
        f"the echo takes no connections for now: Too many open files; the process may open "
        f"{resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files"
    ]


# Bodies


class Sender:
    """Sends parts of a body; ``more`` is set once another one may come."""

    def __init__(self, *sent: bytes, ends: bool = False) -> None:
        self._sent = list(sent)
        self._ends = ends
        self.started = asyncio.Event()

    async def __call__(self) -> dict[str, object]:
        if not self._sent:
            self.started.set()
            await asyncio.Event().wait()
        body = self._sent.pop(0)
        return {"type": "http.request", "body": body, "more_body": not self._ends or bool(self._sent)}


async def read(bodies: Bodies, sender: Sender, most: int = 100) -> bytes:
    async with bodies.read(sender, most, {}) as body:
        return body


def test_a_body_that_never_ends_makes_room_for_others() -> None:
    async def main() -> None:
        bodies = Bodies(100)
        half = [Sender(b"x" * 40) for _ in range(2)]
        reading = [asyncio.ensure_future(read(bodies, one)) for one in half]
        for one in half:
            await one.started.wait()
        assert await read(bodies, Sender(b"y" * 40, ends=True)) == b"y" * 40
        with pytest.raises(Crowded):
            await reading[0]
        assert not reading[1].done()
        assert await read(bodies, Sender(b"y" * 60, ends=True)) == b"y" * 60
        assert not reading[1].done()
        reading[1].cancel()

    asyncio.run(main())


def test_a_body_is_bounded_in_length_and_time() -> None:
    async def main() -> None:
        bodies = Bodies(1000, seconds=0.02)
        with pytest.raises(TooLarge):
            await read(bodies, Sender(b"x" * 60, b"x" * 60))
        with pytest.raises(TimeoutError):
            await read(bodies, Sender(b"x"))
        for length in ("101", "9" * 400):
            with pytest.raises(TooLarge):
                async with bodies.read(Sender(), 100, {"content-length": length}):
                    pass
        assert await read(bodies, Sender(b"x", b"y", ends=True)) == b"xy"

    asyncio.run(main())


# The process


def test_the_limit_of_open_files_is_raised_for_the_daemon_alone() -> None:
    program = (
        "import resource, select, socket, threading\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))\n"
        "from scheduler import interpreter\n"
        "interpreter.raise_file_limit(); interpreter.raise_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), interpreter.file_limit())\n"
        "from scheduler.tasks.command.process import Process\n"
        "import os\n"
        "said = []\n"
        "with Process(['sh', '-c', 'ulimit -Sn; ulimit -Hn'], dict(os.environ), None, 1.0, said.append) as made:\n"
        "    while made.pump(1.0): pass\n"
        "print(b''.join(said))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "(4096, 4096) 64\nb'64\\n4096\\n'\n"
    assert interpreter.file_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_signals_are_waited_for_with_any_descriptor() -> None:
    """Also above 1,023, where select(2) ends."""
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Signals(signal.SIGUSR2) as signals:
            os.kill(os.getpid(), signal.SIGUSR2)
            assert signals.wait(10.0) == [signal.SIGUSR2]
            assert signals.wait(0.0) == []
    finally:
        for one in files:
            os.close(one)


def test_a_second_interrupt_within_a_moment_is_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("scheduler.interrupts.time.monotonic", lambda: now[0])
    server = BoundedServer(nothing_answers, None, "console", lifespan="off")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
        server.handle_exit(number, None)
    assert (server.should_exit, server.force_exit) == (True, False)
    now[0] += 1.5
    server.handle_exit(signal.SIGINT, None)
    assert server.force_exit
