"""Processes: whose they are, what they may use, and their end."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from scheduler.system.signals import KILL

MOST_FILES = 10_240  # that macOS lets a process open, whatever its hard limit says

if sys.platform == "win32":

    def file_limits() -> tuple[int, int]:
        """How many files this process may open, and how many it may allow itself; -1: any number."""
        return -1, -1

    def allow_files(most: int) -> None:
        """Let this process open so many files. Raises OSError, ValueError."""

else:
    import resource

    def file_limits() -> tuple[int, int]:
        """How many files this process may open, and how many it may allow itself; -1: any number."""
        soft, hard = (
            -1 if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(resource.RLIMIT_NOFILE)
        )
        return soft, hard

    def allow_files(most: int) -> None:
        """Let this process open so many files. Raises OSError, ValueError."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if most < 0:
            most = MOST_FILES if sys.platform == "darwin" else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def session_members(session: int) -> list[int]:
    """The living processes of a session; none where the system does not list them."""
    found: list[int] = []
    for entry in os.scandir("/proc") if sys.platform == "linux" else ():
        if entry.name.isdigit():
            try:
                with open(f"{entry.path}/stat", "rb") as file:
                    state, _, _, of = file.read().rpartition(b")")[2].split()[:4]
            except OSError:
                continue  # gone meanwhile
            if int(of) == session and state not in b"ZX":
                found.append(int(entry.name))
    return found


def user_id() -> int | None:
    """The number of the user that this process runs as; None on Windows, whose users have none."""
    if sys.platform == "win32":
        return None
    return os.geteuid()


def user_name(uid: int | None) -> str | None:
    """The name of a user, of this process without a number; None if the system knows none."""
    if sys.platform == "win32" or uid is None:
        import getpass

        return getpass.getuser()
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def cpus() -> int:
    """The processors that this process may use."""
    count = os.cpu_count() or 1
    if sys.platform == "linux":
        count = len(os.sched_getaffinity(0))
    return count


def kill_session(pid: int) -> None:
    """Kill a process that was started in a session of its own, and what it has left there. Windows kills it alone."""
    with suppress(OSError):  # it is gone; each system says that in its own way
        if sys.platform == "win32":
            os.kill(pid, signal.SIGTERM)
        else:
            os.killpg(pid, KILL)


def memory_of(pid: int) -> int:
    """The bytes of memory that a process has; 0 where that cannot be read, as elsewhere than on Linux."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * page_size()
    except (OSError, IndexError, ValueError):
        return 0


def memory_of_machine() -> int:
    """The bytes of memory that the machine has; 0 where nothing says so."""
    if sys.platform == "win32":
        return 0
    return page_size() * os.sysconf("SC_PHYS_PAGES")


def page_size() -> int:
    """The bytes of a page of memory."""
    if sys.platform == "win32":
        return 4096
    return os.sysconf("SC_PAGE_SIZE")


def boot_id() -> bytes:
    """What names this run of the machine, until it is started anew; without /proc the same for each run."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return b"-"


@cache
def user() -> str:
    """The user of this process, who acts where nothing else says so; ``uid 54321`` if the system knows no name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {user_id()}"
