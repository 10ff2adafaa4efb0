"""A store that is away, locked or full: each daemon tells its sinks directly, once, and tells when it is over."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scheduler.alerts import store_watch
from scheduler.alerts.service import AlertService
from scheduler.alerts.store_watch import Judge, Outage, trouble_of
from scheduler.config.load import load
from scheduler.model.alerts import AlertEvent
from scheduler.ports import SECOND, SystemClock
from scheduler.store.db import sqlite_files, writable
from scheduler.store.db.database import Database as Store
from support.databases import Database
from support.fleet import until
from support.own_server import JOBS, OwnServer
from support.processes import Nursery

from ..tasks.server import Server  # noqa: TID252  # "tasks" at the top is the package

pytestmark = pytest.mark.case(103)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
BUSY = b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
SETTINGS = """
[http]
allow = ["127.0.0.1"]
[alerts]
every = 1
[alerts.rules.store_away]
after = 1
[worker]
lease = 4
processes = 1
"""


@pytest.fixture
def sinks() -> Iterator[tuple[Server, Server]]:
    made = Server(OK), Server(BUSY, OK)
    yield made
    for one in made:
        one.close()


def configuration(url: str, sinks: tuple[Server, Server]) -> str:
    """Two sinks; the second one refuses the first message once. A third does not take the rule."""
    named = "".join(f'[alerts.sinks.s{n}]\nurl = "{sink.url}"\n' for n, sink in enumerate(sinks))
    other = '[alerts.sinks.other]\nurl = "http://127.0.0.1:1"\nrules = ["problem"]\n'
    return f'[store]\nurl = "{url}"\n{SETTINGS}{named}{other}'


@pytest.fixture
def service(
    database: Database, sinks: tuple[Server, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AlertService]:
    monkeypatch.setattr(store_watch, "FIRST_PAUSE", 0.05)
    path = tmp_path / "config.toml"
    path.write_text(configuration(database.url, sinks))
    made = AlertService(load(path, {}))
    made.start()
    yield made
    made.stop()


def told(sink: Server) -> list[dict[str, Any]]:
    """What has arrived of the rule, each message once."""
    bodies = [json.loads(asked.body) for asked in list(sink.asked)]
    return list({body["id"]: body for body in bodies if body["rule"] == "store_away"}.values())


def events(sink: Server) -> list[str]:
    return [body["event"] for body in told(sink)]


@pytest.mark.both_databases
def test_a_locked_store_is_told_to_each_sink_once_and_its_end(
    database: Database, service: AlertService, sinks: tuple[Server, Server]
) -> None:
    url = database.url.replace("+psycopg", "")
    if database.is_sqlite:
        with closing(sqlite3.connect(database.path, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            until(lambda: all(events(sink) == ["fired"] for sink in sinks), 60)
            holder.execute("ROLLBACK")
        named = ("the database is locked by another program",)
    else:
        with psycopg.connect(url, application_name="report") as session:
            session.execute("LOCK TABLE schedd_tasks IN ACCESS EXCLUSIVE MODE")
            pid = session.info.backend_pid
            until(lambda: all(events(sink) == ["fired"] for sink in sinks), 60)
            session.rollback()
        named = (
            f"table schedd_tasks is locked by session {pid} (report, user postgres, idle in transaction), its transac",
            f"`SELECT pg_terminate_backend({pid})` ends it",
        )
    until(lambda: all(events(sink) == ["fired", "recovered"] for sink in sinks), 60)
    fired, over = told(sinks[0])
    assert fired["severity"] == "critical"
    assert fired["title"].startswith("the database cannot be used (")
    for word in (*named, "the daemon ", "since 20"):
        assert word in fired["text"]
    assert over["title"].startswith("over: the database cannot be used (")
    assert over["lasted_seconds"] >= 1


def test_a_full_disk_is_told(
    service: AlertService, sinks: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played by what decides whether there is room; on PostgreSQL by a server that takes no writes."""
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_files, "_FULL", 1 << 62)
        patch.setattr(writable, "_SERVER", "SELECT true AS standby, true AS read_only")
        until(lambda: events(sinks[0]) == ["fired"], 60)
    until(lambda: events(sinks[0]) == ["fired", "recovered"], 60)
    text = told(sinks[0])[0]["text"]
    assert "is full: free some space" in text or "it is a standby" in text


