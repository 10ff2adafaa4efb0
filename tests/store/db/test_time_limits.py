"""What a caller waits for has an end, whatever the database does: stands still, swallows, is locked."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from scheduler import Scheduler, StoreUnavailableError, task
from scheduler.store.db import database as database_module
from scheduler.store.db import deadline
from scheduler.store.db.deadline import Deadline, in_time
from support.databases import Database, PostgresDatabases
from support.own_server import OwnServer
from support.proxy import Proxy

LATE = 1.0  # seconds after the timeout in which a call returns
SLOW = 20.0  # seconds more for a machine that is busy
pytestmark = pytest.mark.usefixtures("real_grace")
postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


@task
def quick(ctx: Any) -> None: ...


def name_of(database: Database) -> str:
    return database.url.partition("?")[0].rpartition("/")[2]


@contextmanager
def locked(database: Database) -> Iterator[None]:
    """Another program keeps everybody from reading the tasks."""
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        if database.is_sqlite:
            connection.exec_driver_sql("PRAGMA locking_mode=EXCLUSIVE")
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
        else:
            connection.exec_driver_sql("LOCK TABLE schedd_tasks IN ACCESS EXCLUSIVE MODE")
        yield
        connection.rollback()
    engine.dispose()


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    with Scheduler(database.url) as made:
        made.stop()
        made.register(quick)
        yield made


def gives_up(call: Callable[[], Any], timeout: float, slow: float = SLOW) -> StoreUnavailableError:
    """The error of a call, which has to come in time."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError) as raised:
        call()
    took = time.monotonic() - began
    assert took < timeout + LATE + slow, f"{took:.1f} s"
    return raised.value


@pytest.mark.alone
@pytest.mark.case(78)
@pytest.mark.parametrize("timeout", [0, 0.5])
def test_a_locked_database_is_given_up_in_time(database: Database, timeout: float) -> None:
    with Scheduler(database.url) as jobs:
        jobs.stop()
        jobs.list_tasks()
        if database.is_sqlite:
            jobs.database.dispose()  # the other program is to have the file alone
        with locked(database):
            error = gives_up(lambda: jobs.result(1, timeout), timeout, slow=1.0)
            assert "no answer within" in str(error)


@pytest.mark.case(78, pure=True)
@postgres
def test_a_session_that_is_given_up_does_not_stay_on_the_server(database: Database, jobs: Scheduler) -> None:
    jobs.list_tasks()
    with locked(database):
        gives_up(lambda: jobs.wait([1], 0), 0)
        engine = sa.create_engine(database.url, isolation_level="AUTOCOMMIT")
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with engine.connect() as connection:
            for _ in range(200):
                if not connection.exec_driver_sql(waiting).scalar():
                    break
                time.sleep(0.01)
            else:
                pytest.fail("it still waits there")
        engine.dispose()
    assert jobs.list_tasks() == [], "the connection that was cut is not handed out again"


@pytest.mark.case(78, pure=True)
@postgres
@pytest.mark.parametrize("connected", [True, False], ids=["a connection that is there", "a new connection"])
def test_a_server_that_swallows_is_given_up_in_time(
    database: Database, postgres_databases: PostgresDatabases, connected: bool
) -> None:
    with Proxy(postgres_databases.socket) as proxy, Scheduler(proxy.url(name_of(database))) as jobs:
        jobs.stop()
        if connected:
            jobs.list_tasks()
        proxy.hole()
        gives_up(lambda: jobs.result(1, 0), 0)
        gives_up(lambda: jobs.wait([1], 0.1), 0.1)
        proxy.heal()
        assert jobs.list_tasks() == []


