"""Servers and databases that cannot be used: one clear line each; waited for where that helps, status 5 where not."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import make_url

from scheduler import Scheduler, StoreUnavailableError, task
from scheduler.ports import SystemClock
from scheduler.store.db import migrate
from scheduler.store.db.database import Database as Store
from scheduler.store.db.errors import StoreError, translate
from support.databases import Database
from support.own_server import OwnServer
from support.processes import Child, Nursery, Systemd
from support.runner import Runner

pytestmark = pytest.mark.both_databases

MOST = 12  # connections
JOBS = """
from scheduler import task

@task
def quick(ctx):
    return "done"
"""


@task
def quick(ctx: Any) -> None: ...


class Guarded:
    """A server with few connections, and a user ``guest`` who needs a password."""

    def __init__(self, server: OwnServer) -> None:
        self.server = server
        server.migrated()
        self.sql("CREATE ROLE guest LOGIN PASSWORD 'right'")
        self.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO guest")
        self.sql("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO guest")
        rules = server.data / "pg_hba.conf"
        rules.write_text("local all guest scram-sha-256\n" + rules.read_text())
        self.sql("SELECT pg_reload_conf()")

    def sql(self, statement: str) -> list[Any]:
        return self.server.sql(statement, "jobs")

    def url(self, user: str = "guest", password: str = ":right", database: str = "jobs") -> str:
        return f"postgresql+psycopg://{user}{password}@/{database}?host={self.server.data}"

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(host=str(self.server.data), user="guest", password="right", dbname="jobs")

    @contextmanager
    def full(self) -> Iterator[None]:
        """Another program holds every connection, schedd's own among them."""
        cut = (
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name LIKE 'schedd%' "
            "AND usename = 'guest'"
        )
        with ExitStack() as stack:
            while any([self._fill(stack), self.sql(cut), self._fill(stack)]):
                pass  # one that was just ending had a place, or schedd was back sooner
            yield

    def _fill(self, stack: ExitStack) -> int:
        """Take what connections there are. Returns how many there were."""
        for number in itertools.count():
            try:
                stack.enter_context(self.connect())
            except psycopg.OperationalError as error:
                if re.search("connection slots|too many clients", str(error)):
                    return number
                raise
        raise AssertionError


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with OwnServer(max_connections=str(MOST)) as server:
        yield Guarded(server)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("jobs.py", JOBS)
        made.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n')
        yield made


@pytest.fixture
def systemd(nursery: Nursery) -> Systemd:
    return nursery.systemd


def schedd(nursery: Nursery, url: str) -> Child:
    return nursery.start("-m", "scheduler.daemon", SCHEDD_STORE__URL=url, SCHEDD_WORKER__PROCESSES="1")


def refusal(child: Child) -> str:
    """The one line with which a program ends that could not use its database."""
    assert child.end() == 5
    (line,) = [line for line in child.rest(child.err) if not line.startswith("{")]
    assert child.rest(child.out) == []
    return line


def schedctl(place: Path, url: str, *arguments: str) -> str:
    """What it says, on a database that it cannot use."""
    from scheduler.cli.root import root

    (place / "none.toml").touch()
    environment = {"SCHEDD_STORE__URL": url, "SCHEDD_CONFIG": str(place / "none.toml"), "SCHEDD_DEBUG": ""}
    result = Runner(env=environment).invoke(root, arguments or ("list",))
    assert (result.exit_code, result.stdout) == (5, "")
    *holder, line = result.stderr.splitlines()
    assert [one for one in holder if "schedd_tasks is locked by session" not in one] == []
    return line


@pytest.mark.parametrize(
    ("user", "password", "database", "message"),
    [
        ("guest", ":wrong", "jobs", "the server refused the user or password"),
        ("guest", "", "jobs", "the server refused the user or password"),
        ("stranger", ":x", "jobs", "the server has no such user"),
        ("postgres", "", "nowhere", "the server has no such database: create it"),
    ],
    ids=["wrong password", "no password", "unknown user", "unknown database"],
)
def test_what_waiting_does_not_heal_ends_with_status_5(
    guarded: Guarded, tmp_path: Path, user: str, password: str, database: str, message: str
) -> None:
    url = guarded.url(user, password, database)
    line = schedctl(tmp_path, url)
    assert message in line
    assert ":wrong" not in line
    assert len(line) < 500
    with pytest.raises(StoreError) as raised:
        Store(url, SystemClock()).open()
    assert not raised.value.heals, "schedd would wait for it"


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        ("server does not support SSL, but SSL was required", "TLS with the server fails"),
        ('connection is bad: invalid sslmode value: "bogus"', "TLS with the server fails"),
        ("SSL error: certificate verify failed", "TLS with the server fails"),
        ('server certificate for "a" does not match host name "b"', "TLS with the server fails"),
        ('could not read root certificate file "/no": No such file or directory', "TLS with the server fails"),
        ('FATAL:  no pg_hba.conf entry for host "::1", user "u", database "d", SSL encryption', "pg_hba.conf"),
    ],
)
def test_a_tls_that_does_not_fit_is_no_lost_connection(driver: str, says: str) -> None:
    url = make_url("postgresql+psycopg://u@h/d?sslmode=require")
    error = translate(sa.exc.OperationalError(None, None, Exception(driver)), url)  # type: ignore[arg-type]
    assert isinstance(error, StoreError)
    assert says in str(error)
    assert not error.heals, "schedd would wait for it"


