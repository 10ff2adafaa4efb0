"""A PostgreSQL user, or a database, that cannot do what schedd needs: each voice says what is lacking, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import Context, Scheduler, StoreUnavailableError, task
from scheduler.cli.root import root
from scheduler.ports import SystemClock
from scheduler.store.db import migrate
from scheduler.store.db.database import Database as Store
from support.fleet import until
from support.own_server import OwnServer
from support.runner import Runner


@task
def quick(ctx: Context) -> int:
    return 7


class Limited:
    """A server with a migrated database ``jobs``, and a user who has all rights in it."""

    def __init__(self, server: OwnServer) -> None:
        self.server = server
        server.migrated()
        self.sql("CREATE ROLE clerk LOGIN")
        self.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO clerk")
        self.sql("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO clerk")

    def sql(self, statement: str, database: str = "jobs") -> None:
        self.server.sql(statement, database)

    def url(self, user: str = "clerk", database: str = "jobs") -> str:
        return f"postgresql+psycopg://{user}@/{database}?host={self.server.data}"


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with OwnServer() as server:
        yield Limited(server)


def said(url: str, place: Path, *arguments: str) -> tuple[int, str]:
    environment = {"SCHEDD_STORE__URL": url, "SCHEDD_CONFIG": "", "SCHEDD_DEBUG": "", "HOME": str(place)}
    result = Runner(env=environment).invoke(root, arguments)
    assert "Traceback" not in result.output
    return result.exit_code, " ".join(result.output.split())


@pytest.mark.parametrize(
    ("take", "give", "says"),
    [
        (
            "REVOKE INSERT, DELETE ON schedd_edges FROM clerk",
            "GRANT INSERT, DELETE ON schedd_edges TO clerk",
            "lacks DELETE, INSERT on schedd_edges: GRANT SELECT",
        ),
        (
            "REVOKE ALL ON SEQUENCE schedd_tasks_id_seq FROM clerk",
            "GRANT USAGE ON SEQUENCE schedd_tasks_id_seq TO clerk",
            "lacks USAGE on schedd_tasks_id_seq",
        ),
        (
            "ALTER ROLE clerk CONNECTION LIMIT 3",
            "ALTER ROLE clerk CONNECTION LIMIT -1",
            "allows the user clerk 3 connections, and schedd needs 4 at least",
        ),
    ],
    ids=["a table", "a sequence", "connections"],
)
def test_what_a_user_lacks_is_named(
    limited: Limited, tmp_path: Path, take: str, give: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    limited.sql(take)
    try:
        for arguments in (("doctor",), ("status",), ("db", "check")):
            code, text = said(limited.url(), tmp_path, *arguments)
            assert says in text, (arguments, text)
            assert code == 1 or arguments == ("status",)
        jobs = Scheduler(limited.url())
        shortage = jobs.database.shortage()
        jobs.close()
        assert shortage is not None
        assert says in shortage
    finally:
        limited.sql(give)
    assert said(limited.url(), tmp_path, "db", "check")[0] == 0


def test_tables_that_the_search_path_hides_are_not_made_again(limited: Limited, tmp_path: Path) -> None:
    limited.sql("CREATE SCHEMA elsewhere")
    limited.sql("ALTER ROLE clerk SET search_path = elsewhere")
    limited.sql("GRANT ALL ON SCHEMA elsewhere TO clerk")
    try:
        for arguments in (("list",), ("status",), ("db", "upgrade"), ("doctor",), ("db", "check")):
            code, text = said(limited.url(), tmp_path, *arguments)
            assert (code, "schedd's tables are in the schema public" in text) == (5, True), text
            assert "not migrated" not in text
        with pytest.raises(StoreUnavailableError, match="tables are in the schema public"):
            Store(limited.url(), SystemClock(), auto_migrate=True).open()
        assert said(limited.url(), tmp_path, "db", "upgrade", "--beside")[0] == 0
        assert said(limited.url(), tmp_path, "db", "check")[0] == 0
    finally:
        limited.sql("ALTER ROLE clerk RESET search_path")
        limited.sql("DROP SCHEMA elsewhere CASCADE")


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_text_is_refused(limited: Limited, tmp_path: Path, encoding: str) -> None:
    name = f"odd_{encoding.lower()}"
    limited.sql(f"CREATE DATABASE {name} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' ENCODING '{encoding}'")
    url = limited.url("postgres", name)
    says = f"the encoding {encoding}, and schedd needs UTF8"
    for arguments in (("db", "upgrade"), ("list",)):
        code, text = said(url, tmp_path, *arguments)
        assert (code, says in text) == (5, True), text
    with pytest.raises(StoreUnavailableError, match=says):
        Store(url, SystemClock(), auto_migrate=True).open()
    with pytest.raises(StoreUnavailableError, match=says):
        migrate.upgrade(url)
    program = "import sys; from scheduler import Scheduler; Scheduler(sys.argv[1], auto_migrate=True).start()"
    for debug, status in (("0", 5), ("1", 1)):
        ended = subprocess.run(
            [sys.executable, "-c", program, url],
            env={**os.environ, "SCHEDD_DEBUG": debug},
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = ended.stderr.splitlines()
        assert lines[-1].startswith(f"scheduler.errors.StoreUnavailableError: the database has {says}"), ended.stderr
        assert (ended.returncode, len(lines) == 1, "Traceback" in ended.stderr) == (status, debug == "0", debug == "1")


def test_a_client_encoding_of_the_user_changes_nothing(limited: Limited) -> None:
    limited.sql("ALTER ROLE clerk SET client_encoding = 'LATIN1'")
    try:
        store = Store(limited.url(), SystemClock())
        with store.read() as tx:
            assert tx.run("SELECT CAST(:text AS text)", text="漢字 €").scalar_one() == "漢字 €"
        store.dispose()
    finally:
        limited.sql("ALTER ROLE clerk RESET client_encoding")


def test_the_smallest_number_of_connections_is_enough(limited: Limited) -> None:
    """That many for a worker; a program that stores and waits has its own, of another role here."""
    theirs = "SELECT 1 FROM pg_stat_activity WHERE usename = 'clerk'"
    until(lambda: not limited.server.sql(theirs))  # connections that other tests have closed count until they are gone
    limited.sql("ALTER ROLE clerk CONNECTION LIMIT 4")
    caller = Scheduler(limited.url("postgres"))
    try:
        with Scheduler(limited.url()) as jobs:
            for one in (jobs, caller):
                one.register(quick)
            assert caller.result(caller.task(quick).schedule(), timeout=30) == 7
    finally:
        caller.close()
        limited.sql("ALTER ROLE clerk CONNECTION LIMIT -1")
