"""BackupTask: archives that hold together, copies of a store in use, and rotation."""

from __future__ import annotations

import os
import sqlite3
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scheduler import PermanentError, Scheduler
from scheduler.errors import Cancelled
from scheduler.store.db import sqlite_copy as maintenance
from scheduler.tasks import BackupTask, backup
from scheduler.testing import drain

from .fake import FakeContext


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "deep").mkdir(parents=True)
    (tmp_path / "backups").mkdir()
    (made / "a").write_text("A")
    (made / "deep" / "b").write_bytes(os.urandom(100_000))
    (made / "link").symlink_to("/etc/passwd")
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o750)
    return made


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:
    made = {"backup": {"sources": [str(tmp_path)], "destinations": [str(tmp_path / "backups")]}}
    return made | more


def run(tmp_path: Path, task: BackupTask, ctx: FakeContext | None = None, **more: Any) -> Any:
    ctx = ctx or FakeContext()
    ctx.settings = settings(tmp_path, **more)
    return task.run(ctx)  # type: ignore[arg-type]


def test_a_directory(tmp_path: Path, source: Path) -> None:
    result = run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    made = tmp_path / "backups" / "data-20260102T030405Z.tar.gz"
    assert result == {"path": str(made), "size": made.stat().st_size, "files": 3, "removed": []}
    with tarfile.open(made) as archive:
        assert archive.getnames() == ["a", "deep", "deep/b", "link", "run.sh"]
        assert archive.extractfile("deep/b").read() == (source / "deep" / "b").read_bytes()  # type: ignore[union-attr]
        assert archive.getmember("link").linkname == "/etc/passwd"
        assert archive.getmember("run.sh").mode == 0o750
    again = run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    assert again["path"] == str(made)
    assert [path.name for path in (tmp_path / "backups").iterdir()] == [made.name]


def test_the_newest_stay(tmp_path: Path, source: Path) -> None:
    task = BackupTask(str(source), str(tmp_path / "backups"), keep=2, name="nightly")
    (tmp_path / "backups" / "nightly-notes.txt").touch()
    drafts = [f"nightly-20250101T000000Z.tar.gz.{task_id}.draft" for task_id in (42, 43, 44)]
    for draft in drafts:
        (tmp_path / "backups" / draft).touch()
    os.utime(tmp_path / "backups" / drafts[1], (0, 0))
    for day in range(4):
        ctx = FakeContext()
        ctx.slot = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(days=day)
        result = run(tmp_path, task, ctx)
    assert result["removed"] == ["nightly-20260302T000000Z.tar.gz"]
    left = sorted(path.name for path in (tmp_path / "backups").iterdir())
    assert left == [
        drafts[2],  # of another task, that may be making it now
        "nightly-20260303T000000Z.tar.gz",
        "nightly-20260304T000000Z.tar.gz",
        "nightly-notes.txt",
    ]


def test_the_store_while_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    store = tmp_path / "jobs.db"
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE pair (a INTEGER, b INTEGER)")
    stop = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(store, timeout=10)) as connection:
            number = 0
            while not stop.is_set():
                number += 1
                with connection:
                    connection.execute("INSERT INTO pair VALUES (?, 0)", (number,))
                    connection.execute("UPDATE pair SET b = a")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        result = run(tmp_path, BackupTask(backup.STORE, str(tmp_path / "backups")), store={"sqlite": str(store)})
    finally:
        stop.set()
        writer.join()
    assert Path(result["path"]).name == "store-20260102T030405Z.sqlite"
    with closing(sqlite3.connect(result["path"])) as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert copy.execute("SELECT count(*) FROM pair WHERE a <> b").fetchone() == (0,)
    with pytest.raises(PermanentError, match="not a SQLite file"):
        run(tmp_path, BackupTask(backup.STORE, str(tmp_path / "backups")), store={"sqlite": None})


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A store of a hundred pages that are copied one at a time, and what writes to it."""
    (tmp_path / "backups").mkdir(exist_ok=True)
    store = tmp_path / "jobs.db"
    monkeypatch.setattr(maintenance, "PAGES", 1)
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (a BLOB)")

        def write() -> None:
            with connection:
                connection.execute("INSERT INTO t VALUES (?)", (bytes(3000),))

        for _ in range(100):
            write()
        yield store, write


def test_the_store_while_another_program_writes_all_the_time(
    tmp_path: Path, busy: tuple[Path, Callable[[], None]]
) -> None:
    """SQLite's backup begins anew when another connection has written: it must come to an end all the same."""
    store, write = busy
    steps = 0

    def one_more(ctx: FakeContext) -> bool:
        nonlocal steps
        steps += 1
        write()
        return steps > 1000

    ctx = FakeContext(cancel_when=one_more)
    result = run(tmp_path, BackupTask(backup.STORE, str(tmp_path / "backups")), ctx, store={"sqlite": str(store)})
    with closing(sqlite3.connect(result["path"])) as copy:
        assert copy.execute("SELECT count(*) FROM t").fetchone() == (100,), "as it was in the beginning"


