"""Uses each port of scheduler/system/ on the system that it runs on, and what differs above them.

It ends with status 0 if all went as docs/guides/other-systems.md says. It needs schedd alone, and writes into the
directory in which it is started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduler import Context, Scheduler, system, task
from scheduler.config.addresses import ListenAddress, parse_listen
from scheduler.connections import bind
from scheduler.engine.attempt import own_directory
from scheduler.errors import ConfigError
from scheduler.interpreter import file_limit, raise_file_limit
from scheduler.store.db.begun import Begun, begun, is_gone
from scheduler.system import files, libc, locks, loops, processes, signals, sockets
from scheduler.system.mailboxes import Mailboxes
from scheduler.system.terminals import by_keys
from scheduler.system.waiting import waits_for
from scheduler.tasks import CommandTask

PLATFORM: str = vars(system)["sys"].platform  # which the code of schedd sees
ISOLATION = (
    "kind 'apart': isolation=\"process\" needs Linux: child processes are forked, watched and ended by what only "
    "its kernel has; leave it out, or run it there"
)
NO_COMMANDS = "commands need Linux or macOS"


def refused(call: Callable[[], object], error: type[Exception], words: str = "") -> None:
    said = None
    try:
        call()
    except error as raised:
        said = str(raised)
    assert said is not None, f"{call} is not refused"
    assert words in said, said


def of_files(place: Path) -> None:
    one, other = (os.open(place / "a", os.O_RDWR | os.O_CREAT | files.CLOEXEC) for _ in range(2))
    locks.lock(one)
    refused(lambda: locks.lock(other), BlockingIOError)
    locks.unlock(one)
    locks.lock(other)
    files.allocate(one, 3)
    files.sync(one)
    files.sync_directory(place)
    files.set_mode(one, place / "a", 0o600)
    assert files.for_others(place / "a") == 0
    assert (("fullfsync=ON", "checkpoint_fullfsync=ON") if PLATFORM == "darwin" else ()) == files.FULL_SYNC
    if PLATFORM != "win32":
        assert os.path.samefile(files.place_of(one), place / "a")
    if PLATFORM == "linux":
        os.close(files.open_again(one, os.O_RDONLY))
    else:
        refused(lambda: files.open_again(one, os.O_RDONLY), OSError)
    os.close(one), os.close(other)
    assert files.is_absolute(str(place))
    assert files.is_absolute("/a")
    assert not files.is_absolute("a")
    assert files.of_this_run().is_dir()


def of_mailboxes(place: Path) -> None:
    ours, theirs = Mailboxes(place), Mailboxes(place)
    assert ours.unix is (PLATFORM == "linux")
    ours.hold("b.lock")
    box = ours.bind("b.sock")
    theirs.send("b.sock", b"!")
    assert waits_for(box)(5)
    assert box.recv(17) == b"!"
    assert not waits_for(box)(0)
    assert sorted(name for name in theirs.names() if name.startswith("b.")) == ["b.lock", "b.sock"]
    refused(lambda: theirs.remove_dead("b.lock", "b.sock"), OSError)  # its process lives
    ours.release("b.sock", "b.lock")
    assert "b.lock" not in theirs.names()


def of_notes(place: Path) -> None:
    noted = Begun([place], "x")
    noted.note(7, 1)
    assert begun(str(noted.path)) == {(7, 1)}
    assert not is_gone(str(noted.path))
    noted.close()
    assert not noted.path.exists()


def of_sockets() -> None:
    listening = bind(parse_listen("127.0.0.1:0"))
    host, port = listening.socket.getsockname()
    refused(lambda: bind(parse_listen(f"{host}:{port}")), OSError)  # not shared with another program
    client = socket.create_connection((host, port))
    end, _ = listening.socket.accept()
    assert sockets.peer_of(end) is None
    client.send(b"!", sockets.AT_ONCE)
    assert end.recv(17) == b"!"
    end.close(), client.close(), listening.close()
    named = ListenAddress("", 0, f".{os.sep}c.sock")
    if PLATFORM == "win32":
        refused(lambda: bind(named), OSError, "listen at 127.0.0.1:PORT")
    else:
        listening = bind(named)
        client = sockets.unix()
        client.connect(str(named.path))
        end, _ = listening.socket.accept()
        assert sockets.peer_of(end) == ((os.getpid(), processes.user_id()) if PLATFORM == "linux" else None)
        end.close(), client.close(), listening.close()


def of_processes() -> None:
    raise_file_limit()
    assert file_limit() != 0
    assert processes.cpus() > 0
    assert processes.page_size() > 0
    assert (processes.memory_of(os.getpid()) > 0) is (PLATFORM == "linux")
    assert (processes.memory_of_machine() > 0) is (PLATFORM != "win32")
    assert processes.user_name(processes.user_id())
    processes.kill_session(2**22 + 1)  # which there is not
    assert (libc.call("prctl", 3, 0, 0, 0, 0) is None) is (PLATFORM != "linux")  # PR_GET_DUMPABLE
    own_directory.guard()


def of_signals() -> None:
    signals.ignore_hangup()
    signals.show_stacks()
    heard = threading.Event()
    before = {number: signal.signal(number, lambda *_: heard.set()) for number in signals.STOPPING}
    threading.Thread(target=signals.stop_self).start()
    for _ in range(500):  # a handler runs between two steps of the main thread
        time.sleep(0.01)
        if heard.is_set():
            break
    assert heard.is_set()
    for number, handler in before.items():
        signal.signal(number, handler)
    with by_keys() as stdin:
        assert stdin is None


async def of_loops() -> None:
    loop, (reader, writer) = asyncio.get_running_loop(), socket.socketpair()
    loop.add_reader(reader, lambda: None)
    loop.remove_reader(reader)
    reader.close(), writer.close()


def doubled(number: int) -> tuple[int, str]:
    return number * 2, threading.current_thread().name


@task
async def waits(ctx: Context) -> int:
    found: int = (await ctx.cpu(doubled, 21))[0]
    return found


@task(isolation="process")
def apart(ctx: Context) -> str:
    return "ran"


def of_tasks(place: Path) -> None:
    jobs: Any = Scheduler(f"sqlite:///{place / 'e.db'}", settings={"command": {"enabled": True}})
    jobs.register(waits)
    jobs.register(CommandTask)
    if PLATFORM == "linux":
        jobs.register(apart)
    with jobs:
        assert jobs.result(jobs.task(waits).schedule(), timeout=60) == 42
        began = time.monotonic()
        assert jobs.result(jobs.task(waits).schedule(), timeout=60) == 42
        assert time.monotonic() - began < 20  # it was woken
        command = jobs.task(CommandTask(["echo", "ran"])).schedule()
        jobs.wait(command, timeout=60)
        if PLATFORM == "win32":
            assert NO_COMMANDS in jobs.get_task(command).error
        else:
            assert jobs.result(command)["output_tail"].strip() == "ran"
        if PLATFORM == "linux":
            assert jobs.result(jobs.task(apart).schedule(), timeout=60) == "ran"
        else:
            refused(lambda: jobs.register(apart), ConfigError, ISOLATION)
    if PLATFORM != "linux":
        jobs.register(apart)  # as programs do that only store tasks
        refused(jobs.start, ConfigError, ISOLATION)
    jobs.close()


def main() -> None:
    place = Path.cwd()
    of_files(place)
    of_mailboxes(place)
    of_notes(place)
    of_sockets()
    of_processes()
    of_signals()
    loops.run(of_loops())
    of_tasks(place)
    print(f"each port does on {PLATFORM} what it has to")


if __name__ == "__main__":
    sys.exit(main())
