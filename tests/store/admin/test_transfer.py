"""A store goes to the other database and back, or through a file, and nothing of it is lost or changed."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psycopg
import pytest

from scheduler import Scheduler, SchedulerError
from scheduler.ports import SystemClock
from scheduler.store.admin import export, transfer
from scheduler.store.admin.transfer import TableSummary
from scheduler.store.db import migrate
from scheduler.store.db.database import Database as Store
from scheduler.testing import drain
from support.bench import Bench, Soft, Step
from support.databases import Database, PostgresDatabases

Fresh = Callable[[str], Store]


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fresh]:
    """Makes a new, migrated database of a dialect."""
    made: list[Store] = []

    def make(dialect: str) -> Store:
        if dialect == "sqlite":
            url = f"sqlite:///{tmp_path / f'other{len(made)}.db'}"
            migrate.upgrade(url)
        else:
            server: PostgresDatabases = request.getfixturevalue("postgres_databases")
            name = server.create()
            drops.append(lambda: server.drop(name))
            url = server.url(name)
            migrate.upgrade(url)
        made.append(Store(url, SystemClock()))
        return made[-1]

    drops: list[Callable[[], None]] = []
    yield make
    for one in made:
        one.dispose()
    for drop in drops:
        drop()


@contextmanager
def opened(database: Database) -> Iterator[Store]:
    store = Store(database.url, SystemClock())
    yield store
    store.dispose()


def filled(bench: Bench) -> dict[str, int]:
    """Tasks in every state that outlives a worker, with keys, edges, schedules, values, events, steps, audit."""
    bench.script.failing |= {"dead", "soft"}
    bench.script.bodies["waits"] = lambda ctx: ctx.wait_event("go", timeout=3600)
    ids = {name: int(bench.step(name).schedule()) for name in ("ends", "dead", "waits")}
    ids["soft"] = int(bench.jobs.task(Soft("soft")).schedule())
    ids["long"] = int(bench.jobs.task(Step("ä€😀 " * 900)).key("k").headers({"x": "y"}).schedule())
    ids["skipped"] = int(bench.step("skipped", ids["ends"], when="failure", otherwise="skip").schedule())
    bench.drain()
    ids["parent"] = int(bench.step("parent").after(600).key("held").schedule())
    ids["child"] = int(bench.step("child", ids["parent"], ids["dead"], when="finished").schedule())
    ids["away"] = int(bench.step("away").after(60).schedule())
    bench.jobs.cancel_task(ids["away"])
    bench.jobs.task(Step("cron")).key("nightly").daily_at(2, 30).schedule()
    bench.jobs.emit_event("known", {"n": 1})
    bench.jobs.pause(queue="mail", reason="upkeep")
    for worker in bench.workers:
        worker.close()
    return ids


def summary(store: Store) -> list[TableSummary]:
    with store.read() as tx:
        return [transfer.summarize(tx, table) for table in transfer.TABLES if table.name != "schedd_audit"]


def other(database: Database) -> str:
    return "postgresql" if database.is_sqlite else "sqlite"


def test_to_the_other_database_and_back_it_is_the_same(bench: Bench, database: Database, fresh: Fresh) -> None:
    filled(bench)
    there, back = fresh(other(database)), fresh(database.dialect)
    with opened(database) as source:
        before = summary(source)
        copied = transfer.copy(source, there)
        assert {one.table: one.rows for one in copied}["schedd_tasks"] == 9
    assert summary(there) == before
    transfer.copy(there, back)
    assert summary(back) == before


def test_what_waits_runs_there(bench: Bench, database: Database, fresh: Fresh) -> None:
    """With its edges, keys and schedules; the ids go on where they were, also over those that were removed."""
    ids = filled(bench)
    removed = max(ids.values()) + 5
    number_on = (
        "UPDATE sqlite_sequence SET seq = :id WHERE name = 'schedd_tasks'"
        if database.is_sqlite
        else "SELECT setval(pg_get_serial_sequence('schedd_tasks', 'id'), :id)"
    )
    bench.execute(number_on, id=removed)
    there = fresh(other(database))
    with opened(database) as source:
        transfer.copy(source, there)
    bench.clock.advance(700)
    moved = Scheduler.for_testing(url=there.absolute_url(), clock=bench.clock, state=bench.script)
    moved.register(Step)
    moved.register(Soft)
    ran = len(bench.script.ran)
    assert int(moved.task(Step("again")).key("held").schedule()) == ids["parent"], "the key is held there"
    drain(moved)
    assert bench.script.ran[ran:] == ["parent", "child"]
    assert int(moved.task(Step("new")).schedule()) == removed + 1
    assert moved.result(ids["ends"]) == "ends"
    moved.close()


def test_while_workers_live_it_is_refused(bench: Bench, database: Database, fresh: Fresh) -> None:
    bench.step("a").schedule()
    bench.drain()
    there = fresh(other(database))
    with opened(database) as source:
        source.clock = bench.clock
        with pytest.raises(SchedulerError, match=r"1 worker is live"):
            transfer.copy(source, there)
    assert not any(one.rows for one in summary(there))


def test_what_a_dead_worker_holds_is_refused(bench: Bench, database: Database, fresh: Fresh) -> None:
    task_id = int(bench.step("a").schedule())
    bench.jobs.close()
    bench.execute("UPDATE schedd_tasks SET state = 4, worker = 1 WHERE id = :id", id=task_id)
    with opened(database) as source, pytest.raises(SchedulerError, match="1 task is held by a worker that died"):
        transfer.copy(source, fresh(other(database)))


def test_a_store_with_rows_is_no_target(bench: Bench, database: Database, fresh: Fresh) -> None:
    filled(bench)
    there = fresh(other(database))
    with opened(database) as source:
        transfer.copy(source, there)
        once = summary(there)
        with pytest.raises(SchedulerError, match=r"not empty \(rows in schedd_\w+"):
            transfer.copy(source, there)
        with pytest.raises(SchedulerError, match="the store itself"):
            transfer.copy(source, source)
    assert summary(there) == once


def test_a_copy_that_fails_leaves_nothing(
    bench: Bench, database: Database, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the last table of all differs when it is read back."""
    filled(bench)
    there = fresh(other(database))
    real = transfer.summarize
    monkeypatch.setattr(
        transfer,
        "summarize",
        lambda tx, table: real(tx, table)._replace(rows=7) if table is transfer.TABLES[-1] else real(tx, table),
    )
    with opened(database) as source, pytest.raises(SchedulerError, match="differs after it was copied"):
        transfer.copy(source, there)
    monkeypatch.undo()
    assert not any(one.rows for one in summary(there))


