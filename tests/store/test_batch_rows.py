"""Rows of a batch, which go to the database in bulk: what is in them comes back as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as some

from scheduler import Context, Scheduler, task
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
    with jobs.database.write() as connection:
        connection.exec_driver_sql("ALTER SEQUENCE schedd_tasks_id_seq INCREMENT BY 2")
    first = store(jobs, [("a", None, None)] * 4)
    assert first == list(range(first[0], first[0] + 8, 2))
    assert store(jobs, [("b", None, None)]) == [first[-1] + 2]
    assert len(read(jobs, first)) == 4
