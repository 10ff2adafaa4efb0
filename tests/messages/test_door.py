"""The door: CloudEvents and tasks over HTTP, from senders who show who they are; 2xx only after the commit."""

from __future__ import annotations

import asyncio
import base64
import linecache
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import msgspec
import pytest

from scheduler import Context, Scheduler, Task, tasks
from scheduler.config.messages import DoorSection as DoorSettings
from scheduler.config.messages import SinkSection, SourceSection
from scheduler.config.model import Config, StoreSection
from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.messages import duties, reading
from scheduler.messages.door import Door
from scheduler.messages.group_commit import PushedIntake
from scheduler.messages.outbox import make_kind, make_outlet
from scheduler.messages.service import MessageService, make_sources
from scheduler.model.inbox import sender_key
from scheduler.model.webhooks import key_of, signature, verify
from scheduler.store import inbox, pauses
from scheduler.tasks.backup import BackupTask
from scheduler.tasks.command.task import CommandTask
from scheduler.telemetry.traffic import Traffic
from scheduler.testing import drain
from scheduler.transports import cloudevents
from scheduler.transports.cloudevents import BATCH, EVENT
from scheduler.transports.cloudflare_push import CloudflarePushSettings as PushSettings
from scheduler.transports.cloudflare_push import CloudflarePushSource
from scheduler.transports.ports import Request
from support.databases import Database
from support.fleet import until

SECRET = "whsec_" + base64.b64encode(b"a key of 24 bytes or more").decode()
TOKEN = "a token of the sender"


class TakeOrder(Task):
    order: int

    def run(self, ctx: Context) -> int:
        ctx.state.append((self.order, ctx.idempotency_key, ctx.subject, ctx.correlation_id))
        return self.order


class Opened:
    """A service with a door that is open, and a client of it."""

    def __init__(self, database: Database, more: Mapping[str, SourceSection] | None = None, **section: Any) -> None:
        self.ran: list[tuple[int, str, str | None, str]] = []
        self.jobs = Scheduler(database.url, state=self.ran)
        self.jobs.register(TakeOrder)
        source = SourceSection(
            **{"type": "cloudevents", "kind": "TakeOrder", **section}, options={"token": TOKEN, "secret": SECRET}
        )
        self.config = Config(
            store=StoreSection(url=database.url),
            door=DoorSettings(
                listen="127.0.0.1:0",
                token="of tasks",
                kinds=("TakeOrder", "None"),
                max_body=200_000,
                shared_keys=bool(section.get("shared_keys")),
            ),
            sources={"orders": source, **(more or {})},
            sinks={"shop": SinkSection(type="cloudevents", options={"url": "http://127.0.0.1:9/"})},
        )
        self.service = MessageService(self.config, self.jobs)
        self.service.start()
        assert isinstance(self.service.door, Door)
        self.client = httpx2.Client(base_url=self.service.door.url, timeout=60)

    def post(self, body: Any, content: str = EVENT, path: str = "/v1/sources/orders", **headers: str) -> Any:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        given = {"content-type": content, "authorization": f"Bearer {TOKEN}", **headers}
        return self.client.post(path, content=data, headers={k: v for k, v in given.items() if v})

    def submit(self, body: Any) -> Any:
        return self.post(body, "application/json", "/v1/tasks", authorization="Bearer of tasks")

    def count(self) -> int:
        with self.jobs.database.read() as tx:
            return len(inbox.inbox_records(tx, limit=10_000))

    def close(self) -> None:
        self.client.close()
        self.service.stop()
        self.jobs.close()


def event(number: int, **more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0", "id": f"e{number}", "source": "/shop", "type": "order", "data": {"order": number}, **more,
    }  # fmt: skip


@pytest.fixture
def opened(database: Database) -> Iterator[Callable[..., Opened]]:
    made: list[Opened] = []

    def make(**section: Any) -> Opened:
        made.append(Opened(database, **section))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_events_come_structured_binary_and_in_batches_and_become_tasks(opened: Callable[..., Opened]) -> None:
    door = opened()
    assert door.post(event(1, subject="s", correlationid="c-1")).status_code == 204
    assert door.post([event(2), event(3)], BATCH).status_code == 204
    headers = {"ce-specversion": "1.0", "ce-id": "e4", "ce-source": "/shop", "ce-type": "order", "ce-subject": "b"}
    assert door.post({"order": 4}, "application/json", **headers).status_code == 204
    assert door.post(event(1)).status_code == 204, "it came before"
    drain(door.jobs)
    assert [row[:3] for row in sorted(door.ran)] == [
        (1, "orders:/shop e1", "s"),
        (2, "orders:/shop e2", None),
        (3, "orders:/shop e3", None),
        (4, "orders:/shop e4", "b"),
    ]
    assert min(door.ran)[3] == "c-1"


