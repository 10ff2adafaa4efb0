"""From one schema to the next: under load, beside long transactions, interrupted, and with the old program going on."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, StoreUnavailableError, task
from scheduler.model.actor import Actor, acting
from scheduler.ports import SystemClock
from scheduler.store import schedule_sets, schedules
from scheduler.store.db import migrate
from scheduler.store.db.database import Database as Store
from scheduler.store.read import kinds as read_kinds
from scheduler.store.read import workers as read_workers
from scheduler.testing import FakeClock, drain
from support.databases import Database
from support.fleet import until
from support.next_program import NEXT, become, write_scripts

on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
INDEX = "ix_schedd_tasks_colour"


@task
def ping(ctx: Context) -> str:
    return "pong"


@pytest.fixture
def old(empty_database: Database) -> Database:
    """A database of this program's schema, that a test may upgrade."""
    migrate.upgrade(empty_database.url)
    return empty_database


@pytest.fixture
def next_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Call it to be the next program from there on; monkeypatch makes this one of it again."""

    def be(fail: str = "pass") -> None:
        monkeypatch.setattr(migrate, "HEAD", migrate.HEAD)
        monkeypatch.setattr(migrate, "scripts", migrate.scripts)
        become(write_scripts(tmp_path, fail))

    return be


def revision(database: Database) -> str | None:
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        found = migrate.current(connection)
    engine.dispose()
    return found


def tables(database: Database) -> set[str]:
    engine = sa.create_engine(database.url)
    found = set(sa.inspect(engine).get_table_names())
    engine.dispose()
    return found


@pytest.mark.case(9)
def test_the_old_program_works_on_the_next_schema(
    old: Database, next_program: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    next_program()
    migrate.upgrade(old.url)
    assert revision(old) == NEXT
    monkeypatch.undo()
    jobs = Scheduler.for_testing(url=old.url)
    jobs.register(ping)
    first = jobs.task(ping).schedule()
    second = jobs.task(ping).depend_on([first]).schedule()
    drain(jobs)
    assert jobs.result(second, timeout=0) == "pong"
    jobs.close()
    migrate.upgrade(old.url)  # nothing to do for this one
    assert revision(old) == NEXT


@pytest.mark.case(9, 42)
def test_an_upgrade_is_recorded(old: Database, next_program: Callable[..., None]) -> None:
    def entries() -> list[tuple[str | None, ...]]:
        jobs = Scheduler.for_testing(url=old.url)
        found = [(e.action, e.actor, e.via, e.reason, e.before, e.after) for e in jobs.audit()]
        jobs.database.dispose()
        return found

    before = revision(old)
    assert entries() == []  # no entry for a database that is new
    next_program()
    with acting(Actor("alice", "cli", "release 2")):
        migrate.upgrade(old.url)
        migrate.upgrade(old.url)  # there is nothing left to do
    assert entries() == [("db upgrade", "alice", "cli", "release 2", before, NEXT)]


def test_what_the_old_program_has_prepared_goes_on(old: Database) -> None:
    """The next version has added a column to each table; PostgreSQL prepares what a connection has said five times."""
    clock = FakeClock()
    jobs = Scheduler.for_testing(url=old.url, clock=clock)
    jobs.register(ping)
    jobs.task(ping).every(60).key("often").schedule()
    drain(jobs)
    with jobs.database.connect() as kept:

        def look() -> int:
            with jobs.database.write(kept) as tx:
                clock.advance(60)
                schedules.pause(tx.at(clock.now()), "often", False)
                schedule_sets.trigger(tx.at(clock.now()), "often")
                assert read_kinds.get_kind(tx, "ping") is not None
                assert read_workers.workers(tx.at(clock.now()), every=True)
                return len(schedules.tick(tx.at(clock.now()), 0))

        for _ in range(8):
            assert look() == 1
        engine = sa.create_engine(old.url)
        with engine.begin() as connection:
            for table in (name for name in tables(old) if name.startswith("schedd_")):
                connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN colour text DEFAULT 'grey'")
        engine.dispose()
        assert look() == 1
    drain(jobs)
    jobs.close()


def test_the_schema_after_the_next_is_refused(old: Database) -> None:
    engine = sa.create_engine(old.url)
    with engine.begin() as connection:
        connection.execute(
            sa.text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = :v"), {"v": f"{int(NEXT) + 1:04}"}
        )
    engine.dispose()
    with pytest.raises(StoreUnavailableError, match="newer than this program's"):
        Store(old.url, SystemClock()).open()


def test_a_migration_that_fails_half_way_leaves_nothing_behind(
    old: Database, next_program: Callable[..., None]
) -> None:
    next_program(fail='raise ZeroDivisionError("half way")')
    with pytest.raises(ZeroDivisionError):
        migrate.upgrade(old.url)
    assert revision(old) != NEXT
    assert "schedd_colours" not in tables(old)


@on_postgres
def test_what_an_interrupted_upgrade_left_is_made_anew(old: Database, next_program: Callable[..., None]) -> None:
    """An index that was being made when the program died is there, invalid and unused."""
    next_program()
    engine = sa.create_engine(old.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE INDEX {INDEX} ON schedd_tasks (id)")
        connection.exec_driver_sql(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{INDEX}'::regclass")
    migrate.upgrade(old.url)
    with engine.connect() as connection:
        (row,) = connection.exec_driver_sql(
            f"SELECT indisvalid, pg_get_indexdef(indexrelid) FROM pg_index WHERE indexrelid = '{INDEX}'::regclass"
        ).fetchall()
    engine.dispose()
    assert row[0] is True
    assert "(colour)" in row[1]


_AFTER = """
from alembic import op

