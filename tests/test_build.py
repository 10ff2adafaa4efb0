"""The version names the commit of a checkout, without git."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler import __version__
from scheduler.build import _commit, running

ID = "95ff17c3aa" + 30 * "0"


def checkout(root: Path, **files: str) -> None:
    (root / "pyproject.toml").touch()
    for name, text in files.items():
        path = root / ".git" / name.replace("__", "/").replace("_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    "files",
    [
        {"HEAD": f"{ID}\n"},
        {"HEAD": "ref: refs/heads/main\n", "refs__heads__main": f"{ID}\n"},
        {"HEAD": "ref: refs/heads/main\n", "packed_refs": f"# pack-refs\n{ID} refs/heads/main\n"},
    ],
    ids=["detached", "loose", "packed"],
)
def test_the_commit_that_is_checked_out(tmp_path: Path, files: dict[str, str]) -> None:
    checkout(tmp_path, **files)
    assert _commit(tmp_path) == ID


def test_a_work_tree_beside_another(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    checkout(tmp_path / "one", HEAD="ref: refs/heads/main\n", refs__heads__side=f"{ID}\n")
    checkout(tmp_path / "one", worktrees__two__HEAD="ref: refs/heads/side\n", worktrees__two__commondir="../..\n")
    (tmp_path / "two" / "pyproject.toml").touch()
    (tmp_path / "two" / ".git").write_text(f"gitdir: {tmp_path}/one/.git/worktrees/two\n")
    assert _commit(tmp_path / "two") == ID


@pytest.mark.parametrize("files", [{}, {"HEAD": "ref: refs/heads/none\n"}, {"HEAD": "something else"}])
def test_what_is_no_checkout_has_no_commit(tmp_path: Path, files: dict[str, str]) -> None:
    checkout(tmp_path, **files)
    assert _commit(tmp_path) is None
    assert running().startswith(__version__)