@pytest.mark.parametrize("after", [1, 50, -1])
def test_a_cancel_ends_the_copying_of_the_store(
    tmp_path: Path, busy: tuple[Path, Callable[[], None]], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(maintenance, "_STEPS", 1)
    store, _ = busy
    stop = 10**9
    if after < 0:  # while the copy is checked: the last of all the looks there are
        counting = FakeContext()
        task = BackupTask(backup.STORE, str(tmp_path / "backups"), name="first")
        run(tmp_path, task, counting, store={"sqlite": str(store)})
        stop = counting.checks
        assert stop > 300
        (tmp_path / "backups" / "first-20260102T030405Z.sqlite").unlink()
    else:
        stop = after
    ctx = FakeContext(cancel_when=lambda ctx: ctx.checks >= stop)
    with pytest.raises(Cancelled):
        run(tmp_path, BackupTask(backup.STORE, str(tmp_path / "backups")), ctx, store={"sqlite": str(store)})
    assert ctx.checks == stop
    assert list((tmp_path / "backups").iterdir()) == []


def test_signs_of_life(
    tmp_path: Path, source: Path, busy: tuple[Path, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "HEARTBEAT_EVERY", 0.0)
    ctx = FakeContext()
    beats: list[int] = []
    monkeypatch.setattr(ctx, "heartbeat", lambda: beats.append(1))
    run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")), ctx)
    assert len(beats) >= 5
    run(tmp_path, BackupTask(backup.STORE, str(tmp_path / "backups")), ctx, store={"sqlite": str(busy[0])})
    percents = [percent for percent, _ in ctx.progress]
    assert percents == sorted(percents)
    assert len(set(percents)) >= 50
    assert percents[-1] == 100


def test_the_store_of_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, as a daemon does it: the file that the configuration names, also by a relative path."""
    monkeypatch.chdir(tmp_path)
    Path("backups").mkdir()
    Path("config.toml").write_text(
        '[store]\nurl = "sqlite:///jobs.db"\n[tasks]\nbuiltin = ["BackupTask"]\n[backup]\ndestinations = ["backups"]\n'
    )
    jobs = Scheduler.from_config()
    task_id = jobs.task(BackupTask(backup.STORE, str(tmp_path / "backups"), name="nightly")).schedule()
    drain(jobs)
    result = jobs.result(task_id, timeout=0)
    jobs.close()
    with closing(sqlite3.connect(result["path"])) as copy:
        assert copy.execute("SELECT kind FROM schedd_tasks").fetchall() == [("BackupTask",)]


def test_a_file_that_changes_while_it_is_read(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    add = backup.ArchivePass._add

    def meddle(self: backup.ArchivePass, archive: Any, path: str, *rest: Any) -> bool:
        done = add(self, archive, path, *rest)
        if path == "deep/b" and len(passes) < changes:
            passes.append(path)
            (source / "a").write_text("changed" + "!" * len(passes))  # it is in the archive already
        return done

    monkeypatch.setattr(backup.ArchivePass, "_add", meddle)
    changes = 1
    result = run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    with tarfile.open(result["path"]) as archive:
        assert archive.extractfile("a").read() == b"changed!"  # type: ignore[union-attr]
    passes.clear()
    changes = 99
    (tmp_path / "backups" / Path(result["path"]).name).unlink()
    with pytest.raises(OSError, match="changes all the time, for example a"):
        run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    assert list((tmp_path / "backups").iterdir()) == []


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrunk: list[str] = []

    class Meddling(backup.CancellableReader):
        def read(self, size: int = -1) -> bytes:
            if not shrunk:
                shrunk.append("once")
                (source / "deep" / "b").write_bytes(b"short")
            return super().read(size)

    monkeypatch.setattr(backup, "CancellableReader", Meddling)
    os.unlink(source / "a")
    result = run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    with tarfile.open(result["path"]) as archive:
        assert archive.extractfile("deep/b").read() == b"short"  # type: ignore[union-attr]


@pytest.mark.case(86, pure=True)
def test_an_archive_is_for_its_owner_alone(tmp_path: Path, source: Path) -> None:
    before = os.umask(0o022)
    try:
        result = run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    finally:
        os.umask(before)
    assert os.stat(result["path"]).st_mode & 0o777 == 0o600


def test_where_it_may_read_and_write(tmp_path: Path, source: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(PermanentError, match=r"/elsewhere' is not allowed: .*\[backup\] destinations"):
        run(tmp_path, BackupTask(str(source), str(tmp_path / "elsewhere")))
    with pytest.raises(PermanentError, match=r"^'/etc/' is not allowed: .*\[backup\] destinations"):
        run(tmp_path, BackupTask(str(source), "/etc/"))
    with pytest.raises(PermanentError, match=r"^'/etc' is not allowed: it must lie inside .* \(\[backup\] sources\)"):
        run(tmp_path, BackupTask("/etc", str(tmp_path / "backups")))
    with pytest.raises(PermanentError, match="would back up its backups"):
        run(tmp_path, BackupTask(str(tmp_path), str(tmp_path / "backups")))
    with pytest.raises(PermanentError, match="there is no directory"):
        run(tmp_path, BackupTask(str(tmp_path / "missing"), str(tmp_path / "backups")))
    with pytest.raises(PermanentError, match="needs the setting destinations"):
        BackupTask(str(source), "/x").run(FakeContext())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a", "deep"])
def test_what_is_exchanged_for_a_link_is_not_archived(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """After the look at what it is, before it is opened."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "b").write_text("private")
    stat = os.stat

    def look(path: Any, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if path == name and "dir_fd" in options and not (source / name).is_symlink():
            (source / name).rename(tmp_path / "away")
            (source / name).symlink_to(tmp_path / "private" / ("b" if name == "a" else ""))
        return found

    monkeypatch.setattr(os, "stat", look)
    result = run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    with tarfile.open(result["path"]) as archive:
        assert archive.getmember(name).issym(), "made again, as it is by now"
        assert ("deep/b" in archive.getnames()) is (name == "a")


@pytest.mark.parametrize("what", ["directory", "store"])
def test_a_link_in_the_place_of_a_draft_is_not_written_through(
    tmp_path: Path, source: Path, busy: tuple[Path, Callable[[], None]], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A user who may write to the backups' directory must not reach schedd's other files through it."""
    victim = tmp_path / "victim"
    victim.write_text("dear to us")
    sweep = backup._remove_drafts

    def plant(place: Path, task_id: int) -> None:
        sweep(place, task_id)
        name = f"data-20260102T030405Z.tar.gz.{task_id}.draft"
        stored = f"store-20260102T030405Z.sqlite.{task_id}.draft"
        for link in (name, f".{stored}.{os.getpid()}", f".{stored}.{os.getpid()}-journal"):
            (place / link).symlink_to(victim)

    monkeypatch.setattr(backup, "_remove_drafts", plant)
    task = BackupTask(str(source) if what == "directory" else backup.STORE, str(tmp_path / "backups"))
    made = run(tmp_path, task, store={"sqlite": str(busy[0])})
    assert Path(made["path"]).stat(follow_symlinks=False).st_size > 100
    assert victim.read_text() == "dear to us"


def test_a_cancel_leaves_nothing_but_a_draft(tmp_path: Path, source: Path) -> None:
    with pytest.raises(Cancelled):
        run(
            tmp_path,
            BackupTask(str(source), str(tmp_path / "backups")),
            FakeContext(cancel_when=lambda ctx: ctx.checks > 3),
        )
    assert all(path.name.endswith(".draft") for path in (tmp_path / "backups").iterdir())
    run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))
    assert not [path for path in (tmp_path / "backups").iterdir() if path.name.endswith(".draft")]


def test_directories_that_never_end(tmp_path: Path, source: Path) -> None:
    deep = source.joinpath(*"d" * 150)
    deep.mkdir(parents=True)
    with pytest.raises(PermanentError, match="more than 100 directories deep"):
        run(tmp_path, BackupTask(str(source), str(tmp_path / "backups")))


@pytest.mark.parametrize("fields", [("data", "/b"), ("/a", "b"), ("/a", "@store"), ("/a", "/b", 1, "a/b")])
def test_fields(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError):
        BackupTask(*fields)


def test_a_name_is_made_of_the_source() -> None:
    assert backup._plain("Fotos 2026 (neu)") == "Fotos_2026_neu"
    assert backup._plain("…") == "backup"
