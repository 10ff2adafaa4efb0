"""The statements of docs/guides/from-sql.md schedule tasks as schedd does."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from scheduler import Context, RetryPolicy, Scheduler, Task
from scheduler.store.db.notifier import CHANNEL
from scheduler.testing import drain
from support.databases import Database

pytestmark = pytest.mark.both_databases

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "from-sql.md").read_text(encoding="utf-8")
STATEMENTS = dict(re.findall(r"<!-- sql: (\w+) -->\n```sql\n(.*?)```", PAGE, re.DOTALL))


class SendInvoice(Task, queue="mail", priority="high", timeout=30, key_retention=90, result_ttl=3600):
    order: int

    def run(self, ctx: Context) -> int:
        return self.order


class Retried(SendInvoice, retry=RetryPolicy(max_attempts=4), dead_letter=False, schema_version=3):
    pass


class For(SendInvoice, concurrency_key="{order}"):
    pass


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)  # on the system's clock, as the statements are
    for kind in (SendInvoice, Retried, For):
        made.register(kind)
    made._engine = made._make_engine(inline=True)
    drain(made)
    yield made
    made.close()


def execute(database: Database, **given: str) -> list[int]:
    """Run the statement as a program without schedd would, with other values in place of those on the page."""
    statement = STATEMENTS["sqlite" if database.is_sqlite else "postgresql"]
    for name, value in given.items():
        statement, count = re.subn(
            rf"('[^']*'|NULL(::text)?|interval '0 s'|0) AS {name}\b", f"{value} AS {name}", statement
        )
        assert count == 1, name
    if database.is_sqlite:
        with sqlite3.connect(str(database.path)) as lite:
            rows: list[Any] = lite.execute(statement).fetchall()
        lite.close()
    else:
        with psycopg.connect(sa.make_url(database.url).set(drivername="postgresql").render_as_string(False)) as server:
            rows = server.execute(statement).fetchall()
    return [row[0] for row in rows]


def stored(jobs: Scheduler, task_id: int) -> dict[str, Any]:
    with jobs.database.read() as tx:
        row = tx.connection.execute(sa.text("SELECT * FROM schedd_tasks WHERE id = :id"), {"id": task_id}).one()
    return {name: value for name, value in row._mapping.items() if name not in ("id", "created_at", "run_at")}


@pytest.mark.parametrize("kind", [SendInvoice, Retried])
def test_it_is_the_row_that_schedd_stores(jobs: Scheduler, database: Database, kind: type[SendInvoice]) -> None:
    (theirs,) = execute(database, kind=f"'{kind.__name__}'", payload="'{\"order\":42}'", key="'k1'")
    ours = jobs.task(kind(42)).key("k2").schedule()
    one, other = stored(jobs, theirs), stored(jobs, ours)
    for name in ("key", "held_key"):
        assert (one.pop(name), other.pop(name)) == ("k1", "k2")
    assert one == other
    assert abs(jobs.get_task(theirs).created_at - jobs.get_task(ours).created_at).total_seconds() < 60
    drain(jobs)
    assert jobs.result(theirs, 0) == 42


def test_as_on_the_page(jobs: Scheduler, database: Database) -> None:
    ids = execute(database) + execute(database)
    drain(jobs)
    assert [jobs.result(i, 0) for i in ids] == [42, 42], "without a key each is another task"


def test_a_key_is_held(jobs: Scheduler, database: Database) -> None:
    first = execute(database, key="'order-42'")
    assert len(first) == 1
    assert execute(database, key="'order-42'") == []
    assert jobs.task(SendInvoice(42)).key("order-42").schedule() == first[0]
    drain(jobs)
    assert execute(database, key="'order-42'") == [], "its retention has not passed"


def test_later(jobs: Scheduler, database: Database) -> None:
    later = {"later_seconds": "3600"} if database.is_sqlite else {"later": "interval '1 hour'"}
    (made,) = execute(database, **later)
    task = jobs.get_task(made)
    assert task.run_at is not None
    assert 3599 <= (task.run_at - task.created_at).total_seconds() <= 3601


@pytest.mark.parametrize("kind", ["For", "Unknown"])
def test_what_sql_cannot_make_it_does_not_store(jobs: Scheduler, database: Database, kind: str) -> None:
    """It says so: nothing that is stored without a word is missed."""
    with pytest.raises((sqlite3.IntegrityError, psycopg.errors.InvalidTextRepresentation)) as raised:
        execute(database, kind=f"'{kind}'")
    assert database.is_sqlite or kind in str(raised.value)
    assert jobs.list_tasks() == []


def test_a_payload_that_does_not_fit_ends_dead(jobs: Scheduler, database: Database) -> None:
    (made,) = execute(database, payload="'{\"ordr\": 1}'")
    drain(jobs)
    assert jobs.get_task(made).state == "dead"
    assert "payload of SendInvoice does not fit" in str(jobs.get_last_error(made))


def test_the_page_names_the_channel() -> None:
    assert f"pg_notify('{CHANNEL}', '')" in STATEMENTS["postgresql"]
