"""A control group (v2) for each child process, where the daemon's own was delegated to it.

In it a kind's memory limit holds for all that an attempt starts, together, and a kill reaches what forks faster than
it could be followed. Where nothing was delegated, children have none and all is as it was.

The kernel wants processes in leaves only, so the daemon moves into one of its own, unless systemd's
``DelegateSubgroup=`` has put it into one. Only the daemon does so: a program that embeds a Scheduler stays where it is.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scheduler.model.limits import Limits

log = logging.getLogger("scheduler.engine")

PREFIX = "schedd-"
LEAF = "schedd-main"  # the daemon's own
MOST_PROCESSES = 1024  # that a child and all it starts may be at a time, threads included
_OURS = re.compile(r"schedd-(\d+)-\d+\Z")
_OCTAL = re.compile(r"\\([0-7]{3})")
GOES = 2.0  # seconds that killed processes of a former daemon may take to end

home: Home | None = None
"""This process's, once :func:`settle` has found one."""


class Home:
    """The delegated group ``root``. One for each child is made in it, beside the one that the daemon is in."""

    def __init__(self, root: Path, left: Iterable[str] = ()) -> None:
        self.root = root
        self._numbers = itertools.count(1)
        self._left = set(left)  # that could not be removed yet
        self._told = False

    def make(self) -> str | None:
        """A new group for one child; None (and a line in the log, once) if there can be none."""
        self.sweep()
        place = self.root / f"{PREFIX}{os.getpid()}-{next(self._numbers)}"
        try:
            place.mkdir()
        except OSError as error:
            if not self._told:
                log.warning("no control group could be made for a child process, its limits are its own: %s", error)
            self._told = True
            return None
        with suppress(OSError):
            write(place / "memory.oom.group", "1")
        with suppress(OSError):
            write(place / "pids.max", str(MOST_PROCESSES))
        return str(place)

    def remove(self, place: str) -> None:
        """End what is in it still, and remove it; if that does not go at once, later."""
        self._left.add(place)
        self.sweep()

    def sweep(self) -> None:
        """Remove what could not be removed before."""
        if self._left:
            self._left = {one for one in self._left if not remove(one)}


# the daemon


def settle(proc: Path = Path("/proc"), delegated: Callable[[Path], bool] | None = None) -> Home | None:
    """Find the group that was delegated to this process, if there is one, and make it ready for children of its own."""
    global home
    own = own_group(proc)
    if own is None:
        return None
    root = _root(own, delegated or is_delegated)
    if root is None:
        return None
    if "memory" not in _words(root / "cgroup.controllers"):
        log.info("the control group %s was delegated without the memory controller: limits hold per process", root)
        return None
    leaf = None if root != own else root / LEAF
    try:
        if leaf is not None:
            leaf.mkdir(exist_ok=True)
            write(leaf / "cgroup.procs", str(os.getpid()))
        left = remove_leftovers(root, proc)
        write(root / "cgroup.subtree_control", "+memory")
    except OSError as error:
        log.warning("the control group %s was delegated but cannot be used, limits hold per process: %s", root, error)
        if leaf is not None:
            with suppress(OSError):
                write(root / "cgroup.procs", str(os.getpid()))
                os.rmdir(leaf)
        return None
    with suppress(OSError):  # it is worth having, but nothing depends on it
        write(root / "cgroup.subtree_control", "+pids")
    log.info("limits of memory hold for all that an attempt starts: child processes get control groups in %s", root)
    home = Home(root, left)
    return home


def own_group(proc: Path) -> Path | None:
    """The directory of this process's group of version 2; None if it cannot be seen from here."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
        path = next((line[3:] for line in lines if line.startswith("0::")), None)
        mounts = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    if path is None:
        return None
    for line in mounts:
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] != "cgroup2":
            continue
        _, _, _, top, point = before.split(" ")[:5]
        top = _plain(top)
        if path == top or path.startswith(top.rstrip("/") + "/"):
            return Path(_plain(point)) / path[len(top) :].lstrip("/")
    return None


def _plain(text: str) -> str:
    """As it was before mountinfo wrote spaces and the like as octal numbers."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def _root(own: Path, delegated: Callable[[Path], bool]) -> Path | None:
    """The delegated group: the one above, if this one is the subgroup made for us there, or this one."""
    with suppress(OSError):
        beside = {entry.name for entry in os.scandir(own.parent) if entry.is_dir()} - {own.name}
        if all(name.startswith(PREFIX) for name in beside) and delegated(own.parent):
            return own.parent
    return own if delegated(own) else None


