"""A command that only reads a usual store does so without SQLAlchemy, and says what it says with it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import psycopg
import pytest
from cli.conftest import Ctl, environment_for

from scheduler import SchedulerError, StoreUnavailableError
from scheduler.cli.session import prints
from scheduler.errors import StoreReplacedError
from scheduler.operations import reader
from scheduler.operations.reader import PlainReader, plain_reader
from scheduler.ports import SystemClock
from scheduler.store.db.database import Database as Store
from scheduler.store.db.engines import make_engine, server_arguments
from scheduler.store.db.file_reader import FileReader
from scheduler.store.db.migrate import upgrade
from scheduler.store.db.pg_connections import PgConnections
from scheduler.store.db.schema_version import HEAD, VERSION_TABLE
from scheduler.store.db.server_clock import ServerClock
from scheduler.store.db.server_reader import ServerReader, for_driver
from scheduler.store.db.statements import compiled
from scheduler.store.db.urls import parse_url
from support.databases import DIALECTS, Database, PostgresDatabases
from support.filled import Filled, fill
from support.stored_forms import execute, load

ON_BOTH = pytest.mark.parametrize("filled", DIALECTS, indirect=True)
ON_SQLITE = pytest.mark.parametrize("filled", ["sqlite"], indirect=True)
ON_POSTGRESQL = pytest.mark.parametrize("filled", ["postgresql"], indirect=True)
IDS = [str(i) for i in range(1, 41)]
STATES = ("scheduled", "waiting", "running", "success", "failed", "dead", "cancelled", "suspended")
READS: list[tuple[str, ...]] = [
    ("list",),
    ("list", "--all", "--limit", "5"),
    ("list", "-o", "json"),
    ("list", "-o", "jsonl", "--limit", "7", "--cursor", "30"),
    ("list", "--columns", "id,state,correlation,headers"),
    ("list", "kind:Mail", "-o", "json"),
    ("list", "kind:Nobody", "queue:nowhere"),
    ("list", "mailbox"),
    ("list", "--subject", "ada", "--since", "2h", "--until", "1s"),
    ("list", "--field", "to=ada@example.com", "-o", "json"),
    ("list", "--worker", "1"),
    ("list", "no such field:"),
    *(("list", "--status", state, "-o", "json") for state in STATES),
    ("show", *IDS),
    ("show", *IDS, "-o", "json"),
    ("show", "4711"),
    ("show", "1", "--at", "1s"),
    ("status",),
    ("status", "--check"),
    ("status", "-o", "json"),
]
SEEN = """
import atexit, sys
atexit.register(lambda: print(*sorted({"alembic", "psycopg", "sqlalchemy"} & {*sys.modules}), file=sys.stderr))
from scheduler.cli import main
main()
"""


@pytest.fixture(scope="module")
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    if request.param == "sqlite":
        yield fill(f"sqlite:///{tmp_path_factory.mktemp('filled') / 'jobs.db'}")
        return
    server: PostgresDatabases = request.getfixturevalue("postgres_databases")
    name = server.create()
    upgrade(server.url(name))
    yield fill(server.url(name))
    server.drop(name)


@pytest.fixture
def filled_ctl(filled: Filled, tmp_path: Path) -> Ctl:
    return Ctl(environment_for(filled.url, tmp_path))


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Calls a command with the reader and with Database, at one time; the answers, and whether the reader read."""
    now = time.time_ns() // 1000
    monkeypatch.setattr(SystemClock, "now", lambda _: now)
    monkeypatch.setattr(ServerClock, "measured", lambda *_: None)

    def call(ctl: Ctl, *arguments: str) -> Any:
        used, answers = [], []
        asked = {kind: kind.is_usual for kind in (FileReader, ServerReader)}
        for kind in asked:
            monkeypatch.setattr(kind, "is_usual", lambda found: used.append(asked[type(found)](found)) or used[-1])
        for reads in (True, False):
            with monkeypatch.context() as patch:
                if not reads:
                    patch.setattr(reader, "plain_reader", lambda _: None)
                done = ctl(*arguments)
            answers.append((done.exit_code, done.stdout, done.stderr))
        return *answers, any(used)

    return call


