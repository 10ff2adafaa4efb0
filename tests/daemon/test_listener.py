"""A real daemon's metrics and health checks over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, task
from scheduler.config.addresses import ListenAddress, parse_listen
from scheduler.connections import SOCKET_MODE
from scheduler.daemon import listener, main
from scheduler.daemon.listener import Listener
from scheduler.errors import ConfigError
from scheduler.telemetry.health import Vitals
from scheduler.telemetry.metrics import WORKER_METRICS
from scheduler.telemetry.registry import MetricsRegistry
from support.databases import Database
from support.processes import PATIENCE, Child, Nursery

pytestmark = pytest.mark.both_databases

JOBS = """
import os
from scheduler import task

@task
def wait(ctx):
    os.write(1, f"running {ctx.id}\\n".encode())
    with open("gate"):  # a FIFO: opens when the test opens the other end
        return "waited"

@task
def quick(ctx):
    return os.getpid()

def setup(scheduler):
    if os.path.exists("setup-gate"):
        open("setup-gate").close()
"""
SHORT = """
from scheduler.daemon import main
from scheduler.telemetry import health
from scheduler.store.db import engines
health.MAX_ANSWER_AGE_S = 0.5
engines.SQLITE_BUSY_MS = 1_000
raise SystemExit(main.main())
"""


@task
def wait(ctx: Any) -> None: ...


@task
def quick(ctx: Any) -> int: ...  # type: ignore[empty-body]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("jobs.py", JOBS)
        made.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n')
        yield made


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    scheduler = Scheduler(database.url)
    scheduler.register(wait)
    scheduler.register(quick)
    yield scheduler
    scheduler.close()


class Answer:
    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status = found.status
        self.headers = found.headers
        self.text = found.read().decode()


class Unix(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(self.host)


def ask(where: str, path: str, method: str = "GET", **headers: str) -> Answer:
    """``where``: as the daemon logs it."""
    unix = where.startswith("unix:")
    made = Unix(where[5:]) if unix else http.client.HTTPConnection(where.removeprefix("http://"), timeout=PATIENCE)
    try:
        made.request(method, path, headers={"Host": "localhost"} | headers if unix else headers)
        return Answer(made.getresponse())
    finally:
        made.close()


def schedd(nursery: Nursery, url: str, *program: str, listen: str = "127.0.0.1:0", **environ: str) -> Child:
    arguments = program or ("-m", "scheduler.daemon")
    return nursery.start(*arguments, SCHEDD_STORE__URL=url, SCHEDD_METRICS__LISTEN=listen, **environ)


def where(child: Child) -> str:
    return str(json.loads(child.expect("metrics and health checks at"))["event"]).rpartition(" ")[2]


def until(over: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := over()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_daemon_from_its_start_to_its_end(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    os.mkfifo(nursery.place / "gate")
    os.mkfifo(nursery.place / "setup-gate")
    child = schedd(nursery, database.url)
    at = where(child)
    early = {path: ask(at, path) for path in ("/livez", "/readyz", "/startupz", "/metrics")}
    assert [answer.status for answer in early.values()] == [200, 503, 503, 200]
    assert "has not started" in early["/startupz"].text
    (nursery.place / "setup-gate").write_text("")
    until(lambda: ask(at, "/startupz").status == 200)
    assert [ask(at, path).text for path in ("/livez", "/readyz", "/startupz")] == ["ok\n"] * 3

    assert jobs.result(jobs.task(quick).schedule(), timeout=PATIENCE) == child.process.pid
    running = jobs.task(wait).schedule()
    child.says(f"running {running}")
    counted = 'schedd_attempts_total{kind="quick",outcome="succeeded",queue="default"} 1.0'
    text = until(lambda: found if counted in (found := ask(at, "/metrics").text) else None)
    assert 'schedd_slots_busy{pool="medium",slot_type="thread"} 1.0' in text
    assert f'store="{database.dialect}"' in text
    assert 'schedd_attempt_duration_seconds_bucket{kind="quick",le="+Inf",queue="default"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    assert database.url not in text

    child.kill(signal.SIGTERM)
    child.expect("stopping: no new tasks")
    assert ask(at, "/livez").status == 200
    draining = ask(at, "/readyz")
    assert (draining.status, draining.text) == (503, "draining: no new tasks are claimed\n")
    assert counted in ask(at, "/metrics").text
    (nursery.place / "gate").write_text("")
    assert child.end() == 0


@contextmanager
def locked(database: Database, jobs: Scheduler) -> Iterator[None]:
    """Lock the database: no other connection can write meanwhile."""
    if database.is_sqlite:
        with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
    else:
        with jobs.database.write() as tx:
            tx.run("LOCK TABLE schedd_workers, schedd_tasks, schedd_schedules IN ACCESS EXCLUSIVE MODE")
            yield


def test_an_outage_of_the_database_ends_readiness_only(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    nursery.write("short.py", SHORT)
    child = schedd(nursery, database.url, "short.py", SCHEDD_WORKER__LEASE="3")
    at = where(child)
    until(lambda: ask(at, "/readyz").status == 200)
    with locked(database, jobs):
        away = until(lambda: found if (found := ask(at, "/readyz")).status == 503 else None)
        assert re.fullmatch(r"the database has not answered for \d+ s\n", away.text)
        text = until(lambda: t if "schedd_store_unreachable 1.0" in (t := ask(at, "/metrics").text) else None)
        assert ask(at, "/livez").status == 200
        errors = re.findall(r'schedd_store_errors_total\{class="(\w+)"\} ([1-9]\S*)', text)
        assert {name for name, _ in errors} <= {"locked", "unavailable"}
        assert errors
    until(lambda: ask(at, "/readyz").status == 200)
    assert "schedd_store_unreachable 0.0" in until(
        lambda: t if "schedd_store_unreachable 0.0" in (t := ask(at, "/metrics").text) else None
    )
    child.kill(signal.SIGTERM)
    assert child.end() == 0


def test_an_address_that_is_taken_keeps_no_task_from_running(
    database: Database, jobs: Scheduler, nursery: Nursery
) -> None:
    one = schedd(nursery, database.url, SCHEDD_WORKER__QUEUES='["one"]')
    at = where(one)
    two = schedd(nursery, database.url, listen=at.removeprefix("http://"), SCHEDD_WORKER__QUEUES='["two"]')
    line = json.loads(two.expect("no metrics and no health checks"))
    assert line["level"] == "error"
    assert at.removeprefix("http://") in line["event"]
    assert "set [metrics] listen to another address" in line["event"]
    assert jobs.result(jobs.task(quick).queue("two").schedule(), timeout=PATIENCE) == two.process.pid
    until(lambda: ask(at, "/readyz").status == 200)  # the first one serves on, and may have begun to just now
    for child in (one, two):
        child.kill(signal.SIGTERM)
        assert child.end() == 0


@pytest.fixture
def served() -> Iterator[tuple[str, list[Vitals | None]]]:
    """A listener without a daemon: where it is, and what its engine says."""
    vitals: list[Vitals | None] = [None]

    class Engine:
        metrics = MetricsRegistry(time.monotonic)

        def health(self) -> Vitals:
            assert vitals[0] is not None
            return vitals[0]

    made = Listener(ListenAddress("127.0.0.1", 0), lambda: None if vitals[0] is None else Engine())
    made.start()
    assert made.url
    yield made.url, vitals
    made.close()


def test_what_a_scrape_is_answered(served: tuple[str, list[Vitals | None]]) -> None:
    at, vitals = served
    vitals[0] = Vitals(True, True, False, 0.0, 0.0, False, 30.0)
    plain = ask(at, "/metrics")
    assert plain.headers["Content-Type"].startswith("text/plain; version=")
    assert plain.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in plain.headers
    modern = ask(at, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert modern.headers["Content-Type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")
    named = set(re.findall(r"# TYPE (schedd_\w+)", plain.text))
    without_value = {"schedd_attempts_total", "schedd_attempt_duration_seconds", "schedd_queue_wait_seconds"}
    assert named <= {metric.name for metric in WORKER_METRICS} - without_value
    head = ask(at, "/livez", "HEAD")
    assert (head.status, head.text, head.headers["Content-Length"]) == (200, "", "3")
    assert ask(at, "/livez?verbose=1").status == 200
    assert ask(at, "/").status == 404
    assert ask(at, "/metrics/../livez").status == 404
    assert ask(at, "/livez", "POST").status == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9464", 200),
        ("10.0.0.7", 200),
        ("localhost:1", 200),
        ("[::1]:9464", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9464", 421),
        ("", 421),
    ],
)
def test_a_name_that_was_made_to_lead_here_is_refused(
    served: tuple[str, list[Vitals | None]], host: str, status: int
) -> None:
    assert ask(served[0], "/livez", Host=host).status == status


def _status(at: str) -> int:
    try:
        return ask(at, "/livez").status
    except OSError:
        return 0


def test_an_address_that_is_free_again_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "RETRY_EVERY_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = ListenAddress("127.0.0.1", other.getsockname()[1])
        made = Listener(address, lambda: None)
        made.start()
        assert not made.url
    until(lambda: _status(f"http://{address}") == 200)
    made.close()
    waiting = Listener(ListenAddress("192.0.2.1", 9464), lambda: None)
    waiting.start()
    waiting.close()  # which ends its thread, too


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    at = f"unix:{path}"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    made = Listener(parse_listen(at), lambda: None)
    made.start()
    assert made.url
    assert made.url == at
    assert ask(at, "/livez").text == "ok\n"
    assert ask(at, "/livez", Host="anything").status == 200
    assert stat.S_IMODE(path.stat().st_mode) == SOCKET_MODE
    second = Listener(parse_listen(at), lambda: None)
    second.start()
    assert not second.url
    assert ask(at, "/livez").status == 200
    made.close()
    second.close()
    assert not path.exists()
    path.write_text("another program's file")
    third = Listener(parse_listen(at), lambda: None)
    third.start()
    assert not third.url
    third.close()
    assert path.read_text() == "another program's file"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464, None)),
        ("[::1]:9464", ("::1", 9464, None)),
        ("localhost:0", ("localhost", 0, None)),
        ("unix:/run/schedd/metrics.sock", ("", 0, "/run/schedd/metrics.sock")),
    ],
)
def test_addresses(text: str, expected: tuple[str, int, str | None]) -> None:
    assert parse_listen(text) == expected
    assert str(parse_listen(text)) == text
    assert parse_listen(text).loopback
    assert not parse_listen("0.0.0.0:1").loopback
    assert not parse_listen("monitor.example:1").loopback


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9464", "expected HOST:PORT"),
        (":9464", "name the address"),
        ("::1:9464", "expected HOST:PORT"),
        ("127.0.0.1:99999", "expected HOST:PORT"),
        ("[1.2.3.4]:1", "is not an IPv6 address"),
        ("http://127.0.0.1:9464", "expected HOST:PORT"),
        ("monitor..example:1", "monitor..example is not the name of a host"),
        ("unix:metrics.sock", "an/absolute/path"),
        (f"unix:/{'x' * 120}", "107 bytes"),
    ],
)
def test_a_wrong_address_is_named(
    text: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[metrics]\nlisten = "{text}"\n')
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert main.main(["--config", str(file), "--check"]) == 2
    printed = capfd.readouterr().err
    assert "setting metrics.listen" in printed
    assert why in printed


def test_a_missing_library_is_named_before_anything_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[metrics]\nlisten = "127.0.0.1:0"\n')
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    for arguments in (["--check"], []):
        assert main.main(["--config", str(file), *arguments]) == 2
        assert "pip install 'schedd[metrics]'" in capfd.readouterr().err
    with pytest.raises(ConfigError, match="prometheus-client"):
        listener.prometheus.require("it")