def is_delegated(group: Path) -> bool:
    """Whether somebody has left this group, and what is below it, to us. To be able to write there says little: root
    may everywhere, and a user in all groups of the user's own service manager."""
    if not _writable(group):
        return False
    try:
        return os.getxattr(group, "user.delegate") == b"1"  # systemd 251 and later
    except OSError:
        return os.geteuid() != 0 and not _writable(group.parent)


def _writable(group: Path) -> bool:
    return all(os.access(path, os.W_OK) for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"))


def remove_leftovers(root: Path, proc: Path = Path("/proc")) -> list[str]:
    """Remove the groups of daemons that were killed, and what may still run in them. Returns those still in use."""
    left = []
    for entry in sorted(root.iterdir()):
        found = _OURS.match(entry.name)
        if found is None or (int(found[1]) != os.getpid() and _lives_in(int(found[1]), root, proc)):
            continue
        deadline = time.monotonic() + GOES
        while not (gone := remove(str(entry))) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not gone:
            left.append(str(entry))
        log.info("%s the control group %s of a former daemon", "removed" if gone else "ending what is in", entry)
    return left


def _lives_in(pid: int, root: Path, proc: Path) -> bool:
    """Whether this process is one of the group's, or of one below it."""
    for group in (root, *(entry for entry in root.iterdir() if entry.is_dir() and not _OURS.match(entry.name))):
        if str(pid) in _words(group / "cgroup.procs"):
            return (proc / str(pid)).exists()
    return False


# one group


def write(file: Path, text: str) -> None:
    """In one call of the system: the kernel takes each for an order of its own."""
    fd = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def enter(place: str) -> None:
    """Move this process into a group. Raises OSError."""
    write(Path(place) / "cgroup.procs", "0")


def kill_all(place: str) -> None:
    """Kill everything in a group."""
    group = Path(place)
    try:
        write(group / "cgroup.kill", "1")
    except OSError:  # a kernel before 5.14, or the group has gone
        for pid in _words(group / "cgroup.procs"):
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)


def left_in(place: str | None) -> int:
    """How many processes are in a group, ended ones aside."""
    if place is None or "populated 1" not in " ".join(_words(Path(place) / "cgroup.events")):
        return 0
    return max(1, len(_words(Path(place) / "cgroup.procs")))


def remove(place: str) -> bool:
    """Kill what is in a group and remove it. False if something in it has not ended yet."""
    kill_all(place)
    try:
        os.rmdir(place)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


def killed_for_memory(place: str | None) -> str | None:
    """Whether the kernel has killed in a group to get memory back: ``limit``, over its own; ``system``, for others."""
    if place is None:
        return None
    words = _words(Path(place) / "memory.events")
    events = dict(zip(words[::2], words[1::2], strict=False))
    if events.get("oom_kill", "0") == "0":
        return None
    return "system" if events.get("oom", "0") == "0" else "limit"


@contextmanager
def bounded(place: str | None, limits: Limits | None) -> Iterator[None]:
    """Limit the memory of this process's group meanwhile, counted from what it has; called by a child, of its own."""
    if place is None or limits is None or limits.memory is None:
        yield
        return
    group = Path(place)
    used = int(_words(group / "memory.current")[0])
    with suppress(OSError):  # no swap, no such file
        write(group / "memory.swap.max", "0")
    write(group / "memory.max", str(used + limits.memory))
    try:
        yield
    finally:
        write(group / "memory.max", "max")
        with suppress(OSError):
            write(group / "memory.swap.max", "max")
