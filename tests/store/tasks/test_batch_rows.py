"""Rows of a batch, which go to the database in bulk: what is in them comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import compress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from scheduler import Context, Scheduler, task
from scheduler.model.spec import TaskSpec
from scheduler.store.tasks.attempts import INLINE
from scheduler.store.tasks.row import USUAL_GIVEN, Placed, usual_values_of, values_of
from support.databases import Database
from support.fleet import rows

# Those that the text format of COPY, arrays, JSON or SQL give a meaning to.
SPECIAL = "\t\n\r\\N.'\"{},:%$ \x0b\x7f\u2028é€😀"
TEXTS = some.text(some.sampled_from(SPECIAL), min_size=1, max_size=12)
ROWS = some.lists(
    some.tuples(TEXTS, some.none() | TEXTS, some.none() | some.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=6
)


@task
def work(ctx: Context, text: str) -> None: ...


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler.for_testing(url=database.url)
    made.register(work)
    yield made
    made.close()


def store(jobs: Scheduler, rows: list[Any], connection: Any = None) -> list[Any]:
    with jobs.batch(connection=connection) as batch:
        for text, subject, number in rows:
            builder = batch.task(work, text)
            if subject is not None:
                builder.subject(subject).message_type(subject)
            if number is not None:
                builder.sequence(number)
    return list(batch.ids)


def read(jobs: Scheduler, ids: list[Any]) -> list[Any]:
    stored = rows(jobs, "SELECT * FROM schedd_tasks WHERE id BETWEEN :a AND :b ORDER BY id", a=ids[0], b=ids[-1])
    assert [row.id for row in stored] == ids
    assert all(row.message_type == row.subject for row in stored)
    return [(json.loads(row.payload)["text"], row.subject, row.sequence) for row in stored]


@pytest.mark.parametrize("own", [False, True], ids=["ours", "the caller's connection"])
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(given_rows=[(SPECIAL, SPECIAL, -1)])  # of columns that hold one value
@example(given_rows=[(SPECIAL, SPECIAL, 2**63 - 1), ("N", None, None)])
@given(given_rows=ROWS)
def test_what_is_stored_comes_back(jobs: Scheduler, own: bool, given_rows: list[Any]) -> None:
    many = [*given_rows, *given_rows[:1] * 70]  # columns that hold one value in most rows, in all, and in none
    if own:
        with jobs.database.open().begin() as connection:
            ids = store(jobs, many, connection)
    else:
        ids = store(jobs, many)
    assert read(jobs, ids) == many
    assert ids == sorted(set(ids))


def test_batches_at_the_same_moment_draw_ids_of_their_own(jobs: Scheduler) -> None:
    """Those that others have drawn in between are left out."""

    def call(_: int) -> list[Any]:
        return store(jobs, [("a", None, None)] * 300)

    with ThreadPoolExecutor(4) as threads:
        drawn = list(threads.map(call, range(12)))
    assert len({i for ids in drawn for i in ids}) == 12 * 300
    assert all(ids == sorted(ids) for ids in drawn)


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_ids_with_gaps_are_those_that_were_drawn(jobs: Scheduler) -> None:
    """As if others had drawn each second one."""
    with jobs.database.write() as tx:
        tx.connection.exec_driver_sql("ALTER SEQUENCE schedd_tasks_id_seq INCREMENT BY 2")
    first = store(jobs, [("a", None, None)] * 4)
    assert first == list(range(first[0], first[0] + 8, 2))
    assert store(jobs, [("b", None, None)]) == [first[-1] + 2]
    assert len(read(jobs, first)) == 4


ONES = {int: 7, str: "x"}


@pytest.mark.parametrize("field", msgspec.structs.fields(TaskSpec), ids=lambda field: field.name)
def test_a_usual_row_is_the_general_one_without_what_is_null(field: Any) -> None:
    """One field of the spec is set at a time."""
    kinds = [kind for kind in ONES if str(kind.__name__) in str(field.type)]
    spec = TaskSpec("k", "{}", "k")
    if kinds:
        setattr(spec, field.name, ONES[kinds[0]])
    elif field.type is bool:
        setattr(spec, field.name, not field.default)
    general = values_of(spec, 1000, Placed())
    usual = usual_values_of(spec, 1000)
    if usual is None:
        unusual = [value is not None for value in general] != list(USUAL_GIVEN)
        assert unusual or field.name in {"unique_states", "debounce", "parent_names"}  # which decide keys and headers
    else:
        assert usual == list(compress(general, USUAL_GIVEN))
        assert [value is not None for value in general] == list(USUAL_GIVEN)


@pytest.mark.parametrize("change", [{"max_attempts": None}, {"payload": "x" * (INLINE + 1)}])
def test_what_is_missing_or_stored_elsewhere_is_not_usual(change: dict[str, Any]) -> None:
    assert usual_values_of(msgspec.structs.replace(TaskSpec("k", "{}", "k"), **change), 1000) is None


@pytest.mark.parametrize(("run_at", "delay", "due"), [(0, 0, 1000), (5000, 0, 5000), (0, 300, 1300), (1200, 300, 1300)])
def test_a_usual_row_is_due_at_the_later_time(run_at: int, delay: int, due: int) -> None:
    spec = TaskSpec("k", "{}", "k", run_at=run_at, delay=delay)
    usual = usual_values_of(spec, 1000)
    assert usual is not None
    assert due in usual
    assert usual == list(compress(values_of(spec, 1000, Placed()), USUAL_GIVEN))
