"""schedd on systems that are not Linux, as far as that can be shown here: see support/elsewhere/.

``make elsewhere`` runs whole rooms of tests in this way.
"""

from __future__ import annotations

import json
import ntpath
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from scheduler.config.model import Config, StoreSection
from scheduler.config.paths import settled
from scheduler.system import files
from support.elsewhere import NO_MODULES, NOT_MACOS, REFUSED, VARIABLE

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
SUPPORT = ROOT / "tests" / "support" / "elsewhere"
SYSTEMS = sorted(NO_MODULES)
# Each is possible here, and not there.
DENIED = {
    "/proc": "open('/proc/self/stat')",
    "/proc by os.open": "import os; os.open('/proc/self/stat', os.O_RDONLY)",
    "/sys": "import os; os.listdir('/sys')",
    "an abstract socket": "import socket; socket.socket(socket.AF_UNIX).bind('\\0schedd-denied')",
    "prctl": "import ctypes; ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)",
    "unshare": "import ctypes; ctypes.CDLL(None).unshare(0)",
    "SOCK_SEQPACKET": "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)",
    "a pair of SOCK_SEQPACKET": "import socket; socket.socketpair(1, 5)",
    "SO_PEERCRED": "import socket; socket.SO_PEERCRED",
    "memfd_create": "import os; os.memfd_create('a')",
    "locks of open file descriptions": "import fcntl; fcntl.F_OFD_SETLK",
    "descriptors for the fork server": "from socket import send_fds",
    "the fork server": "import scheduler.engine.child.fork_server",
    "child processes": "from scheduler.engine.child import main",
    "pidfd_open": "import os; os.pidfd_open(os.getpid())",
    "eventfd": "import os; os.eventfd(0)",
    "pipe2": "import os; os.pipe2(0)",
    "epoll": "import select; select.epoll()",
    "sched_getaffinity": "from os import sched_getaffinity",
    "posix_fallocate": "import os; os.posix_fallocate",
    "waitid": "import os; os.waitid",
    "getxattr": "import os; os.listxattr('.')",
    "sigtimedwait": "import signal; signal.sigtimedwait([], 0)",
    "prlimit": "import resource; resource.prlimit(0, resource.RLIMIT_NOFILE)",
    "CLOCK_BOOTTIME": "import time; time.CLOCK_BOOTTIME",
}
DENIED_ON_WINDOWS = {
    "flock": "import fcntl",
    "fork": "import os; os.fork",
    "sessions": "import os; os.setsid",
    "groups of processes": "import os; os.killpg",
    "a mode of an open file": "import os; os.fchmod",
    "users": "import pwd",
    "resource limits": "import resource",
    "poll": "import select; select.poll()",
    "SIGKILL": "import signal; signal.SIGKILL",
    "SIGHUP": "import signal; signal.SIGHUP",
    "Unix sockets": "import socket; socket.socket(socket.AF_UNIX)",
    "a pair of Unix sockets": "import socket; socket.socketpair(1)",
    "a shared port": "import socket; socket.SO_REUSEADDR",
    "an open directory": "import os; os.open('.', os.O_RDONLY)",
    "a file of an open directory": "import os; os.open('a', os.O_RDONLY | os.O_CREAT, dir_fd=os.open('/', 0))",
    "descriptors for a program": "import subprocess; subprocess.Popen(['true'], pass_fds=[0])",
    "a name with a colon": "open('a:b', 'w')",
    "removal of an open file": "import os; file = open('c', 'w'); os.remove('c')",
    "removal of a file that is mapped": "import mmap, os; file = open('d', 'wb+'); file.write(b'!'); file.flush(); "
    "here = mmap.mmap(file.fileno(), 1); file.close(); os.remove('d')",
    "another name for an open file": "import os; file = open('e', 'w'); os.replace('e', 'f')",
    "a name that is taken": "import os; open('g', 'w').close(), open('h', 'w').close(); os.rename('g', 'h')",
    "the C library": "import ctypes; ctypes.CDLL(None)",
    "sockets in an event loop": "import asyncio, socket\n"
    "async def main(): asyncio.get_running_loop().add_reader(socket.socket(), print)\n"
    "asyncio.run(main())",
}
ASKS = """
import json, sys
from pathlib import Path
from scheduler import system
names = {"__builtins__": vars(system)["__builtins__"]}
possible = []
for name, statement in json.loads(Path("denied").read_text()).items():
    try:
        exec(compile(statement, system.__file__, "exec"), dict(names))
    except (AttributeError, ImportError, NotImplementedError, OSError, TypeError, ValueError):
        continue
    possible.append(name)
json.dump(possible, sys.stdout)
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
    if system == "linux":
        return {name: value for name, value in ours.items() if name not in (VARIABLE, "PYTHONPATH", "PYTEST_ADDOPTS")}
    # pytest's own importer would go before the one of support/elsewhere/
    return ours | {VARIABLE: system, "PYTHONPATH": str(SUPPORT), "PYTEST_ADDOPTS": "--assert=plain"}


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_the_forge_runs_there_runs_here(system: str, tmp_path: Path) -> None:
    """Each command but the installation, where the job runs it: among them the first program, and all ports."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))["jobs"]
    checkout, temporary = tmp_path / "checkout", tmp_path / "temporary"
    temporary.mkdir()
    shutil.copytree(EXAMPLES, checkout / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    shutil.copytree(SUPPORT, checkout / SUPPORT.relative_to(ROOT))
    steps = [step for step in jobs["elsewhere"]["steps"] if "run" in step]
    assert steps[0]["run"].startswith("python -m pip install")
    said = ""
    for step in steps[1:]:
        program, *arguments = shlex.split(step["run"])
        own = sys.executable if program == "python" else Path(sys.executable).with_name(program)
        place = step.get("working-directory", str(checkout)).replace("${{ runner.temp }}", str(temporary))
        said += run(system, Path(place), own, *arguments)
    assert "Traceback" not in said
    assert "HELLO WORLD!!" in said.splitlines()
    assert f"each port does on {system} what it has to" in said.splitlines()


def test_each_port_does_here_what_it_has_to(tmp_path: Path) -> None:
    assert "each port does on linux what it has to" in run("linux", tmp_path, sys.executable, SUPPORT / "ports.py")


@pytest.mark.parametrize("system", ["linux", *SYSTEMS])
def test_what_is_denied_there_is_refused(system: str, tmp_path: Path) -> None:
    """And is possible here, so that each line asks for what it names."""
    asked = DENIED | (DENIED_ON_WINDOWS if system != "darwin" else {})
    (tmp_path / "denied").write_text(json.dumps(asked))
    possible = json.loads(run(system, tmp_path, sys.executable, "-W", "ignore", "-c", ASKS))
    assert possible == (list(asked) if system == "linux" else [])


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_signal_to_oneself_there_is_heard_only_by_its_port(system: str, tmp_path: Path) -> None:
    """os.kill() of Windows ends a process, whichever signal it is given."""
    (tmp_path / "program.py").write_text(
        "import signal\nfrom scheduler.system import signals\n"
        "signal.signal(15, lambda *_: print('heard', flush=True))\n"
        "signals.stop_self()\nvars(signals)['os'].kill(vars(signals)['os'].getpid(), 15)\n"
    )
    heard = run(system, tmp_path, sys.executable, "program.py", status=-9 if system == "win32" else 0)
    assert heard == ("heard\n" if system == "win32" else "heard\nheard\n")


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_shop_runs_on_a_daemon(system: str, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shutil.copytree(EXAMPLES / "shop", shop, ignore=shutil.ignore_patterns("__pycache__"))
    schedd = Path(sys.executable).with_name("schedd")
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([schedd], cwd=shop, env=environ_of(system), stderr=log) as daemon,
    ):
        try:
            printed = run(system, shop, sys.executable, "order.py", "1001", "me@example.com")
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
    modules = "|".join(NO_MODULES["win32"])
    names = "|".join(f"{module}\\.{name}" for module in ("os", "socket") for name in NOT_MACOS[module])
    asks = re.compile(rf"^ *(?:import|from) (?:{modules})\b.*|\b(?:{names})\b", re.MULTILINE)
    wrong = []
    for file in sorted([*(ROOT / "scheduler").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")]):
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith((*REFUSED["win32"], "scheduler/system/")):
            wrong += [f"{path}: {found}" for found in asks.findall(file.read_text(encoding="utf-8"))]
    assert not wrong, "\n".join(wrong)
    assert asks.search((ROOT / "scheduler/system/locks.py").read_text(encoding="utf-8"))


def test_only_ports_ask_which_system_it_is() -> None:
    """All others ask them. Two do nothing on Windows, and say so to checkers of types."""
    not_of_windows = ["scheduler/engine/attempt/own_directory.py", "scheduler/forking.py"]
    asks = re.compile(r"\bsys\.platform\b|\bos\.name\b|\b(?:get|has)attr\((?:os|socket|signal|select), ")
    found = [
        path
        for file in sorted([*(ROOT / "scheduler").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")])
        if asks.search(file.read_text(encoding="utf-8"))
        and not (path := file.relative_to(ROOT).as_posix()).startswith(("scheduler/system/", "tasks/command/"))
    ]
    assert found == not_of_windows


def test_a_path_with_a_drive_is_absolute_there(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(store=StoreSection(url="sqlite:///C:/jobs/a.db"), directory="D:\\here")
    assert settled(config).store.url == "sqlite:///D:\\here/C:/jobs/a.db"
    monkeypatch.setattr(files, "os", SimpleNamespace(path=ntpath))
    assert settled(config).store.url == "sqlite:///C:/jobs/a.db"


def test_the_pages_say_what_was_tried_where() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"macOS and Windows", readme)
    assert "make elsewhere" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
