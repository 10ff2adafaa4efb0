"""What gets installed, what importing costs, and that no machine is named anywhere."""

from __future__ import annotations

import importlib.metadata
import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scheduler.operations.installation import OF_DEVELOPMENT

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run_python(code: str, *options: str, cwd: str | None = None) -> str:
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages_on_disk() -> set[str]:
    found = set()
    for top in ("schedd", "scheduler", "tasks", "migrations"):
        for file in (ROOT / top).rglob("__init__.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join(parts if top.startswith("sched") else ("scheduler", *parts)))
    return found


def test_every_package_is_installed() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_every_module_lies_in_a_package() -> None:
    for top in ("schedd", "scheduler", "tasks", "migrations"):
        for file in (ROOT / top).rglob("*.py"):
            assert (file.parent / "__init__.py").exists(), file


def test_tasks_and_migrations_are_installed_inside_the_package() -> None:
    """In a process that stands elsewhere, so that the checkout is not found by standing in it."""
    code = (
        "import json, importlib.util as u;"
        "names = ['scheduler', 'scheduler.tasks', 'scheduler.migrations', 'scheduler.migrations.versions'];"
        "own = [u.find_spec('tasks'), u.find_spec('migrations')];"
        "print(json.dumps([u.find_spec(n).origin for n in names] + own))"
    )
    found = run_python(code, "-I", cwd="/")
    expected = [ROOT / place / "__init__.py" for place in ("scheduler", "tasks", "migrations", "migrations/versions")]
    assert json.loads(found) == [*map(str, expected), None, None]


EXTRAS = (
    *("postgres", "images", "http", "actions", "metrics", "console", "door", "otel"),
    *("rabbitmq", "redis", "sqs", "nats"),
    *("gateway", "kubernetes", "ray", "django", "fastapi"),
)
# Left out where the others are the lowest: the SDK wants later versions of some of them than schedd does.
LATER = ("mcp",)


def test_each_lower_bound_is_a_version_that_the_suite_runs_with() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    run_time = [
        *PROJECT["project"]["dependencies"],
        *(requirement for extra in EXTRAS for requirement in extras[extra]),
    ]
    bounds = dict(re.fullmatch(r"([\w-]+)(?:\[\w+\])?(?:>=([\d.]+))?", r.partition(";")[0]).groups() for r in run_time)
    assert bounds.pop("schedd") is None
    lowest = (ROOT / "constraints" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    assert dict(line.split("==") for line in lowest) == bounds


def test_metadata() -> None:
    metadata = importlib.metadata.metadata("schedd")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("Provides-Extra") or ()) == {
        *EXTRAS,
        *LATER,
        *OF_DEVELOPMENT,
    }
    assert (ROOT / "scheduler" / "py.typed").exists()
    for requirement in PROJECT["project"]["dependencies"]:
        assert ">=" in requirement, f"{requirement} has no lower bound"
        assert "<" not in requirement, f"{requirement} has an upper bound"


@pytest.mark.parametrize("command", ["schedd", "schedctl"])
def test_commands_can_be_loaded(command: str) -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=command)
    assert callable(entry.load())


SLOW = ["sqlalchemy", "alembic", "structlog", "croniter", "networkx", "psycopg", "asyncio"]


