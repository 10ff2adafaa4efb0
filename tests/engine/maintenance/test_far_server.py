"""A server so far away that the lease is too short for it: the worker claims nothing, and says so."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from scheduler import Scheduler, task
from scheduler.store.admin.surroundings import check_surroundings
from scheduler.store.read.explain import why
from scheduler.store.read.status import status
from support.databases import Database, PostgresDatabases
from support.proxy import Proxy

WAY = 0.05  # seconds each way


@task
def quick(ctx: Any) -> str:
    return "done"


def why_of(jobs: Scheduler, task_id: int) -> str:
    with jobs.database.read() as tx:
        return str(why(tx, task_id))


@pytest.mark.case(81, pure=True)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_lease_that_is_too_short_for_the_way_is_refused(
    database: Database, postgres_databases: PostgresDatabases, caplog: pytest.LogCaptureFixture
) -> None:
    name = database.url.partition("?")[0].rpartition("/")[2]
    with Scheduler(database.url) as near, Proxy(postgres_databases.socket) as proxy:
        near.stop()
        near.register(quick)
        made = near.task(quick).schedule()
        proxy.delay(WAY)
        far = Scheduler(proxy.url(name), lease=3.0)
        far.register(quick)
        with caplog.at_level(logging.INFO, "scheduler"), far:
            until = time.monotonic() + 60
            while "too far away" not in why_of(near, made):
                assert time.monotonic() < until
                time.sleep(0.01)
            with near.database.read() as tx:
                now = near.database.now()
                stuck = [one.text for one in status(tx.at(now)).stuck]
                problems = [f.text for f in check_surroundings(near.database, tx, "") if f.level == "problem"]
            for text in (*stuck, *problems):
                assert "too far away for its lease: set [worker] lease to" in str(text)
            assert stuck
            assert problems
            assert near.get_attempts(made) == []
            assert "claims nothing with a lease of 3 s; set [worker] lease to" in caplog.text
            proxy.heal()
            assert near.result(made, timeout=60) == "done"
            assert "claims again" in caplog.text
        assert [attempt.number for attempt in near.get_attempts(made)] == [1]
