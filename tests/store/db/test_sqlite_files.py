"""The files of a SQLite database: who may use them, and where the data is after a clean stop."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cli.conftest import Ctl, environment_for

from scheduler import Scheduler, task
from scheduler.store.db.notifier import SocketNotifier
from scheduler.store.db.sqlite_files import fold_wal
from support.databases import Database, one_database
from support.fleet import until
from support.processes import Nursery


@task
def quick(ctx: object) -> str:
    return "done"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def whole(path: Path, to: Path) -> int:
    """How many tasks there are in a copy of this file alone."""
    shutil.copyfile(path, to)
    with closing(sqlite3.connect(to)) as copy:
        return int(copy.execute("SELECT count(*) FROM schedd_tasks").fetchone()[0])


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@one_database
@pytest.mark.case(86, pure=True)
def test_what_is_made_is_its_owners_alone(empty_database: Database) -> None:
    path = empty_database.path
    with Scheduler(empty_database.url) as jobs:
        jobs.register(quick)
        assert jobs.result(jobs.task(quick).schedule(), timeout=60) == "done"
        made = [path, beside(path, "-wal"), beside(path, "-shm")]
        assert [mode(file) for file in made] == [0o600] * 3
        assert mode(beside(path, ".notify")) == 0o700


@one_database
@pytest.mark.case(86, pure=True)
def test_a_file_that_is_shared_stays_shared(database: Database) -> None:
    path = database.path
    path.chmod(0o660)
    with Scheduler(database.url) as jobs:
        jobs.register(quick)
        jobs.result(jobs.task(quick).schedule(), timeout=60)
        assert mode(path) == mode(beside(path, "-wal")) == mode(beside(path, "-shm")) == 0o660
        assert mode(beside(path, ".notify")) == 0o770


@pytest.mark.posix
@one_database
@pytest.mark.case(86, pure=True)
def test_doctor_notes_what_any_user_may_read(database: Database, tmp_path: Path) -> None:
    ctl = Ctl(environment_for(database.url, tmp_path))

    def finding() -> dict[str, str]:
        return next(row for row in ctl.json("doctor") if row["check"] == "file modes")

    assert finding()["level"] == "ok"
    database.path.chmod(0o644)
    assert finding()["level"] == "note"
    assert f"any user of this machine may use {database.path} (mode 644)" in finding()["text"]
    database.path.chmod(0o660)
    assert finding()["level"] == "ok"


@one_database
@pytest.mark.case(86, pure=True)
def test_after_a_stop_the_file_is_the_whole_database(database: Database, tmp_path: Path) -> None:
    with Scheduler(database.url) as jobs:
        jobs.register(quick)
        jobs.result(jobs.task(quick).schedule(), timeout=60)
        assert whole(database.path, tmp_path / "early.db") == 0, "it is still in the WAL"
    assert whole(database.path, tmp_path / "late.db") == 1
    assert not beside(database.path, "-wal").exists()


@pytest.mark.linux
@one_database
@pytest.mark.case(86, pure=True)
def test_after_sigterm_the_file_is_the_whole_database(database: Database, tmp_path: Path) -> None:
    ctl = Ctl(environment_for(database.url, tmp_path))
    with Nursery(tmp_path) as nursery:
        child = nursery.start("-m", "scheduler.daemon", **ctl.environment, SCHEDD_COMMAND__ENABLED="yes")
        nursery.systemd.expect("READY=1")
        assert ctl("run", "true").exit_code == 0
        child.kill(15)
        assert child.end() == 0
    assert whole(database.path, tmp_path / "copy.db") == 1
    assert not beside(database.path, "-wal").exists()


@one_database
@pytest.mark.case(86, pure=True)
def test_one_that_others_read_is_left_to_them(database: Database) -> None:
    """A stop neither fails nor waits for them; what they hold on to stays in the WAL."""
    with Scheduler(database.url) as jobs, closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        jobs.register(quick)
        jobs.result(jobs.task(quick).schedule(), timeout=60)
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM schedd_tasks").fetchone() == (1,)
        jobs.task(quick).schedule()
        jobs.stop()
        assert other.execute("SELECT count(*) FROM schedd_tasks").fetchone() == (1,)
        assert beside(database.path, "-wal").stat().st_size > 0


@one_database
@pytest.mark.case(86, pure=True)
def test_a_connection_that_was_left_open_keeps_nothing_back(database: Database, tmp_path: Path) -> None:
    with Scheduler(database.url) as jobs, closing(sqlite3.connect(database.path)) as stray:
        stray.execute("SELECT count(*) FROM schedd_tasks").fetchall()
        jobs.register(quick)
        jobs.result(jobs.task(quick).schedule(), timeout=60)
        jobs.stop()
        assert whole(database.path, tmp_path / "copy.db") == 1


def test_a_file_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    fold_wal(tmp_path / "no.db")
    assert not list(tmp_path.iterdir())


@one_database
def test_a_notifier_that_could_not_be_had_is_had_later(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "scheduler.engine")
    place = beside(database.path, ".notify")
    place.write_text("in its way")
    with Scheduler(database.url, lease=1.0) as jobs:
        jobs.register(quick)
        assert jobs.result(jobs.task(quick).schedule(), timeout=60) == "done"
        assert not jobs.engine.notifier.works
        place.unlink()
        until(lambda: jobs.engine.notifier.works)
    logged = [record.getMessage() for record in caplog.records if "notifier" in record.getMessage()]
    assert [text.partition(" (")[0] for text in logged] == ["no notifier", "the notifier works now"]


@pytest.mark.linux
def test_no_foreign_message_makes_a_notifier_deaf(tmp_path: Path) -> None:
    notified = threading.Semaphore(0)
    notifier, other = SocketNotifier(tmp_path), SocketNotifier(tmp_path)
    notifier.listen("one", notified.release)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as foreign:
        for sent in (b"close", b"", bytes(16), bytes(17)):
            foreign.sendto(sent, str(tmp_path / "one.sock"))
            assert notified.acquire(timeout=30), sent
    other.notify()
    assert notified.acquire(timeout=30)
    notifier.close()
    other.close()