def modules_after(code: str) -> set[str]:
    return set(json.loads(run_python(f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))")))


def test_importing_is_cheap() -> None:
    assert not modules_after("import scheduler") & set(SLOW)


def test_importing_does_nothing() -> None:
    """No file is opened for writing, no thread, process or socket made, no signal handler set."""
    code = """
import os, sys, threading, signal
seen = []
def hook(event, args):
    if event == "open" and args[2] is not None and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        seen.append((event, str(args[0])))
    elif event.startswith(("socket.", "subprocess.", "os.fork", "os.exec", "os.mkdir", "os.putenv")):
        seen.append((event, str(args)))
sys.dont_write_bytecode = True
sys.addaudithook(hook)
handlers = {s: signal.getsignal(s) for s in signal.valid_signals()}
path = list(sys.path)
import scheduler
for name in getattr(scheduler, "__all__", ()):
    getattr(scheduler, name)
assert not seen, seen
assert threading.active_count() == 1
assert handlers == {s: signal.getsignal(s) for s in signal.valid_signals()}
assert path == sys.path
"""
    run_python(code)


def tracked_files() -> list[Path]:
    """What git knows or would add; in an unpacked archive without git, everything but the caches."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    hidden = re.compile(r"^(\.venv|\.git$|\.\w+_cache|\.hypothesis|__pycache__|build|dist)|\.egg-info$")
    return [
        file
        for file in ROOT.rglob("*")
        if file.is_file() and not any(hidden.search(part) for part in file.relative_to(ROOT).parts)
    ]


@pytest.mark.needs("git")
def test_no_machine_and_no_registry_is_named() -> None:
    settings = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    addresses = set(re.findall(r"(?:https?|file)://[^\s'\",]+", settings))
    registries = re.compile(r"\bpypi\.org|\bpythonhosted\.org|\bdeb\.debian\.org|\bregistry\.npmjs\.org")
    places = {str(path) for path in (ROOT, Path(sys.base_prefix), Path.home()) if len(path.parts) > 2}
    options = re.compile(r"^\s*(--)?(extra-)?index-url\b|^\s*(--)?(find-links|trusted-host)\b", re.MULTILINE)
    locks = re.compile(r"(\.lock|^requirements.*\.txt|^constraints.*\.txt|^Pipfile|^pylock.*\.toml)$")
    wrong = []
    for file in tracked_files():
        if locks.search(file.name):
            wrong.append(f"{file}: a lock file")
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{file}: names {word}" for word in addresses if word in text]
        wrong += [f"{file}: names {word}" for word in places if re.search(rf"(?<![\w-]){re.escape(word)}\b", text)]
        if registries.search(text) or options.search(text):
            wrong.append(f"{file}: names or sets a registry")
    assert not wrong, "\n".join(wrong)


@dataclass(frozen=True)
class Built:
    """What an sdist, and the wheel that is built from it, contain: paths below their top directory."""

    sdist: dict[str, bytes]
    wheel: dict[str, bytes]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy, by the build backend alone: nothing is fetched, and nothing is left in the checkout."""
    place = tmp_path_factory.mktemp("built")
    for file in tracked_files():
        target = place / "checkout" / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    backend = "from setuptools import build_meta; build_meta.{}('..')"
    run_python(backend.format("build_sdist"), cwd=str(place / "checkout"))
    (archive,) = place.glob("schedd-*.tar.gz")
    shutil.unpack_archive(archive, place)
    unpacked = place / archive.name.removesuffix(".tar.gz")
    sdist = {str(f.relative_to(unpacked)): f.read_bytes() for f in unpacked.rglob("*") if f.is_file()}
    run_python(backend.format("build_wheel"), cwd=str(unpacked))
    (archive,) = place.glob("schedd-*.whl")
    with zipfile.ZipFile(archive) as wheel:
        return Built(sdist, {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")})


@pytest.mark.needs("git")
def test_the_sdist_holds_all_that_is_kept(built: Built) -> None:
    """Documents, units, examples, tests and what makes them run; not the settings of git and of the merges."""
    kept = {str(file.relative_to(ROOT)) for file in tracked_files()}
    kept = {name for name in kept if not name.startswith(".")}
    made = {name for name in built.sdist if not name.startswith("schedd.egg-info/")}
    assert made == kept | {"PKG-INFO", "setup.cfg"}


@pytest.mark.needs("git")
def test_the_wheel_installs_pages_completions_and_units(built: Built) -> None:
    top = f"schedd-{PROJECT['project']['version']}.data/data/share/"
    found = {name.removeprefix(top): content for name, content in built.wheel.items() if name.startswith(top)}
    expected = {"doc/schedd/config.example.toml": ROOT / "config.example.toml"}
    for top_of, below in (("share", ""), ("systemd", "doc/schedd/systemd/")):
        files = [file for file in (ROOT / top_of).rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
        expected |= {below + str(file.relative_to(ROOT / top_of)): file for file in files}
    assert found == {name: file.read_bytes() for name, file in expected.items()}
    assert {"man/man1/schedctl.1", "man/man1/schedd.1", "doc/schedd/systemd/schedd.service"} <= found.keys()


@pytest.mark.needs("git")
def test_the_wheel_is_text_and_installs_by_copying(built: Built) -> None:
    """SECURITY.md says so: there is no compiled part to trust, and nothing runs."""
    (settings,) = (text.decode() for name, text in built.wheel.items() if name.endswith(".dist-info/WHEEL"))
    assert {"Root-Is-Purelib: true", "Tag: py3-none-any"} <= set(settings.splitlines())
    binary = [name for name, content in built.wheel.items() if b"\0" in content]
    assert binary == []
    assert not [name for name in built.wheel if name.endswith(".pth") or "/scripts/" in name]


@pytest.mark.needs("git")
def test_the_wheel_holds_the_package_and_no_other(built: Built) -> None:
    modules = {name for name in built.wheel if name.endswith(".py")}
    expected = {
        str(file.relative_to(ROOT)) if top.startswith("sched") else f"scheduler/{file.relative_to(ROOT)}"
        for top in ("schedd", "scheduler", "tasks", "migrations")
        for file in (ROOT / top).rglob("*.py")
    }
    assert modules == expected
    assert {"schedd/py.typed", "scheduler/py.typed"} <= built.wheel.keys()
    assert b"skills/schedd/SKILL.md" in built.wheel["scheduler/AGENTS.md"]
    assert b"# Writing tasks for schedd" in built.wheel["scheduler/skills/schedd/SKILL.md"]


def generated() -> dict[str, str]:
    made: dict[str, Any] = runpy.run_path(str(ROOT / "share" / "make.py"))
    return dict(made["files"]())


def test_pages_and_completions_say_what_the_programs_say() -> None:
    for name, content in generated().items():
        assert (ROOT / "share" / name).read_text(encoding="utf-8") == content, f"share/{name} is old: make man"


def test_the_completion_for_bash_completes() -> None:
    """The shell asks the program; here the one that is installed beside this Python."""
    script = ROOT / "share" / "bash-completion" / "completions" / "schedctl"
    asked = "COMP_WORDS=(schedctl gra); COMP_CWORD=1; _schedctl_completion schedctl; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f". {script} && {asked}"],
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("graph\n", "")


def test_a_checkout_that_is_not_installed_has_all_its_parts() -> None:
    code = (
        "import sys; sys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in repr(one).lower()]; "
        f"sys.path[:] = [{str(ROOT)!r}, *(one for one in sys.path if 'editable' not in one)]; "
        "import scheduler.tasks, scheduler.migrations; from scheduler.tasks import BUILTIN; print(len(BUILTIN) > 5)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd="/")
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
