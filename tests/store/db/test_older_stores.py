"""Stores of earlier checkouts: upgraded with their tasks in flight, or refused in words and left as they were."""

from __future__ import annotations

import hashlib
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from scheduler import Context, RetryPolicy, Scheduler, StoreUnavailableError, task
from scheduler.cli.root import root
from scheduler.errors import SchedulerError
from scheduler.ports import SystemClock
from scheduler.store.db import backup, migrate, older_forms
from scheduler.store.db.database import Database as Store
from scheduler.store.db.errors import StoreError
from scheduler.store.schema import metadata
from scheduler.testing import FakeClock, drain
from support.databases import Database
from support.next_program import NEXT, become, write_scripts
from support.runner import Runner
from support.stored_forms import FORMS, everything, execute, load

REVISIONS = [f"{number:04}" for number in range(1, int(migrate.HEAD))]
# Each is tried on SQLite, every third on PostgreSQL, too, whose first one passes through all of them; the rest is in
# make test-both.
TRIED = [
    one if number % 3 == 0 else pytest.param(one, marks=pytest.mark.one_is_enough)
    for number, one in enumerate(REVISIONS)
]
AFTER = datetime(2026, 11, 26, 14, tzinfo=UTC)  # that store was made half an hour before


@task
def quick(ctx: Context, n: int = 0) -> int:
    return n + 1


@task
def slow(ctx: Context, n: int = 0) -> int:
    return n


@task(retry=RetryPolicy(min_wait=3600, max_wait=7200, max_attempts=3))
def flaky(ctx: Context) -> int:
    return 1


@task
def bad(ctx: Context) -> int:
    return 2


@task(max_concurrency=5)
def durable(ctx: Context, n: int) -> int:
    return ctx.step("first", lambda: 99) + n


KINDS = (quick, slow, flaky, bad, durable)


def chain(database: Database, revision: str) -> None:
    """The migrations of this checkout up to a revision, with no look at what they find."""
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        migrate._run_alembic(connection, revision=revision)
    engine.dispose()


def is_whole(database: Database) -> None:
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        found = older_forms.columns_of(connection)
        assert {name: set(table.c.keys()) for name, table in metadata.tables.items()} == {
            name: columns for name, columns in found.items() if name != migrate.VERSION_TABLE
        }
        assert migrate.current(connection) == migrate.HEAD
        assert migrate.missing_indexes(connection) == []
        assert migrate.missing_tables(connection) == []
    engine.dispose()


def goes_on(database: Database) -> None:
    """Its tasks in flight come to their ends, and nothing that was known is lost."""
    clock = FakeClock(AFTER)
    jobs = Scheduler.for_testing(clock, url=database.url)
    for kind in KINDS:
        jobs.register(kind)
    clock.advance(3 * 3600)
    for _ in range(8):  # a new worker leaves the leases of others alone for a while
        drain(jobs)
        clock.advance(5)
    assert jobs.result(1, timeout=0) == 2  # it had ended
    assert {i: jobs.result(i, timeout=0) for i in (3, 5, 6, 7, 8)} == {3: 1, 5: 5, 6: 10, 7: 9, 8: 3}
    jobs.dead_letters.replay(4)
    drain(jobs)
    assert jobs.result(4, timeout=0) == 10  # the step that was recorded is not done again
    assert "replay" in [entry.action for entry in jobs.audit(task=2)]
    assert [one.name for one in jobs.schedules.list()] == ["every"]
    assert jobs.schedules.runs("every")
    assert [one for one in jobs.doctor() if one.level == "problem"] == []
    jobs.close()


@pytest.mark.case(97)
def test_a_store_of_the_first_checkout_is_upgraded_with_its_tasks_in_flight(empty_database: Database) -> None:
    load(empty_database)
    migrate.upgrade(empty_database.url)
    is_whole(empty_database)
    goes_on(empty_database)


@pytest.mark.case(97)
@pytest.mark.parametrize("revision", ["0005", "0010"])
def test_an_upgrade_that_an_earlier_checkout_left_half_way_is_carried_to_its_end(
    empty_database: Database, revision: str
) -> None:
    """Each of its migrations was a transaction of its own."""
    load(empty_database)
    chain(empty_database, revision)
    migrate.upgrade(empty_database.url)
    is_whole(empty_database)
    goes_on(empty_database)


@pytest.mark.case(97)
@pytest.mark.parametrize("revision", TRIED)
def test_a_store_of_each_revision_is_upgraded(empty_database: Database, revision: str) -> None:
    chain(empty_database, revision)
    migrate.upgrade(empty_database.url)
    is_whole(empty_database)
    jobs = Scheduler.for_testing(url=empty_database.url)
    jobs.register(quick)
    done = jobs.task(quick, n=1).schedule()
    drain(jobs)
    assert jobs.result(done, timeout=0) == 2
    jobs.close()