@pytest.mark.case(78, pure=True)
def test_a_server_that_stands_still_is_given_up_in_time() -> None:
    with OwnServer() as server, Scheduler(server.migrated()) as jobs:
        jobs.stop()
        jobs.list_tasks()
        postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
        ours = [row[0] for row in server.sql("SELECT pid FROM pg_stat_activity")]
        stopped = [pid for pid in (postmaster, *ours) if Path(f"/proc/{pid}").exists()]
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            gives_up(lambda: jobs.result(1, 0), 0)
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):  # the session that asked for them was ending
                    os.kill(pid, signal.SIGCONT)
        assert jobs.list_tasks() == []


@pytest.mark.case(78)
def test_who_has_time_waits_on(database: Database, jobs: Scheduler) -> None:
    """A limit that has not been reached cuts nothing, and what comes after it has none."""
    with jobs.database.within(30):
        assert jobs.list_tasks() == []
    assert jobs.list_tasks() == []
    for thread in threading.enumerate():
        if thread.name == "schedd-deadline":
            thread.join(10)
            assert not thread.is_alive()


def test_one_within_another_changes_nothing() -> None:
    with Deadline(30, lambda: None) as outer:
        with Deadline(0, lambda: None):
            assert outer.left > 20
        assert outer.left > 20


def test_it_cuts_again_until_the_context_ends() -> None:
    cuts: list[float] = []
    twice = threading.Event()

    def cut() -> None:
        cuts.append(time.monotonic())
        if len(cuts) == 2:
            twice.set()

    with Deadline(-1, cut) as limit:
        assert deadline.left(30) == 0
        assert twice.wait(10)
        limit.seconds = 30
        limit.restart()
        assert not limit.passed
    number = len(cuts)
    assert not threading.Event().wait(0.2)
    assert len(cuts) == number


def test_the_time_counts_from_the_first_question() -> None:
    cut = threading.Event()
    with Deadline(-1, cut.set) as limit:
        assert not cut.wait(0.2), "what a program does before it asks the database says nothing about that"
        deadline.begin()
        assert cut.wait(10)
        assert limit.passed


@pytest.mark.case(78)
def test_loading_a_driver_takes_none_of_the_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a program that starts longer than the server takes to answer, and a busy machine much longer."""
    left: list[float] = []
    load = database_module.load_driver

    def noted(url: sa.URL) -> None:
        load(url)
        left.append(limit.left)

    jobs = Scheduler(database.url)
    monkeypatch.setattr(database_module, "load_driver", noted)
    with jobs.database.within(30) as limit:
        assert limit is not None
        whole = limit.left
        assert jobs.list_tasks() == []
        assert limit.left < whole
    jobs.close()
    assert left
    assert left[0] == whole


def test_what_comes_too_late_is_undone() -> None:
    go_on, undone = threading.Event(), threading.Event()

    def work() -> int:
        go_on.wait(30)
        return 7

    with pytest.raises(TimeoutError):
        in_time(work, 0.01, lambda late: undone.set() if late == 7 else None)
    go_on.set()
    assert undone.wait(10)
    assert in_time(lambda: 8, 30) == 8
    with pytest.raises(psycopg.Error):
        in_time(lambda: psycopg.connect("nonsense"), 30)


@pytest.mark.case(78, pure=True)
def test_the_error_of_a_store_that_is_away_is_short(tmp_path: Path) -> None:
    jobs = Scheduler(f"postgresql+psycopg://nobody@/jobs?host={tmp_path}")
    with pytest.raises(StoreUnavailableError) as raised:
        jobs.result(1, 0)
    text = "".join(traceback.format_exception(raised.value)).splitlines()
    assert len(text) < 50, "\n".join(text)
    assert "sqlalchemy" not in "\n".join(text)


def test_a_wait_in_vain_gets_the_reason(database: Database, jobs: Scheduler) -> None:
    made = jobs.task(quick).schedule()
    with pytest.raises(
        TimeoutError, match=f"still not ended: {made}; task {made}: due since .*, but no worker is live"
    ):
        jobs.result(made, timeout=0.1)
    with pytest.raises(TimeoutError, match=f"still not ended: {made}$"):
        jobs.result(made, timeout=0)
