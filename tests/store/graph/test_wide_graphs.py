"""Beside a graph that is wide, and that the server's statistics know, nothing takes longer than beside none.

Of 20,000 edges that leave one task statistics say that any task has as many: each statement that asked for the edges of
one that it did not know yet read all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.model.state import END_BIT, TaskState
from scheduler.ports import FOREVER
from scheduler.store.admin import retention
from scheduler.store.durable import events, waits
from scheduler.store.graph.release import release
from scheduler.store.read import graph as read_graph
from scheduler.store.tasks import control
from scheduler.store.tasks.outcome_locks import lock_descendants
from scheduler.testing import drain, engine_of
from support.fleet import Fleet, no_autovacuum, rows, step, write
from support.plans import Seen, figures, plan

WIDE = 20_000
DAY = 86_400_000_000
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


def store_tasks(jobs: Scheduler, first: int, many: int, state: int, ended: int | None = None) -> None:
    """So many tasks of the ids after ``first``; they ended then."""
    names = "id, state, queue, lane, priority, run_at, kind, created_at, payload, claim, unmet, finished_at, "
    names += "result_until"
    values = ":first + i, :state, 'default', 'plain', 1, 1, 'plain', 1, '{}', 0, 1"
    write(
        jobs,
        f"{numbers(jobs)} INSERT INTO schedd_tasks ({names}) "
        f"SELECT {values}, CAST(:ended AS bigint), CAST(:ended AS bigint) FROM g",
        many=many, first=first, state=state, ended=ended,
    )  # fmt: skip


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
    for table in (
        "tasks",
        "edges",
        "waits",
        "events",
    ):  # the next test on this database begins with empty tables, but with what is known
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


def check_joins(jobs: Scheduler, text: str, bound: object) -> None:
    """It joins nothing, but ids that are given with the tasks that have them."""
    steps = plan(jobs, text, bound)
    joins = ("Nested Loop", "Materialize", "Hash", "Merge")
    found = [one for one in steps if one.startswith(joins)]
    given = ["Nested Loop  "] if "t.id IN (SELECT" in text else []
    assert found in ([], given), "\n".join((text, *steps))


@pytest.mark.parametrize("locks", [False, True], ids=["", "locks first"])
def test_an_end_asks_for_its_own_edges_only(jobs: Scheduler, locks: bool, tell: Callable[[str], None]) -> None:
    store_edges(jobs, "900000", "1000000 + i")
    analyze(jobs, "edges")
    if locks:
        engine_of(jobs).dispatch.completer._locks_first_until = float("inf")
    with jobs.batch() as batch:
        for n in range(400):
            builder = batch.task(plain)
            if n % 4 == 3:
                batch.task(plain).depend_on(builder)
    counts = jobs.database.dialect.name == "postgresql"
    before = figures(jobs, EDGES).n if counts else 0
    seen = Seen()
    with seen.watch(jobs):
        ran = drain(jobs)
    assert ran == 500
    read = figures(jobs, EDGES).n - before if counts else 0
    tell(f"{read} edges read at the ends of {ran} tasks with 100, beside {WIDE:,}")
    assert read <= 2 * ran
    check_plans(jobs, seen)


@pytest.mark.parametrize(
    "analyzed",
    [("early",), ("late",), pytest.param(("early", "late"), marks=pytest.mark.soak)],
    ids=" and ".join,
)
@pytest.mark.parametrize("graph", ["waits", "fan-in", "fan-out"])
def test_retention_compares_nothing_with_a_whole_graph(jobs: Scheduler, graph: str, analyzed: tuple[str, ...]) -> None:
    """Of tasks that are over: be a graph beside them, or may they not go because of the one that waits for all of them.
    What is read by a join that compares each with each is nowhere counted: so there may be no join."""
    over, live, first, now = 2_000, 10_000, 1_000_000, jobs.database.now()
    store_tasks(jobs, first, over, 6, now - 400 * DAY)
    if "early" in analyzed:
        analyze(jobs, "tasks", "edges", "waits")
    store_tasks(jobs, first + over, live, 0)
    if graph == "waits":
        for back in (1, 2, 3):
            store_edges(jobs, f"{first + over} + i", f"{first + over + back} + i", live - back)
    elif graph == "fan-in":
        store_edges(jobs, f"{first} + i", f"{first + over + live}", over)
    else:
        store_edges(jobs, f"{first + over + 1}", f"{first + over} + i", live)
    if "late" in analyzed:
        analyze(jobs, "tasks", "edges", "waits")
    seen = Seen()
    with seen.watch(jobs), jobs.database.write() as tx:
        removed = retention.purge_batch(tx.at(now), engine_of(jobs).options.retention)
    assert removed.tasks == (0 if graph == "fan-in" else retention.BATCH)
    checked = [check_joins(jobs, text, bound) for text, bound in seen.statements.items() if "spawned_by" in text]
    assert len(checked) >= 2
    check_plans(jobs, seen)


class SeenRemoved(Seen):
    """The statements that remove rows."""

    def note(self, text: str, bound: Any) -> None:
        if text.startswith("DELETE"):
            self.statements[text] = bound


def test_events_are_removed_beside_many_waits_for_one(jobs: Scheduler) -> None:
    store_tasks(jobs, 1_000_000, WIDE, 3)
    write(
        jobs,
        f"{numbers(jobs)} INSERT INTO schedd_waits (task_id, name, item, event, until, claim, at) "
        "SELECT 1000000 + i, 'payday', 0, 'payday', 1, 0, 1 FROM g",
        many=WIDE,
    )
    write(
        jobs,
        f"{numbers(jobs)} INSERT INTO schedd_events (name, emitted_at) SELECT 'event ' || i, 1 FROM g",
        many=events.BATCH,
    )
    analyze(jobs, "tasks", "waits", "events")
    seen = SeenRemoved()
    with seen.watch(jobs), jobs.database.write() as tx:
        assert events.cleanup(tx, 2) == events.BATCH
    ((text, bound),) = seen.statements.items()
    check_joins(jobs, text.partition(" IN (")[2].removesuffix(")"), bound)  # which they are


@pytest.mark.case(54, 56)
@pytest.mark.parametrize("analyzed", [("early",), ("late",)], ids=" and ".join)
def test_an_end_finds_who_waits_for_it_beside_many_that_wait(jobs: Scheduler, analyzed: tuple[str, ...]) -> None:
    """Each cycle's ends read every open wait, and on PostgreSQL every suspended task, too."""
    first, now = 1_000_000, jobs.database.now()
    if "early" in analyzed:
        analyze(jobs, "tasks", "waits")
    store_tasks(jobs, first, WIDE, 3)
    write(jobs, "UPDATE schedd_tasks SET run_at = :far WHERE id > :first", far=FOREVER, first=first)
    for item, met in (("0", waits.TASKS), (f"{first} + i", waits.OPEN)):
        write(
            jobs,
            f"{numbers(jobs)} INSERT INTO schedd_waits (task_id, name, item, until, claim, at, met) "
            f"SELECT {first} + i, 'task', {item}, 1, 0, 1, {met} FROM g",
            many=WIDE,
        )
    if "late" in analyzed:
        analyze(jobs, "tasks", "waits")
    seen: dict[str, Any] = {}

    def executed(_conn: Any, _cursor: Any, text: str, bound: Any, *_: Any) -> None:
        seen[text] = bound

    with jobs.database.write() as tx:
        sa.event.listen(tx.connection, "before_cursor_execute", executed)
        assert waits.tasks_ended(tx.at(now), [first + 7, first + 8]) == 2
        assert waits.suspended(tx.at(now), [(first + 9, 0)]) == 0
        labels = [(first + 7, "task"), (first + 9, "task")]
        assert list(waits.deadlines(tx, labels).values()) == [1, 1]
        assert sorted(waits.progress(tx, labels).values()) == [(1, 0), (1, 1)]
        waits.end(tx, labels[:1])
    woken = rows(jobs, "SELECT id FROM schedd_tasks WHERE run_at = :now ORDER BY id", now=now)
    assert [row.id for row in woken] == [first + 7, first + 8]
    whole = ("Seq Scan", "SCAN t", "SCAN schedd", "Bitmap Index Scan  ix_schedd_tasks_ready")
    wrong = []
    for text, bound in seen.items():
        steps = plan(jobs, text, bound)
        if [one for one in steps if one.startswith(whole) or ("_open" in one and "t.item >" in text)]:
            wrong.append("\n".join((text, *steps)))
    assert not wrong, "\n\n".join(wrong)