def exported(store: Store) -> list[bytes]:
    lines: list[bytes] = []
    export.export(store, lines.append)
    return lines


def test_through_a_file_it_is_the_same(bench: Bench, database: Database, fresh: Fresh) -> None:
    filled(bench)
    with opened(database) as source:
        before, lines = summary(source), exported(source)
    there = fresh(other(database))
    export.load(there, io.BytesIO(b"\n".join(lines) + b"\n"))
    assert summary(there) == before
    assert all(msgspec.json.decode(line) for line in lines)


def test_a_file_that_was_cut_or_changed_is_refused(bench: Bench, database: Database, fresh: Fresh) -> None:
    filled(bench)
    with opened(database) as source:
        lines = exported(source)
    first, second, *others = lines
    colour = b'{"table": "schedd_tasks", "row": {"colour": 1}}'
    changed: list[tuple[list[bytes], str]] = [
        (lines[:-1], "ends before its last line"),
        ([first], "ends before its last line"),
        (lines[1:], "line 1 is not the first line"),
        ([first, *others], "differs from what its last line says"),
        ([first, second, second, *others], "the database does not take a row"),
        ([*lines, second], "follows the last line"),
        ([first, b"{", second, *others], "line 2 is no line of an export"),
        ([first, colour, second, *others], "line 2"),
        ([first.replace(b'"schema":"', b'"schema":"9'), second, *others], "has schema 9"),
    ]
    there = fresh(other(database))
    for number, (wrong, message) in enumerate(changed):
        with pytest.raises(SchedulerError) as raised:
            export.load(there, wrong)
        assert message in str(raised.value), number
        assert not any(one.rows for one in summary(there)), number


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_copy_does_not_wait_for_its_own_lock(database: Database) -> None:
    """Others do; a copy that takes long has nothing in its way."""
    here, name = threading.get_ident(), "is locked by session"
    with opened(database) as source, opened(database) as asked:
        with transfer.reading(source):
            assert source.waits_for(here, 60) is None
            assert name in str(asked.locked_by())
        with psycopg.connect(database.url.replace("+psycopg", "")) as other, source.read():
            other.execute("LOCK TABLE schedd_tasks IN ACCESS EXCLUSIVE MODE")
            assert name in str(source.waits_for(here, 60))


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_what_a_thread_waits_for_can_be_asked_when_its_connection_has_just_been_closed(database: Database) -> None:
    """By another thread, such as the watchdog of the leases, which is to go on."""
    with opened(database) as store, store.alone() as connection:
        connection.connection.dbapi_connection.close()
        assert store.waits_for(threading.get_ident(), 60) is None
