"""What waits for one task may be more than one statement can release before its answer is given up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, PermanentError, Scheduler, TaskState, task
from scheduler.model.state import END_BIT
from scheduler.store.db import statements as statement
from scheduler.store.graph import release
from scheduler.testing import FakeClock, drain
from support.databases import Database
from support.fleet import rows, step

PARENTS, CHILDREN = 2, 9


@task
def work(ctx: Context) -> None: ...


@task
def fails(ctx: Context) -> None:
    raise PermanentError("no")


@pytest.fixture
def jobs(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(release, "MAX_CHILDREN", 2)
    made = Scheduler.for_testing(url=database.url, clock=FakeClock())
    for kind in (work, fails):
        made.register(kind)
    yield made
    made.close()


def store(jobs: Scheduler, kind: object, children: int = CHILDREN) -> tuple[list[int], list[int]]:
    """Parents, and as many children of each as of all of them; the last one waits for something else, too."""
    with jobs.batch() as batch:
        above = [batch.task(kind) for _ in range(PARENTS)]
        other = batch.task(work).after(3600)
        below = [batch.task(work).depend_on(above if n % 3 else above[n % PARENTS]) for n in range(children)]
        below[-1].depend_on([other])
    return list(map(int, batch.ids[:PARENTS])), list(map(int, batch.ids[PARENTS + 1 :]))


@pytest.mark.parametrize("children", [1, 2, 3, 4, CHILDREN])
def test_every_child_is_released_once(jobs: Scheduler, children: int) -> None:
    _, below = store(jobs, work, children)
    assert drain(jobs) == PARENTS + children - 1
    left = rows(jobs, "SELECT id, state, unmet FROM schedd_tasks WHERE state < 6 ORDER BY id")
    assert left == [(below[0] - 1, 1, 0), (below[-1], 0, 1)]


def test_how_many_became_ready_is_returned(jobs: Scheduler) -> None:
    parent = jobs.task(work).schedule()
    other = jobs.task(work).schedule()
    with jobs.batch() as batch:
        for n in range(CHILDREN):
            batch.task(work).depend_on([parent, other] if n == 4 else parent)
    with jobs.database.write() as tx:
        bit = END_BIT[TaskState.SUCCESS]
        assert release._meet(tx, [parent], bit) == CHILDREN - 1
        assert release._meet(tx, [other], bit) == 1


def test_every_child_ends(jobs: Scheduler) -> None:
    _, below = store(jobs, fails)
    drain(jobs)
    assert {jobs.get_task(i).state for i in below} == {TaskState.FAILED}


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_no_statement_releases_more(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    store(jobs, work)
    step(jobs)
    released: list[tuple[Any, ...]] = []
    raw = statement._raw

    def recording(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
        answer = raw(connection, text, bound)
        if "SET unmet" in text:
            released.extend(answer)
        return answer

    monkeypatch.setattr(statement, "_raw", recording)
    drain(jobs)
    assert sum(children for _, children, _ in released) >= CHILDREN
    assert max(children for _, children, _ in released) == 2
    assert sum(ready for ready, _, _ in released) == CHILDREN - 1
