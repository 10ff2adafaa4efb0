"""``ctx.transaction()`` while the database is away: its task waits, and no attempt of it is used up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from faults import isolated as kinds
from faults.harness import history, rows, state, until
from faults.test_database_away import away
from scheduler import AsyncContext, Context, Scheduler, task
from scheduler.errors import Collided
from scheduler.store.db import pg_connections as wires
from support import fleet
from support.databases import Database

pytestmark = [pytest.mark.faults, pytest.mark.case(9, 57)]
ONE = sa.text("SELECT 1")
ADD = sa.text("INSERT INTO ledger (entry) VALUES (:entry)")


@pytest.fixture
def jobs(database: Database, shared_fork_server: None) -> Iterator[Scheduler]:
    made = Scheduler(database.url, processes=1)
    for kind in (in_thread, in_coroutine, kinds.PaysLate):
        made.register(kind)
    with fleet.ledger(made):
        yield made


@task
def in_thread(ctx: Context, path: str) -> None:
    until(Path(path).exists, "it may go on")
    with ctx.transaction() as tx:
        tx.execute(ADD, {"entry": "thread"})


@task
async def in_coroutine(ctx: AsyncContext, path: str) -> None:
    await asyncio.to_thread(until, Path(path).exists, "it may go on")
    async with ctx.transaction() as tx:
        await tx.execute(ADD, {"entry": "coroutine"})


def test_what_begins_meanwhile_waits(jobs: Scheduler, database: Database, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    builders = [
        jobs.task(in_thread, str(gate)),
        jobs.task(in_coroutine, str(gate)),
        jobs.task(kinds.PaysLate(str(gate))),
    ]
    made = [builder.schedule() for builder in builders]
    until(lambda: {state(jobs, i) for i in made} == {"running"}, "all run")
    with away(database):
        gate.touch()
        time.sleep(1.0)  # they try, and are refused
    assert [jobs.result(i, timeout=30) for i in made] == [None] * 3
    assert sorted(row.entry for row in rows(jobs, "SELECT entry FROM ledger")) == ["child", "coroutine", "thread"]
    for task_id in made:
        assert not [how for _, how in history(jobs, task_id) if how not in ("succeeded", "snoozed")]


def cut(url: str) -> None:
    """End every connection to the database."""
    with psycopg.connect(url.replace("postgresql+psycopg:", "postgresql:"), autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_connection_that_was_cut_in_the_pool_uses_no_attempt(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is cut later does: perhaps it was what the handler did that broke it."""
    monkeypatch.setattr(wires, "_TRUSTED", 60.0)
    caller = Scheduler(database.url)
    caller.database.open()
    with caller.database.read() as tx:
        tx.connection.execute(ONE)
    cut(database.url)
    begun = caller.database.transaction(30.0)
    with pytest.raises(Collided):
        begun.execute(ONE)
    begun.give_up()
    again = caller.database.transaction(30.0)
    assert again.execute(ONE).scalar_one() == 1
    cut(database.url)
    with pytest.raises(sa.exc.DBAPIError):
        again.execute(ONE)
    again.give_up()
    caller.close()
