"""The engine's end of the fork server: starts it, asks it for children, reads its reports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from scheduler.config import user_modules
from scheduler.engine.child.protocol import socket_pair
from scheduler.system.processes import session_members

CLOSE_TIMEOUT_S = 6.0  # for ending everything; a little more than the fork server's own ORPHANS_GIVE_UP_S
SESSION_TIMEOUT_S = 1.0  # for the killed processes of a session to end
MAX_EVENT_BYTES = 4096
# What most tasks' modules import. It may be forked: importing it opens nothing and starts no thread.
PRELOAD = ("structlog", "sqlalchemy", "scheduler.app")
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from scheduler.engine.child.fork_server import main; main()"
)  # its path has no users' modules: it imports none


class ForkServerClient:
    """Starts children and reports their exits. Used by one thread."""

    def __init__(self) -> None:
        self.kills_at = float("inf")
        self.reply_expected = False  # it was sent something since its last event
        self.reply_seen = False  # since it was last checked
        self.control, theirs = socket_pair(socket.SOCK_SEQPACKET)
        with theirs:
            # exec, not fork: this process has threads. A session of its own, so that no terminal's Ctrl-C reaches it.
            # -P: what lies in the current directory is no module, whatever its name.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), *_loaded(), json.dumps(_own_path())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, tag: int, fds: tuple[int, int, int], place: str | None = None) -> None:
        """Ask for a child with these descriptors, in the control group ``place``.

        Raises OSError when the fork server has died.
        """
        self.reply_expected = True
        socket.send_fds(self.control, [msgspec.msgpack.encode(("start", tag, place))], fds)

    def kill(self, pid: int) -> None:
        """Kill a child's whole group. Nothing happens if it has ended already."""
        self._send("kill", pid, int(signal.SIGKILL))

    def kill_at(self, when: float) -> None:
        """Have every child killed then (monotonic), unless this process sends another time. Event: ``lapsed``."""
        self.kills_at = when
        self._send("kill at", when)

    def ping(self) -> None:
        """Ask for a sign of life, which comes as an event."""
        self._send("sign")

    def _send(self, *order: Any) -> None:
        self.reply_expected = True
        with suppress(OSError):  # the fork server has died; reading says so
            self.control.send(msgspec.msgpack.encode(order))

    def resume(self) -> None:
        """Continue it: it may have been stopped (SIGSTOP)."""
        self._process.send_signal(signal.SIGCONT)

    def kill_server(self) -> None:
        """Kill it, and every child with it. :meth:`events` raises EOFError then."""
        self._process.kill()

    def events(self) -> Iterator[list[Any]]:
        """The reports since the last call. Raises EOFError when the fork server has died."""
        while True:
            try:
                data = self.control.recv(MAX_EVENT_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self.reply_expected, self.reply_seen = False, True
            yield msgspec.msgpack.decode(data)

    def close(self) -> None:
        """End it, and everything that it forked. Returns when that is done."""
        self.control.close()
        try:
            self._process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children die with it
            self._process.wait()

    def close_in_fork(self) -> None:
        """In a forked process: an open copy would keep the fork server from noticing the engine's end."""
        self.control.close()


def end_session(session: int) -> None:
    """Kill what a child had started, after the fork server, which does so otherwise, has died.

    Returns when all of it has ended, or after a second.
    """
    until = time.monotonic() + SESSION_TIMEOUT_S
    while (left := session_members(session)) and time.monotonic() < until:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(SESSION_TIMEOUT_S / 200)


def _loaded() -> list[str]:
    return [name for name in PRELOAD if name in sys.modules]


def _own_path() -> list[str]:
    users = user_modules.guarded()
    return [entry for entry in import_path() if entry not in users]


def import_path() -> list[str]:
    """``sys.path`` for another process."""
    return [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
