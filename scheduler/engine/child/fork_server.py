"""The fork server: forks child processes. The engine's end is processes/fork_client.py.

The daemon cannot fork them: it has threads, and a lock that one of them holds would stay locked in the child. This
process has one thread and imports no modules of users, so it forks none of their connections, locks or threads.

Each child leads a session and a process group of its own, and is the subreaper of its descendants. When a child ends,
this process kills its group while the zombie still holds the group's number. Descendants that had left the group then
become children of this process, which kills them, too. It reports a child as ended when all of them have ended.

Commands: ``start`` TAG GROUP, with descriptors; ``kill`` PID SIGNAL, to the child's process group; ``kill at`` WHEN:
kill all children then, because the engine's lease has run out; ``sign``: answer with a sign of life. End of file: kill
everything.
Reports: ``started`` TAG PID; ``failed`` TAG TEXT; ``ended`` PID STATUS (negative: minus the signal); ``lapsed``: the
time of ``kill at`` has come; ``sign``.
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

from scheduler.engine.child import cgroups
from scheduler.engine.child import main as child
from scheduler.interpreter import freeze

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# After this long without fewer of them, the orphans left cannot be killed: another user's, or stuck in I/O. The time
# starts again with each that ends, since many may take long on a busy machine.
ORPHANS_GIVE_UP_S = 5.0
REAP_INTERVAL_S = 0.02
MAX_POLL_S = 3600.0
MAX_COMMAND_BYTES = 4096


class ForkServer:
    """The fork server's state and loop."""

    def __init__(self, control: socket.socket, preload: list[str]) -> None:
        self.control = control
        self.preload = preload  # modules to import while idle
        self.has_forked = False
        self.known: set[int] = set()
        self.groups: dict[int, str] = {}  # control groups by child
        self.ended: dict[int, int] = {}  # ended children -> status, until their descendants have ended
        self.fewest_left = 0.0  # the fewest descendants left so far
        self.kill_at = math.inf  # monotonic
        self.fewest_since = 0.0  # monotonic: since when there are so few
        self.libc: Any = ctypes.CDLL(None)
        self.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def serve(self) -> None:
        """Handle commands until the engine closes its end."""
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)  # the engine stops this process by closing its end
        poll = select.poll()
        poll.register(woken, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        while True:
            pause = REAP_INTERVAL_S if self.ended else 0.0 if self.has_forked and self.preload else math.inf
            pause = min(pause, max(0.0, self.kill_at - time.monotonic()), MAX_POLL_S)
            ready = dict(poll.poll(math.ceil(pause * 1000)))
            if not ready and not self.ended and self.has_forked and self.preload:
                self.preload_module(self.preload.pop(0))
            if woken in ready:
                os.read(woken, 4096)
            if self.control.fileno() in ready and not self.handle_command():
                break
            if time.monotonic() >= self.kill_at:
                self.kill_all_children()
            self.reap()
        self.shut_down()

    def kill_all_children(self) -> None:
        """Kill every child: the time of ``kill at`` has come."""
        self.kill_at = math.inf
        self.send("lapsed")
        for pid in self.known:
            self.signal_group(pid, signal.SIGKILL)

    def preload_module(self, module: str) -> None:
        """Import a module, so that later children have it. The first children did not wait for it."""
        try:
            importlib.import_module(module)
        except ImportError:
            pass  # a child that needs it reports the error
        if not self.preload:
            freeze()

    def handle_command(self) -> bool:
        """Handle one command. False at the end of file."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, MAX_COMMAND_BYTES, 3)
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
            self.send("sign")
        elif what == "kill" and values[0] in self.known:
            self.signal_group(values[0], values[1])
        return True

    def send(self, *message: Any) -> None:
        try:
            self.control.send(msgspec.msgpack.encode(message))
        except OSError:
            pass  # the engine has closed its end; the next read meets that, too

    def start(self, tag: int, fds: list[int], group: str | None) -> None:
        """Fork a child. ``fds``: for its jobs, its messages and its output."""
        mine = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.send("failed", tag, f"cannot fork: {error.strerror}")
        else:
            if pid == 0:
                self.become_child(mine, fds, group)
            self.known.add(pid)
            if group is not None:
                self.groups[pid] = group
            self.send("started", tag, pid)
        self.has_forked = True
        for fd in fds:
            os.close(fd)

    def become_child(self, parent: int, fds: list[int], group: str | None) -> None:
        """Run the child; never returns."""
        try:
            os.setsid()
            # When the engine is killed, the fork server ends, and the kernel kills the child, even one whose handler
            # never lets Python run again.
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
            child.run(socket.socket(fileno=work), socket.socket(fileno=talk), group)
        finally:
            os._exit(1)

    def signal_group(self, pid: int, number: int) -> None:
        try:
            os.killpg(pid, number)
        except OSError:
            try:
                os.kill(pid, number)  # it does not lead a group yet
            except OSError:
                pass
        if number == signal.SIGKILL and pid in self.groups:
            cgroups.kill_all(self.groups[pid])

    def reap(self) -> None:
        """Reap ended processes, and report ended children whose descendants have ended."""
        while True:
            try:
                end = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if end is None:
                break
            if end.si_pid in self.known:
                # It is still a zombie, so no other process or group has its number.
                self.signal_group(end.si_pid, signal.SIGKILL)
                self.known.discard(end.si_pid)
                status = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                self.ended[end.si_pid] = status
                self.fewest_left = math.inf
            os.waitpid(end.si_pid, 0)
        if not self.ended:
            return
        left = self.kill_orphans() + sum(cgroups.process_count(self.groups.get(pid)) for pid in self.ended)
        if left < self.fewest_left:
            self.fewest_left, self.fewest_since = left, time.monotonic()
        if left == 0 or time.monotonic() > self.fewest_since + ORPHANS_GIVE_UP_S:
            for pid, status in self.ended.items():
                self.groups.pop(pid, None)  # the engine removes it
                self.send("ended", pid, status)
            self.ended.clear()

    def kill_orphans(self) -> int:
        """Kill and count the processes that lost their parent when a child ended."""
        orphans = children() - self.known
        for pid in orphans:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        return len(orphans)

    def shut_down(self) -> None:
        """Kill all children and remove their control groups: the engine has ended."""
        groups = list(self.groups.values())
        for pid in self.known:
            self.signal_group(pid, signal.SIGKILL)
        until = time.monotonic() + ORPHANS_GIVE_UP_S
        while time.monotonic() < until:
            self.reap()
            if not self.known and not self.ended:
                break
            time.sleep(REAP_INTERVAL_S / 10)
        for group in groups:
            cgroups.remove(group)


def children() -> set[int]:
    """The process ids of this process's children, ended ones included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()  # an old kernel: processes in the children's groups are killed all the same


def main() -> None:
    """``python -c "…main()" FD MODULE…``."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    # As in the daemon: an operator may send SIGUSR1 to the whole service.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    server = ForkServer(control, sys.argv[2:])
    freeze()
    server.serve()
