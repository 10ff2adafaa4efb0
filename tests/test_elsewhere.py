"""schedd on systems that are not Linux, as far as that can be shown here: see support/elsewhere/.

``make elsewhere`` runs whole rooms of tests in this way.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.elsewhere import NO_MODULES, NOT_MACOS, REFUSED, VARIABLE

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SYSTEMS = sorted(NO_MODULES)
PROGRAM = """
import asyncio, os, sys, threading, time
from pathlib import Path
from scheduler import Scheduler, task
from scheduler.errors import ConfigError
from scheduler.engine.attempt import own_directory
from scheduler.interpreter import file_limit, raise_file_limit
from scheduler.store.db.begun import Begun, begun, is_gone
from scheduler.system import LINUX, files, locks, loops, processes, signals
from scheduler.system.mailboxes import Mailboxes
from scheduler.system.waiting import waits_for
from scheduler.tasks import CommandTask

place = Path.cwd()
assert not LINUX
one, other = (os.open(place / "a", os.O_RDWR | os.O_CREAT | files.CLOEXEC) for _ in range(2))
locks.lock(one)
try:
    locks.lock(other)
except BlockingIOError:
    print("locked")
locks.unlock(one)
locks.lock(other)
files.sync(one)
files.sync_directory(place)
files.set_mode(one, place / "a", 0o600)
print(files.FULL_SYNC)

ours, theirs = Mailboxes(place), Mailboxes(place)
ours.hold("b.lock")
box = ours.bind("b.sock")
theirs.send("b.sock", b"!")
assert waits_for(box)(5) and box.recv(17) == b"!"
assert not waits_for(box)(0)
print(sorted(name for name in theirs.names() if name.startswith("b.")))
try:
    theirs.remove_dead("b.lock", "b.sock")
except BlockingIOError:
    print("lives")
ours.release("b.sock", "b.lock")
assert "b.lock" not in theirs.names()

noted = Begun([place], "x")
noted.note(7, 1)
assert begun(str(noted.path)) == {(7, 1)} and not is_gone(str(noted.path))
noted.close()

raise_file_limit()
own_directory.guard()
signals.ignore_hangup()
signals.show_stacks()
print(file_limit() != 0, processes.cpus() > 0, processes.memory_of(os.getpid()))
assert processes.user_name(processes.user_id())

async def watches():
    loop, (reader, writer) = asyncio.get_running_loop(), __import__("socket").socketpair()
    loop.add_reader(reader, lambda: None)
    loop.remove_reader(reader)
    reader.close(), writer.close()
    return "watches sockets"
print(loops.run(watches()))

def doubled(number):
    return number * 2, threading.current_thread().name

@task
async def waits(ctx):
    return (await ctx.cpu(doubled, 21))[0]

@task(isolation="process")
def apart(ctx): ...

jobs = Scheduler("sqlite:///e.db", settings={"command": {"enabled": True}})
jobs.register(waits)
jobs.register(CommandTask)
with jobs:
    print(jobs.result(jobs.task(waits).schedule(), timeout=60))
    began = time.monotonic()
    print(jobs.result(jobs.task(waits).schedule(), timeout=60), "soon" if time.monotonic() - began < 20 else "late")
    command = jobs.task(CommandTask(["echo", "ran"])).schedule()
    jobs.wait(command, timeout=60)
    print(jobs.get_task(command).error or jobs.result(command)["output_tail"].strip())
    try:
        jobs.register(apart)
    except ConfigError as error:
        print(error)
try:
    jobs.start()
except ConfigError as error:
    print(error)
jobs.close()
"""


def run(system: str, place: Path, *command: str | Path, status: int = 0) -> str:
    """What a program prints there."""
    done = subprocess.run(
        command, cwd=place, env=environ_of(system), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def environ_of(system: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDD_")}
    return ours | {VARIABLE: system, "PYTHONPATH": str(ROOT / "tests" / "support" / "elsewhere")}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_first_program_runs(system: str, tmp_path: Path) -> None:
    assert run(system, tmp_path, sys.executable, EXAMPLES / "quickstart.py") == "HELLO WORLD!!\n"


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_port_does_there_what_it_does_here(system: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    refused = (
        "kind 'apart': isolation=\"process\" needs Linux: child processes are forked, watched and ended by what only "
        "its kernel has; leave it out, or run it there"
    )
    lines = run(system, tmp_path, sys.executable, "program.py").splitlines()
    assert lines[:4] == [
        "locked",
        str(("fullfsync=ON", "checkpoint_fullfsync=ON") if system == "darwin" else ()),
        "['b.lock', 'b.sock']",
        "lives",
    ]
    assert lines[4:8] == ["True True 0", "watches sockets", "42", "42 soon"]
    assert ("ran" if system == "darwin" else "commands need Linux or macOS") in lines[8]
    assert lines[9:11] == [refused, refused]


def test_the_shop_runs_on_a_daemon(tmp_path: Path) -> None:
    """For macOS, ``make elsewhere`` runs README's own test, which runs a command, too."""
    shop = tmp_path / "shop"
    shutil.copytree(EXAMPLES / "shop", shop, ignore=shutil.ignore_patterns("__pycache__"))
    schedd = Path(sys.executable).with_name("schedd")
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([schedd], cwd=shop, env=environ_of("win32"), stderr=log) as daemon,
    ):
        try:
            printed = run("win32", shop, sys.executable, "order.py", "1001", "me@example.com")
        finally:
            daemon.terminate()
    assert daemon.returncode == 0, (tmp_path / "log").read_text()
    assert printed == "{'sent_to': 'me@example.com', 'file': 'invoice-1001.txt'}\n"
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("system", "settings", "words"),
    [
        ("darwin", '[tasks]\nbuiltin = ["ImageResizerTask"]\n', "needs Linux: child processes"),
        ("win32", '[executors.here]\ntype = "process"\ndirectory = "/tmp/x"\n', "executors.here needs Linux or macOS"),
    ],
)
def test_what_a_system_lacks_is_said_by_the_check(system: str, settings: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(settings)
    said = run(system, tmp_path, Path(sys.executable).with_name("schedd"), "--check", status=2)
    assert words in said
    assert "Traceback" not in said


def test_only_ports_ask_for_what_other_systems_lack() -> None:
    """Elsewhere each of these names would be an error, once it is reached."""
    modules = "|".join(set(NO_MODULES["win32"]) - {"termios", "tty"})  # which the view of `top` has behind its question
    names = "|".join(f"{module}\\.{name}" for module in ("os", "socket") for name in NOT_MACOS[module])
    asks = re.compile(rf"^ *(?:import|from) (?:{modules})\b.*|\b(?:{names})\b(?<!SO_PEERCRED)", re.MULTILINE)
    wrong = []
    for file in sorted([*(ROOT / "scheduler").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")]):
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith((*REFUSED["win32"], "scheduler/system/")):
            wrong += [f"{path}: {found}" for found in asks.findall(file.read_text(encoding="utf-8"))]
    assert not wrong, "\n".join(wrong)
    assert asks.search((ROOT / "scheduler/system/locks.py").read_text(encoding="utf-8"))


def test_the_pages_say_what_was_tried_where() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"macOS and Windows", readme)
    assert "make elsewhere" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
