"""The guide to operating: each question of three in the morning has the command and the output that a daemon gives.

``SCHEDD_WRITE_GUIDE=1 pytest --sqlite-only tests/test_operating.py`` (``make operating``) writes the outputs anew.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.databases import Database
from support.processes import Nursery
from support.runner import Ran, Runner

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "guides" / "operating.md"
SECTION = re.compile(r"(?<=## At three in the morning\n).*?(?=\n## )", re.DOTALL)
BLOCK = re.compile(r"```console\n(.*?)```\n", re.DOTALL)
SETTING_UP = (
    "submit Export -P customer=acme --correlation customer-7 --key acme",
    "submit Export -P customer=acme --correlation customer-7 --in 2h",
    *(f"submit SendInvoice -P order:={order}" for order in (1011, 1012, 1013, 1014, 1015)),
    "submit WriteInvoice -P order:=1016 --in 1h",
    "submit SendInvoice -P order:=1017 --queue mail",
    'pause --kind WriteInvoice --by bob --reason "tax table is wrong"',
)
DEADLINE = 60.0

Ctl = Callable[[str], Ran]


@pytest.fixture
def night(database: Database, tmp_path: Path) -> Iterator[Ctl]:
    """``schedctl`` on the store of a daemon that has had the tasks of :data:`SETTING_UP`."""
    for source in (ROOT / "examples" / "night").iterdir():
        if source.is_file():
            shutil.copy(source, tmp_path)
    environ = {"SCHEDD_CONFIG": str(tmp_path / "config.toml"), "SCHEDD_STORE__URL": database.url}
    environ |= {"SCHEDD_WORKER__LEASE": "3", "NO_COLOR": "1", "COLUMNS": "200"}  # numbers are written each lease/3

    def ctl(line: str) -> Ran:
        from scheduler.cli.root import root

        return Runner(env=environ).invoke(root, shlex.split(line))

    with Nursery(tmp_path) as nursery:
        daemon = nursery.start("-m", "scheduler.daemon", **environ)
        nursery.systemd.expect("READY=1")
        for line in SETTING_UP:
            result = ctl(line)
            assert result.exit_code == 0, (line, result.output)
        _until(lambda: _settled(ctl))
        yield ctl
        daemon.kill(15)
        assert daemon.end() == 0


def _settled(ctl: Ctl) -> bool:
    """Whether the night has gone wrong, and its numbers are written."""
    tasks = {task["id"]: task for task in json.loads(ctl("-o json list").stdout)}
    states = [tasks[i]["state"] for i in range(3, 8)]
    stats = {one["kind"]: one["attempts"] for one in json.loads(ctl("-o json stats").stdout)}
    return (
        tasks[1]["progress_message"] == "page 122"
        and states == ["success"] * 2 + ["dead"] * 3
        and stats.get("SendInvoice") == 5
        and "mail" in ctl("status").stdout.partition("STUCK")[0]
    )


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, "the night did not come to what the guide shows"


def _plain(text: str) -> list[list[str]]:
    """The words of each line, without what differs from run to run: times, spans, numbers, hosts, users."""
    text = re.sub(r"\b(\d+\.\d+\.\d+)\+g[0-9a-f]+", r"\1", text)  # a checkout's version names its commit
    for pattern, name in (
        (r"(?m)^ *(\d+) +\S+ +\d+ +[\d.]+ +(live|draining) +(\d+) .*$", r"worker \1 \2 holds \3"),
        (r"\b\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
        (r"\b\d\d:\d\d:\d\dZ", "TIME"),
        (rf"\b{re.escape(socket.gethostname())}:\d+", "vm:1"),
        (r"\bvm:\d+", "WORKER"),
        (rf"\b{re.escape(getpass.getuser())}\b", "USER"),
        (r"\b[0-9a-f]{12}\b", "FINGERPRINT"),
        (r"\b(\d+ (d|h|min|s|ms)\b ?)+", "SPAN "),
        (r"\b\d+:\d\d\b", "SPAN"),
        (r"\b\d+(\.\d+)?(us|µs|ms|s|%)", "NUMBER"),
        (r"\b\d+\.\d+\b", "NUMBER"),
    ):
        text = re.sub(pattern, name, text)
    return [line.split() for line in text.splitlines()]


def _run(ctl: Ctl, block: str) -> str:
    """The block with what its commands print now."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            done = ctl(line.removeprefix("$ schedctl "))
            lines += [line, *(done.stdout + done.stderr).splitlines()]
    return "\n".join(lines) + "\n"


def test_each_question_is_answered_by_what_its_command_prints(night: Ctl) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    found = SECTION.search(text)
    assert found is not None
    section = found[0]
    wrong: list[Any] = []
    for block in BLOCK.findall(found[0]):
        made = _run(night, block)
        documented, printed = _plain(block), _plain(made)
        if documented != printed:
            wrong += [(a, b) for a, b in zip(documented, printed, strict=False) if a != b] or [(documented, printed)]
        section = section.replace(block, made, 1)
    if os.environ.get("SCHEDD_WRITE_GUIDE"):
        section = re.sub(rf"\b{re.escape(socket.gethostname())}:", "vm:", section)
        GUIDE.write_text(text[: found.start()] + section + text[found.end() :], encoding="utf-8")
    else:
        assert wrong == [], "make operating writes the outputs anew"


def test_the_guide_asks_the_questions_of_an_operator() -> None:
    found = SECTION.search(GUIDE.read_text(encoding="utf-8"))
    assert found is not None
    asked = re.findall(r"^### (.*)$", found[0], re.MULTILINE)
    for words in (
        *("is running", "is stuck", "failed in the last hour", "runs tonight", "long does it take"),
        *("Who cancelled it", "everything of this customer", "Drain for a deploy"),
    ):
        assert any(words in question for question in asked), words
    assert len(BLOCK.findall(found[0])) >= len(asked)