@pytest.mark.case(97)
@pytest.mark.parametrize(
    "lacking",
    [
        ["DROP TABLE schedd_settings"],
        ["DROP TABLE schedd_settings", "DROP TABLE schedd_rollups", "DROP TABLE schedd_pauses"],
        ["DROP INDEX ix_schedd_outcomes_slot", "ALTER TABLE schedd_outcomes DROP COLUMN slot"],
        ["DROP INDEX ux_schedd_tasks_slot", "ALTER TABLE schedd_tasks DROP COLUMN slot_tz"],
    ],
    ids=["no settings", "no pauses", "no slots of outcomes", "no zones of slots"],
)
def test_a_store_of_a_checkout_in_between_is_upgraded(empty_database: Database, lacking: list[str]) -> None:
    chain(empty_database, "0001")
    execute(empty_database, *lacking)
    migrate.upgrade(empty_database.url)
    is_whole(empty_database)


@pytest.mark.case(97)
def test_a_store_whose_columns_were_renamed_before_the_migration_that_does_is_upgraded(
    empty_database: Database,
) -> None:
    chain(empty_database, "0010")
    execute(
        empty_database,
        "ALTER TABLE schedd_tasks RENAME COLUMN pool TO priority",
        "ALTER TABLE schedd_checkpoints RENAME COLUMN sort TO type",
    )
    migrate.upgrade(empty_database.url)
    is_whole(empty_database)


@pytest.mark.case(97)
def test_graphs_that_the_first_form_of_a_migration_passed_over_are_renamed(database: Database) -> None:
    with Scheduler(database.url) as jobs:
        jobs.stop()
        jobs.register(quick)
        graph = jobs.recurring("graph").every(3600)
        graph.task(quick).priority("high")
        graph.schedule()
    execute(database, """UPDATE schedd_schedules SET graph = replace(graph, '"priority":', '"pool":')""")
    migrate.upgrade(database.url)
    assert '"pool"' not in str(everything(database)["schedd_schedules"])


@pytest.mark.case(97)
def test_a_store_that_no_schedd_made_is_refused_and_left_as_it_was(empty_database: Database) -> None:
    load(empty_database)
    execute(empty_database, "ALTER TABLE schedd_tasks DROP COLUMN headers")
    before = everything(empty_database)
    with pytest.raises(StoreUnavailableError, match=r"lacks schedd_tasks\.headers: no schedd made that, so nothing"):
        migrate.upgrade(empty_database.url)
    assert everything(empty_database) == before