revision, down_revision = "{after}", "{next}"


def upgrade() -> None:
    op.execute("CREATE TABLE schedd_told AS SELECT current_setting('lock_timeout') AS lock_timeout")
"""


@on_postgres
def test_the_migration_after_an_index_waits_no_longer_for_a_table(
    old: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that waits for a table lock holds up all later ones. Only the making of an index does not."""
    after = f"{int(NEXT) + 1:04}"
    scripts = write_scripts(tmp_path)
    (Path(scripts) / "versions" / f"{after}_after.py").write_text(_AFTER.format(after=after, next=NEXT))
    monkeypatch.setattr(migrate, "HEAD", after)
    monkeypatch.setattr(migrate, "scripts", lambda: scripts)
    migrate.upgrade(old.url)
    engine = sa.create_engine(old.url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT lock_timeout FROM schedd_told").scalar() == "500ms"
    engine.dispose()


@on_postgres
def test_another_upgrade_that_takes_long_is_logged(
    old: Database, next_program: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(migrate, "ALONE_PAUSE", 0.001)
    next_program()
    engine = sa.create_engine(old.url)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({migrate._PG_LOCK})")
        upgrade = threading.Thread(target=migrate.upgrade, args=(old.url,))
        upgrade.start()
        until(lambda: "another program upgrades the database" in caplog.text)
    upgrade.join(20)
    engine.dispose()
    assert caplog.text.count("another program upgrades the database") == 1
    assert revision(old) == NEXT


@on_postgres
def test_a_dry_run_shows_what_is_done_beside_the_others(old: Database, next_program: Callable[..., None]) -> None:
    next_program()
    engine = sa.create_engine(old.url)
    printed = migrate.upgrade_sql(engine)
    engine.dispose()
    assert "ADD COLUMN colour" in printed
    assert f"CREATE INDEX CONCURRENTLY {INDEX}" in printed
    assert revision(old) != NEXT


@on_postgres
def test_a_long_transaction_delays_the_upgrade_and_no_caller(
    old: Database, next_program: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_PAUSE", 0.2)
    jobs = Scheduler(old.url)
    jobs.register(ping)
    jobs.task(ping).schedule()
    next_program()
    holder = sa.create_engine(old.url)
    with holder.connect() as reader:
        reader.exec_driver_sql("SELECT count(*) FROM schedd_tasks")  # and does not end
        upgrade = threading.Thread(target=migrate.upgrade, args=(old.url,))
        upgrade.start()
        longest, end = 0.0, time.monotonic() + 1.5
        while time.monotonic() < end:
            before = time.monotonic()
            jobs.task(ping).schedule()
            longest = max(longest, time.monotonic() - before)
        assert upgrade.is_alive(), "it did not wait for the reader"
        reader.rollback()
    upgrade.join(20)
    assert not upgrade.is_alive()
    assert revision(old) == NEXT
    assert longest < migrate.LOCK_TIMEOUT + 10.0, "a caller waited for longer than the upgrade did"
    jobs.close()
    holder.dispose()


@on_postgres
@pytest.mark.alone
@pytest.mark.parametrize(
    "many", [20_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.faults])], ids=["short", "long"]
)
def test_an_upgrade_of_a_full_table_delays_no_caller(
    old: Database, next_program: Callable[..., None], many: int, tell: Callable[[str], None]
) -> None:
    """The old program schedules and runs meanwhile."""
    engine = sa.create_engine(old.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, finished_at) "
            f"SELECT 6, 'default', 'old', 1, 0, 'old', n, n FROM generate_series(1, {many}) n"
        )
    engine.dispose()
    jobs = Scheduler(old.url, lease=5.0)
    jobs.register(ping)
    jobs.start()
    next_program()
    upgrade = threading.Thread(target=migrate.upgrade, args=(old.url,))
    waits: list[float] = []
    jobs.result(jobs.task(ping).schedule(), timeout=20)
    upgrade.start()
    began = time.monotonic()
    while upgrade.is_alive():
        before = time.monotonic()
        jobs.result(jobs.task(ping).schedule(), timeout=20)
        waits.append(time.monotonic() - before)
    took = time.monotonic() - began
    jobs.close()
    tell(f"{many} rows: upgraded in {took:.2f} s; {len(waits)} tasks meanwhile, the longest took {max(waits):.3f} s")
    assert revision(old) == NEXT
    assert max(waits) < migrate.LOCK_TIMEOUT + 10.0


