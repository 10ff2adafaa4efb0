"""A full disk, played by SQLite's own limit on pages, which makes it say what it says when the disk is full."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa

from faults.harness import Fleet, all_ended, connect, history, rows, until
from faults.kinds import Big, Hold, Work
from scheduler import Scheduler
from scheduler.errors import StoreUnavailableError
from support.databases import Database

pytestmark = [
    pytest.mark.faults,
    pytest.mark.parametrize("dialect", ["sqlite"], indirect=True),
]
MANY = 1_000_000


def pages(database: Database) -> int:
    with closing(sqlite3.connect(database.path)) as connection:
        return int(connection.execute("PRAGMA page_count").fetchone()[0])


def two_hundred(jobs: Scheduler, parent: int) -> None:
    with jobs.batch() as batch:
        for index in range(200):
            batch.task(Hold("x" * 900 + str(index))).depend_on([parent])


def test_the_worker_says_it_once_loses_nothing_and_goes_on(database: Database, fleet: Fleet, jobs: Scheduler) -> None:
    worker = fleet.worker(options={"lease": 1.0})
    running = jobs.task(Hold()).schedule()
    worker.expect("body")
    worker.send("pages", limit=pages(database) + 10)
    worker.expect("limited")
    ids = [jobs.task(Big(300_000)).schedule() for _ in range(5)]  # results of 73 pages each
    until(lambda: worker.lines("the disk is full"), "it says that the disk is full")
    worker.open()
    until(lambda: fleet.runs(running)[0].end, "the handler ends while the disk is full")
    assert worker.alive()
    assert len(worker.lines("the disk is full")) == 1
    assert not rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state >= 6")

    worker.send("pages", limit=MANY)
    worker.expect("limited")
    all_ended(jobs)
    until(lambda: worker.lines("the database is back"), "it says that it goes on")
    assert len(worker.lines("ERROR")) == 1
    assert "Traceback" not in worker.text()
    for task_id in (running, *ids):
        assert history(jobs, task_id) == [(1, "succeeded")]
        assert len(fleet.runs(task_id)) == 1
    sizes = rows(jobs, "SELECT length(value) AS size FROM schedd_task_values WHERE name = 'result'")
    assert [r.size for r in sizes] == [300_002] * 5


def test_a_caller_gets_an_error_and_nothing_is_half_written(database: Database, jobs: Scheduler) -> None:
    parent = jobs.task(Work()).schedule()
    full = connect(database.url)
    limit = pages(database) + 2

    @sa.event.listens_for(full.database.open(), "checkout")
    def few_pages(raw: sqlite3.Connection, *_: object) -> None:
        raw.execute(f"PRAGMA max_page_count = {limit}")

    with pytest.raises(StoreUnavailableError, match="the disk is full: free some space"):
        two_hundred(full, parent)
    assert [r.id for r in rows(jobs, "SELECT id FROM schedd_tasks")] == [parent]
    assert not rows(jobs, "SELECT 1 FROM schedd_edges")
    limit = MANY
    two_hundred(full, parent)
    assert len(rows(jobs, "SELECT 1 FROM schedd_edges")) == 200
    full.close()
