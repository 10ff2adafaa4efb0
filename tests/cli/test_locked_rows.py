"""What ``show`` and ``doctor`` say of rows that another session's open transaction holds on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from scheduler.store.db import pg_blockers as row_locks
from support.bench import Bench, Side
from support.databases import Database
from support.fleet import until

from .conftest import Ctl

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


@pytest.fixture
def other_session(database: Database) -> Iterator[psycopg.Connection]:
    url = sa.make_url(database.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, application_name="by hand") as connection:
        yield connection
        connection.rollback()


def locks(other_session: psycopg.Connection, task_id: int) -> str:
    """Lock this row in the other session; returns how schedctl names that session."""
    other_session.execute("SELECT 1 FROM schedd_tasks WHERE id = %s FOR UPDATE", (task_id,))
    pid = other_session.info.backend_pid
    return f"session {pid} (by hand, user postgres, idle in transaction), its transaction open for "


def test_a_row_that_claims_pass_over(
    ctl: Ctl, live: Bench, other_session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.drain()
    made = int(live.step("held").schedule())
    who = locks(other_session, made)
    assert live.drain() == []
    monkeypatch.setattr(row_locks, "MIN_AGE", 0)
    why = ctl.json("show", made)["why"]
    assert f", but its row is locked by {who}" in why
    assert why.endswith(": claims pass over it until that ends")
    monkeypatch.setattr(row_locks, "MIN_AGE", 10**12)
    assert "locked" not in ctl.json("show", made)["why"], "a cycle of a worker holds what it claims, too"
    other_session.rollback()
    monkeypatch.setattr(row_locks, "MIN_AGE", 0)
    assert "locked" not in ctl.json("show", made)["why"]
    assert live.drain() == ["held"]


def test_doctor_names_who_waits_for_whom(
    ctl: Ctl, live: Bench, other_session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finding() -> tuple[str, str]:
        (found,) = [f for f in ctl.json("doctor") if f["check"] == "locks"]
        return found["level"], found["text"]

    made = int(live.step("held").schedule())
    monkeypatch.setattr(row_locks, "MIN_AGE", 0)
    assert finding() == ("ok", "no session waits for another one's")
    who = locks(other_session, made)
    side = Side(lambda: live.execute(f"UPDATE schedd_tasks SET progress = 1 WHERE id = {made}"))
    until(lambda: finding()[0] == "note")
    assert "(schedd) has waited " in finding()[1]
    assert f" for {who}" in finding()[1]
    other_session.rollback()
    side.result()
    assert finding()[0] == "ok"