def test_only_those_who_show_who_they_are_may_post(opened: Callable[..., Opened]) -> None:
    door = opened()
    body = msgspec.json.encode(event(1))

    def signed(at: float, data: bytes = body, secret: str = SECRET) -> int:
        stamp = str(int(at))
        made = "v1,bm9uZQ== " + signature(key_of(secret), "m1", stamp, data)
        given = {"webhook-id": "m1", "webhook-timestamp": stamp, "webhook-signature": made, "authorization": ""}
        return int(door.post(body, **given).status_code)

    assert door.post(body, authorization="").status_code == 401
    assert door.post(body, authorization="Bearer another").status_code == 401
    assert signed(time.time(), secret="another") == 401
    assert signed(time.time(), b"another body") == 401
    assert signed(time.time() - 600) == 401, "it was replayed"
    assert door.count() == 0
    assert signed(time.time()) == 204
    assert door.count() == 1


@pytest.mark.parametrize(
    ("body", "content", "status"),
    [
        (b"{", EVENT, 400),
        ({"specversion": "0.3"}, EVENT, 400),
        (event(1, id=""), EVENT, 400),
        ([event(1), 7], BATCH, 400),
        (event(1), "text/plain", 415),
        (event(1, data={"order": "x"}), EVENT, 422),
        (event(1, subject="s" * 300), EVENT, 422),
        (event(1, data={"order": 1, "more": "x" * 250_000}), EVENT, 413),
    ],
)
def test_what_cannot_be_taken_is_refused(opened: Callable[..., Opened], body: Any, content: str, status: int) -> None:
    answer = opened().post(body, content)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]


def test_one_bad_event_of_a_batch_harms_none(opened: Callable[..., Opened]) -> None:
    door = opened()
    answer = door.post([event(1), event(2, data={}), event(3)], BATCH)
    assert answer.status_code == 422
    assert [one["event"] for one in answer.json()["events"]] == [1]
    drain(door.jobs)
    assert sorted(row[0] for row in door.ran) == [1, 3]


def test_there_is_no_2xx_without_a_commit(opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch) -> None:
    door = opened()
    change = door.jobs.database.change

    def lost(work: Any) -> Any:
        change(work)
        raise StoreUnavailableError("the answer of the commit was lost")

    monkeypatch.setattr(door.jobs.database, "change", lost)
    answer = door.post(event(1))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    monkeypatch.undo()
    assert door.post(event(1)).status_code == 204
    drain(door.jobs)
    assert len(door.ran) == 1


def test_a_source_that_is_paused_answers_that_it_will_take_it_later(opened: Callable[..., Opened]) -> None:
    door = opened()
    with door.jobs.database.write() as tx:
        pauses.pause(tx, pauses.SOURCE, "orders")
    assert door.post(event(1)).status_code == 503
    assert door.count() == 0


def test_the_end_of_the_task_is_the_answer_if_that_is_wanted(opened: Callable[..., Opened]) -> None:
    door = opened(ack="end")
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(door.post, event(1))
        while door.count() == 0:
            assert not answer.done()
        drain(door.jobs)
        assert answer.result().status_code == 204
    assert len(door.ran) == 1


