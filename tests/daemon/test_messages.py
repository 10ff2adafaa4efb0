"""A real daemon: an event comes to its door, becomes a task, and its success goes out to another endpoint, signed."""

from __future__ import annotations

import http.server
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scheduler import Context, Scheduler, task
from scheduler.model.webhooks import key_of, verify
from support.databases import Database
from support.processes import Child, Nursery

SECRET = "a secret of the receiver"
JOBS = """
from scheduler import Task, Context

class TakeOrder(Task, on_success="sinks.shop"):
    order: int

    def run(self, ctx: Context):
        return {"taken": self.order}
"""
# Killed once, between the answer of the endpoint and the commit that records it.
KILLED = """
import os, signal
from scheduler.daemon import main
from scheduler.ports import FAILPOINTS

def hit(name):
    if name == "outbox.published":
        os.kill(os.getpid(), signal.SIGKILL)

FAILPOINTS.hit = hit
raise SystemExit(main.main())
"""


class Endpoint:
    """Takes events, and keeps those whose signature is right."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.came = threading.Condition()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                wrong = verify([key_of(SECRET)], headers, body, time.time())
                self.send_response(204 if wrong is None else 401)
                self.end_headers()
                if wrong is None:
                    with outer.came:
                        outer.events.append(json.loads(body))
                        outer.came.notify_all()

            def log_message(self, *_: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/events"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.events) >= count, 60), self.events


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def configure(place: Path, database: Database, endpoint: Endpoint) -> str:
    (place / "shopjobs.py").write_text(JOBS)
    file = place / "schedd.toml"
    file.write_text(
        f'[store]\nurl = "{database.url}"\nauto_migrate = true\n[tasks]\nmodules = ["shopjobs"]\npath = ["{place}"]\n'
        '[door]\nlisten = "127.0.0.1:0"\n'
        '[sources.orders]\ntype = "cloudevents"\nkind = "TakeOrder"\ntoken = "t"\n'
        f'[sinks.shop]\ntype = "cloudevents"\nurl = "{endpoint.url}"\nsecret = "{SECRET}"\n'
    )
    return str(file)


def post(door: str, number: int) -> int:
    event = {"specversion": "1.0", "id": f"e{number}", "source": "/web", "type": "order", "data": {"order": number}}
    headers = {"content-type": "application/cloudevents+json", "authorization": "Bearer t"}
    answer = httpx2.post(f"{door}/v1/sources/orders", content=json.dumps(event), headers=headers, timeout=60)
    return int(answer.status_code)


@pytest.mark.faults
def test_an_event_comes_in_and_its_success_goes_out_though_the_daemon_is_killed(
    database: Database, endpoint: Endpoint, tmp_path: Path
) -> None:
    config = configure(tmp_path, database, endpoint)
    environ = {"SCHEDD_LOG__FORMAT": "console", "SCHEDD_WORKER__LEASE": "2", "SCHEDD_CONFIG": config}
    with Nursery(tmp_path) as nursery:
        doomed = nursery.start("-c", KILLED, **environ)
        found = re.search(r"http://\S+:\d+", doomed.expect("the door is open"))
        assert found is not None
        assert post(found[0], 1) == 204
        assert doomed.end() == -signal.SIGKILL
        endpoint.wait(1)
        daemon = nursery.start("-m", "scheduler.daemon", **environ)
        found = re.search(r"http://\S+:\d+", daemon.expect("the door is open"))
        assert found is not None
        endpoint.wait(2)
        assert [post(found[0], number) for number in (1, 2)] == [204, 204]
        endpoint.wait(3)
        daemon.kill(signal.SIGTERM)
        assert daemon.end() == 0
    first, again, second = endpoint.events
    assert first["id"] == again["id"] == "TakeOrder:orders:/web e1", (
        "it went out twice, with the same id: at least once"
    )
    assert (first["data"], second["data"]) == ({"taken": 1}, {"taken": 2})
    assert first["type"] == "order"


def reload(daemon: Child, says: str) -> str:
    daemon.kill(signal.SIGHUP)
    return daemon.expect(says)


def test_a_reload_takes_sources_and_sinks_over(database: Database, endpoint: Endpoint, tmp_path: Path) -> None:
    whole = Path(configure(tmp_path, database, endpoint))
    text = whole.read_text(encoding="utf-8")
    source, sink = text.index("[sources.orders]"), text.index("[sinks.shop]")
    environ = {"SCHEDD_LOG__FORMAT": "console", "SCHEDD_CONFIG": str(whole)}
    second = Endpoint()
    with Nursery(tmp_path) as nursery:
        whole.write_text(text[:source])
        daemon = nursery.start("-m", "scheduler.daemon", **environ)
        found = re.search(r"http://\S+:\d+", daemon.expect("the door is open"))
        assert found is not None
        door = found[0]
        assert post(door, 1) == 404
        whole.write_text(text)
        assert "sources.orders.token" in reload(daemon, "reloaded")
        assert post(door, 1) == 204
        endpoint.wait(1)
        whole.write_text(text.replace(endpoint.url, second.url))
        assert "sinks.shop.url" in reload(daemon, "reloaded")
        assert post(door, 2) == 204
        second.wait(1)
        whole.write_text(text.replace('type = "cloudevents"', 'type = "pigeons"', 1))
        assert "pigeons" in reload(daemon, "not reloaded")
        assert post(door, 3) == 204
        second.wait(2)
        whole.write_text(text[:source] + text[sink:])
        reload(daemon, "reloaded")
        assert post(door, 4) == 404
        whole.write_text(text[:source])
        assert "sinks.shop.type" in reload(daemon, "only a restart puts these into effect")
        daemon.kill(signal.SIGTERM)
        assert daemon.end() == 0
    second.server.shutdown()
    second.server.server_close()
    assert [event["data"] for event in endpoint.events] == [{"taken": 1}]
    assert [event["data"] for event in second.events] == [{"taken": 2}, {"taken": 3}]


SLOW = """
import time
from scheduler import task

@task
def slow(ctx):
    time.sleep(1)
    return "ended"
"""


@task
def slow(ctx: Context) -> None: ...


def test_a_door_whose_address_is_taken_ends_no_task_in_the_middle(database: Database, tmp_path: Path) -> None:
    """The engine has begun by then."""
    (tmp_path / "slowjobs.py").write_text(SLOW)
    with socket.socket() as taken, Nursery(tmp_path) as nursery, closing(Scheduler(database.url)) as jobs:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = nursery.write(
            "schedd.toml",
            f'[store]\nurl = "{database.url}"\n[tasks]\nmodules = ["slowjobs"]\npath = ["{tmp_path}"]\n'
            f'[door]\nlisten = "127.0.0.1:{taken.getsockname()[1]}"\ntoken = "t"\n',
        )
        jobs.register(slow)
        task_id = jobs.task(slow).schedule()
        daemon = nursery.start("-m", "scheduler.daemon", SCHEDD_CONFIG=str(config))
        assert daemon.end() == 2
        assert "cannot listen" in "".join(daemon.rest(daemon.err))
        assert jobs.result(task_id) == "ended"
