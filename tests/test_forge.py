"""The workflows of the forge: pinned, with least rights, each command is here; what a release has to say."""

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
RELEASE = runpy.run_path(str(ROOT / "share" / "release.py"))
VERSION = "0.1.0"


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


def test_what_is_claimed_is_tested() -> None:
    """Each Python by the wheel, too; the one after is tried before it is claimed. Each PostgreSQL of the roadmap."""
    (jobs,) = (read(path)["jobs"] for path in WORKFLOWS if path.stem == "test")
    claimed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert tuple(claimed) == RELEASE["VERSIONS"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == [*claimed, "3.14"]
    servers = jobs["postgresql"]["strategy"]["matrix"]["version"]
    assert f"PostgreSQL | {servers[0]} to {servers[-1]}" in (ROOT / "ROADMAP.md").read_text(encoding="utf-8")
    machines = {machine.partition("-")[0] for machine in jobs["elsewhere"]["strategy"]["matrix"]["machine"]}
    assert machines == {"ubuntu", "macos", "windows"}


def test_each_change_names_its_upgrade_step() -> None:
    assert RELEASE["unnamed_steps"]((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), VERSION) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("## [0.2.0] - 2027-01-01\n", "no part on 0.1.0"),
        ("## [0.1.0]\n\n- a change\n", "the headings are []"),
        ("## [0.1.0]\n- a\n### STEP\n- b *Upgrade:* c\n### NONE\n- d\n", "a change stands above"),
        ("## [0.1.0]\n### STEP\n- renamed\n### NONE\n- d\n", "below 'STEP': renamed"),
        ("## [0.1.0]\n### STEP\n### NONE\n- d *Upgrade:* e\n", "below 'NONE': d"),
    ],
    ids=["no part", "no headings", "above", "no step", "hidden"],
)
def test_a_changelog_without_steps_is_refused(text: str, wrong: str) -> None:
    names = {"STEP": RELEASE["STEP"], "NONE": RELEASE["NO_STEP"]}
    for short, heading in names.items():
        text, wrong = text.replace(short, heading), wrong.replace(short, heading)
    assert any(wrong in one for one in RELEASE["unnamed_steps"](text, VERSION))


def test_a_release_that_workers_of_the_one_before_do_not_know_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is upgraded with all of them stopped, so the changelog has to say that."""
    rolls, name = RELEASE["rolls"], "schedd-0.0.9"
    text = f"## [{VERSION}]\n### {RELEASE['STEP']}\n- a *Upgrade:* ask.\n### {RELEASE['NO_STEP']}\n- b\n"
    assert "one worker after the other" in rolls(text, VERSION)
    monkeypatch.setitem(rolls.__globals__, "last_release", lambda: (name, 1))
    with pytest.raises(SystemExit, match=f"schema goes from 0001 \\({name}\\).*'Stop all workers first'"):
        rolls(text, VERSION)
    assert "with all workers stopped" in rolls(text.replace("ask.", "Stop all workers first."), VERSION)


def test_one_release_is_kept_to_upgrade_from() -> None:
    kept = sorted(path.name for path in (ROOT / "tests" / "releases").glob("*.xz"))
    name = RELEASE["last_release"]()[0]
    assert kept == [f"{name}.store.xz", f"{name}.whl.xz"]
    assert sum((ROOT / "tests" / "releases" / one).stat().st_size for one in kept) < 1_200_000
