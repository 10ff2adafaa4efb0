"""Beside a graph that is wide, and that the server's statistics know, nothing takes longer than beside none.

Of 20,000 edges that leave one task statistics say that any task has as many: each statement that asked for the edges of
one that it did not know yet read all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scheduler import Context, Scheduler, task
from scheduler.testing import drain, engine_of
from support.fleet import Fleet, no_autovacuum, step, write
from support.plans import Seen, figures, plan

WIDE = 20_000
EDGES = (
    "SELECT seq_tup_read + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'schedd_edges') AS n "
    "FROM pg_stat_user_tables WHERE relname = 'schedd_edges'"
)


@task
def plain(ctx: Context) -> None: ...


def numbers(jobs: Scheduler) -> str:
    """``WITH g(i)``: from 1 to ``:many``."""
    if jobs.database.dialect.name == "sqlite":
        return "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :many)"
    return "WITH g AS (SELECT generate_series(1, :many) AS i)"


def analyze(jobs: Scheduler, *tables: str) -> None:
    if jobs.database.dialect.name == "postgresql":
        for table in tables:
            write(jobs, f"ANALYZE schedd_{table}")


def store_edges(jobs: Scheduler, parent: str, child: str, many: int = WIDE) -> None:
    """Edges of the number ``i``."""
    values = f"SELECT {parent}, {child}, 0, 0, 1 FROM g"
    write(jobs, f"{numbers(jobs)} INSERT INTO schedd_edges (parent, child, on_end, otherwise, ok) {values}", many=many)


@pytest.fixture
def jobs(fleet: Fleet) -> Iterator[Scheduler]:
    made = fleet.worker(plain, lease=30.0)
    step(made)
    if made.database.dialect.name == "sqlite":
        yield made
        return
    no_autovacuum(made)
    yield made
    for table in ("tasks", "edges"):  # the next test on this database begins with empty tables, but with what is known
        write(made, f"DELETE FROM pg_statistic WHERE starelid = CAST('schedd_{table}' AS regclass)")


def check_plans(jobs: Scheduler, seen: Seen) -> int:
    """No statement reads all edges. Returns how many ask for some."""
    asked = 0
    for text, bound in seen.statements.items():
        if "schedd_edges" in text:
            steps = plan(jobs, text, bound)
            asked += 1
            # SQLite's are seen by name: of a materialized ``e`` it says SCAN e.
            whole = ["Seq Scan schedd_edges", "SCAN schedd_edges", *(["SCAN e"] if "MATERIALIZED" not in text else [])]
            assert not [one for one in steps if one.startswith(tuple(whole))], "\n".join((text, *steps))
    return asked


@pytest.mark.parametrize("locks", [False, True], ids=["", "locks first"])
def test_an_end_asks_for_its_own_edges_only(jobs: Scheduler, locks: bool, tell: Callable[[str], None]) -> None:
    store_edges(jobs, "900000", "1000000 + i")
    analyze(jobs, "edges")
    if locks:
        engine_of(jobs).turner.ledger._locks_first_until = float("inf")
    with jobs.batch() as batch:
        for _ in range(400):
            batch.task(plain)
    counts = jobs.database.dialect.name == "postgresql"
    before = figures(jobs, EDGES).n if counts else 0
    seen = Seen()
    with seen.watch(jobs):
        ran = drain(jobs)
    assert ran == 400
    read = figures(jobs, EDGES).n - before if counts else 0
    tell(f"{read} edges read at the ends of {ran} tasks without any, beside {WIDE:,}")
    assert read <= ran
    check_plans(jobs, seen)
