"""What many tasks of one correlation, key or subject cost: each page reads what it shows, however many there are."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.model.task_filter import Term
from scheduler.operations import bulk
from scheduler.store.read.search import search
from scheduler.store.read.tasks import list_tasks
from support.bench import Bench, Step
from support.fleet import write
from support.plans import Seen, figures, plan

PAGE = 100


def fill(jobs: Scheduler, many: int, *, state: int = 1) -> None:
    """So many tasks that share correlation, key and subject, and as many after them that have none."""
    numbers = (
        "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :many)"
        if jobs.database.dialect.name == "sqlite"
        else "WITH g AS (SELECT generate_series(1, :many) AS i)"
    )
    now = jobs.database.now()
    for shared in ("big", None):
        write(
            jobs,
            f"{numbers} INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, payload, "
            "claim, correlation, key, subject, finished_at) SELECT :state, 'default', 'Step', 1, :later, 'Step', :now, "
            "'{}', 0, CAST(:shared AS text), CAST(:shared AS text), CAST(:shared AS text), CAST(:ended AS bigint) "
            "FROM g",
            many=many, state=state, later=now + 3_600_000_000, now=now, shared=shared, ended=now if state > 5 else None,
        )  # fmt: skip
    write(jobs, "ANALYZE schedd_tasks")


def read(jobs: Scheduler) -> float:
    """Rows that all statements so far have read: counted by PostgreSQL, of SQLite as a share of its machine's steps."""
    if jobs.database.dialect.name == "postgresql":
        return float(figures(jobs, "SELECT sum(idx_tup_read) AS n FROM pg_stat_user_indexes").n)
    return STEPS[0] * 100 / 40  # about 40 steps for each row


STEPS = [0]


def counting(jobs: Scheduler) -> None:
    """Count the steps of SQLite's machine on each connection."""

    def count() -> int:
        STEPS[0] += 1
        return 0

    def connected(driver: Any, *_: Any) -> None:
        driver.set_progress_handler(count, 100)

    sa.event.listen(jobs.database.open(), "checkout", connected)


@pytest.mark.parametrize("many", [6_000, pytest.param(200_000, marks=pytest.mark.soak)], ids=["some", "many"])
@pytest.mark.parametrize("column", ["correlation", "key", "subject"])
def test_a_page_is_read_down_the_index(bench: Bench, many: int, column: str) -> None:
    jobs = bench.jobs
    fill(jobs, many)
    index = f"ix_schedd_tasks_{column}"
    seen = Seen()
    with seen.watch(jobs):
        for cursor in (None, many // 2, 2 * PAGE):
            asked: dict[str, Any] = {column: "big"}
            with jobs.database.read() as tx:
                first = list_tasks(tx, cursor=cursor, limit=PAGE, **asked).tasks
                again = search(tx, [Term(column, ("big",))], cursor=cursor, limit=PAGE).tasks
            assert [task.id for task in first] == [task.id for task in again]
            assert len(first) == PAGE
    pages = [(text, bound) for text, bound in seen.statements.items() if "LIMIT" in text and column in text]
    assert pages
    for text, bound in pages:
        steps = plan(jobs, text, bound)
        assert any(index in one for one in steps), (text, steps)
        assert not any(one.startswith(("Seq Scan", "SCAN t")) for one in steps), (text, steps)


@pytest.mark.parametrize("many", [3_000, pytest.param(200_000, marks=pytest.mark.soak)], ids=["some", "many"])
def test_a_plan_over_a_correlation_is_linear(bench: Bench, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """All pages together read each task a few times, whatever the size of a page."""
    jobs = bench.jobs
    fill(jobs, many)
    monkeypatch.setattr(bulk, "_PAGE", PAGE)
    if jobs.database.dialect.name == "sqlite":
        counting(jobs)
    before = read(jobs)
    found = jobs.cancel_tasks(correlation="big", dry_run=True)
    assert len(found.ids) == many
    each = (read(jobs) - before) / many
    assert each < 4, f"{each:.1f} rows for each task"


def test_a_retry_of_many_begins_where_the_last_page_ended(bench: Bench) -> None:
    jobs = bench.jobs
    fill(jobs, 2_000, state=8)
    seen = Seen()
    with seen.watch(jobs):
        found = jobs.retry_tasks(kind="Step", dry_run=True, limit=500)
    assert len(found.ids) == 500
    pages = [(text, bound) for text, bound in seen.statements.items() if "finished_at >=" in text]
    assert pages
    for text, bound in pages:
        steps = plan(jobs, text, bound)
        assert any("ix_schedd_tasks_done" in one for one in steps), steps


@pytest.mark.parametrize("own", ["its own id", "another's"])
def test_the_task_whose_id_the_correlation_is_comes_in_its_place(bench: Bench, own: str) -> None:
    jobs = bench.jobs
    before = jobs.task(Step("before")).correlation("x").schedule()
    root = jobs.task(Step("root")).schedule()
    children = [jobs.task(Step("child")).correlation(str(int(root))).schedule() for _ in range(3)]
    wanted = str(int(root)) if own == "its own id" else "x"
    expected = [*map(int, reversed(children)), int(root)] if own == "its own id" else [int(before)]
    found: list[int] = []
    cursor = None
    while True:
        with jobs.database.read() as tx:
            page = list_tasks(tx, correlation=wanted, limit=1, cursor=cursor)
        found += [task.id for task in page.tasks]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == expected
    assert sorted(jobs.cancel_tasks(correlation=wanted, dry_run=True).ids) == sorted(expected)
    assert jobs.cancel_tasks(correlation=wanted, key="none", dry_run=True).ids == []
