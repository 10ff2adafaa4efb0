"""Strangers at each listener of a real daemon: idle connections, halves of heads and of bodies, by the thousand."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scheduler import Scheduler, task
from scheduler.console.auth import hash_token
from support.databases import Database
from support.processes import PATIENCE, Child, Nursery
from support.strangers import strangers

FILES = """
import resource
from scheduler.daemon import main
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, {hard}))
raise SystemExit(main.main())
"""
JOBS = """
from scheduler import task

@task
def Quick(ctx, n: int):
    return n
"""
CONFIG = """
[tasks]
modules = ["jobs"]
path = ["."]
[door]
listen = "127.0.0.1:0"
token = "right"
kinds = ["Quick"]
[sources.signed]
type = "cloudevents"
kind = "Quick"
secret = "a secret of the sender"
[gateway]
listen = "127.0.0.1:0"
urls = ["http://127.0.0.1:1"]
secret = "a secret of all the daemons there are"
[metrics]
listen = "127.0.0.1:0"
[console]
listen = "127.0.0.1:0"
auth = "token"
users = "users"
"""
IN_TIME = 5.0  # seconds in which a right sender is served
MANY = 2000


@task
def Quick(ctx: Any, n: int) -> int:
    return n


class Rig:
    def __init__(self, daemon: Child, jobs: Scheduler) -> None:
        self.daemon, self.jobs = daemon, jobs
        said = {"door": "the door", "gateway": "the gateway", "metrics": "metrics and", "console": "console: http"}
        self.urls = {}
        for _ in said:
            line = json.loads(daemon.expect("|".join(said.values())))["event"]
            found = re.search(r"http://[\d.:]+", line)
            assert found is not None
            self.urls[next(name for name, text in said.items() if text in line)] = found[0]

    def within(self, ask: Callable[[httpx2.Client], httpx2.Response], status: int) -> None:
        """A right sender, on a connection of its own."""
        with httpx2.Client(timeout=IN_TIME) as client:
            began = time.monotonic()
            answer = ask(client)
            took = time.monotonic() - began
        assert answer.status_code == status, answer.text
        assert took < IN_TIME

    def right_senders(self) -> None:
        urls, bearer = self.urls, {"authorization": "Bearer right"}
        body = {"kind": "Quick", "payload": {"n": 1}}
        self.within(lambda c: c.post(f"{urls['door']}/v1/tasks", json=body, headers=bearer), 201)
        self.within(lambda c: c.post(f"{urls['gateway']}/v1/jobs/it/1/1/look", content=b"{}"), 401)
        self.within(lambda c: c.get(f"{urls['gateway']}/livez"), 200)
        self.within(lambda c: c.get(f"{urls['metrics']}/metrics"), 200)
        self.within(lambda c: c.get(f"{urls['console']}/tasks.json", headers=bearer), 200)
        origin = {"origin": urls["console"]}
        self.within(lambda c: c.post(f"{urls['console']}/login", data={"token": "right"}, headers=origin), 303)

    def task_runs(self, n: int) -> None:
        began = time.monotonic()
        assert self.jobs.result(self.jobs.task(Quick, n).schedule(), timeout=PATIENCE) == n
        assert time.monotonic() - began < IN_TIME


@pytest.fixture
def rig(database: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    (tmp_path / "users").write_text(f"ada admin {hash_token('right')}\n")
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "config.toml").write_text(CONFIG)
    jobs = Scheduler(database.url)
    jobs.register(Quick)
    with Nursery(tmp_path) as nursery:
        yield Rig(
            nursery.start("-c", FILES.format(hard=getattr(request, "param", 1024)), SCHEDD_STORE__URL=database.url),
            jobs,
        )
    jobs.close()


@pytest.mark.alone
@pytest.mark.both_databases
@pytest.mark.case(99)
@pytest.mark.parametrize(
    "rig", [1024, pytest.param(8192, marks=pytest.mark.one_is_enough)], ids=["few-files", "many-files"], indirect=True
)
def test_strangers_keep_nobody_out(rig: Rig) -> None:
    rig.right_senders()
    before = len(rig.daemon.seen)
    paths = {
        "door": "/v1/sources/signed",
        "gateway": "/v1/jobs/it/1/1/sync",
        "metrics": "/metrics",
        "console": "/login",
    }
    for n, (name, path) in enumerate(paths.items()):
        with strangers(rig.urls[name], MANY - 200, 100, 100, path):
            rig.right_senders()
            rig.task_runs(n)
            rig.right_senders()
    lines = rig.daemon.seen[before:]
    assert len(lines) < 20, "\n".join(lines[:40])
    rig.daemon.kill(signal.SIGTERM)
    assert rig.daemon.end() == 0


@pytest.mark.alone
@pytest.mark.both_databases
@pytest.mark.case(100)
def test_strangers_delay_no_stop(rig: Rig) -> None:
    """Halves of requests are not waited for."""
    with strangers(rig.urls["door"], 50, 50, 50, "/v1/sources/signed"), strangers(rig.urls["console"], 20, 20, 70):
        rig.right_senders()
        began = time.monotonic()
        rig.daemon.kill(signal.SIGTERM)
        assert rig.daemon.end() == 0
        assert time.monotonic() - began < IN_TIME
    assert not [line for line in rig.daemon.seen if "Traceback" in line]
