"""The workflows of the forge: pinned, with the least rights, and each step's command exists here."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
PROJECT = runpy.run_path(str(ROOT / "share" / "release.py"))


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # "on" stays a text
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit_and_says_its_version(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [name for name in used if not PINNED.fullmatch(name)] == []
    for line in path.read_text(encoding="utf-8").splitlines():
        assert "uses:" not in line or re.search(r"# v\d+\.\d+\.\d+$", line), line


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_are_read_only_but_where_a_job_says_so(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert int(job["timeout-minutes"]) <= 60, name
        writes = {right for right, how in job.get("permissions", {}).items() if how == "write"}
        assert writes <= {"id-token", "attestations"}, name
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"] == {"persist-credentials": "false"} for step in checkouts)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_step_calls_what_there_is(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = [step["run"].split() for step in steps(path) if "run" in step]
    assert called
    for words in called:
        assert words[0] != "make" or words[1] in targets, words


def test_each_python_of_the_release_is_tested() -> None:
    (tests,) = (read(path)["jobs"]["tests"] for path in WORKFLOWS if path.stem == "test")
    assert tuple(tests["strategy"]["matrix"]["python"]) == PROJECT["VERSIONS"]
    claimed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert tuple(claimed) == PROJECT["VERSIONS"]
