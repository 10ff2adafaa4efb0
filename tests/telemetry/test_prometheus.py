"""A real Prometheus scrapes two daemons under load, and the figures of their store: each panel shows something."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Ctl, environment_for

from scheduler import Scheduler
from support.dashboards import RULES, panels
from support.databases import Database
from support.processes import PATIENCE, Nursery

PROMETHEUS = shutil.which("prometheus")
pytestmark = [pytest.mark.needs("prometheus"), pytest.mark.both_databases]

JOBS = """
import time
from scheduler import PermanentError, RetryPolicy, task

@task
def quick(ctx):
    pass

@task
def slow(ctx):
    time.sleep(0.2)

@task(retry=RetryPolicy(min_wait=0.1, max_attempts=2))
def fails(ctx):
    raise ValueError("no")

@task(max_concurrency=1)
def alone(ctx):
    time.sleep(0.05)

@task(rate_limit="2/s")
def seldom(ctx):
    pass

@task
def sleeps(ctx):
    ctx.sleep_for(3600)

@task(isolation="process")
def apart(ctx):
    pass

def setup(scheduler):
    scheduler.task(quick).key("nightly").daily_at(3, 0).schedule()
"""
KINDS = ("quick", "slow", "fails", "alone", "seldom", "sleeps", "apart")
MESSAGES = """
[door]
listen = "127.0.0.1:0"
[sources.orders]
type = "cloudevents"
token = "secret"
dlq = "none"
[sinks.shop]
type = "cloudevents"
url = "http://127.0.0.1:9/"
"""
ELASTIC = """
[executors.more]
type = "process"
directory = "{directory}"
place = "worker"
queues = ["elsewhere"]
max_workers = 1
"""
WINDOW = "5s"  # for $__rate_interval: scrapes come each half a second
# Series that there are on one of the databases only.
ONLY_ON = {"schedd_wal_bytes": "sqlite", "schedd_snapshot_age_seconds": "postgresql"}


class Prometheus:
    """A server of our own, on the shipped configuration but for its targets and how often it scrapes."""

    def __init__(self, place: Path, daemons: list[str], figures: str) -> None:
        text = (RULES.parent / "prometheus.yml").read_text(encoding="utf-8")
        text, count = re.subn(r"(scrape|evaluation)_interval: 15s", r"\1_interval: 500ms", text)
        for old, new in (('["127.0.0.1:9464", "127.0.0.1:9465"]', daemons), ('["127.0.0.1:9100"]', [figures])):
            count += text.count(old)
            text = text.replace(old, json.dumps(new))
        assert count == 4
        text += "    metrics_path: /schedd.prom\n"  # instead of node_exporter, which adds its own figures
        (place / "prometheus.yml").write_text(text)
        shutil.copy(RULES, place)
        assert PROMETHEUS is not None
        self.process = subprocess.Popen(
            [
                *(PROMETHEUS, f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}"),
                *("--web.listen-address=127.0.0.1:0", "--log.level=info"),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.address = ""
        for line in self.process.stderr:
            if match := re.search(r'msg="Listening on".* address=(\S+)', line):
                self.address = match[1]
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        assert self.address
        until(self._is_ready, 0.05)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now, without those whose value is no number."""
        found = self.get("query", query=expression)["result"]
        return [series for series in found if series["value"][1] != "NaN"]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()


def until(over: Callable[[], Any], every: float = 0.2) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := over()):
        assert time.monotonic() < deadline
        time.sleep(every)
    return found


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Files over HTTP, as node_exporter has those of others."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        extensions_map = {".prom": "text/plain"}  # noqa: RUF012

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@contextmanager
def repeating(work: Callable[[], object], every: float) -> Iterator[None]:
    """Do it again and again in a thread of its own; raises what it raised."""
    over, errors = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.wait(every):
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if errors:
            raise errors[0]  # which is why the block has failed, if it has


def as_grafana_asks(expression: str) -> str:
    for name, value in (("$__rate_interval", WINDOW), ("$job", ".*"), ("$kind", ".*"), ("$queue", ".*")):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def test_each_panel_shows_something(database: Database, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    ctl = Ctl(environment_for(database.url, tmp_path))
    jobs = Scheduler(database.url)

    def load() -> None:
        for kind in KINDS:
            if kind != "sleeps" or not jobs.list_tasks(kind="sleeps", limit=1):
                for _ in range({"quick": 20, "alone": 3, "seldom": 3}.get(kind, 1)):
                    jobs.submit(kind, {})

    def write() -> None:
        done = ctl("metrics", "--file", figures / "schedd.prom")
        assert done.exit_code == 0, done.stderr

    with Nursery(tmp_path) as nursery, serving(figures) as served:
        nursery.write("jobs.py", JOBS)
        tables = MESSAGES + ELASTIC.format(directory=tmp_path / "more")
        nursery.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n' + tables)
        environ = {"SCHEDD_STORE__URL": database.url, "SCHEDD_METRICS__LISTEN": "127.0.0.1:0"}
        children = [nursery.start("-m", "scheduler.daemon", SCHEDD_WORKER__PROCESSES="1", **environ) for _ in range(2)]
        lines = [json.loads(child.expect("metrics and health checks at"))["event"] for child in children]
        daemons = [line.rpartition("//")[2] for line in lines]
        nursery.systemd.expect("READY=1")
        nursery.systemd.expect("READY=1")
        write()
        prometheus = Prometheus(tmp_path, daemons, served)
        try:
            with repeating(load, 0.2), repeating(write, 0.5):
                until(lambda: len(prometheus.query("up == 1")) == 3)
                elsewhere = {name for name, dialect in ONLY_ON.items() if dialect != database.dialect}
                without = [
                    (panel["title"], target["expr"])
                    for panel in panels()
                    for target in panel["targets"]
                    if not any(name in target["expr"] for name in elsewhere)
                ]

                def all_shown() -> bool:
                    without[:] = [one for one in without if not prometheus.query(as_grafana_asks(one[1]))]
                    return not without

                try:
                    until(all_shown)
                except AssertionError:
                    raise AssertionError(f"no series for {without}") from None
                groups = prometheus.get("rules")["groups"]
                rules = [rule for group in groups for rule in group["rules"]]
                assert len(rules) == 22
                assert {rule["health"] for rule in rules} == {"ok"}
                until(lambda: prometheus.query('ALERTS{alertname="ScheddNewDeadLetters",kind="fails"}'))
                assert prometheus.get("metadata", metric="schedd_attempts")["schedd_attempts"][0]["type"] == "counter"
            of_one = f'schedd_slots{{instance="{daemons[0]}"}}'
            assert prometheus.query(of_one)
            children[0].kill(signal.SIGTERM)
            assert children[0].end() == 0
            until(lambda: not prometheus.query(of_one))  # a worker that is gone leaves no series
            assert prometheus.query(f'up{{instance="{daemons[0]}"}} == 0')
        finally:
            prometheus.close()
            jobs.close()
        children[1].kill(signal.SIGTERM)
        assert children[1].end() == 0
    assert os.listdir(figures) == ["schedd.prom"]
