"""A table that is locked for long: the worker says by whom, and takes no more and more of the sessions there are."""

from __future__ import annotations

import logging
import time
from typing import Any

import psycopg
import pytest

from scheduler import Scheduler, task
from support.databases import Database

MOST = 6  # sessions of one worker that runs nothing
LEASE = 1.0


@task
def quick(ctx: Any) -> str:
    return "done"


@pytest.mark.case(79, pure=True)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_locked_table_takes_no_more_and_more_sessions(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    url = database.url.replace("+psycopg", "")
    jobs = Scheduler(database.url, lease=LEASE)
    jobs.register(quick)
    sessions = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'schedd'"
    limits = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"
    with caplog.at_level(logging.INFO, "scheduler"), jobs, psycopg.connect(url, autocommit=True) as look:
        assert jobs.result(jobs.task(quick).schedule(), timeout=60) == "done"
        with jobs.database.connect(idle_limit=2 * LEASE) as connection:
            assert tuple(connection.exec_driver_sql(limits).one()) == ("600ms", "1min")
        seen: set[int] = set()
        with psycopg.connect(url, application_name="alter") as held:
            held.execute("LOCK TABLE schedd_tasks IN ACCESS EXCLUSIVE MODE")
            until = time.monotonic() + 60
            while len(seen) < MOST + 3:
                assert time.monotonic() < until
                now = {pid for (pid,) in look.execute(sessions)}
                assert len(now) <= MOST
                seen |= now
                time.sleep(0.01)
            named = f"schedd_tasks is locked by session {held.info.backend_pid} (alter"
            while named not in caplog.text:
                assert time.monotonic() < until
                time.sleep(0.01)
            held.rollback()
        assert jobs.result(jobs.task(quick).schedule(), timeout=60) == "done"
