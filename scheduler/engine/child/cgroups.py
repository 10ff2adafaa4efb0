"""A control group (v2) for each child process, if the daemon's own group was delegated to it.

A kind's memory limit then holds for all processes of an attempt together, and one kill reaches all of them, however
fast they fork. Without a delegated group, children have none.

The kernel allows processes in leaves only. So the daemon moves into a leaf of its own, unless systemd's
``DelegateSubgroup=`` has put it into one. A program that embeds a Scheduler stays where it is.
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

from scheduler.backoff import LogOnce
from scheduler.model.limits import ResourceLimits

log = logging.getLogger("scheduler.engine")

PREFIX = "schedd-"
DAEMON_LEAF = "schedd-main"  # of the daemon itself
MAX_PROCESSES = 1024  # of a child and all that it starts, threads included
_OURS = re.compile(r"schedd-(\d+)-\d+\Z")
_OCTAL = re.compile(r"\\([0-7]{3})")
REMOVAL_TIMEOUT_S = 2.0  # for killed processes of a former daemon to end

current: CgroupRoot | None = None
"""This process's root, once :func:`set_up` has found one."""


class CgroupRoot:
    """The delegated group ``root``: makes and removes the groups of children in it."""

    def __init__(self, root: Path, left: Iterable[str] = ()) -> None:
        self.root = root
        self._numbers = itertools.count(1)
        self._to_remove = set(left)  # groups with processes that have not ended yet
        self._logged = LogOnce()

    def make(self) -> str | None:
        """Make a group for one child. Returns None, and logs the reason once, if that fails."""
        self.remove_pending()
        place = self.root / f"{PREFIX}{os.getpid()}-{next(self._numbers)}"
        try:
            place.mkdir()
        except OSError as error:
            if self._logged.is_new():
                log.warning("no control group could be made for a child process, its limits are its own: %s", error)
            return None
        with suppress(OSError):
            write(place / "memory.oom.group", "1")
        with suppress(OSError):
            write(place / "pids.max", str(MAX_PROCESSES))
        return str(place)

    def remove(self, place: str) -> None:
        """Kill what is left in a group and remove it, now or at a later call."""
        self._to_remove.add(place)
        self.remove_pending()

    def remove_pending(self) -> None:
        """Remove the groups that could not be removed before."""
        if self._to_remove:
            self._to_remove = {one for one in self._to_remove if not remove(one)}


# the daemon


def set_up(proc: Path = Path("/proc"), delegated: Callable[[Path], bool] | None = None) -> CgroupRoot | None:
    """Find the group that was delegated to this process, and prepare it for children's groups."""
    global current
    own = own_group(proc)
    if own is None:
        return None
    root = _root(own, delegated or is_delegated)
    if root is None:
        return None
    if "memory" not in _read_words(root / "cgroup.controllers"):
        log.info("the control group %s was delegated without the memory controller: limits hold per process", root)
        return None
    leaf = None if root != own else root / DAEMON_LEAF
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
    with suppress(OSError):  # the limit of processes is optional
        write(root / "cgroup.subtree_control", "+pids")
    log.info("limits of memory hold for all that an attempt starts: child processes get control groups in %s", root)
    current = CgroupRoot(root, left)
    return current


def own_group(proc: Path) -> Path | None:
    """The directory of this process's group (v2); None if it is not visible."""
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
        top = _unescaped(top)
        if path == top or path.startswith(top.rstrip("/") + "/"):
            return Path(_unescaped(point)) / path[len(top) :].lstrip("/")
    return None


def _unescaped(text: str) -> str:
    """Text of mountinfo with its octal escapes decoded."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


def _root(own: Path, delegated: Callable[[Path], bool]) -> Path | None:
    """The delegated group: this one, or its parent if this is the subgroup made for us there."""
    with suppress(OSError):
        beside = {entry.name for entry in os.scandir(own.parent) if entry.is_dir()} - {own.name}
        if all(name.startswith(PREFIX) for name in beside) and delegated(own.parent):
            return own.parent
    return own if delegated(own) else None


def is_delegated(group: Path) -> bool:
    """Whether this group was delegated to this process.

    Write access alone does not show that: root may write everywhere, and a user in all groups of the user's manager.
    """
    if not _writable(group):
        return False
    try:
        return os.getxattr(group, "user.delegate") == b"1"  # systemd 251 and later
    except OSError:
        return os.geteuid() != 0 and not _writable(group.parent)


def _writable(group: Path) -> bool:
    return all(os.access(path, os.W_OK) for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"))


def remove_leftovers(root: Path, proc: Path = Path("/proc")) -> list[str]:
    """Kill and remove the groups of killed daemons. Returns those still in use."""
    left = []
    for entry in sorted(root.iterdir()):
        found = _OURS.match(entry.name)
        if found is None or (int(found[1]) != os.getpid() and _is_alive_in(int(found[1]), root, proc)):
            continue
        deadline = time.monotonic() + REMOVAL_TIMEOUT_S
        while not (removed := remove(str(entry))) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not removed:
            left.append(str(entry))
        log.info("%s the control group %s of a former daemon", "removed" if removed else "ending what is in", entry)
    return left


def _is_alive_in(pid: int, root: Path, proc: Path) -> bool:
    """Whether this process is alive in the group or in one below it."""
    for group in (root, *(entry for entry in root.iterdir() if entry.is_dir() and not _OURS.match(entry.name))):
        if str(pid) in _read_words(group / "cgroup.procs"):
            return (proc / str(pid)).exists()
    return False


# one group


def write(file: Path, text: str) -> None:
    """Write in one system call: the kernel takes each as a command."""
    fd = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read_words(file: Path) -> list[str]:
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
    except OSError:  # a kernel before 5.14, or the group is removed
        for pid in _read_words(group / "cgroup.procs"):
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)


def process_count(place: str | None) -> int:
    """How many live processes are in a group."""
    if place is None or "populated 1" not in " ".join(_read_words(Path(place) / "cgroup.events")):
        return 0
    return max(1, len(_read_words(Path(place) / "cgroup.procs")))


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
    """Why the kernel killed for memory in a group: ``limit``, ``system``, or None: it did not."""
    if place is None:
        return None
    words = _read_words(Path(place) / "memory.events")
    events = dict(zip(words[::2], words[1::2], strict=False))
    if events.get("oom_kill", "0") == "0":
        return None
    return "system" if events.get("oom", "0") == "0" else "limit"


@contextmanager
def bounded(place: str | None, limits: ResourceLimits | None) -> Iterator[None]:
    """Limit the memory of this child's own group meanwhile, above what it uses now."""
    if place is None or limits is None or limits.memory is None:
        yield
        return
    group = Path(place)
    used = int(_read_words(group / "memory.current")[0])
    with suppress(OSError):  # without swap there is no such file
        write(group / "memory.swap.max", "0")
    write(group / "memory.max", str(used + limits.memory))
    try:
        yield
    finally:
        write(group / "memory.max", "max")
        with suppress(OSError):
            write(group / "memory.swap.max", "max")
