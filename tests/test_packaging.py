"""What gets installed, what importing costs, and that no machine is named anywhere."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run_python(code: str, *options: str, cwd: str | None = None) -> str:
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages_on_disk() -> set[str]:
    found = set()
    for top in ("scheduler", "tasks", "migrations"):
        for file in (ROOT / top).rglob("__init__.py"):
            parts = file.parent.relative_to(ROOT).parts
            found.add(".".join(parts if top == "scheduler" else ("scheduler", *parts)))
    return found


def test_every_package_is_installed() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages_on_disk()


def test_every_module_lies_in_a_package() -> None:
    for top in ("scheduler", "tasks", "migrations"):
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


def test_metadata() -> None:
    metadata = importlib.metadata.metadata("schedd")
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata.get_all("Provides-Extra") or ()) == {
        *("postgres", "images", "http", "actions"),
        *("test", "dev", "bench"),
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
        wrong += [f"{file}: names {word}" for word in addresses | places if word in text]
        if registries.search(text) or options.search(text):
            wrong.append(f"{file}: names or sets a registry")
    assert not wrong, "\n".join(wrong)