READ = (
    "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) AS n FROM pg_stat_user_tables "
    "WHERE relname IN ('schedd_edges', 'schedd_tasks')"
)


@pytest.mark.parametrize(
    ("how", "analyzed"),
    [
        *(pytest.param(how, ("early",), id=f"{how}-early") for how in ("success", "dead", "cascade")),
        *(pytest.param(how, ("late",), id=f"{how}-late") for how in ("success", "cancelled")),
        pytest.param("dead", ("late",), id="dead-late", marks=pytest.mark.soak),
        pytest.param("cancelled", ("early",), id="cancelled-early", marks=pytest.mark.soak),
        pytest.param("cascade", ("late",), id="cascade-late", marks=pytest.mark.soak),
    ],
)
def test_the_end_of_a_wide_parent_takes_as_long_as_it_is_wide(
    jobs: Scheduler, how: str, analyzed: tuple[str, ...], tell: Callable[[str], None]
) -> None:
    """Whether or not the statistics know of what waits."""
    parent, children, database = 1_000_000, 8_000, jobs.database
    store_tasks(jobs, parent + children, WIDE, 6, 1)
    if "early" in analyzed:
        analyze(jobs, "tasks", "edges")
    store_tasks(jobs, parent - 1, 1, 1)
    store_tasks(jobs, parent, children, 0)
    store_edges(jobs, str(parent), f"{parent} + i", children)
    if "late" in analyzed:
        analyze(jobs, "tasks", "edges")
    counts = database.dialect.name == "postgresql"
    before = figures(jobs, READ).n if counts else 0
    seen = Seen()
    now = database.now()
    with seen.watch(jobs), database.write() as tx:
        if how in ("cancelled", "cascade"):
            control.cancel(tx.at(now), [parent], cascade=how == "cascade")
        else:
            state = TaskState(how)
            ended = "UPDATE schedd_tasks SET state = :state, finished_at = :now WHERE id = :id"
            tx.connection.execute(sa.text(ended), {"state": state.code, "now": now, "id": parent})
            if counts:
                assert not lock_descendants(tx, {parent: END_BIT[state]}).blocked
            release(tx.at(now), [(parent, state)])
    child = {"success": "scheduled", "dead": "failed", "cancelled": "failed", "cascade": "cancelled"}[how]
    (found,) = rows(
        jobs, "SELECT state, count(*) AS n FROM schedd_tasks WHERE state <> 6 AND id > :p GROUP BY 1", p=parent
    )
    assert (TaskState.from_code(found.state), found.n) == (child, children)
    if counts:
        each = (figures(jobs, READ).n - before) / children
        tell(f"{each:.1f} rows read for each of {children:,} children, {how}, analysed {' and '.join(analyzed)}")
        assert each <= 25
    for text, bound in seen.statements.items():
        if "schedd_edges" in text and "LATERAL" not in text:
            check_joins(jobs, text, bound)
    check_plans(jobs, seen)


