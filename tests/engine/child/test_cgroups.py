"""Control groups of child processes, on a tree of plain files that behaves as the kernel's does where it matters.

``make vm`` shows the same on a real kernel.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from faults import isolated as kinds

from scheduler import Scheduler, TaskFailedError
from scheduler.engine.child import cgroups
from scheduler.engine.child import fork_server as forkserver
from scheduler.engine.processes.child_handle import describe_exit
from scheduler.model.limits import ResourceLimits
from support.databases import Database, one_database

FILES = ("cgroup.procs", "cgroup.subtree_control", "cgroup.controllers", "cgroup.kill", "memory.max")


def me() -> str:
    return str(os.getpid())  # not that of the process which collected the tests


class Kernel:
    """A tree of groups, and /proc. What ``cgroups`` would do to a real one happens here."""

    def __init__(self, place: Path) -> None:
        self.mount, self.proc = place / "cgroup", place / "proc"
        self.delegated: set[Path] = set()
        self.asked: list[str] = []
        (self.proc / "self").mkdir(parents=True)
        self.group("")

    def group(self, name: str, *pids: str, controllers: str = "memory pids") -> Path:
        path = self.mount / name
        os.makedirs(path, exist_ok=True)
        for file in FILES:
            (path / file).touch()
        (path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        (path / "cgroup.controllers").write_text(controllers)
        for pid in pids:
            (self.proc / pid).mkdir(exist_ok=True)
        return path

    def place_me(self, group: Path) -> None:
        inside = "/" + str(group.relative_to(self.mount)) if group != self.mount else "/"
        (self.proc / "self/cgroup").write_text(f"4:memory:/elsewhere\n0::{inside}\n")
        (self.proc / "self/mountinfo").write_text(f"41 31 0:38 / {self.mount} rw - cgroup2 cgroup2 rw\n")

    def members(self, group: Path) -> list[str]:
        return (group / "cgroup.procs").read_text().split()

    def write(self, file: Path, text: str) -> None:
        group, name = file.parent, file.name
        self.asked.append(f"{group.relative_to(self.mount)}/{name} {text}")
        if not group.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such group", str(group))
        if name == "cgroup.procs":
            for other in (self.mount, *self.mount.rglob("*/")):
                left = [pid for pid in self.members(other) if pid != text] if (other / name).exists() else []
                (other / name).write_text("".join(f"{pid}\n" for pid in left))
            (group / name).write_text("".join(f"{pid}\n" for pid in [*self.members(group), text]))
        elif name == "cgroup.kill":
            (group / "cgroup.procs").write_text("")
        elif name == "cgroup.subtree_control" and self.members(group):
            raise OSError(errno.EBUSY, "Device or resource busy", str(file))
        else:
            file.write_text(text)

    # what of os is another here

    def rmdir(self, path: str | Path) -> None:
        if self.members(Path(path)):
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        shutil.rmtree(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(tmp_path)
    mkdir = Path.mkdir

    def group_mkdir(path: Path, *args: Any, **options: Any) -> None:
        mkdir(path, *args, **options)
        if path.is_relative_to(made.mount) and not (path / "cgroup.procs").exists():
            made.group(str(path.relative_to(made.mount)))

    monkeypatch.setattr(cgroups, "write", made.write)
    monkeypatch.setattr(cgroups, "os", made)
    monkeypatch.setattr(cgroups, "current", None)
    monkeypatch.setattr(Path, "mkdir", group_mkdir)
    return made


def settle(kernel: Kernel) -> cgroups.CgroupRoot | None:
    return cgroups.set_up(kernel.proc, lambda group: group in kernel.delegated)


def test_the_daemon_makes_room_and_moves_into_a_leaf(kernel: Kernel) -> None:
    own = kernel.group("schedd.service", me())
    kernel.place_me(own)
    kernel.delegated.add(own)
    home = settle(kernel)
    assert home is not None
    assert home is cgroups.current
    assert kernel.members(own) == []
    assert kernel.members(own / "schedd-main") == [me()]
    assert kernel.asked[-2:] == [f"schedd.service/cgroup.subtree_control +{one}" for one in ("memory", "pids")]
    first, second = home.make(), home.make()
    assert first is not None
    assert first != second
    assert Path(first).parent == own
    assert (Path(first) / "memory.oom.group").read_text() == "1"
    assert (Path(first) / "pids.max").read_text() == "1024"
    cgroups.write(Path(first) / "cgroup.procs", "4711")
    home.remove(first)
    assert not Path(first).exists(), "what was in it is killed, and it is removed"
    assert Path(str(second)).exists()


def test_a_subgroup_that_systemd_made_is_leaf_enough(kernel: Kernel) -> None:
    unit, own = kernel.group("schedd.service"), kernel.group("schedd.service/main", me())
    kernel.group("schedd.service/schedd-4711-3")
    kernel.place_me(own)
    kernel.delegated.add(unit)
    home = settle(kernel)
    assert home is not None
    assert home.root == unit
    assert kernel.members(own) == [me()]
    assert sorted(entry.name for entry in unit.iterdir() if entry.is_dir()) == ["main"]


def test_a_group_that_others_share_is_not_ours(kernel: Kernel) -> None:
    """A unit right below a user's service manager, whose whole tree was delegated to that manager."""
    manager, own = kernel.group("user@1000.service"), kernel.group("user@1000.service/schedd.service", me())
    kernel.group("user@1000.service/init.scope", "1234")
    kernel.place_me(own)
    kernel.delegated.add(manager)
    assert settle(kernel) is None
    assert kernel.asked == []


