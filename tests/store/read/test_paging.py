"""How far a list looks: by an index that leads to what is asked for, else down the ids as far as its window allows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.model.state import TaskState
from scheduler.model.task_filter import Term
from scheduler.store.read import paging
from scheduler.store.read.paging import Window
from scheduler.store.read.search import search
from scheduler.store.read.tasks import FoundTasks, list_tasks
from support.bench import Bench
from support.fleet import no_autovacuum, write
from support.plans import Seen, plan

READY = "ix_schedd_tasks_ready"
MANY = 20_000


def listed(jobs: Scheduler, window: Window | None = None, **asked: Any) -> FoundTasks:
    with jobs.database.read() as tx:
        return list_tasks(tx, window=window, **asked)


def ids(found: FoundTasks) -> list[int]:
    return [task.id for task in found.tasks]


@pytest.mark.parametrize("least", [1, 4])
def test_a_walk_in_pieces_finds_what_one_statement_finds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """With few of the ids left, and whatever the page and the window are: page by page it misses and repeats none."""
    jobs, rng = bench.jobs, random.Random(least)
    made = [int(bench.step(str(n)).schedule()) for n in range(60)]
    for task_id in made:
        gone = made[5] < task_id < made[40] or rng.random() < 0.3
        sql = "DELETE FROM schedd_tasks" if gone else f"UPDATE schedd_tasks SET queue = '{rng.choice('abc')}'"
        bench.execute(f"{sql} WHERE id = :id", id=task_id)
    for name, value in (("_FIRST_PIECE", 2), ("_PIECE", 5), ("_MAX_PIECE", 11)):
        monkeypatch.setattr(paging, name, value)
    for queue in "abc":
        expected = ids(listed(jobs, queue=queue))
        assert expected
        for limit in (1, 3, 100):
            found, cursor, bounds = list[int](), None, 0
            for _ in range(200):
                window = Window(least)
                page = listed(jobs, window, queue=queue, limit=limit, cursor=cursor)
                assert len(page.tasks) <= limit
                assert window.looked <= least + 11  # the last piece may have more rows than the one before
                found += ids(page)
                bounds += page.bound
                cursor = page.cursor
                if cursor is None:
                    break
            assert found == expected, (queue, limit)
            assert bounds or limit == 1


def test_a_window_that_is_wide_enough_says_nothing_of_older_ones(bench: Bench) -> None:
    made = [int(bench.step(str(n)).queue("rare" if n == 0 else "usual").schedule()) for n in range(5)]
    whole = listed(bench.jobs, Window(5), queue="rare")
    assert (ids(whole), whole.cursor, whole.bound) == ([made[0]], None, False)
    part = listed(bench.jobs, Window(4), queue="rare")
    assert (ids(part), part.cursor, part.bound) == ([], made[1], True)
    assert ids(listed(bench.jobs, Window(1), queue="rare", cursor=part.cursor)) == [made[0]]
    young = listed(bench.jobs, Window(4), queue="rare", since=bench.clock.now() + 10**12)
    assert (ids(young), young.cursor, young.bound) == ([], None, False)  # none of that age is there


def test_a_walk_ends_at_the_lowest_id_whatever_that_is(bench: Bench) -> None:
    made = int(bench.step("a").schedule())
    bench.execute("UPDATE schedd_tasks SET id = 0 WHERE id = :id", id=made)
    assert listed(bench.jobs, Window(5), queue="rare") == FoundTasks([], None, False)


def test_one_window_goes_for_all_pages(bench: Bench) -> None:
    made = [int(bench.step(str(n)).schedule()) for n in range(6)]
    window = Window(4)
    first = listed(bench.jobs, window, limit=3)
    assert (ids(first), first.bound) == (made[:2:-1], False)
    second = listed(bench.jobs, window, limit=3, cursor=first.cursor)
    assert (ids(second), second.bound) == (made[2::-1], False)  # a page that needs no search is never cut
    assert listed(bench.jobs, window, limit=3, cursor=made[2]) == FoundTasks([], made[2], True)


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Many tasks of a kind that are pending or have succeeded, and under them two each of Soft, pending and ended."""
    jobs = bench.jobs
    now = jobs.database.now()
    rows = (("soft", 1, 2), ("soft", 6, 2), ("plain", 1, MANY), ("plain", 6, MANY))
    if jobs.database.dialect.name == "postgresql":
        no_autovacuum(jobs)
    for kind, state, many in rows:
        write(
            jobs,
            "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :many) INSERT INTO schedd_tasks "
            "(state, queue, lane, priority, run_at, kind, created_at, payload, claim, finished_at) SELECT :state, "
            ":queue, :lane || CASE WHEN i = 1 THEN '' ELSE :key END, 1, :now, :kind, :now, '{}', 0, CASE WHEN :state = "
            "6 THEN CAST(:now AS bigint) END FROM g",
            many=many, state=state, queue=f"of {kind}", lane=kind, key="\x1fx" if kind == "soft" else "", kind=kind,
            now=now,
        )  # fmt: skip
    return bench