def test_a_thread_that_cannot_be_started_costs_one_answer_and_no_source(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    door = opened(ack="end")
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if "_await_ends" in thread.name:
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert door.post(event(1)).status_code == 503
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(door.post, event(1))
        until(lambda: drain(door.jobs) or answer.done())
        assert answer.result().status_code == 204
    assert len(door.ran) == 1


def test_tasks_are_taken_by_the_name_of_their_kind(opened: Callable[..., Opened]) -> None:
    door = opened()

    def submit(body: Any, token: str = "of tasks") -> Any:
        return door.post(body, "application/json", "/v1/tasks", authorization=f"Bearer {token}")

    made = submit({"kind": "TakeOrder", "payload": {"order": 7}, "key": "k", "subject": "s", "correlation": "c"})
    assert (made.status_code, made.json()["created"]) == (201, True)
    again = submit({"kind": "TakeOrder", "payload": {"order": 7}, "key": "k"})
    assert (again.status_code, again.json()) == (200, {"id": made.json()["id"], "created": False})
    drain(door.jobs)
    assert door.ran == [(7, "@door:k", "s", "c")]
    wrong: list[tuple[Any, int]] = [
        ({"kind": "Step", "payload": {}}, 403),
        ({"kind": "None"}, 404),
        ({"kind": "TakeOrder", "payload": {"order": "x"}}, 422),
        ({"kind": "TakeOrder", "payload": {"order": 1}, "delay": 1e308}, 422),
        ({"kind": "TakeOrder", "payload": {"order": 1}, "delay": -1}, 422),
        ({"kind": "TakeOrder", "payload": {"order": 1}, "key": "a\x00b"}, 422),
        ({"kind": "TakeOrder", "payload": {"order": 1}, "subject": "a\x00b"}, 422),
        ({"kind": "a\x00b"}, 403),
        (b'{"kind": "TakeOrder", "payload": {"order": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}", 400),
        ({"kind": "TakeOrder", "colour": 1}, 400),
        (b"no json", 400),
    ]
    for body, status in wrong:
        assert submit(body).status_code == status, body
    assert submit({"kind": "TakeOrder"}, token=TOKEN).status_code == 401
    assert door.client.get("/v1/tasks").status_code == 405
    assert door.client.post("/v1/sources/others").status_code == 404


def test_a_burst_is_stored_with_few_commits(opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while a transaction is under way shares the next one; a batch is one."""
    door, at_a_time, batch, events = opened(), 64, 1000, 300
    commits, came, stored = 0, 0, 0
    all_came = threading.Condition()
    change, put = door.jobs.database.change, PushedIntake.put

    def counted(work: Any) -> Any:
        nonlocal commits, stored
        commits += 1
        with all_came:  # until each connection's event is here
            assert all_came.wait_for(lambda: came >= min(batch + events, stored + at_a_time), 60)
        entries = change(work)
        stored += len(entries)
        return entries

    def noted(self: PushedIntake, deliveries: Any) -> Any:
        nonlocal came
        done = put(self, deliveries)
        with all_came:
            came += len(deliveries)
            all_came.notify()
        return done

    monkeypatch.setattr(door.jobs.database, "change", counted)
    monkeypatch.setattr(PushedIntake, "put", noted)
    assert door.post([event(n) for n in range(batch)], BATCH).status_code == 204
    assert (door.count(), commits) == (batch, 1)

    async def burst() -> list[int]:
        limits = httpx2.Limits(max_connections=at_a_time)
        async with httpx2.AsyncClient(base_url=str(door.client.base_url), timeout=60, limits=limits) as client:
            headers = {"content-type": EVENT, "authorization": f"Bearer {TOKEN}"}
            posts = [
                client.post("/v1/sources/orders", content=msgspec.json.encode(event(n)), headers=headers)
                for n in range(batch, batch + events)
            ]
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    assert set(asyncio.run(burst())) == {204}
    assert door.count() == batch + events
    assert commits <= 2 + 2 * events / at_a_time


def test_while_no_message_comes_its_thread_waits_for_the_next_without_an_end(opened: Callable[..., Opened]) -> None:
    """It polls nothing: no store, no sender."""
    door = opened()
    door.post(event(1))
    (thread,) = [one for one in threading.enumerate() if one.name == "schedd-source-orders"]
    while True:
        frame = sys._current_frames()[thread.ident or 0]
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_code.co_name == "_run" and "self._waiting.get()" in line:
            break


@pytest.mark.case(93)
@pytest.mark.parametrize("shared", [False, True])
def test_a_key_of_one_sender_takes_none_of_another(opened: Callable[..., Opened], shared: bool) -> None:
    door = opened(shared_keys=shared)
    task = {"kind": "TakeOrder", "payload": {"order": 1}, "key": "/shop e2"}
    assert door.submit(task).status_code == 201
    assert door.submit(task).status_code == 200
    assert door.post(event(2)).status_code == 204
    door.jobs.task(TakeOrder(3)).key("/shop e2").schedule()
    drain(door.jobs)
    assert sorted(row[0] for row in door.ran) == ([1] if shared else [1, 2, 3])


def own_kinds(door: Opened) -> list[str]:
    """Kinds of schedd's own: registered here, and only published by a worker."""
    door.jobs.register(CommandTask)
    door.jobs.register(CommandTask, kind="Run")
    worker = Scheduler(str(door.jobs.database.absolute_url()))
    worker.register(BackupTask)
    worker.register(CommandTask, kind="Elsewhere")
    worker.register(make_kind(make_outlet(door.config, "shop", worker.database, Traffic()), worker.database))
    with worker:
        pass
    worker.close()
    return ["CommandTask", "Run", "BackupTask", "Elsewhere", "sinks.shop"]


@pytest.mark.case(93)
def test_strangers_reach_no_kind_of_schedds_own_by_its_name(
    opened: Callable[..., Opened],
) -> None:
    door = opened(kind=None)
    kinds = own_kinds(door)
    for kind in kinds:
        answer = door.post(event(1, id=kind, type=kind, data={"argv": ["true"]}))
        assert (answer.status_code, "schedd's own" in answer.text) == (422, True), answer.text
    assert door.post(event(2, type="TakeOrder")).status_code == 204
    door.service.door._settings = msgspec.structs.replace(door.config.door, kinds=("*",))  # type: ignore[attr-defined]
    for kind in kinds:
        answer = door.submit({"kind": kind, "payload": {"argv": ["true"]}})
        assert answer.status_code in (403, 422), answer.text
        assert door.jobs.list_tasks(kind=kind) == []
    assert door.submit({"kind": "TakeOrder", "payload": {"order": 1}}).status_code == 201


@pytest.mark.case(93)
def test_a_kind_of_schedds_own_that_is_named_is_taken_but_never_anothers_result(
    opened: Callable[..., Opened],
) -> None:
    door = opened(kind=None, kinds=("run = CommandTask", "tell = sinks.shop"))
    own_kinds(door)
    assert door.post(event(1, type="run", data={"argv": ["true"]})).status_code == 204
    message = {"key": "k", "message": {"idempotency_key": "k"}}
    assert door.post(event(2, type="tell", data=message)).status_code == 204
    stolen = door.post(event(3, type="tell", data={**message, "result_of": 1}))
    assert (stolen.status_code, "result_of is not taken" in stolen.text) == (422, True)
    door.service.door._settings = msgspec.structs.replace(door.config.door, kinds=("sinks.shop",))  # type: ignore[attr-defined]
    stolen = door.submit({"kind": "sinks.shop", "payload": {**message, "result_of": 1}})
    assert (stolen.status_code, "result_of is not taken" in stolen.text) == (403, True)


@pytest.mark.case(93, pure=True)
def test_the_names_of_built_in_kinds_are_known() -> None:
    assert set(tasks.BUILTIN) == reading.BUILT_IN


@pytest.mark.case(93)
def test_two_sources_of_one_kind_have_each_its_keys(database: Database, opened: Callable[..., Opened]) -> None:
    door = opened()
    more = msgspec.structs.replace(door.config.sources["orders"], task_queue=None)
    door.close()
    door = Opened(database, more={"door": more})
    assert door.post(event(1)).status_code == 204
    assert door.post(event(1, data={"order": 2}), path="/v1/sources/door").status_code == 204
    assert door.submit({"kind": "TakeOrder", "payload": {"order": 3}, "key": "/shop e1"}).status_code == 201
    drain(door.jobs)
    assert sorted(row[0] for row in door.ran) == [1, 2, 3]
    door.close()


@pytest.mark.case(93)
def test_what_was_posted_before_the_upgrade_and_comes_again_runs_once(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then a key was its message's alone, and a blank joined an event's source and id."""
    jobs = opened().jobs
    jobs.database.change(lambda tx: tx.run("DELETE FROM schedd_inbox_subjects"))
    task = {"kind": "TakeOrder", "payload": {"order": 1}, "key": "k", "correlation": "c"}
    old = jobs.task(TakeOrder(1)).key("k").correlation("c").schedule()
    with monkeypatch.context() as before:
        before.setattr(cloudevents, "_key", lambda source, id_: (f"{source} {id_}", None))
        before.setattr(reading, "sender_key", lambda _sender, key: key)
        first = opened()
        first.jobs.database.change(lambda tx: tx.run("DELETE FROM schedd_inbox_subjects"))
        for one in (event(2, id="e 2"), event(3)):
            assert first.post(one).status_code == 204
    door = opened()
    for one in (event(2, id="e 2"), event(3)):
        assert door.post(one).status_code == 204
    assert door.submit(task).json() == {"id": int(old), "created": False}
    assert door.submit({**task, "payload": {"order": 4}}).status_code == 201, "another one with its key"
    assert door.post(event(5, id="2", source="/shop e")).status_code == 204, "what only looks like e 2 of /shop"
    drain(door.jobs)
    ran = sorted(row[0] for row in [*first.ran, *door.ran])
    assert ran == [1, 2, 3, 4, 5]


@pytest.mark.case(93, pure=True)
def test_no_two_events_have_one_key() -> None:
    words = ["a", "a b", "b", "b c", "c", " ", "", "x" * 300, "x" * 300 + " y", "y", "1 a", "5 a b"]
    pairs = [(source, id_) for source in words for id_ in words]
    assert len({cloudevents._key(*pair)[0] for pair in pairs}) == len(pairs)
    assert len({sender_key(sender, key) for sender, key in pairs if ":" not in sender}) == len(pairs)
    assert max(len(sender_key("orders", key)) for _, key in pairs) <= 255


@pytest.mark.case(92)
@pytest.mark.parametrize("dlq", [None, "none"])
def test_a_text_of_one_event_costs_that_event_alone(opened: Callable[..., Opened], dlq: str | None) -> None:
    """In its batch, and among requests that are stored together."""
    door = opened(**({} if dlq is None else {"dlq": dlq}))
    deep = b'{"specversion": "1.0", "id": "d", "source": "/s", "type": "t", "data": ' + b"[" * 10_000 + b"]" * 10_000
    wrong = [
        msgspec.json.encode(event(100, id="a\x00b")),
        msgspec.json.encode(event(101, subject="a\x00b")),
        msgspec.json.encode(event(102, type="\x00")),
        msgspec.json.encode(event(103, id="x" * 100_000)),
        msgspec.json.encode(event(104, sequence="9" * 5000)),
        msgspec.json.encode(event(105, specversion="0")),
        deep + b"}",
    ]
    good = [msgspec.json.encode(event(number)) for number in range(len(wrong) + 1)]
    batch = b"[" + b",".join(one for pair in zip(good, [*wrong, b""], strict=True) for one in pair if one) + b"]"
    answer = door.post(batch, BATCH)
    failed = [1, 3, 5, 9, 11, 13]  # the long id is a key like another
    if dlq is None:
        assert answer.status_code == 422
        assert [one["event"] for one in answer.json()["events"]] == failed
    else:
        assert answer.status_code == 204
    drain(door.jobs)
    assert sorted(row[0] for row in door.ran) == [*range(8), 103]
    with ThreadPoolExecutor(16) as pool:
        bodies = [wrong[0], wrong[1], wrong[6]] * 5 + [msgspec.json.encode(event(number)) for number in range(200, 220)]
        found = list(pool.map(lambda body: door.post(body).status_code, bodies))
    assert found == [204 if dlq else 422] * 15 + [204] * 20


@pytest.mark.case(92)
def test_a_number_of_a_posted_batch_costs_no_other(database: Database) -> None:
    made = CloudflarePushSource("q", PushSettings(token="t"))
    batch = {"queue": "q", "messages": [{"id": f"{n}", "body": "{}", "timestamp_ms": at} for n, at in enumerate(TIMES)]}
    deliveries = made.accept(Request(headers={}, body=msgspec.json.encode(batch)))
    assert [one.sent_at for one in deliveries] == [None, None, 1_700_000_000_000_000, None]


TIMES = (1e308, -1e308, 1_700_000_000_000, None)


@pytest.mark.case(91)
def test_a_gap_is_passed_over_though_no_request_comes(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "OVERDUE_EVERY", 0.05)
    door = opened(ordered_by="subject", gap_timeout=0.1)
    for number in (1, 3):
        assert door.post(event(number, subject="s", sequence=number)).status_code == 204
    until(lambda: len(door.jobs.list_tasks(kind="TakeOrder")) == 2, 60)
    drain(door.jobs)
    assert [row[0] for row in door.ran] == [1, 3]


def test_a_source_that_lets_everyone_post_is_refused() -> None:
    source = SourceSection(type="cloudevents", kind="TakeOrder")
    with pytest.raises(ConfigError, match="who may post to it"):
        make_sources(Config(door=DoorSettings(listen="127.0.0.1:0"), sources={"orders": source}))
    with pytest.raises(ConfigError, match=r"set listen in \[door\]"):
        make_sources(Config(sources={"orders": source}))


def test_signatures_are_those_of_the_standard() -> None:
    """The example of https://www.standardwebhooks.com."""
    secret, data = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    made = signature(key_of(secret), "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", data)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330", "webhook-signature": made,
    }  # fmt: skip
    assert verify([key_of(secret)], headers, data, 1614265330 + 299) is None
    assert verify([key_of(secret)], headers, data, 1614265330 + 301) is not None
    assert verify([b"another"], headers, data, 1614265330) == "no signature in it is right"
