"""schedd's Worker on a real Workers runtime: queue, Worker, door, commit, verdicts, dead-letter queue.

Cloudflare's emulator brings a message back that was acknowledged if the Worker throws later, which the real service
does not: so that each good message is posted once shows that the Worker throws nothing.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.config.load import load
from scheduler.errors import ConfigError
from scheduler.messages.door import Door
from scheduler.messages.service import MessageService, make_sources
from scheduler.store import pauses
from scheduler.transports.cloudflare_push import CloudflarePushSettings, CloudflarePushSource
from scheduler.transports.ports import Ack, Dead, Delivery, Request, Retry, Unreadable
from support.databases import Database, one_database
from support.miniflare import Miniflare
from support.receiving import Order
from support.redis_rig import free_port

TOKEN = "a token of the Worker"
SECRET = "whsec_" + base64.b64encode(b"a key of 24 bytes or more").decode()
PATIENCE = 60.0
pytestmark = pytest.mark.needs("miniflare")


class Trial:
    """A door on one database, and the queue ``orders`` whose Worker posts to it."""

    def __init__(self, database: Database, place: Path, **settings: Any) -> None:
        self.database, self.place = database, place
        self.effects_file = place / "effects"
        self.effects_file.touch()
        self.port = free_port()
        self.config = place / "config.toml"
        given = {"token": TOKEN, "dead_letter_queue": "orders-dead", "retry": 1, **settings}
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in given.items())
        self.config.write_text(
            f'[store]\nurl = "{database.url}"\n[door]\nlisten = "127.0.0.1:{self.port}"\n'
            f'[sources.orders]\ntype = "cloudflare-push"\nkind = "Order"\n{lines}'
        )
        self.posted: list[list[Delivery]] = []
        self.came = threading.Condition()
        self.jobs: Scheduler | None = None
        self.service: MessageService | None = None
        self.queues: Miniflare | None = None
        self.processes: list[subprocess.Popen[bytes]] = []

    def open_door(self) -> None:
        config = load(str(self.config), {})
        self.jobs = Scheduler(config.store.url)
        self.jobs.register(Order)
        self.service = MessageService(config, self.jobs)
        assert isinstance(self.service.door, Door)
        source, _ = self.service.door._sources["orders"]
        accept = source.accept

        def noted(request: Request) -> Any:
            found = list(accept(request))
            with self.came:
                self.posted.append(found)
                self.came.notify_all()
            return found

        source.accept = noted  # type: ignore[method-assign]
        self.jobs.start()
        self.service.start()

    def start_queue(self, *, buries: bool = True, max_retries: int = 20, **bindings: str) -> Miniflare:
        made = {"SCHEDD_URL": f"http://127.0.0.1:{self.port}", "SCHEDD_TOKEN": TOKEN, "SCHEDD_RETRY": "1", **bindings}
        self.queues = Miniflare({"orders": {"bindings": made, "buries": buries, "maxRetries": max_retries}})
        return self.queues

    def process(self, point: str = "-", number: int = 1) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        argv = [sys.executable, "-m", "support.pushed", str(self.config), point, str(number)]
        self.processes.append(subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE))
        return self.processes[-1]

    def order(self, number: int, **more: Any) -> dict[str, Any]:
        payload = {"number": number, "file": str(self.effects_file)}
        return {"schema_version": 2, "idempotency_key": f"order-{number}", "payload_inline": payload, **more}

    def effects(self) -> list[int]:
        return [int(line.split()[0]) for line in self.effects_file.read_text().splitlines()]

    def await_effects(self, wanted: Counter[int]) -> None:
        self.wait_until(lambda: Counter(self.effects()) >= wanted)
        assert Counter(self.effects()) == wanted

    def await_dead(self, count: int) -> list[Any]:
        queues = self.queues
        assert queues is not None
        self.wait_until(lambda: len(queues.dead("orders")) >= count)
        return queues.dead("orders")

    def wait_until(self, done: Callable[[], bool]) -> None:
        with self.came:
            for _ in range(round(PATIENCE / 0.05)):
                if done():
                    return
                self.came.wait(0.05)
        raise AssertionError("it did not come to that")

    def deliveries(self) -> Counter[str]:
        with self.came:
            return Counter(one.message_id for batch in self.posted for one in batch)

    def close(self) -> None:
        if self.queues is not None:
            self.queues.close()
        if self.service is not None:
            self.service.stop()
        if self.jobs is not None:
            self.jobs.close()
        for one in self.processes:
            assert one.stdin is not None
            one.stdin.close()
            one.wait(PATIENCE)


@pytest.fixture
def make(database: Database, tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    made: list[Trial] = []

    def one(**settings: Any) -> Trial:
        made.append(Trial(database, tmp_path, **settings))
        return made[-1]

    yield one
    for trial in made:
        trial.close()


def json_body(body: Any) -> dict[str, Any]:
    return {"body": body, "contentType": "json"}


def test_each_message_of_a_queue_becomes_one_task_and_bad_ones_are_in_the_dead_letter_queue(
    make: Callable[..., Trial],
) -> None:
    """Whatever its content type; sent twice it is one intent."""
    trial = make()
    trial.open_door()
    queue = trial.start_queue()
    texts = [json.dumps(trial.order(number)) for number in range(20, 24)]
    queue.send(
        "orders",
        *(json_body(trial.order(number)) for number in [*range(20), *range(5)]),
        json_body({"payload_inline": {}}),
        {"body": texts[0], "contentType": "text"},
        {"body": base64.b64encode(texts[1].encode()).decode(), "contentType": "bytes"},
        {"body": base64.b64encode(b"\xff\x00").decode(), "contentType": "bytes"},
        {"body": texts[2], "contentType": "v8"},
    )
    trial.await_effects(Counter(range(22)))
    dead = trial.await_dead(3)
    assert sorted(dead, key=str) == sorted(
        [{"body": {"payload_inline": {}}}, {"bytes": [255, 0]}, {"map": [["body", texts[2]]]}], key=str
    )
    assert set(trial.deliveries().values()) == {1}, "each was settled at its first delivery"
    assert max(len(batch) for batch in trial.posted) == 10


@one_database
def test_the_worker_signs_if_it_has_a_secret(make: Callable[..., Trial]) -> None:
    trial = make(secret=SECRET)
    trial.open_door()
    trial.start_queue(SCHEDD_TOKEN="", SCHEDD_SECRET=SECRET).send("orders", json_body(trial.order(1)))
    trial.await_effects(Counter([1]))


@one_database
def test_a_worker_that_is_not_let_in_keeps_its_messages(make: Callable[..., Trial]) -> None:
    """Until the last retry; then they are in the dead-letter queue."""
    trial = make()
    trial.open_door()
    trial.start_queue(max_retries=1, SCHEDD_TOKEN="another").send("orders", json_body(trial.order(1)))
    assert trial.await_dead(1) == [{"body": trial.order(1)}]
    assert trial.posted == []
    assert trial.effects() == []


@one_database
def test_messages_wait_while_the_source_is_paused(make: Callable[..., Trial]) -> None:
    """Its messages are posted again, each later than before, and taken once it is resumed."""
    trial = make()
    with Scheduler(trial.database.url).database.write() as tx:
        pauses.pause(tx, pauses.SOURCE, "orders")
    trial.open_door()
    trial.start_queue().send("orders", json_body(trial.order(1)))
    trial.wait_until(lambda: sum(trial.deliveries().values()) >= 2)
    assert trial.effects() == []
    assert trial.jobs is not None
    with trial.jobs.database.write() as tx:
        pauses.resume(tx, pauses.SOURCE, "orders")
    trial.await_effects(Counter([1]))
    assert len(trial.deliveries()) == 1


@one_database
def test_a_message_that_is_to_come_later_comes_later(make: Callable[..., Trial]) -> None:
    """``gap = "retry"``: the second of a subject is given back until the first has come."""
    trial = make(ordered_by="subject", gap="retry")
    trial.open_door()
    queue = trial.start_queue()
    queue.send("orders", json_body(trial.order(2, subject="s", sequence=2)))
    trial.wait_until(lambda: sum(trial.deliveries().values()) >= 2)
    assert trial.effects() == []
    queue.send("orders", json_body(trial.order(1, subject="s", sequence=1)))
    trial.await_effects(Counter([1, 2]))
    assert trial.effects() == [1, 2]
    attempts = [one.attempts for batch in trial.posted for one in batch if b'"order-2"' in one.body]
    assert attempts == list(range(1, len(attempts) + 1))


@one_database
def test_without_a_producer_of_the_dead_letter_queue_retries_end_there(make: Callable[..., Trial]) -> None:
    trial = make()
    trial.open_door()
    queue = trial.start_queue(buries=False, max_retries=1)
    queue.send("orders", json_body({"payload_inline": {}}), json_body(trial.order(1)))
    assert trial.await_dead(1) == [{"body": {"payload_inline": {}}}]
    trial.await_effects(Counter([1]))
    assert sorted(trial.deliveries().values()) == [1, 2]


@one_database
def test_a_batch_that_is_large_is_posted_in_parts(make: Callable[..., Trial]) -> None:
    """The door takes 4 MiB; a batch of Cloudflare's may have a hundred messages of 128 KB."""
    trial = make()
    trial.open_door()
    queue = trial.start_queue()
    for start in (0, 2, 4, 6, 8):
        queue.send("orders", *(json_body(trial.order(n, fill="x" * 125_000)) for n in (start, start + 1)))
    trial.await_dead(10)  # so many unknown fields are refused
    assert all(sum(len(one.body) for one in batch) <= 1_000_000 for batch in trial.posted)
    assert set(trial.deliveries().values()) == {1}