@pytest.mark.parametrize("analysed", [False, True])
def test_pending_tasks_of_a_kind_or_queue_are_found_by_their_lanes(
    filled: Bench, monkeypatch: pytest.MonkeyPatch, analysed: bool
) -> None:
    """However many others are pending: no statement reads these, whatever the server knows of the table."""
    for name, value in (("_FEW", 100), ("_NEAR", 50), ("_MAX_SORTED", 1000)):
        monkeypatch.setattr(paging, name, value)
    jobs = filled.jobs
    if analysed:
        write(jobs, "ANALYZE schedd_tasks")
    pending = [TaskState.SCHEDULED]
    for asked in ({"kind": "soft"}, {"queue": "of soft"}, {"kind": ["soft", "none"], "queue": ["of soft", "x"]}):
        seen = Seen()
        with seen.watch(jobs):
            found = listed(jobs, Window(1), states=pending, **asked)
        assert ([task.kind for task in found.tasks], found.bound) == (["soft", "soft"], False), asked
        check(jobs, seen)
    assert listed(jobs, Window(1), states=pending, kind="none") == FoundTasks([], None, False)
    with jobs.database.read() as tx:
        terms = [Term("state", ("scheduled",)), Term("kind", ("soft",))]
        assert [task.kind for task in search(tx, terms).tasks] == ["soft", "soft"]


@pytest.mark.parametrize("analysed", [False, True])
def test_a_rare_kind_is_looked_for_in_pieces_of_the_primary_key(
    filled: Bench, monkeypatch: pytest.MonkeyPatch, analysed: bool
) -> None:
    for name, value in (("_FIRST_PIECE", 50), ("_PIECE", 500), ("_FEW", 100), ("_MAX_SORTED", 1_000)):
        monkeypatch.setattr(paging, name, value)
    jobs = filled.jobs
    if analysed:
        write(jobs, "ANALYZE schedd_tasks")
    for asked in ({"kind": "soft"}, {"queue": "of soft"}):
        window, seen = Window(2_000), Seen()
        with seen.watch(jobs):
            found = listed(jobs, window, **asked)
        assert (found.tasks, found.bound, window.looked) == ([], True, 2_000)
        check(jobs, seen)
    succeeded = listed(jobs, Window(2_000), kind="soft", states=[TaskState.SUCCESS])
    assert (succeeded.tasks, succeeded.bound) == ([], True)
    assert len(listed(jobs, Window(3 * MANY), kind="soft").tasks) == 4


def check(jobs: Scheduler, seen: Seen) -> None:
    """No statement reads or walks the whole table, or the whole index of what is ready."""
    assert seen.statements
    for text, bound in seen.statements.items():
        steps = plan(jobs, text, bound)
        shown = f"{text}\n" + "\n".join(steps)
        for step in steps:
            assert not step.startswith(("Seq Scan schedd_tasks", "Parallel Seq Scan")), shown
            if step.startswith(("SCAN t", "SCAN schedd_tasks")):
                assert "COVERING" in step or ("USING" in step and READY not in step), shown
