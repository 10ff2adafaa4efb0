"""The database goes away and comes back: nothing is lost, no task runs twice at once, and one line is logged."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from faults.harness import Fleet, Process, all_ended, history, overlapping, result, rows, state, until
from faults.kinds import Hold, Work
from scheduler import Scheduler
from support.databases import Database

pytestmark = [pytest.mark.faults, pytest.mark.case(9)]
LEASE = 1.0
OPTIONS = {"lease": LEASE, "pools": {"high": (0, 0), "medium": (3, 0), "low": (0, 0)}}
BUSY = 150  # ms


@contextmanager
def away(database: Database) -> Iterator[None]:
    """No worker can write until this ends (SQLite: another program holds the lock; PostgreSQL refuses connections)."""
    if database.is_sqlite:
        with closing(sqlite3.connect(database.path, isolation_level=None)) as holder:
            until(lambda: _locked(holder), "the write lock")
            yield
            holder.execute("ROLLBACK")
        return
    url = database.url.replace("postgresql+psycopg:", "postgresql:")
    with psycopg.connect(re.sub(r"/schedd_\w+\?", "/postgres?", url), autocommit=True) as server:
        name = url.partition("?")[0].rpartition("/")[2]
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def _locked(holder: sqlite3.Connection) -> bool:
    try:
        holder.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    return True


def _assert_outage_logged(worker: Process) -> None:
    until(lambda: worker.lines("the database is back"), "it says that the database is back")
    assert len(worker.lines("the database is back")) == 1
    # Cut off, which the driver says in one way or, on a busy machine, in two; and then not let in.
    assert 1 <= len(worker.lines("ERROR")) <= 3, worker.text()
    assert "Traceback" not in worker.text()
    assert not worker.lines("reclaimed")
    assert not worker.lines("lease was lost")


def test_two_workers_outlive_an_outage_longer_than_their_leases(
    database: Database, fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]
) -> None:
    """Handlers begun before go on and end meanwhile; afterwards no worker takes the other for dead."""
    workers = [fleet.worker(options=OPTIONS, busy_ms=BUSY) for _ in range(2)]
    ending = [jobs.task(Hold("during")).schedule() for _ in range(3)]
    lasting = [jobs.task(Hold("after")).schedule() for _ in range(3)]
    until(lambda: {state(jobs, i) for i in (*ending, *lasting)} == {"running"}, "all run")
    queued = [jobs.task(Work(1.0)).schedule() for _ in range(50)]
    with away(database):
        for worker in workers:
            until(lambda: worker.lines("the database is away"), "it notices")  # noqa: B023
            worker.open("during")
        until(lambda: all(fleet.runs(i)[0].end for i in ending), "handlers end meanwhile")
        time.sleep(1.5 * LEASE)  # real leases run out in real time
    back = time.monotonic()
    until(lambda: {state(jobs, i) for i in ending} == {"success"}, "what ended meanwhile is recorded")
    tell(f"recorded {time.monotonic() - back:.2f} s after the database was back")
    time.sleep(1.5 * LEASE)
    assert {state(jobs, i) for i in lasting} == {"running"}
    for worker in workers:
        worker.open("after")
    all_ended(jobs)
    for task_id in (*ending, *lasting, *queued):
        assert history(jobs, task_id) == [(1, "succeeded")]
        assert len(fleet.runs(task_id)) == 1
    for worker in workers:
        _assert_outage_logged(worker)


def test_orphans_of_a_worker_that_died_meanwhile_are_reclaimed(
    database: Database, fleet: Fleet, jobs: Scheduler
) -> None:
    victim = fleet.worker(options=OPTIONS, busy_ms=BUSY)
    orphans = [jobs.task(Hold()).schedule() for _ in range(3)]
    until(lambda: {state(jobs, i) for i in orphans} == {"running"}, "all run")
    other = fleet.worker(options=OPTIONS, busy_ms=BUSY)
    with away(database):
        until(lambda: other.lines("the database is away"), "it notices")
        victim.kill()
        time.sleep(1.5 * LEASE)
    other.open()
    all_ended(jobs)
    for task_id in orphans:
        assert history(jobs, task_id) == [(1, "lost"), (2, "succeeded")]
        assert result(jobs, task_id) == 2


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_connections_are_cut_in_the_middle_of_work(fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None]) -> None:
    """Again and again, at whatever they are doing; a commit may or may not have happened, and both must do."""
    worker = fleet.worker(options={"lease": 5.0})
    with jobs.batch() as batch:
        layer = [batch.task(Work(1.0)) for _ in range(20)]
        for _ in range(29):
            layer = [batch.task(Work(1.0)).depend_on([above]) for above in layer]
    cut = 0
    while True:
        done = len(fleet.started())
        with jobs.database.write() as tx:
            cut += len(
                tx.connection.exec_driver_sql(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND application_name LIKE 'schedd%%' AND pid <> pg_backend_pid()"
                ).fetchall()
            )
        if done == len(batch.ids):
            break
        until(lambda: len(fleet.started()) >= min(done + 60, len(batch.ids)), "it goes on")  # noqa: B023
    all_ended(jobs)
    assert cut >= 5
    assert worker.lines("the database is back")
    assert "Traceback" not in worker.text()
    (ends,) = rows(jobs, "SELECT count(*) AS n, count(DISTINCT task_id) AS ids FROM schedd_attempts")
    assert (ends.n, ends.ids) == (len(batch.ids), len(batch.ids)), "an attempt was recorded twice, or never"
    again = 0
    for task_id in batch.ids:
        runs = fleet.runs(task_id)
        again += len(runs) > 1
        assert not list(overlapping(runs))
    for parent, child in rows(jobs, "SELECT parent, child FROM schedd_edges"):
        assert fleet.runs(child)[0].start >= (fleet.runs(parent)[0].end or 0)
    tell(f"{cut} connections cut, {again} of {len(batch.ids)} tasks run again")
    assert not again, "the worker's lease held all the time"