@on_postgres
def test_an_index_of_another_form_serves_until_the_new_one_is_made(
    old: Database, next_program: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    next_program(fail='create_index("ix_schedd_tasks_key", "schedd_tasks", ["key", "kind"], replaces=True)')
    engine = sa.create_engine(old.url)

    def indexes() -> dict[str, str]:
        with engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT indexname, indexdef FROM pg_indexes WHERE indexname LIKE 'ix_schedd_tasks_key%%'"
            )
            return {str(name): str(text) for name, text in found}

    before, at_commit = indexes(), {}
    make = migrate._make_indexes

    def look_and_make(engine: sa.Engine, statements: Sequence[str]) -> None:
        at_commit.update(indexes())
        make(engine, statements)

    monkeypatch.setattr(migrate, "_make_indexes", look_and_make)
    migrate.upgrade(old.url)
    after = indexes()
    engine.dispose()
    assert set(at_commit) == {"ix_schedd_tasks_key_old", "ix_schedd_tasks_key_ended"}
    assert set(after) == set(before)
    assert "(key, kind)" in after["ix_schedd_tasks_key"]


@on_postgres
@pytest.mark.parametrize("again", ["the same program", "one that replaces it once more"])
def test_what_a_killed_upgrade_left_of_a_replaced_index_is_removed(
    old: Database,
    next_program: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    again: str,
) -> None:
    """Its backend is killed while it makes the new index, which a writer's open transaction delays."""
    replace = 'create_index("ix_schedd_tasks_key", "schedd_tasks", ["key", "kind"], replaces=True)'
    next_program(fail=replace)
    engine = sa.create_engine(old.url)

    def valid() -> dict[str, bool]:
        with engine.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
                "WHERE c.relname IN ('ix_schedd_tasks_key', 'ix_schedd_tasks_key_old')"
            )
            return {str(name): bool(is_valid) for name, is_valid in found}

    building = (
        "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND wait_event_type = 'Lock' "
        "AND datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY ix_schedd_tasks_key %%'"
    )
    make = migrate._make_indexes

    def kill() -> None:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            until(lambda: connection.exec_driver_sql(building).first())
            (pid,) = connection.exec_driver_sql(building).one()
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")

    def make_and_be_killed(engine: sa.Engine, statements: Sequence[str]) -> None:
        with engine.connect() as writer:
            writer.exec_driver_sql("LOCK TABLE schedd_tasks IN ROW EXCLUSIVE MODE")
            killer = threading.Thread(target=kill)
            killer.start()
            try:
                make(engine, statements)
            finally:
                killer.join(20)

    monkeypatch.setattr(migrate, "_make_indexes", make_and_be_killed)
    with pytest.raises(StoreUnavailableError):
        migrate.upgrade(old.url)
    assert valid() == {"ix_schedd_tasks_key": False, "ix_schedd_tasks_key_old": True}
    monkeypatch.setattr(migrate, "_make_indexes", make)
    if again != "the same program":
        after = f"{int(NEXT) + 1:04}"
        text = _AGAIN.format(after=after, next=NEXT, replace=replace)
        (Path(migrate.scripts()) / "versions" / f"{after}_after.py").write_text(text)
        monkeypatch.setattr(migrate, "HEAD", after)
    migrate.upgrade(old.url)
    assert valid() == {"ix_schedd_tasks_key": True}
    engine.dispose()


_AGAIN = """
from scheduler.migrations.online import create_index

revision, down_revision = "{after}", "{next}"


def upgrade() -> None:
    {replace}
"""


def test_no_migration_keeps_writers_of_a_full_table_waiting() -> None:
    """A plain CREATE INDEX does, on PostgreSQL. The first migration makes the tables; the third only new ones."""
    for path in sorted((Path(migrate.scripts()) / "versions").glob("[0-9]*.py")):
        made = set(re.findall(r'create_table\(\s*"(\w+)"', path.read_text()))
        plain = re.findall(r'op\.create_index\(\s*"\w+",\s*"(\w+)"', path.read_text())
        raw = re.findall(r"CREATE (?:UNIQUE )?INDEX", path.read_text())
        if path.name > "0002":
            assert (set(plain) <= made, raw) == (True, []), path.name
