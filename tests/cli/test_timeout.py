"""``schedctl`` keeps its ``--timeout``, and says what it waits for."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest

from scheduler.cli import session
from scheduler.store.db import sqlite_files, writable
from support.consoles import ask, console_on
from support.databases import Database, PostgresDatabases
from support.proxy import Proxy

from .conftest import Ctl, environment_for

SLOW = 20.0  # seconds; a busy machine may take most of them. Without the option it would be 60
pytestmark = [pytest.mark.usefixtures("real_grace"), pytest.mark.both_databases]
postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


@contextmanager
def locked(database: Database) -> Iterator[int]:
    """Another program writes, and goes on with it; where it locks tables it is the session of this number."""
    if database.is_sqlite:
        with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield 0
            other.execute("ROLLBACK")
    else:
        with psycopg.connect(database.url.replace("+psycopg", ""), application_name="alter") as held:
            held.execute("LOCK TABLE schedd_tasks IN ACCESS EXCLUSIVE MODE")
            yield held.info.backend_pid
            held.rollback()


def in_time(ctl: Ctl, *arguments: object) -> str:
    began = time.monotonic()
    result = ctl(*arguments)
    took = time.monotonic() - began
    assert took < SLOW, f"{arguments}: {took:.1f} s"
    assert result.exit_code == 5, result.output
    return result.stderr


@pytest.mark.case(78)
def test_commands_that_write_keep_their_timeout(ctl: Ctl, database: Database) -> None:
    with locked(database):
        assert "no answer within" in in_time(ctl, "cancel", 1, "--timeout", "0.1")
        in_time(ctl, "--timeout", "0.1", "cancel", 1)


@pytest.mark.case(78, pure=True)
@postgres
@pytest.mark.parametrize("command", [("show", 1), ("status",), ("wait", 1)])
def test_commands_that_read_keep_their_timeout(ctl: Ctl, database: Database, command: tuple[object, ...]) -> None:
    with locked(database):
        assert "no answer within" in in_time(ctl, *command, "--timeout", "0.1")


@pytest.mark.case(78, pure=True)
@postgres
def test_a_server_that_swallows_is_given_up(
    database: Database, postgres_databases: PostgresDatabases, tmp_path: object
) -> None:
    with Proxy(postgres_databases.socket) as proxy:
        name = database.url.partition("?")[0].rpartition("/")[2]
        ctl = Ctl(environment_for(proxy.url(name), tmp_path))  # type: ignore[arg-type]
        proxy.hole()
        assert "no answer within" in in_time(ctl, "list", "--timeout", "0.1")
        assert "no answer within" in in_time(ctl, "db", "check", "--timeout", "0.1")


@pytest.mark.case(78, pure=True)
@postgres
def test_it_says_whose_lock_it_waits_for(ctl: Ctl, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TELL_AFTER", 0.2)
    with locked(database) as pid:
        printed = in_time(ctl, "list", "--timeout", "0.6").splitlines()
    assert len(printed) == 2
    assert printed[0].startswith(
        f"schedctl: waiting for the database: table schedd_tasks is locked by session {pid} (alter"
    )


@pytest.mark.case(78, pure=True)
@postgres
def test_doctor_answers_and_names_what_it_could_not_check(ctl: Ctl, database: Database) -> None:
    with locked(database) as pid:
        began = time.monotonic()
        found = ctl.json("doctor", "--timeout", "0.3", status=1)
        assert time.monotonic() - began < SLOW
    (one,) = [row for row in found if "not checked" in row["text"]]
    assert one["level"] == "problem"
    assert f"table schedd_tasks is locked by session {pid}" in one["text"]
    assert not [row for row in ctl.json("doctor") if row["level"] == "problem"]


@pytest.mark.case(103)
@postgres
@pytest.mark.parametrize("command", ["status", "list"])
def test_what_gives_up_names_the_session_in_the_way(ctl: Ctl, database: Database, command: str) -> None:
    """Also where the time is too short for the line that tells of a wait."""
    with locked(database) as pid:
        printed = in_time(ctl, command, "--timeout", "0.3")
    assert f"the database does not answer: table schedd_tasks is locked by session {pid} (alter" in printed
    assert f"`SELECT pg_terminate_backend({pid})` ends it" in printed


@pytest.mark.case(103)
@postgres
def test_a_page_names_the_session_in_the_way(database: Database) -> None:
    with console_on(database) as gate, locked(database) as pid:
        found = ask(gate, "GET", "/")
    assert found.status == 503
    assert f"locked by session {pid} (alter" in found.text
    assert "Narrow the filter" not in found.text


def test_a_database_that_takes_no_writes_is_the_first_thing_said(
    ctl: Ctl, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker can renew its lease then; to start another one is no remedy."""
    monkeypatch.setattr(sqlite_files, "_FULL", 1 << 62)
    monkeypatch.setattr(writable, "_SERVER", "SELECT false AS standby, true AS read_only")
    with console_on(database) as gate:
        wrong = ask(gate, "GET", "/.json").json["wrong"]
    assert [one["problem"] for one in wrong] == ["writes", "idle"]
    assert "Start schedd" not in wrong[1]["remedy"]
    assert "until the database takes writes" in ctl("status").stderr
