"""A table that is locked for long: the worker says by whom, and takes no more and more of the sessions there are."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import psycopg
import pytest

from scheduler import Scheduler, task
from support.databases import Database

MOST = 6  # sessions of one worker that runs nothing
MOST_EVER = 30  # sessions of a daemon, as docs/explanation/fleet.md says
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


@pytest.mark.case(79, pure=True)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_however_many_threads_ask_there_is_room_for_others_on_the_server(database: Database) -> None:
    url = database.url.replace("+psycopg", "")
    jobs = Scheduler(database.url, lease=60.0)
    jobs.register(quick)
    found: list[int] = []
    asking = [threading.Thread(target=lambda: found.append(len(jobs.list_tasks()))) for _ in range(2 * MOST_EVER)]
    ours = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'schedd%'"
    )
    blocked = f"{ours} AND wait_event_type = 'Lock'"
    with jobs, psycopg.connect(url, autocommit=True) as look:

        def number(sql: str) -> int:
            return int(look.execute(sql).fetchone()[0])  # type: ignore[index]

        assert jobs.result(jobs.task(quick).schedule(), timeout=60) == "done"
        with psycopg.connect(url, application_name="alter") as held:
            held.execute("LOCK TABLE schedd_tasks IN ACCESS EXCLUSIVE MODE")
            for thread in asking:
                thread.start()
            until = time.monotonic() + 60
            while number(blocked) < MOST_EVER - 5:
                assert time.monotonic() < until
                time.sleep(0.01)
            assert jobs.database.locked_by() is not None  # by one more, which is closed again
            assert number(ours) <= MOST_EVER
            held.rollback()
        for thread in asking:
            thread.join(60)
    assert found == [1] * len(asking)