@ON_BOTH
@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_both_ways_say_the_same(filled_ctl: Ctl, both: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    light, full, read = both(filled_ctl, *arguments)
    assert light == full
    assert read is (arguments != ("show", "1", "--at", "1s"))


@pytest.mark.both_databases
def test_both_ways_say_the_same_of_stores_of_an_earlier_program_once_they_are_upgraded(
    empty_database: Database, empty_ctl: Ctl, both: Callable[..., Any]
) -> None:
    load(empty_database)
    assert empty_ctl("db", "upgrade").exit_code == 0
    for arguments in READS:
        if arguments[0] == "show":
            arguments = tuple(one for one in arguments if one not in IDS[8:])  # there are eight tasks
        light, full, read = both(empty_ctl, *arguments)
        assert light == full
        assert read or "--at" in arguments


@ON_BOTH
@pytest.mark.parametrize("arguments", [("list",), ("show", "1"), ("status",), ("list", "kind:Mail", "-o", "json")])
def test_neither_sqlalchemy_nor_another_driver_is_imported(
    filled: Filled, filled_ctl: Ctl, arguments: tuple[str, ...]
) -> None:
    given = {**os.environ, **filled_ctl.environment}
    done = subprocess.run([sys.executable, "-c", SEEN, *arguments], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == ("" if filled.url.startswith("sqlite") else "psycopg")


@pytest.mark.parametrize("option", ["reveal", "watch"])
def test_what_writes_or_watches_goes_the_full_way(option: str) -> None:
    """The audit records a reveal; a command that watches is long-lived, and waits for a store that goes away."""
    seen = []
    command = prints((), only_reads=True)(lambda session, **_: seen.append(session.only_reads))
    with click.Context(click.Command("list")):
        command(reveal=False, watch=False)
        command(**{option: True})
    assert seen == [True, False]


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(b"no database at all, and longer than a header is" * 100)


def _directory(path: Path) -> None:
    path.mkdir()


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE schedd_tasks (id INTEGER)")


def _version(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        _whole(path)
        execute(Database(f"sqlite:///{path}", "sqlite"), f"UPDATE {VERSION_TABLE} SET version_num = '{text}'")

    return change


def _whole(path: Path) -> None:
    made = Store(f"sqlite:///{path}", SystemClock(), auto_migrate=True)
    made.open()
    made.settle()


def _lacking(path: Path) -> None:
    _whole(path)
    execute(Database(f"sqlite:///{path}", "sqlite"), "DROP TABLE schedd_edges")


UNUSUAL = {
    "missing": lambda path: None,
    "empty": _empty,
    "garbage": _garbage,
    "a directory": _directory,
    "foreign": _foreign,
    "older": _version(f"{int(HEAD) - 1:04}"),
    "newer, which it works on": _version(f"{int(HEAD) + 1:04}"),
    "newer": _version(f"{int(HEAD) + 2:04}"),
    "lacking": _lacking,
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_whatever_is_unusual_is_left_to_the_full_way(tmp_path: Path, both: Callable[..., Any], kind: str) -> None:
    path = tmp_path / "jobs.db"
    UNUSUAL[kind](path)
    ctl = Ctl(environment_for(f"sqlite:///{path}", tmp_path))
    for arguments in (("list",), ("show", "1"), ("status", "-o", "json")):
        light, full, read = both(ctl, *arguments)
        assert (light, read) == (full, False)
        assert kind.endswith("works on") or (light[0] == 5 and light[1] == "")


NOT_MIGRATED: dict[str, Callable[[Database], None]] = {
    "empty": lambda database: None,
    "older": lambda database: _change_version(database, -1),
    "newer, which it works on": lambda database: _change_version(database, 1),
    "newer": lambda database: _change_version(database, 2),
    "lacking": lambda database: _migrate(database, "DROP TABLE schedd_edges"),
}


def _migrate(database: Database, *statements: str) -> None:
    made = Store(database.url, SystemClock(), auto_migrate=True)
    made.open()
    made.settle()
    execute(database, *statements)


def _change_version(database: Database, by: int) -> None:
    _migrate(database, f"UPDATE {VERSION_TABLE} SET version_num = '{int(HEAD) + by:04}'")


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("kind", NOT_MIGRATED)
def test_an_unusual_database_of_a_server_is_left_to_the_full_way(
    empty_database: Database, empty_ctl: Ctl, both: Callable[..., Any], kind: str
) -> None:
    NOT_MIGRATED[kind](empty_database)
    light, full, read = both(empty_ctl, "list")
    assert (light, read) == (full, False)
    assert kind.endswith("works on") or (light[0] == 5 and light[1] == "")


def test_a_server_that_is_not_there_is_told_in_the_same_words(
    both: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    connect = PgConnections.connect
    monkeypatch.setattr(PgConnections, "connect", lambda *a, **b: tried.append("") or connect(*a, **b))
    ctl = Ctl(environment_for(f"postgresql+psycopg://me:secret@/jobs?host={tmp_path}", tmp_path))
    light, full, read = both(ctl, "list")
    assert (light, read) == (full, False)
    assert light[0] == 5
    assert "nothing answers there" in light[2]
    # Each way once, which to a host that is away takes its time, and once more to see who is in the way.
    assert len(tried) == 4


@pytest.mark.usefixtures("real_grace")
def test_a_server_that_does_not_answer_is_told_in_the_same_words(both: Callable[..., Any], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me:secret@127.0.0.1:{silent.getsockname()[1]}/jobs"
        light, full, read = both(Ctl(environment_for(url, tmp_path)), "--timeout", "0", "list")
    assert (light, read) == (full, False)
    assert light[0] == 5
    assert "no answer within" in light[2]


@pytest.mark.parametrize(
    "url",
    ["sqlite+pysqlite:///{}", "sqlite:///{}?timeout=3", "sqlite:///file:{}", "sqlite:///:memory:", "sqlite://", "x"],
)
def test_urls_that_say_more_than_a_path_are_left_to_the_full_way(tmp_path: Path, url: str) -> None:
    assert plain_reader(url.format(tmp_path / "jobs.db")) is None


PLAIN = {
    "postgresql://ada@db/jobs": {"user": "ada", "host": "db", "dbname": "jobs"},
    "postgresql+psycopg:///jobs": {"dbname": "jobs"},
    "postgresql+psycopg://ada:s3cr.t@db.example.com:6432/jobs?sslmode=require&sslrootcert=/etc/ca.pem": {
        "user": "ada",
        "password": "s3cr.t",
        "host": "db.example.com",
        "port": "6432",
        "dbname": "jobs",
        "sslmode": "require",
        "sslrootcert": "/etc/ca.pem",
    },
    "postgresql+psycopg://ada@/jobs?host=/run/postgresql&keepalives_idle=7": {
        "user": "ada",
        "dbname": "jobs",
        "host": "/run/postgresql",
        "keepalives_idle": "7",
    },
}


@pytest.mark.parametrize("url", PLAIN)
def test_the_driver_is_given_what_sqlalchemy_gives_it(url: str) -> None:
    found = plain_reader(url)
    assert isinstance(found, ServerReader)
    given = {name: str(value) for name, value in found.arguments.items()}
    full = {name: str(value) for name, value in server_arguments(parse_url(url), "schedd").items()}
    assert given == full
    assert PLAIN[url].items() <= given.items()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://ada@db/jobs",
        "postgresql://ada:p%40ss@db/jobs",
        "postgresql://ada:a@b@db/jobs",
        "postgresql://ada:@db/jobs",
        "postgresql://ada@one,two/jobs",
        "postgresql://ada@db/jobs?host=a,b",
        "postgresql://ada@db/jobs?host=other",
        "postgresql://ada@/jobs?host=a&host=b",
        "postgresql://ada@/jobs?host=a:1",
        "postgresql://ada@[::1]/jobs",
        "postgresql://ada@db/jobs?port=1",
        "postgresql://ada@db/jobs?options=-c%20search_path%3Djobs",
        "postgresql://ada@db/",
        "postgresql://ada@db",
        "postgresql://ädä@db/jobs",
        "postgresql://ada@db/jobs\n",
    ],
)
def test_urls_of_servers_that_can_be_read_in_two_ways_are_left_to_the_full_way(url: str) -> None:
    assert plain_reader(url) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT :a, :b_2 FROM t WHERE x = :a",
        "SELECT x::text, CAST(:a AS text)::int, a[1:2], a[:a]",
        "SELECT '100%', x LIKE '%y%' AND y % 2 = :a, '\\:no', \"a:b\", 'a:b', ':b'",
        "SELECT :a:b, ::a, :ä, x:=:a",
    ],
)
def test_parameters_are_found_as_sqlalchemy_finds_them(sql: str) -> None:
    dialect = make_engine(parse_url("postgresql://ada@db/jobs"))[0].dialect
    assert for_driver(sql) == compiled(sql, dialect)[0]


@ON_SQLITE
def test_a_relative_path_counts_from_the_current_directory(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(filled.url.removeprefix("sqlite:///"))
    monkeypatch.chdir(path.parent)
    with closing(_opened("sqlite:///jobs.db")) as found:
        monkeypatch.chdir("/")
        assert found.path == path
        with found.read() as tx:
            assert tx.run("SELECT count(*) FROM schedd_tasks").scalar_one() > 0


def _opened(url: str) -> PlainReader:
    found = plain_reader(url)
    assert found is not None
    assert found.is_usual()
    return found


@ON_SQLITE
@pytest.mark.usefixtures("real_grace")
def test_a_file_that_another_program_keeps_locked_is_left_to_the_full_way(
    filled: Filled, tmp_path: Path, both: Callable[..., Any]
) -> None:
    path = tmp_path / "jobs.db"
    shutil.copy(filled.url.removeprefix("sqlite:///"), path)
    ctl = Ctl(environment_for(f"sqlite:///{path}", tmp_path))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        light, full, read = both(ctl, "--timeout", "0.1", "list")
        assert (light, read) == (full, False)
        assert light[0] == 5


@ON_SQLITE
def test_it_reads_beside_a_writer_and_leaves_its_log_alone(filled: Filled, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    shutil.copy(filled.url.removeprefix("sqlite:///"), path)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("UPDATE schedd_tasks SET subject = 'in the log' WHERE id = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE schedd_tasks SET subject = 'not committed' WHERE id = 1")
        log = path.with_name("jobs.db-wal").read_bytes()
        with closing(_opened(f"sqlite:///{path}")) as found, found.read() as tx:
            assert tx.run("SELECT subject FROM schedd_tasks WHERE id = 1").scalar() == "in the log"
        assert path.with_name("jobs.db-wal").read_bytes() == log
        writer.execute("ROLLBACK")


@ON_SQLITE
def test_a_file_that_is_replaced_while_it_is_open_is_told(filled: Filled, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    shutil.copy(filled.url.removeprefix("sqlite:///"), path)
    with closing(_opened(f"sqlite:///{path}")) as found:
        with found.read() as tx:
            assert tx.path == path
        shutil.copy(path, tmp_path / "other.db")
        (tmp_path / "other.db").replace(path)
        with pytest.raises(StoreReplacedError, match="replaced by another one"), found.read():
            pass


SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT CAST(pg_sleep(60) AS text)",
}


@ON_BOTH
@pytest.mark.usefixtures("real_grace")
def test_the_time_limit_ends_a_statement_in_the_same_words(filled: Filled) -> None:
    store = Store(filled.url, SystemClock())
    said = []
    with closing(_opened(filled.url)) as found:
        for one in (found, store):
            with pytest.raises(StoreUnavailableError) as raised, one.within(0.0), one.read() as tx:
                tx.run(SLOW[tx.dialect.name]).scalar()
            said.append(str(raised.value))
    store.dispose()
    assert said[0] == said[1]
    assert "no answer within" in said[0]


@ON_BOTH
@pytest.mark.parametrize("sql", ["SELECT no_such FROM schedd_tasks", "SELECT 1 FROM nowhere"])
def test_what_fails_later_is_told_in_the_same_words(filled: Filled, sql: str) -> None:
    store = Store(filled.url, SystemClock())
    said = []
    with closing(_opened(filled.url)) as found:
        for one in (found, store):
            with pytest.raises(SchedulerError) as raised, one.read() as tx:
                tx.run(sql).fetchall()
            said.append((type(raised.value), str(raised.value), repr(raised.value.__cause__)))
    store.dispose()
    assert said[0] == said[1]


@ON_SQLITE
def test_a_function_that_fails_is_told_in_the_same_words(filled: Filled) -> None:
    test_what_fails_later_is_told_in_the_same_words(filled, "SELECT json('{')")


@ON_POSTGRESQL
def test_a_session_that_the_server_ends_is_told_in_the_same_words(filled: Filled) -> None:
    store = Store(filled.url, SystemClock())
    said = []
    with closing(_opened(filled.url)) as found:
        for one in (found, store):
            with pytest.raises(StoreUnavailableError) as raised, one.read() as tx:
                tx.run("SELECT pg_terminate_backend(pg_backend_pid())").fetchall()
            said.append(str(raised.value))
    store.dispose()
    assert said[0] == said[1]
    assert "the connection to the server was lost" in said[0]


@ON_POSTGRESQL
@pytest.mark.usefixtures("real_grace")
def test_a_table_that_another_session_keeps_locked_is_told_in_the_same_words(
    filled: Filled, filled_ctl: Ctl, both: Callable[..., Any]
) -> None:
    with psycopg.connect(filled.url.replace("+psycopg", ""), application_name="a migration") as other:
        other.execute("LOCK TABLE schedd_tasks IN ACCESS EXCLUSIVE MODE")
        light, full, read = both(filled_ctl, "--timeout", "0.1", "list")
        assert read
        said = [re.sub(r"open for [\d.]+ m?s", "open", one[2]) for one in (light, full)]
        assert (light[:2], said[0]) == (full[:2], said[1])
        assert light[0] == 5
        assert "a migration" in light[2]


@ON_POSTGRESQL
def test_its_time_is_the_servers(filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SystemClock.now
    monkeypatch.setattr(SystemClock, "now", lambda clock: real(clock) - 3_600_000_000)
    with closing(_opened(filled.url)) as found, found.read() as tx:
        assert abs(tx.now - time.time_ns() // 1000) < 60_000_000


@ON_BOTH
def test_rows_look_alike(filled: Filled) -> None:
    store = Store(filled.url, SystemClock())
    raw = "x'00ff'" if filled.url.startswith("sqlite") else "CAST('\\\\x00ff' AS bytea)"
    sql = f"SELECT id, kind, NULL AS none, 1.5 AS part, {raw} AS raw FROM schedd_tasks WHERE id <= :most ORDER BY id"

    def seen(tx: Any) -> list[Any]:
        first = tx.run(sql, most=3).first()
        return [
            [tuple(row) for row in tx.run(sql, most=3)],
            tx.run(sql, most=3).all() == tx.run(sql, most=3).fetchall(),
            tx.rows(sql, most=3),
            (first.id, first[1], first.kind, first.raw, first._fields, first._asdict(), dict(first._mapping)),
            (tx.run(sql, most=0).first(), tx.run(sql, most=0).one_or_none(), tx.run(sql, most=0).scalar()),
            (tuple(tx.run(sql, most=1).one()), tx.run(sql, most=1).scalar_one(), tx.run(sql, most=1).one_or_none().id),
            (tx.run(sql, most=3).scalars().all(), list(tx.run(sql, most=3).scalars())),
            (tx.at(5).now, tx.at(5).run("SELECT :n", n=7).scalar(), tx.dialect.name),
        ]

    with closing(_opened(filled.url)) as found, found.read() as mine, store.read() as theirs:
        assert seen(mine) == seen(theirs)
        assert not filled.url.startswith("sqlite") or mine.path == theirs.path
    store.dispose()
