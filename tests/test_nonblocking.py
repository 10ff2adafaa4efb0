"""A stream that nobody reads takes no thread: what it does not take waits, then is dropped and counted."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import pty
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from scheduler import nonblocking
from scheduler.config.model import LogSection
from scheduler.daemon import log
from scheduler.nonblocking import Unblocked, unblocked, writer_of

F_SETPIPE_SZ = 1031
LINE = "x" * 900


class End:
    """Both ends of a stream; the far one is read only when a test says so."""

    def __init__(self, near: int, far: int) -> None:
        self.near: TextIO = open(near, "w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self._far = far

    def read_until(self, over: Callable[[str], bool]) -> str:
        found, deadline = b"", time.monotonic() + 30
        while not over(text := found.decode("utf-8", "replace")):
            assert time.monotonic() < deadline, text[-300:]
            if select.select([self._far], [], [], 0.1)[0]:
                found += os.read(self._far, 65536)
        return text

    def close(self) -> None:
        os.close(self._far)
        self.near.close()


def a_pipe() -> tuple[int, int]:
    far, near = os.pipe()
    fcntl.fcntl(near, F_SETPIPE_SZ, 4096)
    return near, far


def a_terminal() -> tuple[int, int]:
    far, near = pty.openpty()
    return near, far


def a_socket() -> tuple[int, int]:
    near, far = socket.socketpair()
    return near.detach(), far.detach()


@pytest.fixture(params=[a_pipe, a_terminal, a_socket, "a pipe of another user"], ids=["pipe", "tty", "socket", "other"])
def end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[End]:
    make = request.param
    if make == "a pipe of another user":
        opening = os.open

        def refuse(path: str, *given: int) -> int:
            if str(path).startswith("/proc/self/fd/"):
                raise PermissionError
            return opening(path, *given)

        monkeypatch.setattr(os, "open", refuse)
        make = a_pipe
    monkeypatch.setattr(nonblocking, "_writers", {})
    monkeypatch.setattr(nonblocking, "MAX_WAITING", 20_000)
    made = End(*make())
    yield made
    made.close()


def test_nobody_waits_for_a_reader(end: End) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    try:
        log.configure(LogSection(format="json"), end.near)
        began = time.monotonic()
        for n in range(2000):
            logging.getLogger("app").warning("%d %s", n, LINE)
        assert time.monotonic() - began < 20
        (handler,) = [one for one in root.handlers if isinstance(one, log._Handler)]
        began = time.monotonic()
        handler.flush()
        assert time.monotonic() - began < 5
        text = end.read_until(lambda text: '"dropped"' in text and text.endswith("\n"))
        logging.getLogger("app").warning("after it")
        text += end.read_until(lambda text: "after it" in text and text.endswith("\n"))
    finally:
        log.configure(LogSection(), io.StringIO())
        root.handlers[:] = before
    lines = [json.loads(line) for line in text.splitlines()]
    (note,) = [line for line in lines if "dropped" in line]
    written = [int(line["event"].partition(" ")[0]) for line in lines if LINE in line["event"]]
    assert written == list(range(len(written))), "what was kept is whole, and in its order"
    assert note["dropped"] == 2000 - len(written)
    assert note["level"] == "warning"
    assert lines[-1]["event"] == "after it"


def test_what_is_read_is_written_at_once(end: End) -> None:
    stream = unblocked(end.near)
    assert isinstance(stream, Unblocked)
    print("one", file=stream)
    assert end.read_until(lambda text: "\n" in text).strip() == "one"
    stream.write("two ")
    stream.write("words")
    stream.flush()
    assert end.read_until(lambda text: "words" in text) == "two words"
    assert (stream.fileno(), stream.isatty(), stream.encoding) == (
        end.near.fileno(),
        end.near.isatty(),
        end.near.encoding,
    )
    assert os.get_blocking(end.near.fileno()), "others that have this descriptor see no change"


def test_a_reader_that_is_slow_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonblocking, "_writers", {})
    end = End(*a_pipe())
    try:
        stream = unblocked(end.near)
        writing = threading.Thread(target=lambda: [print(n, LINE, file=stream) for n in range(500)])
        writing.start()
        writing.join(30)
        text = end.read_until(lambda text: text.count("\n") == 500)
        assert [int(line.partition(" ")[0]) for line in text.splitlines()] == list(range(500))
        writer = writer_of(end.near)
        assert writer is not None
        assert writer.flush(10.0)
    finally:
        end.close()


def test_a_file_is_left_as_it_is(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w", encoding="utf-8") as file:
        assert unblocked(file) is file
    memory = io.StringIO()
    assert unblocked(memory) is memory


def test_a_forked_process_writes_too() -> None:
    program = (
        "import os, sys\n"
        "from scheduler.nonblocking import unblocked_output\n"
        "with unblocked_output():\n"
        "    print('x' * 200_000)\n"
        "    sys.stdout._writer.flush(10)\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        print('of the child'); sys.stdout._writer.flush(10); os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    print('of the parent')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["x" * 200_000, "of", "the", "child", "of", "the", "parent"]
