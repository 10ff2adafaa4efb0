"""The check for a database that takes no writes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler, task
from scheduler.ports import SystemClock
from scheduler.store.db.backup import health
from scheduler.store.db.database import Database as Store
from scheduler.store.db.tx import Tx
from scheduler.store.db.writable import no_writes
from scheduler.store.read.explain import why
from scheduler.store.read.status import status
from support.databases import Database

OTHER_UID = 65534


@task
def quick(ctx: Any) -> None: ...


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store(database.url, SystemClock())
    yield made
    made.dispose()


def _as_other_user(path: str) -> str | None:
    """Root may write everywhere."""
    with sa.create_engine(f"sqlite:///{path}").connect() as connection:
        if os.geteuid() == 0:
            os.setuid(OTHER_UID)
        return no_writes(Tx(connection, 0))


@pytest.mark.case(82)
def test_what_takes_no_writes_is_named(database: Database, store: Store) -> None:
    with store.read() as tx:
        assert no_writes(tx) is None
        assert status(tx.at(store.now())).stuck == []
    assert health(store).no_writes is None
    with closing(Scheduler(database.url)) as jobs:
        jobs.register(quick)
        made = jobs.task(quick).schedule()
    if database.is_sqlite:
        path = database.path.with_name("copy.db")
        path.write_bytes(database.path.read_bytes())
        path.chmod(0o444)
        path.parent.chmod(0o555)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert "cannot be written by this user" in str(pool.apply(_as_other_user, (str(path),)))
        return
    with store.read() as tx:
        tx.connection.execute(sa.text("SET LOCAL default_transaction_read_only = on"))
        assert "takes no writes" in str(no_writes(tx))
        problem = status(tx.at(store.now())).stuck[0]
        assert (problem.name, "takes no writes" in problem.text) == ("writes", True)
        reason = str(why(tx.at(store.now()), made))
        assert reason.startswith("the server takes no writes: set default_transaction_read_only = off")
        assert reason.endswith("but no worker is live")
