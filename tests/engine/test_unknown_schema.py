"""A worker beside a schema that its program does not know, also when that changes while it runs."""

from __future__ import annotations

import pytest

from scheduler import Context, Scheduler, task
from scheduler.store.db import migrate
from scheduler.store.read.status import status
from support.databases import Database
from support.fleet import until
from support.stored_forms import execute

AFTER_NEXT = f"{int(migrate.HEAD) + 2:04}"


@task
def quick(ctx: Context, n: int = 0) -> int:
    return n + 1


def schema(database: Database, version: str, *changes: str) -> None:
    execute(database, *changes, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '{version}'")


@pytest.mark.case(96)
def test_a_worker_claims_nothing_beside_a_schema_that_it_does_not_know(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with Scheduler(database.url, lease=1.5) as jobs:
        jobs.register(quick)
        assert jobs.result(jobs.task(quick, n=1).schedule(), timeout=20) == 2
        schema(database, AFTER_NEXT)
        left = [jobs.task(quick, n=n).schedule() for n in range(3)]
        says = f"the database has schema {AFTER_NEXT}, and this worker knows {migrate.HEAD}"
        until(lambda: says in caplog.text)
        left.append(jobs.task(quick, n=3).schedule())
        cycles = jobs.engine.cycles
        until(lambda: jobs.engine.cycles > cycles)
        assert {str(jobs.get_task(i).state) for i in left} == {"scheduled"}
        assert caplog.text.count(says) == 1
        schema(database, migrate.HEAD)
        assert [jobs.result(i, timeout=20) for i in left] == [1, 2, 3, 4]
    assert "this worker claims again" in caplog.text


@pytest.mark.case(96)
def test_statements_that_do_not_fit_the_schema_any_more_are_no_outage(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with Scheduler(database.url, lease=1.5) as jobs:
        jobs.register(quick)
        assert jobs.result(jobs.task(quick, n=1).schedule(), timeout=20) == 2
        schema(database, AFTER_NEXT, "ALTER TABLE schedd_tasks RENAME COLUMN lane TO track")
        jobs.engine.wake()
        says = f"the database has schema {AFTER_NEXT}, and this worker knows {migrate.HEAD}"
        until(lambda: says in caplog.text)
        assert caplog.text.count(says) == 1
        schema(database, migrate.HEAD, "ALTER TABLE schedd_tasks RENAME COLUMN track TO lane")
        assert jobs.result(jobs.task(quick, n=4).schedule(), timeout=20) == 5
    assert "the database is away" not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.case(96)
def test_status_and_doctor_name_a_worker_that_does_not_know_the_schema(database: Database) -> None:
    older = f"{int(migrate.HEAD) - 2:04}"
    with Scheduler(database.url) as jobs:
        jobs.register(quick)
        jobs.engine.wait_ready(20)
        execute(database, f"""UPDATE schedd_workers SET pools = replace(pools, '"{migrate.HEAD}"', '"{older}"')""")
        says = f"claims nothing, as the database has schema {migrate.HEAD} and it knows {older}"
        assert says in " ".join(one.text for one in jobs.doctor() if one.level == "problem")
        with jobs.database.read() as tx:
            assert says in " ".join(one.text for one in status(tx).stuck)