@pytest.mark.case(97)
def test_an_upgrade_that_fails_at_its_last_step_leaves_the_store_as_it_was(
    empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what the steps before it have done."""
    load(empty_database)
    before = everything(empty_database)
    monkeypatch.setattr(migrate, "HEAD", migrate.HEAD)
    monkeypatch.setattr(migrate, "scripts", migrate.scripts)
    become(write_scripts(tmp_path, 'raise ZeroDivisionError("half way")'))
    with pytest.raises(ZeroDivisionError):
        migrate.upgrade(empty_database.url)
    assert everything(empty_database) == before


@pytest.mark.case(97)
def test_a_dry_run_shows_what_is_added_first(empty_database: Database) -> None:
    load(empty_database)
    before = everything(empty_database)
    plan = backup.upgrade_plan(Store(empty_database.url, SystemClock()))
    assert plan.index("ADD COLUMN slot_tz") < plan.index("schedd_bulks") < plan.index("RENAME COLUMN pool TO priority")
    assert everything(empty_database) == before


def schedctl(database: Database, *arguments: str) -> tuple[int, str]:
    environment = {"SCHEDD_STORE__URL": database.url, "SCHEDD_CONFIG": "", "SCHEDD_DEBUG": ""}
    result = Runner(env=environment).invoke(root, arguments)
    return result.exit_code, result.output


@pytest.mark.case(97)
def test_an_older_store_is_not_called_damaged(empty_database: Database) -> None:
    load(empty_database)
    code, said = schedctl(empty_database, "db", "check")
    assert code == 1
    assert "run `schedctl db upgrade`" in said
    assert "damaged" not in said
    assert "missing" not in said


@pytest.mark.case(97)
def test_a_copy_is_made_of_an_older_file(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/jobs.db", "sqlite")
    load(database)
    before = everything(database)
    code, said = schedctl(database, "db", "upgrade")
    assert code == 0
    copy = tmp_path / "jobs.db-schema-0001.backup"
    assert str(copy) in said
    assert everything(Database(f"sqlite:///{copy}", "sqlite")) == before
    assert schedctl(database, "db", "upgrade")[0] == 0
    assert len(list(tmp_path.glob("*.backup"))) == 1, "there was nothing to upgrade"


@pytest.mark.case(82, 97)
@pytest.mark.parametrize("short_of", ["the copy", "the steps"])
def test_an_upgrade_on_a_full_disk_may_be_tried_again_and_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_of: str
) -> None:
    """Each try of a daemon that starts would leave one more, until nothing is left of the disk."""
    database = Database(f"sqlite:///{tmp_path}/jobs.db", "sqlite")
    load(database)
    before = everything(database)

    def full(*_: object) -> None:
        if short_of == "the copy":
            raise SchedulerError("cannot back up to a file: the disk is full: free some space")
        raise sa.exc.OperationalError("INSERT", None, sqlite3.OperationalError("database or disk is full"))

    with monkeypatch.context() as patched:
        patched.setattr(migrate, "backup_sqlite" if short_of == "the copy" else "_steps", full)
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is full: free some space") as raised:
                migrate.upgrade(database.url)
            assert raised.value.heals, "schedd would end"
    assert not list(tmp_path.glob("*.backup"))
    assert everything(database) == before
    migrate.upgrade(database.url)
    assert len(list(tmp_path.glob("*.backup"))) == 1


def live(database: Database, pools: str = '{"high":[1,1]}') -> None:
    """Let the worker of the store be live, of the real clock."""
    until = SystemClock().now() + 20_000_000
    execute(database, f"UPDATE schedd_workers SET state = 0, pools = '{pools}', lease_until = {until}")


@pytest.mark.case(96, 97)
def test_nothing_is_upgraded_beside_a_worker_that_could_not_go_on(empty_database: Database) -> None:
    load(empty_database)
    live(empty_database)
    before = everything(empty_database)
    code, said = schedctl(empty_database, "db", "upgrade")
    assert code == 5
    assert "worker 1 (host:" in said
    assert "nothing was changed; stop it first" in said
    with pytest.raises(StoreUnavailableError, match="nothing was changed"):
        Store(empty_database.url, SystemClock(), auto_migrate=True).open()
    assert everything(empty_database) == before
    execute(empty_database, "UPDATE schedd_workers SET state = 2")
    assert schedctl(empty_database, "db", "upgrade")[0] == 0


@pytest.mark.case(96)
@pytest.mark.parametrize(
    ("pools", "by_hand"),
    [
        ('{"high":[1,1]}', True),
        (f'{{"high":[1,1],"schema":"{migrate.HEAD}"}}', True),
        (f'{{"high":[1,1],"schema":"{int(migrate.HEAD) - 1:04}"}}', False),
    ],
    ids=["does not say", "this one", "the one before"],
)
def test_workers_of_this_schema_may_live_beside_an_upgrade_by_hand_alone(
    empty_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pools: str, by_hand: bool
) -> None:
    """They work on the next one. A program that starts upgrades nothing beside them."""
    load(empty_database)
    migrate.upgrade(empty_database.url)
    live(empty_database, pools)
    monkeypatch.setattr(migrate, "HEAD", migrate.HEAD)
    monkeypatch.setattr(migrate, "scripts", migrate.scripts)
    become(write_scripts(tmp_path))
    with pytest.raises(StoreUnavailableError, match="nothing was changed"):
        Store(empty_database.url, SystemClock(), auto_migrate=True).open()
    if by_hand:
        code, said = schedctl(empty_database, "db", "upgrade")
        assert code == 0
        assert f"upgraded: {int(NEXT) - 1:04} -> {NEXT}" in said
        assert "worker 1 (host:" in said
        assert f"works on with schema {NEXT}, but not with a later one" in said
        again = schedctl(empty_database, "db", "upgrade")
        assert again == (0, f"up to date: {NEXT}\n")
        assert ("schedd_colours" in everything(empty_database)) is True
    else:
        code, said = schedctl(empty_database, "db", "upgrade")
        assert code == 5
        assert "nothing was changed; stop it first" in said
    assert (NEXT in str(everything(empty_database)[migrate.VERSION_TABLE])) is by_hand


@pytest.mark.case(97)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_an_index_that_an_interrupted_upgrade_did_not_make_is_made_by_the_next(database: Database) -> None:
    execute(database, "DROP INDEX ix_schedd_audit_actor")
    code, said = schedctl(database, "doctor")
    assert (code, "ix_schedd_audit_actor" in said) == (1, True)
    migrate.upgrade(database.url)
    is_whole(database)


@pytest.mark.case(97, pure=True)
def test_no_migration_is_changed_once_it_has_landed() -> None:
    """A store was made by the file as it was: whatever else there is to do belongs into the next migration."""
    listed = dict(reversed(line.split()) for line in (FORMS / "migrations.sha256").read_text().splitlines())
    scripts = Path(migrate.scripts()) / "versions"
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(scripts.glob("[0-9]*.py"))}
    new = [name for name in found if name not in listed]
    assert not new, f"add to {FORMS.name}/migrations.sha256: {[f'{found[name]}  {name}' for name in new]}"
    assert found == listed


@pytest.mark.case(97)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_an_upgrade_that_waited_in_vain_for_a_lock_leaves_the_store_as_it_was(
    empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(empty_database)
    before = everything(empty_database)
    monkeypatch.setattr(migrate, "LOCK_TRIES", 2)
    monkeypatch.setattr(migrate, "LOCK_PAUSE", 0.01)
    holder = sa.create_engine(empty_database.url)
    with holder.connect() as session:
        session.exec_driver_sql("SELECT 1 FROM schedd_checkpoints")
        with pytest.raises(StoreUnavailableError, match="long transactions hold its tables"):
            migrate.upgrade(empty_database.url)
    holder.dispose()
    assert everything(empty_database) == before
