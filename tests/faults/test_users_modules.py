"""The modules of tasks as users have them: removed under a running daemon, or named as modules of Python or schedd."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from faults.harness import Fleet, all_ended, result, state
from scheduler import Scheduler

pytestmark = pytest.mark.faults
IN_A_CHILD = """
from scheduler import Context, Task


class {name}(Task, isolation="process"):
    def run(self, ctx: Context) -> str:
        return type(self).__module__
"""
OPTIONS = {"worker__processes": "1"}


def module(directory: Path, name: str, kind: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.py").write_text(IN_A_CHILD.format(name=kind))


@pytest.mark.case(101)
def test_a_module_that_a_deploy_has_removed_costs_its_own_tasks_alone(fleet: Fleet, jobs: Scheduler) -> None:
    old, new = fleet.directory / "old", fleet.directory / "new"
    module(old, "old_release", "Removed")
    module(new, "new_release", "Stays")
    daemon = fleet.daemon(
        module='old_release", "new_release', path=[str(old), str(new)], log__attempts='"notable"', **OPTIONS
    )
    shutil.rmtree(old)
    removed, stays = jobs.submit("Removed", {}), jobs.submit("Stays", {})
    all_ended(jobs)
    assert (state(jobs, removed), result(jobs, stays)) == ("dead", "new_release")
    assert "cannot be imported in a child process" in str(jobs.get_last_error(removed))
    assert "No module named 'old_release'" in str(jobs.get_last_error(removed))
    assert not daemon.lines("looking after the child processes failed")
    module(old, "old_release", "Removed")  # it is back: what comes from now on runs
    again = jobs.submit("Removed", {})
    all_ended(jobs)
    assert result(jobs, again) == "old_release"


NAMES = ("scheduler", "random", "email", "select", "logging", "queue", "structlog", "statistics")


@pytest.mark.case(101)
def test_files_with_names_of_pythons_modules_and_schedds_hide_none(fleet: Fleet, jobs: Scheduler) -> None:
    place = fleet.directory / "project"
    module(place, "shop_tasks", "Shop")
    for name in NAMES:
        (place / f"{name}.py").write_text("raise RuntimeError('this is not the module that was meant')\n")
    (place / "imports_them.py").write_text(
        "import importlib\nfrom scheduler import Context, Task\n\n\n"
        'class Imports(Task, isolation="process"):\n'
        "    def run(self, ctx: Context) -> str:\n"
        f"        return ' '.join(importlib.import_module(name).__name__ for name in {NAMES!r})\n"
    )
    daemon = fleet.daemon(module='shop_tasks", "imports_them', path=[str(place)], **OPTIONS)
    shop, imports = jobs.submit("Shop", {}), jobs.submit("Imports", {})
    all_ended(jobs)
    assert (result(jobs, shop), result(jobs, imports)) == ("shop_tasks", " ".join(NAMES))
    assert len(daemon.lines("is never imported")) == len(NAMES)
