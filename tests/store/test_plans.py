"""The plans of a cycle on a full table: by the ready index, without reading or sorting the backlog."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler import Context, Scheduler, Task, task
from scheduler.engine.direct_starts import REFUSED_S
from scheduler.store.db import statements as statement
from scheduler.store.graph.release import _MEET_PG, MAX_CHILDREN
from scheduler.store.predicates import bind_parents, from_parents
from scheduler.store.tasks.claim import LaneHead
from scheduler.store.tasks.complete import _FOLLOWS
from scheduler.store.tasks.outcome_locks import _LOCK_WAITING
from scheduler.testing import drain, engine_of
from support.fleet import Fleet, no_autovacuum, run_claimed, step, write
from support.plans import Seen, explained, figures, plan

READY = "ix_schedd_tasks_ready"
YEAR = 365 * 86_400_000_000
SCANNED = "SELECT seq_scan AS scans, seq_tup_read AS n FROM pg_stat_user_tables WHERE relname = 'schedd_tasks'"
READ = f"SELECT idx_tup_read AS n FROM pg_stat_user_indexes WHERE indexrelname = '{READY}'"
# For each task claimed. Mostly 2; 42 if all that was claimed before is read again by each look and each claim, as it is
# while another session's snapshot, such as a parallel test's, keeps it from being forgotten. To read all that is due
# would be 78.
MOST_READ = 60
TURNS = 12  # more than the five after which a prepared statement may get one plan for all its parameters


@task
def plain(ctx: Context) -> None: ...


def fill(jobs: Scheduler, many: int) -> None:
    """So many tasks each that are due, that have succeeded, and that are due in a year; all of one kind."""
    numbers = (
        "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :many)"
        if jobs.database.dialect.name == "sqlite"
        else "WITH g AS (SELECT generate_series(1, :many) AS i)"
    )
    now = jobs.database.now()
    for state, run_at, ended in ((1, now - many, None), (6, now - many, now), (1, now + YEAR, None)):
        write(
            jobs,
            f"{numbers} INSERT INTO schedd_tasks "
            "(state, queue, lane, priority, run_at, kind, created_at, payload, claim, finished_at) "
            "SELECT :state, 'default', 'plain', 1, :run_at + i, 'plain', :now, '{}', 0, CAST(:ended AS bigint) FROM g",
            many=many, state=state, run_at=run_at, now=now, ended=ended,
        )  # fmt: skip


def on_an_empty_table(fleet: Fleet) -> Scheduler:
    """A worker whose server believes, until the next ANALYZE of the table, that there are no tasks."""
    jobs = fleet.worker(plain, lease=30.0)
    step(jobs)
    if jobs.database.dialect.name == "postgresql":
        no_autovacuum(jobs)
        write(jobs, "ANALYZE schedd_tasks")
    return jobs


def turns(jobs: Scheduler) -> int:
    """Some cycles; how many tasks ran."""
    ran = 0
    for _ in range(TURNS):
        step(jobs)
        ran += run_claimed(jobs)
    return ran


def check_plans(jobs: Scheduler, seen: Seen) -> int:
    """No statement reads the whole table, and those that look for ready tasks do it by their index, in its order."""
    claims = 0
    for text, bound in seen.statements.items():
        steps = plan(jobs, text, bound)
        shown = f"{text}\n" + "\n".join(steps)
        for one in steps:
            assert not one.startswith(("Seq Scan schedd_tasks", "Bitmap Heap Scan schedd_tasks")), shown
            assert not (one.startswith("SCAN") and "USING" not in one and "schedd_tasks" in one), shown
        if "state <= 3" in text and "run_at" in text:
            assert any(READY in one for one in steps), shown
            if "run_at <=" in text:
                claims += 1
                sorts = [one for one in steps if one.startswith(("Sort", "Incremental Sort", "USE TEMP B-TREE"))]
                assert not sorts, shown
    return claims


@pytest.mark.parametrize("many", [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)], ids=["short", "long"])
def test_a_full_table_is_neither_read_nor_sorted(fleet: Fleet, many: int, tell: Callable[[str], None]) -> None:
    """Also with the statistics of an empty table, as a server has them after a quiet night."""
    jobs = on_an_empty_table(fleet)
    postgres = jobs.database.dialect.name == "postgresql"
    with jobs.batch() as batch:
        for _ in range(500):
            batch.task(plain)
    turns(jobs)  # its statements are planned for a small table now
    fill(jobs, many)
    fleet.clock.advance(11)  # a third of the lease: time to renew, and to plan anew
    step(jobs)
    measured = []
    for when in ("with the statistics of an empty table", "analysed"):
        seen = Seen()
        before = [figures(jobs, SCANNED), figures(jobs, READ)] if postgres else []
        with seen.watch(jobs):
            now = turns(jobs)
        assert now >= 100
        if before:
            scanned, read = figures(jobs, SCANNED), figures(jobs, READ)
            assert scanned.n == before[0].n, f"{when}: {scanned.scans - before[0].scans} scans of the whole table"
            each = (read.n - before[1].n) / now
            assert each <= MOST_READ, when
            measured.append(f"{each:.2f} rows of the ready index for each task {when}")
        if not postgres or when == "analysed":
            assert check_plans(jobs, seen), "no claim was seen"
        write(jobs, "ANALYZE schedd_tasks")
    tell(f"3 x {many:,} rows: {'; '.join(measured) or 'every statement by an index'}")


def test_a_guess_reads_the_head_of_its_lane(fleet: Fleet) -> None:
    """Also with the statistics of an empty table."""
    jobs = on_an_empty_table(fleet)
    postgres = jobs.database.dialect.name == "postgresql"
    dispatch, connection = engine_of(jobs).dispatch, engine_of(jobs)._conn()

    def guesses() -> None:
        for _ in range(TURNS):
            assert dispatch.claim_eagerly(connection)
            run_claimed(jobs)
            dispatch.run(connection, claiming=False)

    with jobs.batch() as batch:
        for _ in range(TURNS + 1):
            batch.task(plain)
    dispatch._last_lane = LaneHead("default", "plain", 1, 0)
    guesses()
    fill(jobs, 20_000)
    fleet.clock.advance(11)  # time to renew, and to plan anew
    step(jobs)
    run_claimed(jobs)
    dispatch.run(connection, claiming=False)
    for when in ("with the statistics of an empty table", "analysed"):
        before = [figures(jobs, SCANNED), figures(jobs, READ)] if postgres else []
        seen = Seen()
        with seen.watch(jobs):
            guesses()
        if before:
            scanned, read = figures(jobs, SCANNED), figures(jobs, READ)
            assert scanned.n == before[0].n, f"{when}: {scanned.scans - before[0].scans} scans of the whole table"
            assert read.n - before[1].n <= 1000 * TURNS, when  # what that step claimed lies dead in front
        if not postgres or when == "analysed":
            assert check_plans(jobs, seen), "no claim was seen"
        write(jobs, "ANALYZE schedd_tasks")


def test_newer_payloads_are_read_past_by_the_index(fleet: Fleet) -> None:
    """Also with the statistics of an empty table."""
    jobs = on_an_empty_table(fleet)
    postgres = jobs.database.dialect.name == "postgresql"
    with jobs.batch() as batch:
        for _ in range(100):
            batch.task(plain)
    engine_of(jobs).dispatch.planner.newer.kinds["plain"] = float("inf")
    turns(jobs)
    fill(jobs, 20_000)
    write(jobs, "UPDATE schedd_tasks SET schema_version = 2 WHERE state = 1 AND id % 3 = 0")
    fleet.clock.advance(11)  # time to renew, and to plan anew
    step(jobs)
    for when in ("with the statistics of an empty table", "analysed"):
        before, seen = figures(jobs, SCANNED) if postgres else None, Seen()
        with seen.watch(jobs):
            assert turns(jobs) >= 100
        if before:
            assert figures(jobs, SCANNED).n == before.n, when
        if not postgres or when == "analysed":
            assert check_plans(jobs, seen), "no look was seen"
        write(jobs, "ANALYZE schedd_tasks")


FETCHED = "SELECT seq_tup_read + idx_tup_fetch AS n FROM pg_stat_user_tables WHERE relname = 'schedd_tasks'"


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_an_end_reads_its_children_not_all_that_wait(fleet: Fleet, tell: Callable[[str], None]) -> None:
    """Also while the statistics do not know of them."""
    jobs = fleet.worker(plain, lease=30.0)
    step(jobs)
    no_autovacuum(jobs)
    write(
        jobs,
        "INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, payload, claim, unmet) "
        "SELECT 0, 'default', 'plain', 1, i, 'plain', i, '{}', 0, 1 FROM generate_series(1, 20000) AS i",
    )
    with jobs.batch() as batch:
        for _ in range(300):
            parent = batch.task(plain)
            batch.task(plain).depend_on(parent)
    before = figures(jobs, FETCHED)
    ran = drain(jobs)
    assert ran == 600
    each = (figures(jobs, FETCHED).n - before.n) / ran
    tell(f"{each:.1f} rows read for each task, beside 20,000 that wait")
    assert each <= 20


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_direct_start_reads_the_heads_of_lanes(fleet: Fleet) -> None:
    """Also once the table has grown since its plan was made."""
    jobs = on_an_empty_table(fleet)
    engine = engine_of(jobs)
    jobs.submitter.start_here = engine.direct_starts.store

    def starts() -> int:
        """How many rows they read."""
        read = []
        for turn in range(TURNS + 1):
            engine.engine_state.was_woken()
            fleet.clock.advance(REFUSED_S)
            jobs.task(plain).schedule()
            run_claimed(jobs)
            engine.dispatch.run(engine._conn(), claiming=False)
            if turn in (0, TURNS):
                with jobs.database.alone() as connection:
                    statement.run(connection, "SELECT pg_stat_force_next_flush()", {})
                read.append(figures(jobs, FETCHED).n)
        return int(read[1] - read[0])

    starts()
    fill(jobs, 20_000)
    fleet.clock.advance(11)
    step(jobs)
    assert starts() <= 20 * TURNS, "beside due tasks"
    write(jobs, "DELETE FROM schedd_tasks WHERE state <= 5 AND run_at < :now", now=jobs.database.now())
    write(jobs, "UPDATE schedd_tasks SET lane = 'other' WHERE state = 1")
    assert starts() <= 20 * TURNS


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("edges", [3_000, 9_000, 90_000])
def test_an_end_finds_its_edges_by_the_index(fleet: Fleet, edges: int) -> None:
    """However many there are: each cycle read all of 9,000 that the server had not analysed yet."""
    jobs = fleet.worker(plain, lease=30.0)
    step(jobs)
    no_autovacuum(jobs)
    write(
        jobs,
        "INSERT INTO schedd_edges (parent, child, on_end, otherwise, ok) "
        "SELECT i / 3, 1000000 + i, 0, 0, 1 FROM generate_series(1, :edges) AS i",
        edges=edges,
    )
    dialect = jobs.database.dialect
    bound = {**bind_parents(dialect, range(1, 101)), "bits": 1, "bit": 1, "usual": "0", "after": 0}
    with jobs.database.open().connect() as connection:
        for sql in (
            _LOCK_WAITING.format(e=from_parents(dialect)),
            _MEET_PG.format(parents=from_parents(dialect), most=MAX_CHILDREN),
            _FOLLOWS,
        ):
            text, _ = statement.compiled(sql, connection.dialect)
            steps = plan(jobs, text, bound)
            found = [one for one in steps if one.startswith("Seq Scan schedd_edges") or "ix_schedd_edges_child" in one]
            assert not found, "\n".join((text, *steps))


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_later_parts_of_a_release_are_found_as_the_first_one_is(fleet: Fleet) -> None:
    """Also where they are newer than what is known of the table: each child was compared with each other one."""
    jobs = fleet.worker(plain, lease=30.0)
    step(jobs)
    no_autovacuum(jobs)
    older, most, children = 20_000, 6_000, 18_000

    def store(state: int, first: int, last: int) -> None:
        names = "id, state, queue, lane, priority, run_at, kind, created_at, payload, claim, unmet"
        values = f"i, {state}, 'default', 'plain', 1, i, 'plain', i, '', 0, 1"
        write(jobs, f"INSERT INTO schedd_tasks ({names}) SELECT {values} FROM generate_series({first}, {last}) AS i")

    def depend(parent: str, first: int, last: int) -> None:
        write(
            jobs,
            "INSERT INTO schedd_edges (parent, child, on_end, otherwise, ok) "
            f"SELECT {parent}, i + 1, 0, 0, 1 FROM generate_series({first}, {last}) AS i",
        )

    store(6, 1, older)  # a graph that has run
    depend("i", 1, older)
    for table in ("schedd_tasks", "schedd_edges"):
        write(jobs, f"ANALYZE {table}")
    parent, first = older + 999, older + 1000
    last = first + children - 1
    store(0, first, last)
    depend(str(parent), first - 1, last - 1)
    depend("i", last + 1, last + 10_000)
    dialect = jobs.database.dialect
    sql = _MEET_PG.format(parents=from_parents(dialect), most=most)
    with jobs.database.open().connect() as connection:
        text, _ = statement.compiled(sql, connection.dialect)
    for after in (0, first + most - 1, first + 2 * most - 1):
        steps = plan(jobs, text, {**bind_parents(dialect, [parent]), "bit": 1, "after": after})
        found = [one for one in steps if one.startswith(("Nested Loop", "Seq Scan")) or "ix_schedd_edges_child" in one]
        assert not found, "\n".join((str(after), text, *steps))


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)  # of an empty table PostgreSQL needs no index
@pytest.mark.case(23)
def test_what_failed_is_found_by_the_index(fleet: Fleet) -> None:
    """A retry of many asks again for each hundred, on SQLite with everybody else kept from writing."""
    jobs = on_an_empty_table(fleet)
    seen = Seen()
    with seen.watch(jobs):
        jobs.retry_failed(kind="plain")
    (found,) = [plan(jobs, text, bound) for text, bound in seen.statements.items() if "ORDER BY t.finished_at" in text]
    assert any("ix_schedd_tasks_done" in one for one in found), found


COMPILED_ABOVE = 100_000  # jit_above_cost, PostgreSQL's default


class OneEach(Task, max_concurrency=1, concurrency_key="{customer}", rate_limit="1000/s"):
    customer: int

    def run(self, ctx: Context) -> None: ...


def test_the_server_compiles_no_statement_of_a_cycle(fleet: Fleet) -> None:
    """No connection lets it, and behind a pooler, where none says so, no statement looks dear enough on a new store."""
    jobs = fleet.worker(OneEach)
    if jobs.database.dialect.name == "sqlite":
        return
    jobs.live_settings.queue("default", max_concurrency=50)
    with jobs.database.read() as tx:
        assert tx.run("SHOW jit").scalar_one() == "off"
    with jobs.batch() as batch:
        for customer in range(200):
            batch.task(OneEach(customer))
    seen = Seen()
    with seen.watch(jobs):
        assert turns(jobs)
    held = 0
    for text, bound in seen.statements.items():
        held += "RECURSIVE w(id)" in text
        assert explained(jobs, text, bound)["Total Cost"] < COMPILED_ABOVE, text
    assert held >= 2
