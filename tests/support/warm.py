"""Programs that start at once: forked from a process that has imported what a daemon needs, instead of executed.

They are as executed ones but for what /proc shows: another command line, and of their environment only the mark.
Importing took two thirds of the processor time of a test with a daemon.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from support.leftovers import MARK

HIGH = 600  # descriptors from here on are free
MAX_REQUEST = 200_000
FIXED = ("LANG", "LC_ALL", "LC_CTYPE")  # what is read when Python starts
NO_MARK = "0" * 32  # in /proc, of a program that has none
# The imports of a daemon: at its start, and by what it is told to do (a store, messages, jobs, a console); and of jobs.
IMPORTS = (
    *("scheduler.app", "scheduler.daemon.main", "scheduler.daemon.supervisor", "scheduler.engine.engine"),
    *("structlog", "psycopg", "alembic.command", "scheduler.messages.outbox", "scheduler.messages.receiver"),
    *("scheduler.executors.service", "scheduler.console.serve"),
    *("scheduler.engine.placed", "scheduler.store.placements"),
    *("sqlalchemy.dialects.sqlite.pysqlite", "sqlalchemy.dialects.postgresql.psycopg"),
)


class Forked:
    """As much of subprocess.Popen as tests need."""

    stdin: TextIO | None = None
    stdout: TextIO | None = None
    stderr: TextIO | None = None

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(os.read(self._status, 32))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The process that forks them, started when first needed. ``imports``: modules that it has beside the daemon's."""

    def __init__(self, *imports: str) -> None:
        self._imports = imports
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def can(self, environ: dict[str, str]) -> bool:
        """Whether a program with this environment would be the same as an executed one."""
        names = {*FIXED, *(name for name in (*environ, *os.environ) if name.startswith("PYTHON"))}
        return all(environ.get(name) == os.environ.get(name) for name in names)

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        place: Path,
        environ: dict[str, str],
        fds: Sequence[int],
        *,
        keep: Sequence[int] = (),
        session: bool = False,
    ) -> Forked:
        """``python -m module arguments`` in ``place`` with these stdin, stdout and stderr.

        The descriptors ``keep`` keep their numbers. From any thread.
        """
        with self._lock:
            return self._start(module, arguments, place, environ, fds, keep, session)

    def _start(
        self,
        module: str,
        arguments: Sequence[str],
        place: Path,
        environ: dict[str, str],
        fds: Sequence[int],
        keep: Sequence[int],
        session: bool,
    ) -> Forked:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "support.warm", str(theirs.fileno()), *self._imports],
                    pass_fds=[theirs.fileno()],
                    cwd=Path(__file__).parents[1],
                    env={**os.environ, MARK: NO_MARK},
                )
            atexit.register(self._close)
        request = {
            "module": module,
            "arguments": list(arguments),
            "place": str(place),
            "environ": environ,
            "keep": list(keep),
            "session": session,
        }
        ours, status = os.pipe2(os.O_CLOEXEC)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [status, *fds, *keep])
        finally:
            os.close(status)
        answer = self._socket.recv(64)
        assert answer, "the process that forks programs has died"
        return Forked(int(answer), ours)

    def start_with_pipes(self, module: str, arguments: Sequence[str], place: Path, environ: dict[str, str]) -> Forked:
        """The same with pipes of text for all three."""
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        try:
            made = self.start(module, arguments, place, environ, theirs)
        finally:
            for fd in theirs:
                os.close(fd)
        made.stdin, made.stdout, made.stderr = open(pipes[0][1], "w"), open(pipes[1][0]), open(pipes[2][0])  # noqa: SIM115
        return made

    def _close(self) -> None:
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        self._process.wait()


warm = Warm()


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork a program for each request, and tell each one's end. Returns in the forked ones, with the request."""
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended: dict[int, int] = {}  # where to tell of it
    while True:
        ready = select.select([requests, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            for pid in list(ended):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    place = ended.pop(pid)
                    try:
                        os.write(place, str(os.waitstatus_to_exitcode(status)).encode())
                    except BrokenPipeError:
                        pass  # the requester has gone
                    os.close(place)
        if requests in ready:
            data, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, 16)
            if not data:
                raise SystemExit
            pid = os.fork()
            if pid == 0:
                request: dict[str, Any] = json.loads(data)
                requests.detach()
                become(request, fds[1:])
                return request
            status, *others = fds
            ended[pid] = status
            for fd in others:
                os.close(fd)
            requests.send(str(pid).encode())


def become(request: dict[str, Any], fds: list[int]) -> None:
    """In a forked process: be as if just executed."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["session"]:
        os.setsid()
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in fds]
    os.closerange(3, HIGH)
    for fd, number in zip(moved, [0, 1, 2, *request["keep"]], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False))  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), errors="backslashreplace", line_buffering=True)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(request["environ"])
    if MARK in os.environ:
        show(os.environ[MARK])
    time.tzset()
    os.chdir(request["place"])
    sys.path[0] = request["place"]
    sys.argv = [request["module"], *request["arguments"]]
    random.seed()


def show(mark: str) -> None:
    """In /proc: it shows the memory with the environment that this process was executed with."""
    assert len(mark) == len(NO_MARK)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[47:49])
    place = ctypes.string_at(start, end - start).index(f"{MARK}={NO_MARK}".encode())
    ctypes.memmove(start + place + len(MARK) + 1, mark.encode(), len(mark))


if __name__ == "__main__":
    for name in (*IMPORTS, *sys.argv[2:]):
        importlib.import_module(name)
    gc.freeze()  # it is looked through in no forked one
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    asked = serve(channel)
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)
