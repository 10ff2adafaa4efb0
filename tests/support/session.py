"""One directory for a whole pytest run, its xdist workers included, and tests that run alone.

The controller (or the only process) makes the directory, holds a lock in it for as long as it lives, and
removes it at the end. A run that was killed leaves its directory, and perhaps its PostgreSQL, to be removed
by the next run, which finds the lock free.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

PREFIX = "schedd-tests-"
MEMORY = Path("/dev/shm")
TESTS = Path(__file__).parents[1]
# Rooms and files about the whole: daemons, what ends them, what they work with; upgrades of a store; random histories.
# make programs runs these.
OF_PROGRAMS = (
    *("daemon", "executors", "faults", "frameworks", "stateful", "telemetry", "transports", "web"),
    *("alerts/test_reload.py", "alerts/test_service.py", "cli/test_init.py", "cli/test_mcp.py"),
    *("cli/test_mcp_incidents.py", "cli/test_process.py", "cli/test_top.py", "cli/test_wait_logs.py"),
    *("engine/durable/test_examples.py", "operations/test_service.py", "store/db/test_older_stores.py"),
    *("store/db/test_upgrades.py", "tasks/test_federation.py", "testing/test_pytest_plugin.py", "test_alias.py"),
    *("test_benchmarks.py", "test_ci_run.py", "test_demo.py", "test_demo_anywhere.py", "test_demo_messages.py"),
    *("test_elsewhere.py", "test_embedding.py", "test_interpreter.py", "test_operating.py", "test_readme.py"),
    *("test_site.py", "test_typing.py", "test_web_examples.py"),
)
_PREFIXES = tuple(one if one.endswith(".py") else f"{one}/" for one in OF_PROGRAMS)
ROOM = 4 * 2**30  # bytes that have to be free there
_shared: Path | None = None
_owner: int | None = None  # the descriptor of the lock, in the controller only
_xdist_worker = False


def shared_directory() -> Path:
    assert _shared is not None, "run pytest from the root of the checkout"
    return _shared


def pytest_configure(config: pytest.Config) -> None:
    global _shared, _owner, _xdist_worker
    _hear_signals()
    workerinput: dict[str, Any] | None = getattr(config, "workerinput", None)
    if workerinput is not None:
        _xdist_worker = True
        _shared = Path(workerinput["schedd_shared"])
        return
    _remove_leftovers()
    _shared = Path(tempfile.mkdtemp(prefix=PREFIX))
    _shared.chmod(0o755)  # PostgreSQL runs as another user when pytest runs as root
    memory = directory_in_memory()
    if memory is None:
        (_shared / "files").mkdir()
    else:
        memory.chmod(0o755)
        (_shared / "files").symlink_to(memory)
    _owner = os.open(_shared / "owner", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(_owner, fcntl.LOCK_EX)


def _hear_signals() -> None:
    """As from a terminal: a shell's background job ignores the first two, who runs under nohup the third, and so would
    every program that a test starts."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Any:
    """What is collected stays to the end: looking through it for garbage takes a quarter of the time."""
    gc.disable()
    try:
        _import_share(session)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _import_share(session: pytest.Session) -> None:
    """In a whole run, each xdist worker first imports a part of the files, so that in a fresh clone each of them is
    compiled once: all workers collect in the same order, and would compile the same file at the same time."""
    config = session.config
    if not _xdist_worker or config.args_source is not config.ArgsSource.TESTPATHS:
        return
    workerinput: dict[str, Any] = config.workerinput  # type: ignore[attr-defined]
    for file in share(int(workerinput["workerid"].removeprefix("gw")), workerinput["workercount"]):
        with suppress(Exception, pytest.skip.Exception):  # the collection tells of it
            _ = pytest.Module.from_parent(session, path=file).obj


def share(number: int, count: int) -> list[Path]:
    """The files of tests that are this worker's part, of so many parts that are about as large as each other."""
    largest_first = sorted(TESTS.rglob("test_*.py"), key=lambda file: (-file.stat().st_size, file))
    return largest_first[number::count]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Programs wait for each other and take longest, so they come first, and those that share a browser one after the
    other."""
    for item in items:
        if is_of_programs(item):
            item.add_marker("programs")
    items.sort(key=lambda item: (not _takes_browser(item), not is_of_programs(item)))


def is_of_programs(item: pytest.Item) -> bool:
    return _lies_in_programs(item.path) or _takes_browser(item)


@functools.cache  # of all the tests of a file
def _lies_in_programs(path: Path) -> bool:
    return path.relative_to(TESTS).as_posix().startswith(_PREFIXES)


def _takes_browser(item: pytest.Item) -> bool:
    return "browser" in getattr(item, "fixturenames", ()) and item.path.parent.name == "console"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Tell a failure at the second attempt, should another thread have compiled something during the first.

    Python 3.11 then says "AST constructor recursion depth mismatch", which would end the whole run.
    """
    try:
        return (yield)
    except SystemError:
        return pytest.TestReport.from_item_and_call(item, call)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["schedd_shared"] = str(_shared)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    global _owner
    if _owner is not None and _shared is not None:
        _remove(_shared)
        os.close(_owner)
        _owner = None


def _remove(directory: Path) -> None:
    from support import postgres_server, ray_rig

    postgres_server.stop(directory)
    ray_rig.stop_shared(directory)
    for place in directory.glob("kube*/tokens.csv"):
        from support import kube_real

        kube_real.stop(place.parent)
    for place in (postgres_server.data_of(directory), directory / "files"):
        if place.is_symlink():
            shutil.rmtree(place.readlink(), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def _remove_leftovers() -> None:
    for directory in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            if directory.stat().st_uid != os.getuid() or time.time() - directory.stat().st_mtime < 60:
                continue
            descriptor = os.open(directory / "owner", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(directory)
        except BlockingIOError:
            pass  # that run is alive
        finally:
            os.close(descriptor)


def directory_in_memory() -> Path | None:
    """A directory in memory for what no test needs on a disk, and the run removes; None if there is too little room."""
    try:
        free = os.statvfs(MEMORY)
        available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        if free.f_bavail * free.f_frsize < ROOM or available is None or int(available[1]) * 1024 < 2 * ROOM:
            return None
        return Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    except OSError:
        return None


def files_directory() -> Path:
    """Where tests have the files of their databases."""
    return (shared_directory() / "files").resolve()


@contextmanager
def locked(name: str, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock that all processes of this run share."""
    descriptor = os.open(shared_directory() / name, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Keep tests marked ``alone`` apart from the tests of the other xdist workers.

    A test passes the gate to enter the room. A test that wants the room alone holds the gate until the room is
    empty, so that the others cannot keep it waiting for ever.
    """
    if not _xdist_worker:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with locked("gate"):
        room = os.open(shared_directory() / "room", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    try:
        return (yield)
    finally:
        os.close(room)


def _paths(words: list[str]) -> list[str]:
    """Where ``make programs`` has to look; with the word ``alone``: the files of tests that run by themselves."""
    places = [TESTS / one for one in (*OF_PROGRAMS, "console")]
    if words == ["alone"]:
        files = sorted(file for one in places for file in ([one] if one.is_file() else one.rglob("test_*.py")))
        places = [file for file in files if "mark.alone" in file.read_text(encoding="utf-8")]
    return [str(one.relative_to(TESTS.parent)) for one in places]


if __name__ == "__main__":
    print(*_paths(sys.argv[1:]))