def test_a_daemon_with_a_wrong_password_ends(guarded: Guarded, nursery: Nursery) -> None:
    line = refusal(schedd(nursery, guarded.url(password=":wrong")))
    assert "the server refused the user or password" in line
    assert ":wrong" not in line


@pytest.mark.case(83, pure=True)
@pytest.mark.parametrize("query", ["user=guest&password={}", "user=guest&password={}&sslpassword={}", None])
def test_a_wrong_password_is_not_shown(guarded: Guarded, nursery: Nursery, query: str | None) -> None:
    secret = "canary-7f3a"
    url = make_url(guarded.url(password=f":{secret}"))
    if query is not None:
        socket = {"host": url.query["host"]} if "host" in url.query else {}
        url = url.set(username=None, password=None, query=socket)
        url = url.update_query_string(query.format(secret, secret))
    shown = url.render_as_string(hide_password=False)
    assert secret in shown
    child = schedd(nursery, shown)
    child.end()
    message = "\n".join([*child.rest(child.err), schedctl(nursery.place, shown, "doctor")])
    assert "the server refused the user or password" in message
    assert secret not in message


def test_an_unknown_host_is_waited_for(nursery: Nursery, systemd: Systemd) -> None:
    """The network may not be up yet when a machine starts."""
    url = "postgresql+psycopg://guest:geheim@no-such-host.invalid/jobs"
    child = schedd(nursery, url)
    assert "the host name cannot be resolved" in schedctl(nursery.place, url)
    line = child.expect("the host name cannot be resolved")
    assert "trying again until it is there" in line
    assert "geheim" not in line
    systemd.expect("STATUS=waiting for the store")
    assert child.process.poll() is None


def test_a_server_without_a_connection_to_spare_is_waited_for(
    guarded: Guarded, nursery: Nursery, systemd: Systemd
) -> None:
    with guarded.full():
        child = schedd(nursery, guarded.url())
        assert "the server takes no more connections" in schedctl(nursery.place, guarded.url())
        child.expect("the server takes no more connections.*trying again")
    child.expect("the store is there now")
    systemd.expect("READY=1")
    assert not [line for line in child.seen if "Traceback" in line]


@pytest.mark.case(9)
def test_a_worker_that_gets_no_connection_any_more_goes_on_when_it_does(
    guarded: Guarded, nursery: Nursery, systemd: Systemd
) -> None:
    """Its connections break, and another program takes them all before it reconnects."""
    child = schedd(nursery, guarded.url())
    systemd.expect("READY=1")
    with guarded.full():
        child.expect("the server takes no more connections")
    child.expect("the database is back")
    with Scheduler(guarded.url("postgres", "")) as jobs:
        jobs.stop()
        jobs.register(quick)
        assert jobs.result(jobs.task(quick).schedule(), timeout=60) == "done"
    assert not [line for line in child.seen if "Traceback" in line]


@pytest.mark.case(9)
def test_a_low_statement_timeout_is_logged_and_tried_again(
    guarded: Guarded, nursery: Nursery, systemd: Systemd
) -> None:
    """Statements take too long, since another session has locked the table."""
    guarded.sql("ALTER ROLE guest SET statement_timeout = '200ms'")
    try:
        child = schedd(nursery, guarded.url())
        systemd.expect("READY=1")
        with psycopg.connect(host=str(guarded.server.data), user="postgres", dbname="jobs") as holder:
            holder.execute("LOCK schedd_tasks IN ACCESS EXCLUSIVE MODE")
            assert "the server's statement_timeout ended the statement" in schedctl(nursery.place, guarded.url())
            child.expect("the database is away, trying again.*the server's statement_timeout ended the statement")
        child.expect("the database is back")
        with Scheduler(guarded.url("postgres", "")) as jobs:
            jobs.stop()
            jobs.register(quick)
            assert jobs.result(jobs.task(quick).schedule(), timeout=60) == "done"
        assert not [line for line in child.seen if "Traceback" in line]
    finally:
        guarded.sql("ALTER ROLE guest RESET statement_timeout")