def test_what_the_engine_says_counts(database: Database, sinks: tuple[Server, Server], tmp_path: Path) -> None:
    """As of a result that no longer fits, while a small write still does."""
    path = tmp_path / "config.toml"
    path.write_text(configuration(database.url, sinks))
    said: list[str | None] = ["the disk is full: free some space"]
    service = AlertService(load(path, {}), outage=lambda: said[0])
    service.start()
    try:
        until(lambda: events(sinks[0]) == ["fired"], 60)
        said[0] = None
        until(lambda: events(sinks[0]) == ["fired", "recovered"], 60)
    finally:
        service.stop()


@pytest.mark.faults
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_daemons_whose_server_stops_tell_it_each_also_one_that_starts_meanwhile(
    database: Database, sinks: tuple[Server, Server], tmp_path: Path
) -> None:
    with OwnServer() as server, Nursery(tmp_path) as nursery:
        nursery.write("config.toml", configuration(server.url(JOBS), sinks))
        first = nursery.start("-m", "scheduler.daemon")
        first.expect('"ready"')
        server.stop()
        second = nursery.start("-m", "scheduler.daemon")
        until(lambda: events(sinks[0]) == ["fired", "fired"], 90)
        names = {one["text"].partition(" cannot use")[0] for one in told(sinks[0])}
        assert len(names) == 2, "each names itself"
        server.start()
        until(lambda: sorted(events(sinks[0])) == ["fired", "fired", "recovered", "recovered"], 90)
        for daemon in (first, second):
            daemon.kill(signal.SIGTERM)
            assert daemon.end() == 0


@pytest.mark.case(103, pure=True)
@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ([(0, "x"), (59, "x"), (60, "x"), (61, "x")], [(60, AlertEvent.FIRED)]),
        ([(0, "x"), (30, None), (31, "x"), (90, "x"), (91, "y")], [(91, AlertEvent.FIRED)]),
        ([(0, "x"), (70, "x"), (80, None), (85, "x"), (200, "x")], [(70, AlertEvent.FIRED)]),
        (
            [(0, "x"), (70, "x"), (80, None), (85, None), (90, "z"), (150, "z")],
            [(70, AlertEvent.FIRED), (85, AlertEvent.RECOVERED), (150, AlertEvent.FIRED)],
        ),
    ],
)
def test_when_it_is_told(looks: list[tuple[int, str | None]], said: list[tuple[int, AlertEvent]]) -> None:
    judge = Judge(60.0)
    found = [(at, judge.look(text, at * SECOND, at * SECOND)) for at, text in looks]
    assert [(at, one[0]) for at, one in found if one is not None] == said


@pytest.mark.case(103, pure=True)
def test_the_outage_keeps_its_beginning_and_has_the_last_reason() -> None:
    judge = Judge(10.0)
    assert judge.look("locked", 5 * SECOND, 6 * SECOND) is None
    assert judge.look("full", 14 * SECOND, 15 * SECOND) == (AlertEvent.FIRED, Outage(5 * SECOND, "full"))


def test_a_look_changes_nothing(database: Database) -> None:
    store = Store(database.url, SystemClock(), auto_migrate=False)
    try:
        with store.read() as tx:
            before = tx.rows("SELECT count(*) FROM schedd_tasks")
        assert trouble_of(store, 5.0) is None
        with store.read() as tx:
            assert tx.rows("SELECT count(*) FROM schedd_tasks") == before
    finally:
        store.dispose()
