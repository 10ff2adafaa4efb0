"""TempFileCleanupTask: what goes, what stays, and that it never leaves its directory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler import PermanentError
from scheduler.errors import Cancelled
from scheduler.tasks import TempFileCleanupTask, cleanup

from .fake import FakeContext

OLD = time.time() - 10 * 3600


def age(path: Path, when: float = OLD) -> Path:
    os.utime(path, (when, when), follow_symlinks=False)
    return path


def clean(root: Path, directory: Path | None = None, hours: float = 5, ctx: FakeContext | None = None) -> Any:
    ctx = ctx or FakeContext()
    ctx.settings = {"cleanup": {"roots": [str(root)]}}
    return TempFileCleanupTask(str(directory or root), hours).run(ctx)  # type: ignore[arg-type]


def test_what_is_old_goes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "mixed").mkdir()
    outside = age_file(tmp_path / "outside")
    for name in ("a", "deep/b", "deep/er/c", "mixed/old"):
        age_file(root / name)
    (root / "new").write_text("new")
    (root / "mixed" / "new").write_text("new")
    (root / "link").symlink_to(outside)
    age(root / "link")
    (root / "dirlink").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    age(root / "fifo")
    for directory in ("deep/er", "deep", "mixed"):
        age(root / directory)
    result = clean(root)
    assert result == {"removed": 5, "bytes": 12 + len(str(outside)), "directories": 2, "kept": 4, "failed": []}
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert [name for name in left if not name.startswith("dirlink/")] == [
        "dirlink",
        "fifo",
        "mixed",
        "mixed/new",
        "new",
    ]
    assert outside.exists()


def age_file(path: Path) -> Path:
    path.write_text("old")
    return age(path)


def test_the_directory_itself_stays(tmp_path: Path) -> None:
    age(tmp_path)
    assert clean(tmp_path)["removed"] == 0
    assert tmp_path.is_dir()


def test_it_stays_inside_its_roots(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "other").mkdir()
    victim = age_file(tmp_path / "other" / "victim")
    (root / "way").symlink_to(tmp_path / "other")
    for directory in (tmp_path / "other", root / "way", root / ".." / "other", Path("/etc")):
        with pytest.raises(PermanentError, match=f"^{re.escape(repr(str(directory)))} (is not allowed|must be)"):
            clean(root, directory)
    with pytest.raises(PermanentError, match="there is no directory"):
        clean(root, root / "missing")
    with pytest.raises(PermanentError, match=r"needs the setting roots of \[cleanup\]"):
        TempFileCleanupTask(str(root), 1).run(FakeContext())  # type: ignore[arg-type]
    assert victim.exists()


def test_a_directory_that_is_exchanged_for_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the look at what it is, before it is opened."""
    root, other = tmp_path / "root", tmp_path / "other"
    for directory in (root / "deep", other):
        directory.mkdir(parents=True)
    victim = age_file(other / "victim")
    below = cleanup.Sweep._below

    def exchange(sweep: cleanup.Sweep, fd: int, name: str, shown: str, old: bool) -> None:
        (root / name).rename(tmp_path / "away")
        (root / name).symlink_to(other)
        below(sweep, fd, name, shown, old)

    monkeypatch.setattr(cleanup.Sweep, "_below", exchange)
    with pytest.raises(OSError, match="deep"):
        clean(root)
    assert victim.exists()


def test_what_cannot_be_removed_is_reported_and_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        age_file(tmp_path / name)
    unlink = os.unlink

    def refuse(name: Any, *, dir_fd: int | None = None) -> None:
        if name == "b":
            raise PermissionError(1, "Operation not permitted")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(OSError, match=r"1 entry could not be removed: b \(Operation not permitted\)"):
        clean(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_directories_that_never_end(tmp_path: Path) -> None:
    tmp_path.joinpath(*"d" * 150).mkdir(parents=True)
    age_file(tmp_path / "d" / "old")
    age_file(tmp_path / "old")
    with pytest.raises(OSError, match="more than 100 directories deep"):
        clean(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["d"] * 150, "what can be removed is"


def test_it_can_be_cancelled(tmp_path: Path) -> None:
    for number in range(500):
        age_file(tmp_path / str(number))
    with pytest.raises(Cancelled):
        clean(tmp_path, ctx=FakeContext(cancel_when=lambda ctx: ctx.checks > 1))
    assert 0 < len(list(tmp_path.iterdir())) < 500


def test_fields() -> None:
    with pytest.raises(ValueError):
        TempFileCleanupTask("relative", 1)
