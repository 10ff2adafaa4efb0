"""Alerts of real daemons: one message of two, none again after restarts, and sinks that hang or come back."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import PermanentError, Scheduler, task
from scheduler.alerts import delivery
from scheduler.alerts.service import STOP_WITHIN, AlertService
from scheduler.config.load import load
from scheduler.store import alerts as store
from support.databases import Database, one_database
from support.fleet import until
from support.processes import Nursery

from ..tasks.server import Asked, Server  # noqa: TID252  # "tasks" at the top is the package
from .alertmanager import Alertmanager

pytestmark = pytest.mark.both_databases

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
BUSY = b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
JOBS = """
from scheduler import PermanentError, task
@task
def bad(ctx, name: str):
    raise PermanentError(name)
"""
QUICK = """
[http]
allow = ["127.0.0.1"]
[alerts]
every = 1
[alerts.rules.dead_letters]
after = 0
clear_after = 0
"""


@task
def bad(ctx: Any, name: str) -> None:
    raise PermanentError(name)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(OK)
    yield made
    made.close()


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(bad)
    yield made
    made.close()


def received(server: Server) -> list[tuple[str, str]]:
    bodies = [json.loads(asked.body) for asked in list(server.asked)]
    return [(body["event"], body["rule"]) for body in bodies if body["rule"] == "dead_letters"]


def until_active(manager: Alertmanager, *names: str) -> None:
    """Until these fire there. Asked for now and then only: it is a process that wants the processor, too."""
    deadline = time.monotonic() + 100
    while (found := [a["labels"]["alertname"] for a in manager.active()]) != list(names):
        assert time.monotonic() < deadline, found
        threading.Event().wait(0.1)


# Daemons


def test_two_daemons_say_it_once_and_not_again_after_restarts(
    database: Database, jobs: Scheduler, server: Server, tmp_path: Path
) -> None:
    nursery = Nursery(tmp_path).__enter__()
    nursery.write("alert_jobs.py", JOBS)
    nursery.write(
        "config.toml",
        f'[store]\nurl = "{database.url}"\n[tasks]\nmodules = ["alert_jobs"]\npath = ["."]\n'
        f'[worker]\nprocesses = 1\n{QUICK}[alerts.sinks.hook]\nurl = "{server.url}"\n',
    )
    try:
        first = nursery.start("-m", "scheduler.daemon")
        first.expect("this daemon evaluates the alerts")
        second = nursery.start("-m", "scheduler.daemon")
        second.expect('"ready"')
        jobs.task(bad, "one").schedule()
        until(lambda: received(server) == [("fired", "dead_letters")], 60)
        first.kill(signal.SIGTERM)
        assert first.end() == 0
        second.expect("this daemon evaluates the alerts")
        third = nursery.start("-m", "scheduler.daemon")
        third.expect('"ready"')
        second.kill(signal.SIGKILL)
        second.end()
        third.expect("this daemon evaluates the alerts")
        assert received(server) == [("fired", "dead_letters")]
        jobs.dead_letters.purge(0)
        until(lambda: len(received(server)) > 1, 60)
        jobs.close()
        third.kill(signal.SIGTERM)
        assert third.end() == 0
        assert received(server) == [("fired", "dead_letters"), ("recovered", "dead_letters")]
        if database.is_sqlite:
            assert not database.path.with_name(database.path.name + "-wal").exists(), "the file is the whole database"
    finally:
        nursery.__exit__()


@one_database
def test_without_alerts_there_is_no_thread_and_no_import(database: Database, tmp_path: Path) -> None:
    nursery = Nursery(tmp_path).__enter__()
    nursery.write("config.toml", f'[store]\nurl = "{database.url}"\n[worker]\nprocesses = 1\n')
    try:
        daemon = nursery.start("-m", "scheduler.daemon")
        daemon.expect('"ready"')
        names = [p.read_text() for p in Path(f"/proc/{daemon.process.pid}/task").glob("*/comm")]
        assert not [name for name in names if "alert" in name]
    finally:
        nursery.__exit__()


# Sinks that misbehave


def service(database: Database, tmp_path: Path, sinks: str) -> AlertService:
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\nurl = "{database.url}"\n{QUICK}{sinks}')
    return AlertService(load(str(config), {}))


def test_a_sink_that_hangs_delays_no_other(database: Database, jobs: Scheduler, server: Server, tmp_path: Path) -> None:
    hanging = threading.Event()

    def stall(connection: Any, asked: Asked) -> None:
        hanging.set()
        slow.stall(connection, asked)

    slow = Server(stall)
    manager = Alertmanager(tmp_path)
    made = service(
        database,
        tmp_path,
        f'[alerts.sinks.a]\nurl = "{slow.url}"\ntimeout = 300\n[alerts.sinks.b]\nurl = "{server.url}"\n'
        f'[alerts.sinks.c]\ntype = "alertmanager"\nurl = "{manager.url}"\n',
    )
    jobs.start()
    jobs.task(bad, "one").schedule()
    made.start()
    try:
        assert hanging.wait(60)
        until(lambda: received(server) == [("fired", "dead_letters")], 60)
        until_active(manager, "schedd_dead_letters")
        jobs.dead_letters.purge(0)
        until(lambda: received(server) == [("fired", "dead_letters"), ("recovered", "dead_letters")], 60)
        until_active(manager)
        began = time.monotonic()
        made.stop()
        assert time.monotonic() - began < STOP_WITHIN + 20, "the sink would have 300 s"
        with jobs.database.read() as tx:
            (a, *_) = [one for one in store.history(tx, 10) if one.sink == "a"][::-1]
        assert a.delivered_at is None
    finally:
        made.stop()
        slow.close()
        manager.close()


def test_what_did_not_arrive_is_sent_again_with_the_same_id(
    database: Database, jobs: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "FIRST_PAUSE", 0.01)
    server = Server(BUSY, BUSY, OK)
    made = service(database, tmp_path, f'[alerts.sinks.hook]\nurl = "{server.url}"\nrules = ["dead_letters"]\n')
    jobs.start()
    jobs.task(bad, "one").schedule()
    made.start()
    try:
        until(lambda: len(server.asked) == 3, 60)
        assert len({json.loads(asked.body)["id"] for asked in server.asked}) == 1

        def done() -> bool:
            with jobs.database.read() as tx:
                (one,) = store.history(tx, 10)
            return one.delivered_at is not None and one.tries == 3 and one.error is None

        until(done, 60)
    finally:
        made.stop()
        server.close()


def test_a_message_is_taken_by_one_process_and_again_when_that_has_died(jobs: Scheduler) -> None:
    body = {"id": store.new_id(), "event": "fired", "rule": "x", "title": "t"}
    database = jobs.database
    database.change(lambda tx: store.put(tx, [("hook", body)]))
    with database.write() as tx:
        now = tx.now
        first = store.take(tx, "hook", 1000)
        assert first is not None
        assert store.take(tx, "hook", 1000) is None, "it is under way"
        again = store.take(tx.at(now + 1000), "hook", 1000)
        assert again is not None
        assert (again.id, again.tries) == (first.id, 2)
        assert store.failed(tx.at(now + 1000), again.number, "no", 50)
        assert store.next_due(tx, "hook") == now + 1050
        assert not store.failed(tx.at(now + store.MESSAGE_LIFE + 1), again.number, "no", 50), "given up after a day"
        assert store.next_due(tx, "hook") is None
        store.clean(tx.at(now + store.MESSAGES_KEPT + 1), ["hook"])
        assert store.history(tx, 10) == []


def test_an_answer_in_odd_words_is_an_error_like_any_other(jobs: Scheduler) -> None:
    """A NUL, which no text of PostgreSQL has, would keep its sink waiting for ten minutes after each try."""
    with jobs.database.write() as tx:
        store.put(tx, [("hook", {"id": "m1"})])
        taken = store.take(tx, "hook", 1000)
        assert taken is not None
        assert store.failed(tx, taken.number, "it answered 500: a\0b", 50)
        (kept,) = store.history(tx, 1)
    assert kept.error == "it answered 500: a�b"
