"""What a look costs beside many kept tasks: no more than its bound, however many there are; and a bound that cuts says
so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from scheduler import Context, Scheduler, task
from scheduler.model.defaults import RETENTION
from scheduler.model.state import TaskState
from scheduler.model.task_filter import Term
from scheduler.ports import SECOND
from scheduler.store import inbox_held
from scheduler.store.admin import would_remove
from scheduler.store.admin.retention import Chosen
from scheduler.store.db.tx import Tx
from scheduler.store.read import alert_facts, dead_causes, figures, message_counts, search
from scheduler.store.read.status import status
from support.databases import Database
from support.fleet import write
from support.plans import Work, work_of

BOUND = 60
EXPIRED = {**RETENTION, "success": 1.0, "failed": 1.0, "results": 1.0}


@task
def ping(ctx: Context) -> None: ...


def keep(jobs: Scheduler, number: int) -> None:
    """So many more tasks that ended a day ago, half of them dead, each with an error and a payload of its own."""
    numbers = (
        "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < :number)"
        if jobs.database.dialect.name == "sqlite"
        else "WITH g AS (SELECT generate_series(1, CAST(:number AS bigint)) AS i)"
    )
    write(
        jobs,
        f"{numbers} INSERT INTO schedd_tasks (kind, state, queue, lane, priority, run_at, unmet, created_at, "
        "finished_at, payload, attempt, claim, error, error_class, fingerprint) SELECT 'ping', 6 + 2 * (i % 2), "
        "'default', 'ping', 1, :then, 0, :then, :then + i, '{\"n\": ' || i || '.5}', 1, 1, "
        "CASE WHEN i % 2 = 1 THEN 'no answer' END, CASE WHEN i % 2 = 1 THEN 'OSError' END, "
        "CASE WHEN i % 2 = 1 THEN 'f' || (i % 7) END FROM g",
        number=number,
        then=jobs.database.now() - 86_400 * SECOND,
    )
    write(
        jobs,
        f"{numbers} INSERT INTO schedd_inbox (source, message_key, message_id, first_at, last_at, verdict, expires_at, "
        "receipt, held) SELECT 'orders', 'k' || :already || '-' || i, 'm', i, i, i % 4, i, "
        "CASE WHEN i % 4 = 0 THEN 'r' END, CASE WHEN i % 4 = 3 THEN '{}' END FROM g",
        number=number,
        already=number,
    )
    write(jobs, "ANALYZE")


@pytest.fixture
def jobs(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(would_remove, "LOOKED", BOUND)
    monkeypatch.setattr(would_remove, "_WINDOW", 4 * BOUND)
    monkeypatch.setattr(search, "WINDOW", 4 * BOUND)
    monkeypatch.setattr(search, "_COMPARED", BOUND)
    monkeypatch.setattr(search, "_CHUNK", BOUND // 4)
    monkeypatch.setattr(dead_causes, "WINDOW", BOUND)
    monkeypatch.setattr(alert_facts, "MAX_DEAD", BOUND)
    monkeypatch.setattr(figures, "MAX_COUNTED", BOUND)
    monkeypatch.setattr(figures, "MAX_DEAD", BOUND)
    monkeypatch.setattr(message_counts, "MOST", BOUND)
    monkeypatch.setattr(inbox_held, "MOST_COUNTED", BOUND)
    made = Scheduler.for_testing(url=database.url)
    made.register(ping)
    yield made
    made.close()


LOOKS: dict[str, Callable[[Tx], object]] = {
    "gc --dry-run": lambda tx: would_remove.would_remove(tx, EXPIRED),
    "gc --dry-run, nothing expired": lambda tx: would_remove.would_remove(tx, {**RETENTION, "success": 1e6}),
    "gc --dry-run --older-than": lambda tx: would_remove.would_clean(
        tx, Chosen(frozenset({TaskState.SUCCESS, TaskState.DEAD}), SECOND)
    ),
    "gc --dry-run --older-than --kind": lambda tx: would_remove.would_clean(
        tx, Chosen(frozenset({TaskState.SUCCESS, TaskState.DEAD}), SECOND, kind="nosuch")
    ),
    "search, a kind without a task": lambda tx: search.search(tx, [Term("kind", ("nosuch",))]),
    "search, an error": lambda tx: search.search(tx, [Term("error", ("nosuch",))]),
    "search, a number in payloads": lambda tx: search.search(tx, [Term("payload", ("77",), path="n")]),
    "search, what each payload has": lambda tx: search.search(tx, [Term("payload", ("5",), path="n")]),
    "search, a fraction in payloads": lambda tx: search.search(tx, [Term("payload", ("77.25",), path="n")]),
    "search, not in payloads": lambda tx: search.search(tx, [Term("payload", ("*",), True, "n")]),
    "causes of dead letters": lambda tx: dead_causes.causes(tx, kept=0, within=SECOND),
    "status": lambda tx: status(tx, BOUND),
    "alerts' dead letters": alert_facts.dead_letters,
    "dead letters for Prometheus": figures.dead_letters,
    "messages of a source": lambda tx: message_counts.of_source(tx, "orders"),
    "messages of a source without one": lambda tx: message_counts.of_source(tx, "none"),
    "the last dead message of a source": lambda tx: message_counts.last_dead(tx, "none"),
    "messages of a sink": lambda tx: message_counts.of_sink(tx, "sinks.shop"),
    "the last error of a sink": lambda tx: message_counts.last_error(tx, "sinks.shop"),
}


def test_no_look_costs_more_beside_more_tasks(jobs: Scheduler) -> None:
    works: list[dict[str, Work]] = []
    for more in (12_000, 24_000):
        keep(jobs, more)
        works.append({})
        for name, look in LOOKS.items():
            with work_of(jobs) as works[-1][name], jobs.database.read() as tx:
                look(tx)
    few, many = works
    costly = {
        name: (few[name].done, many[name].done, [f"{n} {text[:90]}" for text, n in many[name].by.most_common(3)])
        for name in LOOKS
        if many[name].done >= 1.5 * few[name].done + 150
    }
    assert costly == {}


def test_a_dry_run_says_that_there_is_more(jobs: Scheduler) -> None:
    keep(jobs, 5_000)
    dead = Chosen(frozenset({TaskState.DEAD}), SECOND)
    with jobs.database.read() as tx:
        assert would_remove.would_remove(tx, EXPIRED) == would_remove.Removed(tasks=2 * BOUND, more=True)
        assert would_remove.would_remove(tx, EXPIRED, every=True) == would_remove.Removed(tasks=5_000)
        assert would_remove.would_clean(tx, dead) == would_remove.Removed(tasks=BOUND, more=True)
        assert would_remove.would_clean(tx, dead, every=True) == would_remove.Removed(tasks=2_500)


def test_messages_are_counted_up_to_a_bound_that_is_said(jobs: Scheduler) -> None:
    keep(jobs, 40)
    with jobs.database.read() as tx:
        assert message_counts.of_source(tx, "orders") == (10, 10, 3, 10, 40, False)
        assert message_counts.last_dead(tx, "orders") == (None, 38)
    keep(jobs, 400)
    with jobs.database.read() as tx:
        found = message_counts.of_source(tx, "orders")
        assert found == (BOUND, BOUND, found.held_since, BOUND // 1, 400, True)
        assert message_counts.of_source(tx, "none") == (0, 0, None, 0, None, False)
        assert message_counts.of_sink(tx, "sinks.shop") == (0, 0, 0, True), "60 dead letters of others were looked at"


def test_a_search_that_stops_at_its_bound_says_so_and_goes_on(jobs: Scheduler) -> None:
    keep(jobs, 4 * BOUND)
    wanted, found, pages = [Term("payload", ("7.5",), path="n")], list[int](), 0
    cursor: int | None = None
    with jobs.database.read() as tx:
        while pages == 0 or cursor is not None:
            page = search.search_ids(tx, wanted, limit=10, cursor=cursor)
            found += page.ids
            cursor, pages = page.cursor, pages + 1
            assert page.bound or cursor is None
    assert len(found) == 1
    assert pages >= 4


@pytest.mark.parametrize("text", ["70", "70.0", "7e1", "7.0E+1", "700e-1", "0.7e2", "70.00", '"70"'])
def test_a_number_is_found_however_it_is_spelled(jobs: Scheduler, text: str) -> None:
    keep(jobs, 1)
    write(jobs, "UPDATE schedd_tasks SET payload = :payload", payload=f'{{"n": {text}}}')
    with jobs.database.read() as tx:
        assert len(search.search_ids(tx, [Term("payload", ("70",), path="n")], limit=5).ids) == 1
        assert search.search_ids(tx, [Term("payload", ("71",), path="n")], limit=5).ids == []
        spelled = [] if text == '"70"' else [Term("payload", ("70.0",), path="n")]
        assert all(search.search_ids(tx, [one], limit=5).ids for one in spelled)
