"""A transaction of the store's own whose server is gone in the middle of it: what the caller is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler import Scheduler, StoreUnavailableError
from scheduler.store.db.statements import insert, run_over
from scheduler.store.db.tx import Tx
from support.databases import Database

EVENTS = (("name", str), ("emitted_at", int))
WAYS: dict[str, Callable[[Tx], object]] = {
    "SQLAlchemy": lambda tx: tx.run("SELECT 1"),
    "the driver": lambda tx: tx.rows("SELECT 1"),
    "arrays": lambda tx: run_over(tx, "WITH {rows} SELECT name FROM j", EVENTS, [("paid", 1)]),
    "COPY": lambda tx: insert(tx, "schedd_events", EVENTS, [["paid", 1]]),
}


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_the_servers_reason_is_told(database: Database, way: str) -> None:
    jobs = Scheduler(database.url)

    def lose(tx: Tx) -> None:
        ((pid,),) = tx.rows("SELECT pg_backend_pid()")
        with jobs.database.read() as other:
            assert other.rows("SELECT pg_terminate_backend(:pid, 10000)", pid=pid) == [(True,)]
        WAYS[way](tx)

    with pytest.raises(StoreUnavailableError, match=r"was lost \((consuming input failed: )?terminating connection"):
        jobs.database.change(lose)
    assert jobs.database.change(lambda tx: tx.rows("SELECT 1")) == [(1,)]
    jobs.close()
