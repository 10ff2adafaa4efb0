"""Daemons as processes of their own: their lines as they come, and what they tell systemd."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from support.warm import Forked, warm

PATIENCE = 60.0  # seconds until a test gives up waiting; nothing ever waits this long
Lines = queue.Queue[str | None]

# Modules, and a file that tests write, that are run in a process which has imported schedd already.
FORKED = {"scheduler.daemon", "support.keyed_caller", "program.py"}


class Child:
    """A Python program under test. Reads stdout and stderr line by line; nothing of them is ever missed."""

    def __init__(
        self, place: Path, arguments: tuple[str, ...], environ: dict[str, str], executed: bool = False
    ) -> None:
        self.process: subprocess.Popen[str] | Forked
        module, more = (arguments[1], arguments[2:]) if arguments[0] == "-m" else (arguments[0], arguments[1:])
        if module in FORKED and warm.can(environ) and not executed:
            self.process = warm.start_with_pipes(module.removesuffix(".py"), more, place, environ)
        else:
            self.process = subprocess.Popen(
                [sys.executable, *arguments], cwd=place, env=environ, stdin=-1, stdout=-1, stderr=-1, text=True
            )
        self.out: Lines = queue.Queue()
        self.err: Lines = queue.Queue()
        self.seen: list[str] = []
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            threading.Thread(target=self._read, args=(stream, lines), daemon=True).start()

    def _read(self, stream: Any, lines: Lines) -> None:
        for line in stream:
            self.seen.append(line.rstrip("\n"))
            lines.put(line.rstrip("\n"))
        lines.put(None)

    def expect(self, pattern: str, lines: Lines | None = None) -> str:
        """The next line of stderr (or ``lines``) that matches."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = (lines or self.err).get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no line matched {pattern!r}; the last were:\n" + self._last()
            if re.search(pattern, line):
                return line

    def _last(self) -> str:
        return "\n".join(line if len(line) < 400 else line[:400] + "…" for line in self.seen[-20:])

    def says(self, pattern: str) -> str:
        """The next line of stdout that matches."""
        return self.expect(pattern, self.out)

    def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self, number: int) -> None:
        self.process.send_signal(number)

    def kill_until(self, number: int, said: str) -> None:
        """Send a signal until the daemon says so: within a second of the one before it counts as that one."""
        deadline = time.monotonic() + PATIENCE
        while not any(said in line for line in self.seen):
            assert time.monotonic() < deadline, f"no line has {said!r}; the last were:\n" + self._last()
            self.kill(number)
            with contextlib.suppress(queue.Empty):
                self.err.get(timeout=0.1)

    def end(self) -> int:
        """Wait for its end; its status."""
        return self.process.wait(PATIENCE)

    def rest(self, lines: Lines) -> list[str]:
        """What is left to read, to the end."""
        return [str(line) for line in iter(lambda: lines.get(timeout=PATIENCE), None)]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Systemd:
    """The other end of the notify socket."""

    def __init__(self, address: str) -> None:
        assert address[0] == "@"
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:])

    def expect(self, pattern: str) -> str:
        """The next message that matches."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            message = self.socket.recv(4096).decode()
            if re.search(pattern, message):
                return message

    def forget(self) -> None:
        """Throw away what was sent so far."""
        self.socket.setblocking(False)
        while True:
            try:
                self.socket.recv(4096)
            except BlockingIOError:
                return


class Nursery:
    """Starts children in one directory, and ends those that are left."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.systemd = Systemd(f"@schedd-{os.getpid()}-{place.name}"[:100])  # abstract: no path is too long
        self.children: list[Child] = []

    def start(self, *arguments: str, executed: bool = False, **environ: str) -> Child:
        """Start Python with these arguments, JSON lines on stderr, and these variables besides our own.

        A daemon is forked from a process that has imported what it needs, unless it has to be ``executed``.
        """
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDD_")}
        added = {"NOTIFY_SOCKET": self.systemd.address, "SCHEDD_LOG__FORMAT": "json"}
        child = Child(self.place, arguments, ours | added | environ, executed)
        self.children.append(child)
        return child

    def write(self, name: str, text: str) -> Path:
        """Write a file where they start."""
        path = self.place / name
        path.write_text(text, encoding="utf-8")
        return path

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self.children:
            child.close()
        self.systemd.socket.close()
