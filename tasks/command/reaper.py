"""The parent of one command: a small script that sees to it that nothing of the command outlives its task.

Run by :mod:`scheduler.tasks.command.process` as ``python -I -S reaper.py FD FILES``; FD is one end of a socketpair,
FILES the soft limit of open files that the command gets.

Why a process between schedd and the command, for some 15 ms per command:

- When schedd is killed with -9 the socket closes, and this process kills the command at once: the task is
  started again elsewhere, and two copies of a command must never run together. PR_SET_PDEATHSIG instead would
  have to be set between fork and exec (not safe in a process with threads), follows the *thread* that forked,
  and reaches only the first process.
- As a subreaper it inherits every descendant whose parent has gone, also those that left the process group.
- It holds on to the ended command (a zombie) to its own end, so the group's id cannot be reused by strangers
  while the group is signalled.

Comes in: a number of bytes, newline, then that many bytes: NUL-separated grace, directory, confined, count,
arguments, ``NAME=value``... Afterwards ``stop`` (SIGTERM, grace, SIGKILL) or ``kill``; the stream's end means ``kill``.
Goes out: a line ``exit N`` or ``signal N``; or ``error cwd ERRNO`` or ``error exec ERRNO``; and ``left N...``
for processes that could not be ended.

Standard library only, and little of it: every import here is paid for by every command.
"""

import os
import resource
import select
import sys
import time

SIGKILL, SIGPIPE, SIGTERM, SIGCONT, SIGXFSZ = 9, 13, 15, 18, 25  # importing signal would take 10 ms
EXDEV = 18
PR_SET_CHILD_SUBREAPER = 36
KILL_TIMEOUT = 5.0  # seconds after SIGKILL; what is still there cannot be killed: another user's, or stuck in I/O
ORPHAN_STOP_DELAY = 0.2  # seconds after which an orphan in the group gets its own SIGTERM


class CannotStart(Exception):
    pass


def become_subreaper() -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # then only what stays in the process group is ended, which is nearly everything


def read_spec(fd: int) -> tuple[float, bytes, bool, list[bytes], dict[bytes, bytes]]:
    data = b""
    while b"\n" not in data:
        data += _read(fd)
    head, _, data = data.partition(b"\n")
    while len(data) < int(head):
        data += _read(fd)
    grace, directory, confined, count, *rest = data.split(b"\0")
    pairs = (entry.partition(b"=") for entry in rest[int(count) :])
    return float(grace), directory, bool(confined), rest[: int(count)], {name: value for name, _, value in pairs}


def _read(fd: int) -> bytes:
    data = os.read(fd, 65536)
    if not data:
        raise SystemExit  # schedd went away before anything was started
    return data