@pytest.mark.case(9)
def test_a_server_that_takes_no_writes_is_waited_for(guarded: Guarded, nursery: Nursery, systemd: Systemd) -> None:
    """A standby, until it is promoted."""
    guarded.sql("ALTER ROLE guest SET default_transaction_read_only = on")
    try:
        child = schedd(nursery, guarded.url())
        child.expect("the database is away, trying again.*the server takes no writes")
        for command in (("cancel", "1"), ("retry", "--kind", "quick"), ("gc",)):
            assert "the server takes no writes: it is a standby" in schedctl(nursery.place, guarded.url(), *command)
    finally:
        guarded.sql("ALTER ROLE guest RESET default_transaction_read_only")
    guarded.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'")
    systemd.expect("READY=1")
    assert not [line for line in child.seen if "Traceback" in line]


@pytest.mark.case(82, pure=True)
def test_a_server_that_takes_no_writes_any_more_is_logged_once(
    guarded: Guarded, nursery: Nursery, systemd: Systemd
) -> None:
    """It answers what only reads, which is no sign that it is back; and the commands say what is amiss."""
    child = schedd(nursery, guarded.url())
    systemd.expect("READY=1")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'"
    guarded.sql("ALTER ROLE guest SET default_transaction_read_only = on")
    try:
        guarded.sql(end)
        child.expect("the database is away, trying again.*the server takes no writes")
        tries: set[int] = set()
        until = time.monotonic() + 60
        while len(tries) < 6 and time.monotonic() < until:  # each of them by a connection of its own
            tries |= {pid for (pid,) in guarded.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'guest'")}
        assert len(tries) >= 6
        message = "the server takes no writes: set default_transaction_read_only"
        for command, status in (("doctor", 1), ("status", 0), ("db check", 1)):
            environment = {"SCHEDD_STORE__URL": guarded.url(), "SCHEDD_CONFIG": str(nursery.place / "none.toml")}
            (nursery.place / "none.toml").touch()
            from scheduler.cli.root import root

            result = Runner(env=environment).invoke(root, command.split())
            assert (result.exit_code, message in result.output) == (status, True), result.output
    finally:
        guarded.sql("ALTER ROLE guest RESET default_transaction_read_only")
        guarded.sql(end)
    child.expect("the database is back")
    logged = [line for line in child.seen if "the database is" in line]
    assert len([line for line in logged if "takes no writes" in line]) == 1, logged
    assert len([line for line in logged if "is back" in line]) == 1, logged


# Databases of others, of older and of newer programs


def execute(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["CREATE TABLE schedd_tasks (id int)"], "a table schedd_tasks, and no revision"),
        (["CREATE TABLE schedd_version (name text)"], "a table schedd_version of another form"),
        (
            ["CREATE TABLE schedd_version (version_num text)", "INSERT INTO schedd_version VALUES ('ae1027a6acf')"],
            "the unknown revision 'ae1027a6acf'",
        ),
        (
            ["CREATE TABLE schedd_version (version_num text)", "INSERT INTO schedd_version VALUES ('0000')"],
            "the unknown revision '0000'",
        ),
        (
            ["CREATE TABLE schedd_version (version_num text)", "INSERT INTO schedd_version VALUES ('')"],
            "the unknown revision ''",
        ),
    ],
    ids=["our table", "our version table", "another revision", "revision 0000", "empty revision"],
)
def test_a_database_with_tables_that_only_look_like_ours(
    empty_database: Database, tmp_path: Path, tables: list[str], message: str
) -> None:
    execute(empty_database.url, *tables)
    for auto_migrate in (False, True):
        with pytest.raises(StoreUnavailableError, match=message):
            Store(empty_database.url, SystemClock(), auto_migrate=auto_migrate).open()
    with pytest.raises(StoreUnavailableError, match="another program's"):
        migrate.upgrade(empty_database.url)
    for arguments in (("list",), ("db", "upgrade"), ("db", "upgrade", "--dry-run"), ("db", "check"), ("doctor",)):
        assert message in schedctl(tmp_path, empty_database.url, *arguments)


def test_a_database_of_another_program_is_left_as_it_is(guarded: Guarded, tmp_path: Path) -> None:
    """It gets schedd's tables beside its own when the operator asks for that, and not before."""
    guarded.sql("CREATE DATABASE shop")
    guarded.server.sql("CREATE TABLE orders (id int)", "shop")
    url = guarded.url("postgres", "", "shop")
    assert "the database is not migrated: run `schedctl db upgrade`" in schedctl(tmp_path, url)
    found = guarded.server.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", "shop")
    assert found == [("orders",)]
    guarded.server.sql("CREATE TABLE schedd_tasks (id int)", "shop")
    for arguments in (("list",), ("db", "upgrade"), ("db", "check")):
        assert "is it another program's" in schedctl(tmp_path, url, *arguments)
