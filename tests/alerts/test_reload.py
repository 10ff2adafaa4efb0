"""A daemon that reads ``[alerts]`` again: other rules and sinks, while what fires and what is silenced stays."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import PermanentError, Scheduler, task
from scheduler.model.alerts import Silence
from scheduler.ports import FOREVER
from scheduler.store import alerts as store
from support.databases import Database
from support.fleet import until
from support.processes import Child, Nursery

from ..tasks.server import Server  # noqa: TID252  # "tasks" at the top is the package
from .test_service import OK, QUICK

JOBS = """
from scheduler import PermanentError, task
@task
def bad(ctx, name: str):
    raise PermanentError(name)
@task
def worse(ctx, name: str):
    raise PermanentError(name)
"""
HTTP = '[http]\nallow = ["127.0.0.1"]\n'
MAIL = '[mail]\nhost = "h"\nsender = "a@b.example"\n[alerts.sinks.m]\ntype = "email"\nto = ["c@d.example"]\n'


@task
def bad(ctx: Any, name: str) -> None:
    raise PermanentError(name)


@task
def worse(ctx: Any, name: str) -> None:
    raise PermanentError(name)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("alert_jobs.py", JOBS)
        yield made


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(bad)
    made.register(worse)
    yield made
    made.close()


@pytest.fixture
def first() -> Iterator[Server]:
    made = Server(OK)
    yield made
    made.close()


@pytest.fixture
def second() -> Iterator[Server]:
    made = Server(OK)
    yield made
    made.close()


def configure(nursery: Nursery, database: Database, more: str) -> None:
    nursery.write(
        "config.toml",
        f'[store]\nurl = "{database.url}"\n[tasks]\nmodules = ["alert_jobs"]\npath = ["."]\n'
        f"[worker]\nprocesses = 1\n{more}",
    )


def reload(child: Child, pattern: str) -> str:
    child.kill(signal.SIGHUP)
    return child.expect(pattern)


def received(server: Server) -> list[tuple[str, list[str]]]:
    bodies = [json.loads(asked.body) for asked in list(server.asked)]
    return [(body["event"], [one["kind"] for one in body["alerts"]]) for body in bodies]


def died(jobs: Scheduler, kind: Any, name: str) -> None:
    jobs.wait([jobs.task(kind, name).schedule()], timeout=60)


def test_a_reload_takes_rules_and_sinks_and_forgets_nothing(
    database: Database, jobs: Scheduler, nursery: Nursery, first: Server, second: Server
) -> None:
    configure(nursery, database, HTTP)
    daemon = nursery.start("-m", "scheduler.daemon")
    daemon.expect('"ready"')
    died(jobs, bad, "one")

    configure(nursery, database, f'{QUICK}[alerts.sinks.hook]\nurl = "{first.url}"\n')
    changed = json.loads(reload(daemon, '"reloaded"'))["changed"]
    assert {"alerts.every", "alerts.sinks.hook.url", "alerts.rules.dead_letters.after"} <= set(changed)
    daemon.expect("this daemon evaluates the alerts")
    until(lambda: received(first) == [("fired", ["bad"])], 60)
    jobs.database.change(lambda tx: store.silence(tx, Silence("dead_letters", "worse", None, FOREVER)))

    configure(nursery, database, f'{QUICK}[alerts.sinks.other]\nurl = "{second.url}"\nrules = ["dead_letters"]\n')
    changed = json.loads(reload(daemon, '"reloaded"'))["changed"]
    assert {"alerts.sinks.hook.url", "alerts.sinks.other.rules"} <= set(changed)
    daemon.expect("this daemon evaluates the alerts")
    died(jobs, worse, "two")
    jobs.dead_letters.purge(0, kind="bad")
    until(lambda: bool(second.asked), 60)
    assert received(second) == [("recovered", ["bad"])], "it fires no second time, and what is silenced stays so"
    assert received(first) == [("fired", ["bad"])]

    sink = f'[alerts.sinks.other]\nurl = "{second.url}"\n'
    for mistake, says in (
        (f"{QUICK}{sink}[alerts.rules.retry_rate]\nbelow = 0.5\n", "not reloaded: .*alerts.rules.retry_rate.below"),
        (
            f"{QUICK}{sink}{MAIL}",
            r"not reloaded: .*alerts.sinks.m.type.*set host and sender in \[mail\].*other changes wait for a restart",
        ),
    ):
        configure(nursery, database, mistake)
        reload(daemon, says)
    died(jobs, bad, "three")
    until(lambda: len(second.asked) > 1, 60)
    assert received(second)[1:] == [("fired", ["bad"])], "the old [alerts] are in force"

    configure(nursery, database, HTTP)
    reload(daemon, '"reloaded"')
    with jobs.database.read() as tx:
        assert store.lease(tx).until == 0, "it has given the lease up"
    daemon.kill(signal.SIGTERM)
    assert daemon.end() == 0
