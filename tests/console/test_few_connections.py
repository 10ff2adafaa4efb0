"""The console's connections: a request holds one at once at most, so that a few are enough for many requests."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import CookieJar
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.console import app, pages, principal, routes
from scheduler.console.gate import Gate
from scheduler.console.roles import Verb
from scheduler.console.serve import CONNECTIONS
from support.consoles import ORIGIN, ask, link, served
from support.databases import Database
from support.filled import Filled, fill
from support.processes import PATIENCE

pytestmark = pytest.mark.both_databases

pages.load()


@pytest.fixture
def full(database: Database) -> Filled:
    return fill(database.url)


@pytest.fixture
def gate(full: Filled) -> Iterator[Gate]:
    jobs = Scheduler(full.url)
    jobs.database.application_name = "schedd-console"
    jobs.database.connections = CONNECTIONS
    made = app(jobs, lambda scope: principal("ada", "admin"))
    yield made
    made.close()
    jobs.close()


def looks(full: Filled) -> list[str]:
    """Every page, of tasks that there are, and the fragments of each."""
    found = []
    for route in routes.ROUTES:
        if route.method == "GET" and route.verb is Verb.LOOK and not route.asynchronous:
            path = re.sub(r"\{\w+(:\w+)?\}", lambda m: str(full.dead) if m[1] == ":int" else full.bulk, route.path)
            found += [path, f"{path}?fragment=1", f"{path}.json"]
    return [*found, f"/dead?{full.cause}", "/tasks?q=state:dead", f"/tasks/{full.waiting}", f"/graphs/{full.waiting}"]


def test_a_request_holds_one_connection_at_once(gate: Gate, full: Filled) -> None:
    gate.snapshots._look()  # its connection stays open, beside those of requests
    held, most = Counter[int](), Counter[str]()
    asked = [""]

    def out(*_: Any) -> None:
        held[threading.get_ident()] += 1
        most[asked[0]] = max(most[asked[0]], held[threading.get_ident()])

    def back(*_: Any) -> None:
        held[threading.get_ident()] -= 1

    engine = gate.site.jobs.database.open()
    sa.event.listen(engine, "checkout", out)
    sa.event.listen(engine, "checkin", back)
    for path in looks(full):
        asked[0] = path
        assert ask(gate, "GET", path).status < 500, path
    for path in (f"/tasks/{full.dead}/retry", f"/tasks/{full.scheduled}/cancel"):
        asked[0] = path
        assert ask(gate, "POST", path, form={}, headers=ORIGIN).status == 303
    assert most[f"/tasks/{full.dead}"] == 1  # it does count
    assert {path: number for path, number in most.items() if number > 1} == {}


def test_many_requests_at_once_share_the_few(full: Filled) -> None:
    """Of a real server: its requests share an event loop, whose limit of threads they wait for."""
    pages_of = ["", "?fragment=1", "tasks", f"tasks/{full.dead}", "dead", "workers", f"graphs/{full.waiting}", "audit"]
    with served(Database(full.url, full.url.partition(":")[0].partition("+")[0])) as server:
        visitor = build_opener(HTTPCookieProcessor(CookieJar()))
        visitor.open(link(server), timeout=PATIENCE).read()

        def look(path: str) -> int:
            with visitor.open(server.url + path, timeout=PATIENCE) as answer:
                return int(answer.status)

        with ThreadPoolExecutor(16) as threads:
            assert set(threads.map(look, pages_of * 6)) == {200}
        database = server.jobs.database
        assert (database.application_name, database.connections) == ("schedd-console", CONNECTIONS)
        if database.dialect.name == "postgresql":
            with database.read() as tx:
                number = tx.run(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE application_name = 'schedd-console' AND datname = current_database()"
                ).scalar_one()
            assert 1 <= number <= CONNECTIONS
