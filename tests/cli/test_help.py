"""Help, completion, and what importing the program must not bring along."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scheduler.cli.root import COMMANDS, root
from support.runner import Runner

_MAIN = "import sys; from scheduler.cli import main; sys.exit(main())"
HEAVY = ("sqlalchemy", "structlog", "alembic", "networkx", "croniter", "psycopg", "asyncio")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["frob"], ["completion", "bash"], ["run", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom scheduler.cli.root import root\n"
        f"try:\n    root.main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_names_every_command_and_exit_status() -> None:
    shown = Runner().invoke(root, ["--help"])
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in COMMANDS)
    assert "124 wait timed out" in " ".join(shown.stdout.split())


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(command: str) -> None:
    shown = Runner().invoke(root, [command, "--help"])
    assert shown.exit_code == 0, shown.output
    assert f"schedctl {command}" in shown.stdout


def test_no_command_shows_help_and_is_a_mistake() -> None:
    shown = Runner().invoke(root, [])
    assert shown.exit_code == 2
    assert "Commands:" in shown.output


@pytest.mark.parametrize("group", ["", "db", "cron", "dlq"])
def test_a_group_without_a_command_shows_its_help(group: str) -> None:
    done = subprocess.run([sys.executable, "-c", _MAIN, *group.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: ")
    assert "--help`" not in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    shown = Runner().invoke(root, ["completion", shell])
    assert shown.exit_code == 0
    assert "_SCHEDCTL_COMPLETE" in shown.stdout
    assert "schedctl" in shown.stdout


def test_the_script_completes_commands() -> None:
    environment = {"_SCHEDCTL_COMPLETE": "bash_complete", "COMP_WORDS": "schedctl gr", "COMP_CWORD": "1"}
    shown = Runner(env=environment).invoke(root, [])
    assert "graph" in shown.stdout
