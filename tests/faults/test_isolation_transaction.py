"""``ctx.transaction()`` in a child process, which may die in front of its commit or behind it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from faults import isolated as kinds
from faults.harness import history, rows
from scheduler import Scheduler
from support import fleet
from support.databases import Database

pytestmark = [pytest.mark.faults, pytest.mark.case(4, 6, 63)]


@pytest.fixture
def jobs(database: Database, shared_fork_server: None) -> Iterator[Scheduler]:
    made = Scheduler(database.url, processes=1)
    made.register(kinds.Pays)
    made.register(kinds.APays)
    with fleet.ledger(made):
        yield made


def test_what_answers_children_ends_with_the_engine(jobs: Scheduler) -> None:
    def readers() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "schedd-processes-reader"}

    before = readers()
    jobs.result(jobs.task(kinds.Pays("before transaction commit", True)).schedule(), timeout=30)
    (reader,) = readers() - before
    jobs.stop_now()
    reader.join(10)
    assert not reader.is_alive()


def ledger(jobs: Scheduler) -> list[Any]:
    return [row.entry for row in rows(jobs, "SELECT entry FROM ledger")]


def test_a_child_commits_its_rows_and_its_success(jobs: Scheduler) -> None:
    for made, entry in ((kinds.Pays(), "attempt 1"), (kinds.Pays(in_step=True), "attempt 1"), (kinds.APays(), "async")):
        task_id = jobs.task(made).schedule()
        returned = jobs.result(task_id, timeout=30)
        assert returned["pid"] != os.getpid()
        assert history(jobs, task_id) == [(1, "succeeded")]
        assert ledger(jobs)[-1] == entry
    assert len(ledger(jobs)) == 3


@pytest.mark.parametrize(
    ("point", "in_step"), [("before transaction commit", True), ("after transaction commit", False)]
)
def test_a_child_that_dies_leaves_all_of_it_or_nothing(jobs: Scheduler, point: str, in_step: bool) -> None:
    task_id = jobs.task(kinds.Pays(point, in_step)).schedule()
    jobs.wait([task_id], timeout=30)
    committed = point.startswith("after")
    returned = jobs.result(task_id, timeout=30)
    assert returned["attempt"] == (1 if committed else 2)
    assert ledger(jobs) == [f"attempt {returned['attempt']}"]
    if committed and not in_step:
        assert history(jobs, task_id) == [(1, "succeeded")]
    else:
        assert [end for _, end in history(jobs, task_id)] == ["retried", "succeeded"]
