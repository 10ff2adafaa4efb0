"""A session of the caller's that has added a child and does not end: the parent's worker does all else meanwhile.

The guarantee speaks of 60 s. What matters is that the worker's cycles, its renewals and its looks for the dead
happen several times while the session is open. So the session ends here when leases have been renewed several
times and one has passed completely: at the default lease of 30 s that takes 60 s, at a second's lease two.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from faults.harness import Fleet, all_ended, connect, history, rows, state, until
from faults.kinds import Chatty, Fail, Hold, Work
from scheduler import Scheduler
from scheduler.errors import StoreUnavailableError
from scheduler.store.db import engines as connecting
from support.databases import Database

pytestmark = [pytest.mark.faults, pytest.mark.case(65)]
OPTIONS = {"lease": 1.0, "pools": {"medium": (4, 0)}}


def renewals(jobs: Scheduler) -> int:
    """A number that every renewal of any lease changes."""
    (row,) = rows(jobs, "SELECT max(lease_until) AS latest FROM schedd_workers")
    return int(row.latest)


@contextmanager
def open_session(url: str) -> Iterator[sa.Connection]:
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("commits", [True, False])
def test_the_workers_other_tasks_keep_finishing(
    database: Database, fleet: Fleet, jobs: Scheduler, commits: bool
) -> None:
    worker, other = fleet.worker(options=OPTIONS), fleet.worker(options=OPTIONS)
    parent = jobs.task(Hold()).schedule()
    until(lambda: state(jobs, parent) == "running", "the parent runs")
    with open_session(database.url) as session:
        child = jobs.task(Work()).depend_on([parent]).schedule(connection=session)
        worker.open()
        other.open()
        until(lambda: fleet.runs(parent)[0].end, "the parent's handler has ended")
        seen, done = {renewals(jobs)}, 0
        since = time.monotonic()
        while len(seen) < 6 or time.monotonic() - since < 2 * OPTIONS["lease"]:
            others = [jobs.task(Work(1.0)).schedule() for _ in range(20)]
            family = jobs.task(Work()).depend_on(others, when="finished").schedule()
            until(lambda: state(jobs, family) == "success", "others of this worker finish")  # noqa: B023
            done += len(others)
            seen.add(renewals(jobs))
        assert state(jobs, parent) == "running", "the parent ended although its new child was not committed"
        if commits:
            session.commit()
        else:
            session.rollback()
    all_ended(jobs)
    assert history(jobs, parent) == [(1, "succeeded")]
    if commits:
        assert history(jobs, child) == [(1, "succeeded")]
        assert fleet.runs(child)[0].start >= (fleet.runs(parent)[0].end or 0)
    else:
        assert not rows(jobs, "SELECT 1 FROM schedd_tasks WHERE id = :id", id=child)
    assert not worker.lines("ERROR") + other.lines("ERROR")
    assert not worker.lines("reclaimed") + other.lines("reclaimed")


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_nor_does_a_session_that_holds_a_grandchild_of_what_fails(
    database: Database, fleet: Fleet, jobs: Scheduler
) -> None:
    """The failure ends a child, and with it a grandchild that a caller is just hanging something on."""
    worker = fleet.worker(options=OPTIONS)
    parent = jobs.task(Fail()).schedule()
    worker.expect("body")
    child = jobs.task(Work()).depend_on([parent]).schedule()
    grandchild = jobs.task(Work()).depend_on([child]).schedule()
    with open_session(database.url) as session:
        last = jobs.task(Work()).depend_on([grandchild]).schedule(connection=session)
        worker.open()
        others = [jobs.task(Work()).schedule() for _ in range(20)]
        until(lambda: {state(jobs, i) for i in others} == {"success"}, "the worker's other tasks finish")
        session.commit()
    all_ended(jobs)
    assert state(jobs, parent) == "dead"
    assert [state(jobs, i) for i in (child, grandchild, last)] == ["failed"] * 3


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_parent_that_reports_meanwhile_delays_no_other_task(
    database: Database, fleet: Fleet, jobs: Scheduler
) -> None:
    worker = fleet.worker(options=OPTIONS)
    parent = jobs.task(Chatty()).schedule()
    worker.expect("body")
    with open_session(database.url) as session:
        child = jobs.task(Work()).depend_on([parent]).schedule(connection=session)
        worker.open()
        others = [jobs.task(Work()).schedule() for _ in range(20)]
        until(lambda: {state(jobs, i) for i in others} == {"success"}, "the worker's other tasks finish")
        session.commit()
    all_ended(jobs)
    assert [history(jobs, i) for i in (parent, child)] == [[(1, "succeeded")]] * 2


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_on_sqlite_such_a_session_holds_the_write_lock_and_no_more(
    database: Database, fleet: Fleet, jobs: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one write lock, and an uncommitted insert holds it. Handlers run on. Callers get an error within the
    busy timeout. Everything finishes when the session ends, and no worker is taken for dead meanwhile."""
    busy = 0.5
    monkeypatch.setattr(connecting, "SQLITE_BUSY_MS", round(busy * 1000))
    impatient = connect(database.url)
    worker, other = (fleet.worker(options=OPTIONS, busy_ms=200) for _ in range(2))
    parents = [jobs.task(Hold()).schedule() for _ in range(6)]
    until(lambda: len(worker.reported("body") + other.reported("body")) == 6, "both workers run handlers")
    queued = jobs.task(Work()).schedule()
    until(lambda: state(jobs, queued) == "success", "the workers are well")
    until(lambda: {state(jobs, i) for i in parents} == {"running"}, "their rows say so")
    with open_session(database.url) as session:
        child = jobs.task(Work()).depend_on(parents).schedule(connection=session)
        with pytest.raises(sqlite3.OperationalError), sqlite3.connect(database.path, timeout=0) as raw:
            raw.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="locked by another program"):
            impatient.task(Work()).schedule()
        assert time.monotonic() - started < 9.0, "it waited for as long as without the setting, 10 s"
        for process in (worker, other):
            process.open()
        until(lambda: all(fleet.runs(i)[0].end for i in parents), "the handlers come to their ends")
        assert {state(jobs, i) for i in parents} == {"running"}
        time.sleep(2 * OPTIONS["lease"])  # real leases run out in real time
        session.commit()
    for process in (worker, other):
        until(lambda: process.lines("the database is back"), "it says that the database is back")  # noqa: B023
    all_ended(jobs)
    impatient.close()
    assert [history(jobs, i) for i in (*parents, child)] == [[(1, "succeeded")]] * 7
    for process in (worker, other):
        assert len(process.lines("the database is away")) == 1
        assert "locked by another program" in process.lines("the database is away")[0]
        assert not process.lines("reclaimed")
        assert not process.lines("lease was lost")
