"""Commands that look answer with any one row broken, and say which it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import StoreUnavailableError, task
from scheduler.store.db.migrate import HEAD
from scheduler.store.schema import metadata
from support.bench import Bench
from support.databases import Database

from .conftest import Ctl

pytestmark = pytest.mark.both_databases

LOOKS = (
    *("list", "status", "doctor", "cron list", "dlq list --each"),
    *("show 1", "show 2", "graph 2"),
)
# What is broken, how, and whether only SQLite lets it in.
BREAKS = (
    ("UPDATE schedd_tasks SET state = 99 WHERE id = 2", "task 2: state 99 is unknown", False),
    ("UPDATE schedd_tasks SET state = -1 WHERE id = 2", "task 2: state -1 is unknown", False),
    ("UPDATE schedd_tasks SET priority = -3 WHERE id = 2", "task 2: priority -3 is unknown", False),
    ("UPDATE schedd_tasks SET created_at = 'yesterday' WHERE id = 2", "task 2: created_at is no number", True),
    ("UPDATE schedd_tasks SET finished_at = 'yesterday' WHERE id = 2", "task 2: finished_at is no number", True),
    ("UPDATE schedd_tasks SET headers = 'garbage' WHERE id = 2", "task 2: headers cannot be read", False),
    ("UPDATE schedd_tasks SET retry = 'garbage' WHERE id = 2", "task 2: retry cannot be read", False),
    ("UPDATE schedd_tasks SET state = 99 WHERE id = 1", "task 1: state 99 is unknown", False),
    (
        "UPDATE schedd_attempts SET outcome = 99 WHERE task_id = 1",
        "task 1: the outcome 99 of an attempt",
        False,
    ),
    ("UPDATE schedd_edges SET otherwise = 99 WHERE child = 2", "task 2: an edge", False),
    ("UPDATE schedd_kinds SET options = 'garbage' WHERE name = 'fails'", "kind fails: options cannot be read", False),
    ("UPDATE schedd_kinds SET schema = 'garbage' WHERE name = 'fails'", "kind fails: schema cannot be read", False),
    ("UPDATE schedd_workers SET queues = 'garbage'", "worker 1: queues cannot be read", False),
    ("UPDATE schedd_workers SET pools = 'garbage'", "worker 1: pools cannot be read", False),
    ("UPDATE schedd_schedules SET recurrence = 'garbage'", "nightly", False),
    ("UPDATE schedd_schedules SET options = 'garbage'", "schedule nightly: options cannot be read", False),
    ("UPDATE schedd_schedules SET next_at = 'soon'", "schedule nightly: next_at is no number", True),
)


@task
def fails(ctx: Any) -> None:
    raise ValueError("no")


@pytest.mark.case(85)
@pytest.mark.parametrize("chunk", range(4))
def test_every_look_answers(database: Database, live: Bench, ctl: Ctl, chunk: int) -> None:
    jobs = live.jobs
    jobs.register(fails)
    first = jobs.task(fails).schedule()
    second = jobs.task(fails).depend_on(first, otherwise="wait").headers({"a": "b"}).schedule()
    jobs.task(fails).depend_on(second).schedule()
    jobs.task(fails).every(3600).key("nightly").schedule()
    live.drain()
    problems = []
    for sql, message, sqlite_only in BREAKS[chunk::4]:
        if sqlite_only and not database.is_sqlite:
            continue
        table = sql.split()[1]
        live.execute(f"CREATE TABLE kept AS SELECT * FROM {table}")
        live.execute(sql)
        for look in LOOKS if database.is_sqlite else LOOKS[:3]:  # what a row says is read in the same way
            result = ctl(*look.split())
            of_the_row = look == "doctor" or look.endswith(f" {message[5:6]}")  # which may fail, and says why
            if "internal error" in result.output or (result.exit_code and not of_the_row):
                problems.append((sql, look, result.output[-300:]))
            named = message.startswith("task 2") and (look == "list" or (look == "status" and "99" in message))
            if named and "is unknown" in message:
                problems += [] if message in result.output else [(sql, f"{look} does not name it", result.output)]
            if look == "doctor" and (message not in result.stdout or result.exit_code != 1):
                problems.append((sql, "doctor does not name it", result.output[-1500:]))
        for back in (f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM kept", "DROP TABLE kept"):
            live.execute(back)
    for problem in problems:
        print(*problem, sep="\n   ")
    assert not problems


@contextmanager
def without(table: str, live: Bench) -> Iterator[None]:
    """The database lacks this table. It is put back after that, since other tests have this database, too."""
    live.jobs.database.dispose()
    engine = sa.create_engine(live.database.url)
    try:
        with engine.begin() as connection:
            connection.execute(sa.text(f"ALTER TABLE {table} RENAME TO put_aside"))
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text(f"ALTER TABLE put_aside RENAME TO {table}"))
        engine.dispose()


@pytest.mark.case(85)
def test_a_missing_table_is_named(live: Bench, ctl: Ctl) -> None:
    with without("schedd_edges", live):
        result = ctl("db", "check")
        assert result.exit_code == 1
        assert "the table schedd_edges is missing" in result.stdout
        assert "restore a backup" in result.stderr
        for look in ("list", "status"):
            assert f"the database lacks schedd_edges, though its schema is {HEAD}" in ctl.fails(5, look)
        with pytest.raises(StoreUnavailableError, match=r"lacks schedd_edges.*restore a backup"):
            live.jobs.database.open()


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)  # which refuses what follows a failed statement
@pytest.mark.case(85)
def test_doctor_answers_whichever_table_is_missing(live: Bench, ctl: Ctl) -> None:
    for table in sorted(metadata.tables):
        with without(table, live):
            found = {row["check"]: (row["level"], row["text"]) for row in ctl.json("doctor", status=1)}
        level, text = found["schema"]
        assert level == "problem"
        assert f"the database lacks {table}, though" in text
        assert "restore a backup" in text
        assert {"writes", "clock"} <= found.keys()
        if "checks" in found:
            level, text = found["checks"]
            assert level == "problem"
            assert f"since {table} is missing: " in text
            assert not found.keys() & set(text.split("missing: ")[1].split(", ")), table
    assert "problem" not in {row["level"] for row in ctl.json("doctor")}


@pytest.mark.case(85)
def test_doctor_names_what_it_could_not_check_without_a_table(live: Bench, ctl: Ctl) -> None:
    with without("schedd_edges", live):
        found = {row["check"]: (row["level"], row["text"]) for row in ctl.json("doctor", status=1)}
        repaired = ctl("doctor", "--repair")
    unchecked = found["checks"][1].split("missing: ")[1].split(", ")
    assert unchecked == ["rows", "unmet counts", "edges", "parents", "retries"]
    assert found["keys"] == ("ok", "none is held twice")
    assert repaired.exit_code == 1
    assert "nothing is repaired while a table is missing" in repaired.stderr


def test_status_tells_of_what_a_clock_ahead_left_behind(live: Bench, ctl: Ctl) -> None:
    made = live.step("a").after(30).schedule()
    live.step("b").every(3600).key("nightly").schedule()
    live.step("c").after(10 * 366 * 86400).schedule()
    assert ctl.json("status")["stuck"] == []
    ahead = 10 * 366 * 86400 * 1_000_000
    live.execute(
        f"UPDATE schedd_tasks SET created_at = created_at + {ahead}, run_at = run_at + {ahead} WHERE id = {made}"
    )
    live.execute(f"UPDATE schedd_schedules SET next_at = next_at + {ahead}")
    schedule, due = (one for one in ctl.json("status")["stuck"] if one["problem"] == "ahead")
    assert "1 schedule far from the next slot: nightly" in schedule["text"]
    assert due["tasks"] == [made]
    assert "`schedctl cancel` and `retry`" in due["text"]
    why = ctl.json("show", made)["why"]
    assert f"; a clock was ahead when that was set: `schedctl cancel {made}` and `schedctl retry {made}`" in why


@pytest.mark.parametrize("column", ["created_at", "claimed_at"])
def test_doctor_tells_of_tasks_that_a_clock_ahead_left_behind(live: Bench, ctl: Ctl, column: str) -> None:
    def finding() -> tuple[str, str, list[int]]:
        (found,) = (row for row in ctl.json("doctor") if row["check"] == "due times")
        return found["level"], found["text"], found["tasks"]

    made = live.step("a").after(30).schedule()
    live.step("far, and meant").after(10 * 366 * 86400).schedule()
    assert finding()[0] == "ok"
    ahead = 10 * 366 * 86400 * 1_000_000
    live.execute(
        f"UPDATE schedd_tasks SET {column} = created_at + {ahead}, run_at = run_at + {ahead} WHERE id = {made}"
    )
    level, text, tasks = finding()
    assert (level, tasks) == ("note", [made])
    assert f"1 task due far ahead, as a clock was: `schedctl cancel` and `retry` run each now: {made}" in text
