"""``graph``."""

from __future__ import annotations

import pytest

from support.bench import Bench, Step

from .conftest import Ctl


@pytest.fixture
def diamond(live: Bench) -> list[int]:
    top = int(live.step("top").schedule())
    left, right = int(live.step("left", top).schedule()), int(live.step("right", top).schedule())
    bottom = int(live.jobs.task(Step("bottom")).depend_on([left, right]).schedule())
    alarm = int(live.step("alarm", bottom, when="failure").schedule())
    live.step("stranger").schedule()
    return [top, left, right, bottom, alarm]


def test_tree(ctl: Ctl, diamond: list[int]) -> None:
    top, left, right, bottom, alarm = diamond
    assert ctl("graph", right).stdout.splitlines() == [
        f"{top} Step [scheduled]",
        f"├─ {left} Step [waiting]",
        f"│  └─ {bottom} Step [waiting]",
        f"│     └─ {alarm} Step [waiting] on failure",
        f"└─ {right} Step [waiting]",
        f"   └─ {bottom} Step [waiting] (see above)",
    ]


def test_json(ctl: Ctl, diamond: list[int]) -> None:
    view = ctl.json("graph", diamond[3])
    assert sorted(n["id"] for n in view["nodes"]) == diamond
    assert len(view["edges"]) == 5
    alarm = {"parent": diamond[3], "child": diamond[4], "when": "failure", "otherwise": "skip"}
    assert alarm in view["edges"]
    assert view["truncated"] is False
    assert ctl("graph", diamond[3], "--format", "json").stdout == ctl("graph", diamond[3], "-o", "json").stdout


def test_dot_and_mermaid(ctl: Ctl, diamond: list[int]) -> None:
    top, left, _, bottom, alarm = diamond
    dot = ctl("graph", top, "--format", "dot").stdout
    assert dot.startswith("digraph tasks {")
    assert f"t{top} -> t{left};" in dot
    assert f't{bottom} -> t{alarm} [label="failure"];' in dot
    mermaid = ctl("graph", top, "--format", "mermaid").stdout
    assert mermaid.startswith("flowchart LR\n")
    assert f"t{bottom} -->|failure| t{alarm}" in mermaid


def test_the_nearest_come_first(ctl: Ctl, diamond: list[int]) -> None:
    result = ctl("graph", diamond[4], "--limit", 2)
    assert "more than 2 tasks" in result.stderr
    assert f"{diamond[3]} Step" in result.stdout
    assert f"{diamond[0]} Step" not in result.stdout


def test_a_long_chain(ctl: Ctl, live: Bench) -> None:
    with live.jobs.batch() as batch:
        last = batch.task(Step("0"))
        for i in range(1, 1500):
            last = batch.task(Step(str(i))).depend_on([last])
    result = ctl("graph", int(batch.ids[700]), "--limit", 2000)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1500


def test_a_task_alone_and_an_unknown_one(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("alone").schedule())
    assert ctl("graph", made).stdout == f"{made} Step [scheduled]\n"
    assert ctl.fails(3, "graph", 4711) == "schedctl: there is no task 4711\n"


def test_a_removed_parent_is_shown_by_its_outcome(ctl: Ctl, live: Bench) -> None:
    parent = live.ended("success")
    child = int(live.step("child", parent).schedule())
    live.execute("INSERT INTO schedd_outcomes (task_id, state, removed_at) VALUES (:id, 6, 1)", id=parent)
    live.execute("DELETE FROM schedd_tasks WHERE id = :id", id=parent)
    assert ctl("graph", child).stdout.startswith(f"{parent} (removed) [success]\n")
    (edge,) = ctl.json("show", child)["depends_on"]
    assert (edge["kind"], edge["state"], edge["satisfied"]) == (None, "success", True)