@one_database
def test_the_end_of_the_task_settles_the_message_if_that_is_wanted(make: Callable[..., Trial]) -> None:
    trial = make(ack="end")
    trial.open_door()
    trial.start_queue().send("orders", json_body(trial.order(1)))
    trial.await_effects(Counter([1]))
    assert set(trial.deliveries().values()) == {1}


@pytest.mark.faults
@pytest.mark.parametrize("point", ["inbox.received", "inbox.stored"])
def test_a_daemon_killed_before_or_after_its_commit_loses_and_doubles_nothing(
    make: Callable[..., Trial], point: str
) -> None:
    """The Worker gets no answer then, and brings the whole batch again."""
    trial = make()
    first = trial.process(point, 2)
    queue = trial.start_queue()
    for start in range(0, 30, 10):
        queue.send("orders", *(json_body(trial.order(number)) for number in range(start, start + 10)))
        queue.send("orders", json_body(trial.order(start)))
    assert first.wait(PATIENCE) == -signal.SIGKILL
    trial.process()
    trial.await_effects(Counter(range(30)))


def test_what_is_no_batch_is_refused() -> None:
    source = CloudflarePushSource("orders", CloudflarePushSettings(token=TOKEN))
    assert not source.limits.has_dlq
    message = {"id": "a", "body": "{}"}
    assert (
        len(source.accept(Request(headers={}, body=json.dumps({"queue": "q", "messages": [message] * 2}).encode())))
        == 1
    )
    wrong: list[Any] = [7, {}, {"queue": "q"}]
    wrong.append({"queue": "q", "messages": [{**message, "id": str(n)} for n in range(101)]})
    for body in wrong:
        with pytest.raises(Unreadable):
            source.accept(Request(headers={}, body=json.dumps(body).encode()))