def start(directory: bytes, confined: bool, argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """The command's pid, in a process group of its own. Raises CannotStart."""
    try:
        if directory:
            os.chdir(directory)
        if confined and os.getcwdb() != directory:  # links have come into its path since it was looked at
            raise OSError(EXDEV, "exchanged")
    except OSError as error:
        raise CannotStart(f"error cwd {error.errno}") from None
    # posix_spawnp looks in the PATH of this process; the command is to be found in its own.
    os.environ["PATH"] = os.fsdecode(env.get(b"PATH", os.fsencode(os.defpath)))
    try:
        # Python ignores SIGPIPE and SIGXFSZ, and schedd's threads may block signals: a command gets neither.
        return os.posix_spawnp(argv[0], argv, env, setpgroup=0, setsigmask=[], setsigdef=[SIGPIPE, SIGXFSZ])
    except OSError as error:
        raise CannotStart(f"error exec {error.errno}") from None


class Reaper:
    def __init__(self, control: int, pid: int, grace: float) -> None:
        self.control = control
        self.pid = pid  # of the command, and of its group
        self.grace = grace
        self.order = ""  # stop or kill, once either was given
        self.reported = False
        self.signalled: set[int] = set()

    def tell(self, line: str) -> None:
        try:
            os.write(self.control, line.encode() + b"\n")
        except OSError:
            pass  # schedd has gone; the reading side reports it too

    def listen(self) -> None:
        words = os.read(self.control, 64)
        self.order = "stop" if words == b"stop" and not self.order else "kill"

    def wait(self) -> None:
        """Until the command ends or its end is ordered."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        pause = 1000  # how long a stray that ended may stay a zombie
        try:
            watch = os.pidfd_open(self.pid)
            poll.register(watch, select.POLLIN)
        except (AttributeError, OSError):
            pause = 20  # macOS, an old kernel, or not allowed here: look often instead
        while not self.order and not self.ended():
            if any(fd == self.control for fd, _ in poll.poll(pause)):
                self.listen()
            self.strays()

    def ended(self) -> bool:
        """Whether the command has ended; tells how, once. It stays a zombie, to keep its group's id taken."""
        if not self.reported and hasattr(os, "waitid"):
            end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is not None:
                self.reported = True
                self.tell(f"{'exit' if end.si_code == os.CLD_EXITED else 'signal'} {end.si_status}")
        elif not self.reported:  # macOS: nothing keeps the id taken, but it gives out all others first
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.reported = True
                code = os.waitstatus_to_exitcode(status)
                self.tell(f"exit {code}" if code >= 0 else f"signal {-code}")
        return self.reported

    def strays(self) -> list[int]:
        """Living children besides the command: descendants that lost their parents. Reaps the ended ones."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
                children = [int(pid) for pid in file.read().split()]
        except OSError:
            return []  # a kernel without this file: only the group can be ended
        return [pid for pid in children if pid != self.pid and os.waitpid(pid, os.WNOHANG)[0] != pid]

    def end(self) -> None:
        """Leave nothing behind: SIGTERM, the grace period, SIGKILL, for the group and for all who left it.

        As long as anything of the command lives, one of it is a child of this process: who loses the parent
        becomes one. So no child but the zombie means that nothing is left.
        """
        since = time.monotonic()
        hard_from = since + (0.0 if self.order == "kill" else self.grace)
        poll = select.poll()
        if self.order != "kill":
            poll.register(self.control, select.POLLIN)
            self.signal_group(SIGTERM)
        pause = 1
        while True:
            ended, strays, now = self.ended(), self.strays(), time.monotonic()
            if ended and not strays:
                return self.signal_group(SIGKILL)  # for a kernel that does not tell the children
            if now >= hard_from + KILL_TIMEOUT:
                return self.tell(" ".join(["left", *map(str, strays)]))
            if now >= hard_from:
                self.signal_group(SIGKILL)
            for pid in strays:
                self.signal_stray(pid, hard=now >= hard_from, late=now >= since + ORPHAN_STOP_DELAY)
            if poll.poll(pause):
                self.listen()
                if self.order == "kill":
                    hard_from = min(hard_from, time.monotonic())
                    poll.unregister(self.control)  # at its end it would be readable for ever
            pause = min(pause * 2, 20)

    def signal_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
            os.killpg(self.pid, SIGCONT)  # a stopped process does not see its SIGTERM
        except OSError:
            pass

    def signal_stray(self, pid: int, hard: bool, late: bool) -> None:
        try:
            if hard:
                os.kill(pid, SIGKILL)
            # The group got its signal already, and once is enough; but a process that is still there may be younger.
            elif pid not in self.signalled and (late or os.getpgid(pid) != self.pid):
                self.signalled.add(pid)
                os.kill(pid, SIGTERM)
                os.kill(pid, SIGCONT)
        except OSError:
            pass  # gone, or another user's by now


def _limit_files(most: int) -> None:
    """The daemon has raised this limit for itself; a command that uses select(2) must not go above it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    except (OSError, ValueError):
        pass


def main(control: int, files: int) -> None:
    os.set_inheritable(control, False)
    _limit_files(files)
    grace, directory, confined, argv, env = read_spec(control)
    become_subreaper()
    try:
        reaper = Reaper(control, start(directory, confined, argv, env), grace)
    except CannotStart as failure:
        os.write(control, f"{failure}\n".encode())
        return
    reaper.wait()
    reaper.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
