"""The programs in README and docs are the files in examples/; they run and print what is said."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from scheduler.cli.root import COMMANDS, root
from scheduler.config.load import load
from support import strict_mypy

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FRONT = (ROOT / "README.md").read_text(encoding="utf-8")
README = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name != "decisions")
BIN = Path(sys.executable).parent
PATIENCE = 60

PROGRAMS = (
    *("hello", "quickstart", "building", "chained", "transaction", "handlers", "nightly", "celery_shop"),
    *("test_reminders", "test_shipping"),
    *("shop/shop_tasks", "shop/order"),
)
DJANGO = ("tasks", "orders", "tests")  # which has no types
FILES = [
    *(f"examples/{name}.py" for name in PROGRAMS),
    *(f"examples/django/shop/{name}.py" for name in DJANGO),
    "examples/shop/config.toml",
]
BLOCK = re.compile(r"<!-- (output: )?(\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)


def shown(what: str, *, output: bool = False) -> str:
    """The block that shows this file, or what it prints: the same one on every page."""
    found = {text for is_output, name, text in BLOCK.findall(README) if name == what and bool(is_output) == output}
    assert len(found) == 1, f"{what} is shown {len(found)} ways"
    return str(found.pop())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```\n", README, re.DOTALL)


def run(place: Path, *command: object) -> str:
    """What a program prints; it must end with status 0 and say nothing else."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDD_")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=place,
        env=environ | {"PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    logged = [line for line in done.stderr.splitlines() if not line.startswith("attempt ")]  # of failures that it shows
    assert (done.returncode, logged) == (0, []), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", FILES)
def test_blocks_are_the_files(name: str) -> None:
    assert shown(name) == (ROOT / name).read_text(encoding="utf-8")


def test_no_other_program_is_shown() -> None:
    shown_here = {name for is_output, name, _ in BLOCK.findall(README) if not is_output}
    assert set(FILES) <= shown_here
    # the demos, durable.md's programs, operating.md's tasks, what each project of Django's has, what
    # test_web_examples.py runs
    project = {f"examples/django/{name}.py" for name in ("manage", "settings", "shop/__init__", "shop/models")}
    others = {"demo", "orders", "worlds", "anywhere.py", "durable", "night", "web"}
    there = {str(path) for one in EXAMPLES.rglob("*.py") if not others & set((path := one.relative_to(ROOT)).parts)}
    assert there - project == {name for name in FILES if name.endswith(".py")}


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("hello", 2),
        ("quickstart", 2),
        ("transaction", 2),
        ("handlers", 1),
        ("nightly", 1),
        ("chained", 2),
        ("celery_shop", 2),
    ],
)
def test_programs_print_what_it_says(name: str, times: int, tmp_path: Path) -> None:
    """Those that can be run again print the same then."""
    printed = [run(tmp_path, sys.executable, EXAMPLES / f"{name}.py") for _ in range(times)]
    assert printed == [shown(f"examples/{name}.py", output=True)] * times


def test_a_program_can_be_run_again(tmp_path: Path) -> None:
    assert all(run(tmp_path, sys.executable, EXAMPLES / "building.py") for _ in range(2))


@pytest.mark.parametrize("name", ["test_reminders", "test_shipping"])
def test_the_test_examples_pass(name: str, tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    assert "1 passed" in run(
        tmp_path, sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider"
    )


MOVERS = [f"docs/guides/from-{name}.md" for name in ("apscheduler", "celery", "crontab")]
SKILL = "scheduler/skills/schedd/SKILL.md"


@pytest.mark.parametrize("page", [*MOVERS, SKILL])
def test_blocks_of_the_pages_for_movers_and_agents_hold(page: str, tmp_path: Path) -> None:
    """Python runs, and configurations are valid."""
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found = re.findall(r"```(python|toml)\n(.*?)```\n", text, re.DOTALL)
    assert found
    for language, block in found:
        file = tmp_path / f"block.{language}"
        file.write_text(block, encoding="utf-8")
        if language == "python":
            run(tmp_path, sys.executable, file)
        else:
            load(str(file), {}, str(tmp_path))


def test_the_shop_runs_on_a_daemon(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    shutil.copytree(EXAMPLES / "shop", shop, ignore=shutil.ignore_patterns("__pycache__"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDD_")}
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([BIN / "schedd"], cwd=shop, env=environ, stderr=log) as daemon,
    ):
        try:
            printed = [run(shop, sys.executable, "order.py", "1001", "me@example.com") for _ in range(2)]
            listed = run(shop, BIN / "schedctl", "list", "--columns", "id,kind,state,key")
            command = run(shop, BIN / "schedctl", "run", "--", "cat", "invoice-1001.txt").strip()
            run(shop, BIN / "schedctl", "wait", command, "--timeout", PATIENCE)
            output = run(shop, BIN / "schedctl", "logs", command)
            schedules = run(shop, BIN / "schedctl", "cron", "list")
        finally:
            daemon.terminate()
    assert daemon.returncode == 0, (tmp_path / "log").read_text()
    expected = "{'sent_to': 'me@example.com', 'file': 'invoice-1001.txt'}\n"
    assert printed == [expected, expected]
    assert expected in README
    assert [line.split() for line in listed.splitlines()[1:]] == [
        ["2", "SendInvoice", "success", "send-1001"],
        ["1", "WriteInvoice", "success", "invoice-1001"],
    ]
    assert output == "Order 1001: 49.90 EUR\n"
    assert "daily-report  daily_report  0 6 * * * Europe/Berlin" in schedules


@pytest.mark.timeout(420)
def test_programs_pass_mypy_strict(tmp_path: Path) -> None:
    """As a user's would, who installed schedd and has no configuration for mypy."""
    done = strict_mypy.check(EXAMPLES, *(f"{name}.py" for name in PROGRAMS), settings=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_exist() -> None:
    named = set(re.findall(r"^\$ schedctl ([a-z]+)", README, re.MULTILINE))
    assert named
    assert named <= COMMANDS.keys()
    besides = README[README.index("Besides these there are") :].split("Exit status")[0].replace("\n", " ")
    for words in re.findall(r"`([a-z]+(?: [a-z]+)?)`", besides):
        command: Any = root
        for word in words.split():
            command = command.get_command(click.Context(command), word)
            assert command is not None, words


def test_the_front_page_is_short() -> None:
    assert len(FRONT.splitlines()) <= 200


def test_links_lead_somewhere() -> None:
    broken = []
    for page in [*PAGES, *ROOT.glob("*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    records = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        listed = records if page.parent.name == "decisions" else index
        assert page.name == "README.md" or page.name in listed, page