@pytest.mark.case(92, pure=True)
def test_a_broken_text_of_one_message_costs_no_other() -> None:
    source = CloudflarePushSource("orders", CloudflarePushSettings(token=TOKEN))
    body = rb'{"queue": "q", "messages": [{"id": "a", "body": "\ud800"}, {"id": "b", "body": "{}"}]}'
    one, two = source.accept(Request(headers={}, body=body))
    assert (one.body, two.body) == (b"\xed\xa0\x80", b"{}")


def test_the_answer_has_a_verdict_for_each_message() -> None:
    source = CloudflarePushSource("orders", CloudflarePushSettings(token=TOKEN, dead_letter_queue="orders-dead"))
    given = [
        {"id": "a", "body": "{}", "attempts": 3, "timestamp_ms": 1500},
        {"id": "b", "body": "", "content_type": "v8"},
    ]
    body = json.dumps({"queue": "q", "messages": [*given, {"id": "c", "body": "/w==", "content_type": "bytes"}]})
    one, two, three = source.accept(Request(headers={}, body=body.encode()))
    assert (one.attempts, one.sent_at, one.headers["cf-queue"], two.unreadable is None) == (3, 1_500_000, "q", False)
    assert three.body == b"\xff"
    answer = source.answer([Ack("a"), Retry("b", 1.2), Dead("c", "why", three)])
    assert (answer.status, json.loads(answer.body)["verdicts"]) == (200, [
        {"id": "a", "verdict": "ack"},
        {"id": "b", "verdict": "retry", "delay_seconds": 2},
        {"id": "c", "verdict": "dead", "reason": "why"},
    ])  # fmt: skip


def test_who_may_post_and_where_dead_messages_go_has_to_be_said(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    table = '[door]\nlisten = "127.0.0.1:0"\n[sources.orders]\ntype = "cloudflare-push"\n'
    for more, message in ((f'token = "{TOKEN}"', "no dead-letter queue"), ('dlq = "none"', "who may post to it")):
        file.write_text(f"{table}{more}\n")
        with pytest.raises(ConfigError, match=message):
            make_sources(load(str(file), {}))


def test_the_settings_of_the_worker_are_those_that_the_guide_names() -> None:
    text = (Path(__file__).parents[2] / "share" / "schedd" / "cloudflare" / "wrangler.jsonc").read_text()
    settings = json.loads("".join(line for line in text.splitlines() if not line.strip().startswith("//")))
    (consumer,) = settings["queues"]["consumers"]
    assert (consumer["max_retries"], consumer["dead_letter_queue"]) == (100, "orders-dead")
    assert settings["queues"]["producers"] == [{"binding": "DEAD_LETTERS", "queue": consumer["dead_letter_queue"]}]