def test_nothing_is_touched_where_nothing_was_delegated(kernel: Kernel) -> None:
    own = kernel.group("some.service", me())
    kernel.place_me(own)
    assert settle(kernel) is None
    assert kernel.asked == []
    (kernel.proc / "self/cgroup").write_text("4:memory:/elsewhere\n")
    assert settle(kernel) is None
    shutil.rmtree(kernel.proc)
    assert settle(kernel) is None


def test_without_the_memory_controller_all_stays(kernel: Kernel) -> None:
    own = kernel.group("schedd.service", me(), controllers="cpu pids")
    kernel.place_me(own)
    kernel.delegated.add(own)
    assert settle(kernel) is None
    assert kernel.asked == []


def test_beside_other_processes_all_stays(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    own = kernel.group("schedd.service", "77", me())
    kernel.place_me(own)
    kernel.delegated.add(own)
    assert settle(kernel) is None
    assert sorted(kernel.members(own)) == sorted(["77", me()])
    assert not (own / "schedd-main").exists()
    assert "limits hold per process" in caplog.text


def test_what_killed_daemons_left_is_removed(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own = kernel.group("schedd.service", me())
    kernel.group("schedd.service/schedd-main", "500")
    dead = kernel.group("schedd.service/schedd-400-1", "401", "402")
    empty = kernel.group(f"schedd.service/schedd-{me()}-1")
    living = kernel.group("schedd.service/schedd-500-2", "501")
    another = kernel.group("schedd.service/theirs", "77")
    kernel.place_me(own)
    kernel.delegated.add(own)
    assert settle(kernel) is not None
    assert not dead.exists()
    assert not empty.exists()
    assert kernel.members(living) == ["501"]
    assert kernel.members(another) == ["77"]
    assert "schedd-400-1 of a former daemon" in caplog.text


def test_what_takes_long_to_end_is_removed_when_it_has(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    own = kernel.group("schedd.service", me())
    dead = kernel.group("schedd.service/schedd-400-1", "401", "402")
    kernel.place_me(own)
    kernel.delegated.add(own)
    monkeypatch.setattr(cgroups, "REMOVAL_TIMEOUT_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "kill_all", lambda place: None)
        home = settle(kernel)
    assert dead.exists()
    assert home is not None
    home.remove_pending()
    assert not dead.exists()


def test_a_group_that_cannot_be_made_is_logged_once(kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
    home = cgroups.CgroupRoot(kernel.mount / "gone")
    assert home.make() is None
    assert home.make() is None
    assert caplog.text.count("no control group could be made") == 1


def test_what_is_not_empty_yet_is_removed_later(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    home = cgroups.CgroupRoot(kernel.mount)
    first, second = home.make(), home.make()
    assert first is not None
    assert second is not None
    with monkeypatch.context() as patch:
        patch.setattr(cgroups, "kill_all", lambda place: None)
        kernel.write(Path(first) / "cgroup.procs", "4711")
        home.remove(first)
    assert Path(first).exists()
    home.remove(second)
    assert not Path(first).exists()
    assert not Path(second).exists()


@pytest.mark.parametrize(
    ("top", "path", "found"),
    [
        ("/", "/system.slice/schedd.service", "system.slice/schedd.service"),
        ("/", "/", ""),
        ("/system.slice", "/system.slice/schedd.service", "schedd.service"),
        ("/docker/1", "/docker/10", None),
        ("/", "/a\\040b", "a\\040b"),
    ],
)
def test_where_its_own_group_is(tmp_path: Path, top: str, path: str, found: str | None) -> None:
    place = tmp_path / "self"
    place.mkdir()
    (place / "cgroup").write_text(f"1:cpu:/x\n0::{path}\n")
    (place / "mountinfo").write_text(
        "25 23 0:22 / /sys rw shared:7 - sysfs sysfs rw\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        f"41 31 0:38 {top} /a\\040mount rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert cgroups.own_group(tmp_path) == (None if found is None else Path("/a mount") / found)


@pytest.mark.parametrize(
    ("uid", "mark", "writable", "is_"),
    [
        (1000, b"1", {"own"}, True),
        (0, b"1", {"own", "above"}, True),
        (0, None, {"own", "above"}, False),  # root may write anywhere
        (0, None, {"own"}, False),
        (1000, None, {"own"}, True),  # before systemd 251, or by hand
        (1000, None, {"own", "above"}, False),  # in the tree of the user's own service manager
        (1000, b"0", {"own"}, False),
        (1000, b"1", set(), False),  # ProtectControlGroups=
    ],
)
def test_what_counts_as_delegated(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, uid: int, mark: bytes | None, writable: set[str], is_: bool
) -> None:
    group = kernel.group("above") and kernel.group("above/own")

    def getxattr(path: Path, name: str) -> bytes:
        assert name == "user.delegate"
        if mark is None:
            raise OSError(errno.ENODATA, "No data available")
        return mark

    def access(path: Path, mode: int) -> bool:
        return (path if path.is_dir() else path.parent).name in writable

    for name, value in (("getxattr", getxattr), ("access", access), ("geteuid", lambda: uid)):
        monkeypatch.setattr(kernel, name, value, raising=False)
    assert cgroups.is_delegated(group) is is_


def test_a_limit_holds_while_the_handler_runs(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.swap.max"):
        (tmp_path / name).write_text("max")
    (tmp_path / "memory.current").write_text("1000\n")
    with cgroups.bounded(str(tmp_path), ResourceLimits(memory=2**20)):
        assert (tmp_path / "memory.max").read_text() == str(2**20 + 1000)
        assert (tmp_path / "memory.swap.max").read_text() == "0"
    assert (tmp_path / "memory.max").read_text() == "max"
    assert (tmp_path / "memory.swap.max").read_text() == "max"
    with cgroups.bounded(str(tmp_path), ResourceLimits(cpu=1)), cgroups.bounded(None, ResourceLimits(memory=2**20)):
        assert (tmp_path / "memory.max").read_text() == "max"


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ("low 0\nhigh 0\nmax 9\noom 0\noom_kill 0\n", None),
        ("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n", "limit"),
        ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n", "system"),
        ("", None),
    ],
)
def test_why_the_kernel_killed(tmp_path: Path, events: str, reason: str | None) -> None:
    (tmp_path / "memory.events").write_text(events)
    assert cgroups.killed_for_memory(str(tmp_path)) == reason
    assert cgroups.killed_for_memory(str(tmp_path / "gone")) is None
    assert cgroups.killed_for_memory(None) is None


def test_how_many_are_left(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("17\n18\n")
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert cgroups.process_count(str(tmp_path)) == 2
    (tmp_path / "cgroup.procs").write_text("")  # threads of an ended process
    assert cgroups.process_count(str(tmp_path)) == 1
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert cgroups.process_count(str(tmp_path)) == 0
    assert cgroups.process_count(None) == cgroups.process_count(str(tmp_path / "gone")) == 0


class Reports:
    """Instead of the control socket of a fork server: what it says."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, data: bytes) -> None:
        self.sent.append(msgspec.msgpack.decode(data))


def test_an_end_is_reported_when_all_have_gone_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine: they become fewer, slowly. What does not become fewer is given up."""
    now, left = 0.0, 100
    nothing = SimpleNamespace(waitid=lambda *_: None, P_ALL=0, WEXITED=0, WNOHANG=0, WNOWAIT=0)
    monkeypatch.setattr(forkserver, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(forkserver, "os", nothing)
    monkeypatch.setattr(forkserver.ForkServer, "kill_orphans", lambda self: left)
    reports = Reports()
    server = object.__new__(forkserver.ForkServer)
    server.control, server.known, server.groups = reports, set(), {}  # type: ignore[assignment]
    for gives_up in (False, True):
        server.ended, server.fewest_left, server.fewest_since = {4711: -9}, math.inf, 0.0
        left = 100
        for _ in range(100):
            server.reap()
            assert reports.sent == []
            now += forkserver.ORPHANS_GIVE_UP_S / 2
            left -= 1
        assert left == 0
        if gives_up:
            left = 7
            server.fewest_left = 7.0
            server.fewest_since = now
            now += forkserver.ORPHANS_GIVE_UP_S + 1
        server.reap()
        assert reports.sent == [["ended", 4711, -9]]
        reports.sent.clear()


def test_the_error_names_the_limit() -> None:
    described = describe_exit(-signal.SIGKILL, ResourceLimits(memory=2**28), out_of_memory=False, over_memory=True)
    assert described.endswith("SIGKILL: with all that it had started it was over its limit of 256 MiB of memory")
    assert describe_exit(-signal.SIGKILL, ResourceLimits(memory=2**28), out_of_memory=True).startswith(
        "its process was killed by SIGKILL: the system ran out of memory"
    )


class Home(cgroups.CgroupRoot):
    """Groups of plain files for real children."""

    def make(self) -> str | None:
        place = super().make()
        assert place is not None
        for name, text in (("cgroup.procs", ""), ("cgroup.kill", ""), ("memory.max", "max"), ("memory.current", "5")):
            (Path(place) / name).write_text(text)
        return place

    def remove(self, place: str) -> None:
        assert (Path(place) / "cgroup.kill").read_text() == "1", "the one that forks has killed it"
        shutil.rmtree(place)


@one_database
def test_a_real_child_is_in_its_group(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = tmp_path / "groups"
    groups.mkdir()
    monkeypatch.setattr(cgroups, "current", Home(groups))
    with Scheduler(database.url, processes=1) as jobs:
        for kind in (kinds.Grouped, kinds.Pid):
            jobs.register(kind)
        fine = jobs.task(kinds.Grouped(str(groups))).schedule()
        limits = jobs.result(fine, timeout=30)
        assert limits == {"procs": "0", "max": str(2**28 + 5)}
        (place,) = groups.iterdir()
        assert (place / "memory.max").read_text() == "max"
        over = jobs.task(kinds.Grouped(str(groups), dies=True)).schedule()
        with pytest.raises(TaskFailedError, match="it was over its limit of 256 MiB of memory"):
            jobs.result(over, timeout=30)
        assert jobs.result(jobs.task(kinds.Pid()).schedule(), timeout=30)["pid"]
        (other,) = groups.iterdir()
        assert other != place
    assert (other / "cgroup.kill").read_text() == "1", "nothing in it outlives the engine"
