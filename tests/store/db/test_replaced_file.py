"""The SQLite file that the URL names is deleted or replaced under a live daemon: it ends, and writes to neither."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from faults.harness import until

from scheduler import Scheduler, StoreUnavailableError, task
from scheduler.cli.root import root
from scheduler.errors import StoreReplacedError
from scheduler.store.db import identity
from scheduler.store.db.identity import SameStore
from support.databases import Database, one_database
from support.processes import Nursery
from support.runner import Runner

JOBS = """
import os
from scheduler import task

@task
def wait(ctx):
    os.write(1, f"running {ctx.id}\\n".encode())
    with open(f"gate-{ctx.id}"):
        pass
    return "waited"
"""


def states(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [state for (state,) in connection.execute("SELECT state FROM schedd_tasks ORDER BY id")]


def replace(path: Path, how: str) -> Path:
    """Delete the file, or put an empty store in its place; returns another name of the old one."""
    old = path.with_name("old.db")
    for suffix in "", "-wal", "-shm":
        if Path(f"{path}{suffix}").exists():
            os.rename(f"{path}{suffix}", f"{old}{suffix}")
    if how == "replaced":
        Scheduler(f"sqlite:///{path}").database.open().dispose()
    return old


@pytest.mark.case(69, pure=True)
@pytest.mark.parametrize("how", ["deleted", "replaced"])
@one_database
def test_a_daemon_ends_when_its_file_is_another_one(database: Database, tmp_path: Path, how: str) -> None:
    with Nursery(tmp_path) as nursery:
        nursery.write("jobs.py", JOBS)
        nursery.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n[worker]\nlease = 1.5\n')

        @task
        def wait(ctx: Any) -> None: ...

        jobs = Scheduler(database.url)
        jobs.register(wait)
        task_id = jobs.task(wait).schedule()
        jobs.close()
        os.mkfifo(nursery.place / f"gate-{task_id}")
        child = nursery.start("-m", "scheduler.daemon", SCHEDD_STORE__URL=database.url)
        child.says("running")
        until(lambda: states(database.path) == [5], "it is marked running")
        old = replace(database.path, how)
        child.expect("while it was open: nothing more is written to either")
        assert child.end() == 5
        assert states(old) == [5]
        assert database.path.exists() == (how == "replaced")
        if how == "replaced":
            assert states(database.path) == []


@pytest.mark.case(69, pure=True)
@one_database
def test_an_embedded_engine_stops_and_further_calls_say_why(database: Database) -> None:
    may_end, begun, lost = threading.Event(), threading.Event(), threading.Event()

    @task
    def hold(ctx: Any) -> None:
        begun.set()
        may_end.wait(30)
        try:
            ctx.check_cancelled()
        except BaseException:
            lost.set()
            raise

    jobs = Scheduler(database.url, lease=1.5)
    jobs.register(hold)
    try:
        jobs.start()
        jobs.task(hold).schedule()
        assert begun.wait(20)
        until(lambda: states(database.path) == [5], "it is marked running")
        old = replace(database.path, "deleted")
        until(lambda: not jobs.is_running(), "the engine stops")
        may_end.set()
        assert lost.wait(20)
        for call in (lambda: jobs.task(hold).schedule(), lambda: jobs.list_tasks(), jobs.start):
            with pytest.raises(StoreReplacedError, match="was deleted while it was open"):
                call()
        assert issubclass(StoreReplacedError, StoreUnavailableError)
        assert not database.path.exists()
        assert states(old) == [5]
    finally:
        may_end.set()
        jobs.close()
    shutil.move(old, database.path)
    jobs.database.open()  # once it is closed, it can be opened anew
    jobs.close()


@pytest.mark.case(69, pure=True)
@pytest.mark.parametrize("command", [("status",), ("list",), ("workers",), ("doctor",), ("show", "1"), ("db", "check")])
def test_a_command_that_only_reads_makes_no_database_of_an_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    empty = tmp_path / "jobs.db"
    empty.touch()
    monkeypatch.setenv("SCHEDD_STORE__URL", f"sqlite:///{empty}")
    monkeypatch.chdir(tmp_path)
    done = Runner().invoke(root, command)
    assert done.exit_code == 5
    assert "is empty, and no database yet" in done.output
    assert empty.stat().st_size == 0
    assert os.listdir(tmp_path) == ["jobs.db"]


def test_a_look_at_the_file_while_the_store_is_opened_anew_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's threads look at the store before it begins to write, and so opens the file again."""
    path = tmp_path / "jobs.db"
    path.touch()
    same = SameStore(sa.make_url(f"sqlite:///{path}"), path, lambda: 0)
    same.begin(looks=True)
    same.made(None)
    found = identity._file_at

    def opened_meanwhile(path: Path) -> tuple[int, int] | None:
        monkeypatch.setattr(identity, "_file_at", found)
        same.begin()
        return found(path)

    monkeypatch.setattr(identity, "_file_at", opened_meanwhile)
    same.check_file()
    same.made(None)
    same.check_file()
    path.unlink()
    with pytest.raises(StoreReplacedError, match="was deleted"):
        same.check_file()
