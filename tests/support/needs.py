"""Tests that need a program of the machine: where it is missing they are left out, and the last lines name them.

``@pytest.mark.needs("promtool")`` marks a test; one that takes the fixture ``browser`` needs Chromium.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support import chromium, miniflare

LEFT_OUT = pytest.StashKey[Counter[str]]()


@dataclass(frozen=True)
class Need:
    is_there: Callable[[], bool]
    remedy: str


def _program(name: str, package: str) -> Need:
    return Need(lambda: shutil.which(name) is not None, f"apt-get install {package}")


def _second_filesystem() -> bool:
    return os.access("/dev/shm", os.W_OK) and os.stat("/dev/shm").st_dev != os.stat("/tmp").st_dev


NEEDS = {
    "chromium": Need(lambda: chromium.program() is not None, "apt-get install chromium-headless-shell"),
    "miniflare": Need(miniflare.PLACE.exists, "make emulator, where npm's registry can be reached"),
    "the SDK of MCP": Need(lambda: find_spec("mcp") is not None, "pip install 'schedd[mcp]'"),
    "site": Need((Path(__file__).parents[2] / "build" / "site" / "llms.txt").exists, "make docs"),
    "git": _program("git", "git"),
    "prometheus": _program("prometheus", "prometheus"),
    "promtool": _program("promtool", "prometheus"),
    "systemd-analyze": _program("systemd-analyze", "systemd"),
    "a filesystem at /dev/shm": Need(_second_filesystem, "mount -t tmpfs tmpfs /dev/shm"),
}


def _needs(item: pytest.Item) -> set[str]:
    named = {str(name) for mark in item.iter_markers("needs") for name in mark.args}
    return named | ({"chromium"} if "browser" in getattr(item, "fixturenames", ()) else set())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = {name for name, need in NEEDS.items() if not need.is_there()}
    left_out: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    for item in items:
        absent = sorted(_needs(item) & missing)
        left_out.update(absent)
        if not absent:
            kept.append(item)
    if len(kept) != len(items):
        kept_ids = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept_ids])
        items[:] = kept
    config.stash[LEFT_OUT] = left_out
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output["schedd_left_out"] = dict(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the counts of an xdist worker: all workers collect the same tests."""
    left_out = getattr(node, "workeroutput", {}).get("schedd_left_out")
    if left_out is not None:
        node.config.stash[LEFT_OUT] = Counter(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name, count in sorted(config.stash.get(LEFT_OUT, Counter()).items()):
        terminalreporter.write_line(
            f"NOT run, as there is no {name}: {count} test{'s' if count != 1 else ''}. Try: {NEEDS[name].remedy}"
        )
