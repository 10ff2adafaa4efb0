"""The process that forks child processes, run as one of its own; see ``nursery.py`` for the other end.

Why not fork in the daemon: it has threads, and what they hold at that moment stays locked in the child for ever. This
process has one thread, and imports nothing of the users': so no connection, lock or thread of theirs is ever forked.

Each child leads a session and process group of its own, and is the reaper of whatever it starts. When a child ends, its
group is killed while the ended child still holds the group's number; what had left the group loses its parent then, and
comes to this process, which ends it, too. A child is reported as ended when all of that has gone.

Comes in, with descriptors: ``start`` TAG GROUP; ``kill`` PID SIGNAL (its whole group); ``kill at`` WHEN (all of
them: then the engine stands still, and its lease has run out); ``sign``: of life. Its end: kill everything.
Goes out: ``started`` TAG PID; ``failed`` TAG TEXT; ``ended`` PID STATUS (below 0: minus the signal); ``lapsed``: that
moment has come; ``sign``, when it was asked for one.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import math
import os
import select
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from scheduler.engine import cgroups, child
from scheduler.interpreter import freeze

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# Seconds after SIGKILL in which they have not become fewer: what is still there cannot be killed (another user's, or
# stuck in I/O). Many take longer than that on a machine that is busy.
STRAYS_GIVE_UP = 5.0
LOOK_AGAIN = 0.02
LONGEST = 3600.0  # seconds
MAX_ORDER = 4096


class ForkServer:
    """See the module."""

    def __init__(self, control: socket.socket, preload: list[str]) -> None:
        self.control = control
        self.preload = preload  # modules to import when there is nothing else to do
        self.began = False
        self.known: set[int] = set()
        self.places: dict[int, str] = {}  # control groups by child, where there are any
        self.ended: dict[int, int] = {}  # children that have ended, but perhaps not all that they started
        self.fewest = 0.0  # processes that were left of them at any time
        self.kill_at = math.inf  # monotonic
        self.since = 0.0  # monotonic: since when there were so few
        self.libc: Any = ctypes.CDLL(None)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def serve(self) -> None:
        """Until the other end is closed."""
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)  # the engine decides when it is over, by closing its end
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        while True:
            pause = LOOK_AGAIN if self.ended else 0.0 if self.began and self.preload else math.inf
            pause = min(pause, max(0.0, self.kill_at - time.monotonic()), LONGEST)
            ready = dict(poll.poll(math.ceil(pause * 1000)))
            if not ready and not self.ended and self.began and self.preload:
                self.load(self.preload.pop(0))
            if woken in ready:
                os.read(woken, 4096)
            if self.control.fileno() in ready and not self.obey():
                break
            if time.monotonic() >= self.kill_at:
                self.lapse()
            self.reap()
        self.end()

    def lapse(self) -> None:
        """Kill every child."""
        self.kill_at = math.inf
        self.tell("lapsed")
        for pid in self.known:
            self.signal_group(pid, signal.SIGKILL)

    def load(self, module: str) -> None:
        """Import what the children to come need not import then. The first ones did not wait for it."""
        try:
            importlib.import_module(module)
        except ImportError:
            pass  # whoever needs it will say so
        if not self.preload:
            freeze()

    def obey(self) -> bool:
        """One order. False: there will be no more."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, MAX_ORDER, 3)
        except ConnectionError:
            return False
        if not data:
            return False
        what, *values = msgspec.msgpack.decode(data)
        if what == "start":
            self.start(values[0], fds, values[1])
        elif what == "kill at":
            self.kill_at = values[0]
        elif what == "sign":
            self.tell("sign")
        elif what == "kill" and values[0] in self.known:
            self.signal_group(values[0], values[1])
        return True

    def tell(self, *message: Any) -> None:
        try:
            self.control.send(msgspec.msgpack.encode(message))
        except OSError:
            pass  # nobody listens any more; reading says so, too

    def start(self, tag: int, fds: list[int], place: str | None) -> None:
        """Fork a child; its descriptors are those for its work, its talk and its output."""
        mine = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.tell("failed", tag, f"cannot fork: {error.strerror}")
        else:
            if pid == 0:
                self.become_child(mine, fds, place)
            self.known.add(pid)
            if place is not None:
                self.places[pid] = place
            self.tell("started", tag, pid)
        self.began = True
        for fd in fds:
            os.close(fd)

    def become_child(self, parent: int, fds: list[int], place: str | None) -> None:
        """Never returns."""
        try:
            os.setsid()
            # The fork server has one thread, and lives as long as its control socket: so this is what ends a child
            # whose body never lets Python run again, when the engine is killed.
            self.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            self.control.close()
            work, talk, output = fds
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            child.run(socket.socket(fileno=work), socket.socket(fileno=talk), place)
        finally:
            os._exit(1)

    def signal_group(self, pid: int, number: int) -> None:
        try:
            os.killpg(pid, number)
        except OSError:
            try:
                os.kill(pid, number)  # it has not come to lead a group yet
            except OSError:
                pass
        if number == signal.SIGKILL and pid in self.places:
            cgroups.kill_all(self.places[pid])

    def reap(self) -> None:
        """Collect what has ended, and report children of which nothing is left."""
        while True:
            try:
                end = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if end is None:
                break
            if end.si_pid in self.known:
                # It is a zombie still, so its number, which is its group's, cannot be anybody else's.
                self.signal_group(end.si_pid, signal.SIGKILL)
                self.known.discard(end.si_pid)
                status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                self.ended[end.si_pid] = status
                self.fewest = math.inf
            os.waitpid(end.si_pid, 0)
        if not self.ended:
            return
        left = self.strays() + sum(cgroups.left_in(self.places.get(pid)) for pid in self.ended)
        if left < self.fewest:
            self.fewest, self.since = left, time.monotonic()
        if left == 0 or time.monotonic() > self.since + STRAYS_GIVE_UP:
            for pid, status in self.ended.items():
                self.places.pop(pid, None)  # the engine's now
                self.tell("ended", pid, status)
            self.ended.clear()

    def strays(self) -> int:
        """Kill what lost its parent when a child ended, and count it. What a living child started is that child's."""
        strays = children() - self.known
        for pid in strays:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        return len(strays)

    def end(self) -> None:
        """The engine has gone: leave nothing behind."""
        places = list(self.places.values())
        for pid in self.known:
            self.signal_group(pid, signal.SIGKILL)
        until = time.monotonic() + STRAYS_GIVE_UP
        while time.monotonic() < until:
            self.reap()
            if not self.known and not self.ended:
                break
            time.sleep(LOOK_AGAIN / 10)
        for place in places:
            cgroups.remove(place)


def children() -> set[int]:
    """The process ids of this process's children, ended ones included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()  # a kernel without this file: what stays in the children's groups is ended all the same


def main() -> None:
    """``python -c "…main()" FD MODULE…``."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # as in the daemon: it may be sent to all of a service
    server = ForkServer(control, sys.argv[2:])
    freeze()
    server.serve()
