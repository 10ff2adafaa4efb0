"""What SECURITY.md says of the code as a whole; what it says of single parts is shown where those are tested."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scheduler.cli.root import root
from support.runner import Runner

ROOT = Path(__file__).parents[1]
PICKLES = {
    "scheduler/engine/child/pickling.py",
    "scheduler/engine/processes/host.py",
}
NEVER = {"marshal", "shelve", "dill", "yaml"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for top in ("scheduler", "tasks", "migrations"):
        for file in sorted((ROOT / top).rglob("*.py")):
            yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def test_pickle_goes_between_a_daemon_and_its_children_only() -> None:
    """And nothing else that makes objects, or code, of data is used at all."""
    pickles, others = set(), []
    for name, tree in modules():
        for node in ast.walk(tree):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [one.name.partition(".")[0] for one in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found = [(node.module or "").partition(".")[0]]
            if {"pickle", "cloudpickle"} & set(found):
                pickles.add(name)
            others += [f"{name}:{node.lineno} imports {one}" for one in found if one in NEVER]
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "__import__"):
                    others.append(f"{name}:{node.lineno} calls {node.func.id}")
                if any(word.arg == "shell" and not _is_false(word.value) for word in node.keywords):
                    others.append(f"{name}:{node.lineno} starts a shell")
    assert pickles - {"scheduler/operations/apscheduler.py"} == PICKLES  # it runs nothing that a pickle names
    assert others == []


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def test_schedctl_imports_no_task_module(tmp_path: Path) -> None:
    """Neither to read nor to change something: schedctl never runs the tasks' code for an operator."""
    (tmp_path / "shop.py").write_text("import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n")
    (tmp_path / "config.toml").write_text(
        f'[store]\nurl = "sqlite:///{tmp_path}/jobs.db"\n[tasks]\nmodules = ["shop"]\npath = ["{tmp_path}"]\n'
    )
    for command in (["db", "upgrade"], ["config", "check"], ["status"], ["doctor"], ["submit", "shop"], ["list"]):
        result = Runner().invoke(root, ["--config", str(tmp_path / "config.toml"), *command])
        assert result.output, command
    assert (tmp_path / "jobs.db").exists()
    assert not (tmp_path / "imported").exists()


def test_the_page_is_there() -> None:
    assert len((ROOT / "SECURITY.md").read_text(encoding="utf-8").splitlines()) < 140
    assert "](SECURITY.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