@pytest.mark.parametrize("analyzed", ["never", "early", "late"])
def test_a_retry_takes_as_long_as_what_it_revives(jobs: Scheduler, analyzed: str, tell: Callable[[str], None]) -> None:
    """Beside a wide graph that waits. So does reading the graph of what was retried."""
    parent, children, wide = 1_000_000, 1_000, 2_000_000
    if analyzed == "early":
        analyze(jobs, "tasks", "edges")
    store_tasks(jobs, parent - 1, 1, 8, 1)
    store_tasks(jobs, parent, children, 10, 1)
    store_edges(jobs, str(parent), f"{parent} + i", children)
    write(jobs, f"UPDATE schedd_tasks SET ended_by = {parent} WHERE id > {parent}")
    store_tasks(jobs, wide - 1, 1, 1)
    store_tasks(jobs, wide, WIDE, 0)
    store_edges(jobs, str(wide), f"{wide} + i")
    if analyzed == "late":
        analyze(jobs, "tasks", "edges")
    counts = jobs.database.dialect.name == "postgresql"
    before = figures(jobs, READ).n if counts else 0
    seen = Seen()
    with seen.watch(jobs), jobs.database.write() as tx:
        control.retry(tx, parent)
        assert len(read_graph.graph(tx, parent + children, limit=children + 1).nodes) == children + 1
    revived = "SELECT state, unmet, count(*) AS n FROM schedd_tasks WHERE id > :p AND id < :w GROUP BY 1, 2"
    (found,) = rows(jobs, revived, p=parent, w=wide - 1)
    assert tuple(found) == (0, 1, children)
    if counts:
        each = (figures(jobs, READ).n - before) / children
        tell(f"{each:.1f} rows read for each of {children:,} children, analysed {analyzed}")
        assert each <= 40
    check_plans(jobs, seen)
