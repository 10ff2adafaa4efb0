"""Messages that go out: committed with what they tell of, at least once, in the order of their group."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as some

from scheduler import AsyncContext, Context, PermanentError, RetryPolicy, Scheduler, Task
from scheduler.config.messages import SinkSection
from scheduler.config.model import Config, Files, StoreSection
from scheduler.engine.durable.calls import StepScope, current_scope
from scheduler.engine.execution.publishing import opened
from scheduler.errors import ConfigError, PayloadError
from scheduler.messages.outbox import Publisher, make_kind, make_outlet, pack, too_large
from scheduler.model.outgoing import OUTBOX
from scheduler.tasks.files.blob_store import BlobStore
from scheduler.testing import FakeClock, drain
from scheduler.transports import types
from scheduler.transports.envelope import Message
from scheduler.transports.ports import Limits, Outgoing, Published, Refused, TransportError
from support.databases import Database
from support.memory_queue import MemorySink, Settings

pytestmark = pytest.mark.both_databases


class Told(Task, on_success="sinks.shop"):
    name: str
    size: int = 0

    def run(self, ctx: Context) -> Any:
        if self.name == "fail":
            raise PermanentError("it failed")
        return {"name": self.name, "more": "x" * self.size} if self.size else {"name": self.name}


class ToldByChild(Task, isolation="process", on_success="sinks.shop"):
    name: str

    def run(self, ctx: Context) -> str:
        return self.name


class Telling(Task):
    """Writes a row of its own and tells of it, in one transaction."""

    fails: bool = False
    within: bool = True

    def run(self, ctx: Context) -> None:
        if not self.within:
            ctx.publish("shop", {"n": 0})
        with ctx.transaction() as tx:
            tx.execute(sa.text("INSERT INTO theirs (n) VALUES (1)"))
            ctx.publish("shop", {"n": 1}, subject="order-1", message_type="order.taken")
            ctx.publish("sinks.shop", {"n": 2}, key="my-own")
            if self.fails:
                raise PermanentError("rolled back")


class TellingAsync(Task):
    async def run(self, ctx: AsyncContext) -> None:
        async with ctx.transaction():
            await ctx.publish("shop", {"n": 3})


class TellingInSteps(Task, retry=RetryPolicy(max_attempts=2, min_wait=0.01, max_wait=0.01)):
    def run(self, ctx: Context) -> None:
        for n in range(3):
            ctx.step("tell", self.tell, ctx, n)

    def tell(self, ctx: Context, n: int) -> None:
        with ctx.transaction():
            ctx.publish("shop", {"n": n})
            if n == 1 and ctx.attempt == 1:
                raise OSError("not yet")


class Rig:
    def __init__(self, database: Database, sink: MemorySink, section: dict[str, Any]) -> None:
        self.clock = FakeClock()
        self.jobs = Scheduler.for_testing(url=database.url, clock=self.clock)
        self.sink = sink
        for task in (Told, Telling, TellingAsync, TellingInSteps):
            self.jobs.register(task)
        files = Files(blobs=section.pop("blobs", None))
        self.config = Config(
            store=StoreSection(url=database.url), files=files, sinks={"shop": SinkSection(type="memory", **section)}
        )
        for name in self.config.sinks:
            outlet = make_outlet(self.config, name, self.jobs.database, self.jobs.traffic)
            self.jobs.register(make_kind(outlet, self.jobs.database))

    def sent(self) -> list[dict[str, Any]]:
        drain(self.jobs)
        return [msgspec.json.decode(one.body) for one in self.sink.published]

    def waiting(self) -> int:
        return len([one for one in self.jobs.list_tasks(queue=OUTBOX) if not one.state.terminal])


Make = Callable[..., Rig]


@pytest.fixture
def make(database: Database, monkeypatch: pytest.MonkeyPatch) -> Make:
    def made(limits: Limits | None = None, **section: Any) -> Rig:
        sink = MemorySink(limits)

        class Factory:
            Settings = Settings

            def __new__(cls, _name: str, _settings: Any) -> Any:
                return sink

        monkeypatch.setattr(types, "find", lambda _group, _type: Factory)
        return Rig(database, sink, section)

    return made


def test_a_success_is_sent_with_its_result(make: Make) -> None:
    rig = make()
    made = rig.jobs.task(Told("a")).key("k").subject("s").correlation("c").schedule()
    (message,) = rig.sent()
    del message["created_at"]
    assert message == {
        "schema_version": 1, "message_type": "Told", "correlation_id": "c", "causation_id": str(int(made)),
        "idempotency_key": "Told:k", "subject": "s", "payload_inline": {"name": "a"},
    }  # fmt: skip
    assert rig.waiting() == 0


def test_a_success_in_a_child_process_is_sent(make: Make, database: Database) -> None:
    rig = make()
    jobs = Scheduler(database.url, processes=1)
    jobs.register(ToldByChild)
    with jobs:
        made = jobs.task(ToldByChild("c")).schedule()
        assert jobs.result(made, timeout=60) == "c"
    rig.clock.advance(10 * 365 * 86_400)  # it was stored by the real clock
    assert [one["payload_inline"] for one in rig.sent()] == ["c"]


def test_only_a_success_is_sent(make: Make) -> None:
    rig = make()
    rig.jobs.task(Told("fail")).schedule()
    rig.jobs.task(Told("b")).schedule()
    assert [one["payload_inline"]["name"] for one in rig.sent()] == ["b"]


def test_a_long_result_is_read_when_its_message_goes_out(make: Make) -> None:
    rig = make(limits=Limits(max_size=400_000))
    rig.jobs.task(Told("long", 200_000)).schedule()
    assert len(rig.sent()[0]["payload_inline"]["more"]) == 200_000


def test_a_message_is_committed_with_the_handlers_own_rows(make: Make) -> None:
    rig = make()
    with rig.jobs.database.write() as tx:
        tx.run("CREATE TABLE theirs (n INTEGER)")
    rig.jobs.task(Telling(fails=True)).schedule()
    assert rig.sent() == []
    made = rig.jobs.task(Telling()).schedule()
    sent = rig.sent()
    assert [(one["idempotency_key"], one["payload_inline"]["n"]) for one in sent] == [
        (f"Telling:task-{int(made)}:sinks.shop:1", 1),
        ("my-own", 2),
    ]
    assert (sent[0]["subject"], sent[0]["message_type"], sent[0]["causation_id"]) == (
        "order-1",
        "order.taken",
        str(int(made)),
    )
    rig.jobs.task(TellingAsync()).schedule()
    assert rig.sent()[-1]["payload_inline"] == {"n": 3}


def test_messages_of_several_steps_keep_different_keys_when_the_handler_runs_again(make: Make) -> None:
    """The steps that are recorded do not run again, so the messages of the attempt cannot just be counted."""
    rig = make()
    made = int(rig.jobs.task(TellingInSteps()).schedule())
    drain(rig.jobs)
    rig.clock.advance(1)
    sent = {one["idempotency_key"]: one["payload_inline"]["n"] for one in rig.sent()}
    own = f"TellingInSteps:task-{made}:sinks.shop"
    assert sent == {f"{own}:tell:1": 0, f"{own}:tell#2:1": 1, f"{own}:tell#3:1": 2}


def test_a_message_goes_into_the_transaction_that_the_code_is_in() -> None:
    """Several steps of a coroutine may run at once, each with a transaction."""
    attempt: Any = SimpleNamespace(transaction=None)
    first, second = (StepScope(attempt, transaction=True, connection=object()) for _ in range(2))
    attempt.transaction = second
    token = current_scope.set(first)
    try:
        assert opened(attempt) is first
        first.connection = None
        assert opened(attempt) is second, "a thread without the context"
    finally:
        current_scope.reset(token)


def test_outside_of_a_transaction_it_says_what_to_do(make: Make) -> None:
    rig = make()
    made = rig.jobs.task(Telling(within=False)).schedule()
    drain(rig.jobs)
    assert "belongs into `with ctx.transaction():`" in str(rig.jobs.get_last_error(made))


def test_a_callers_connection_commits_or_rolls_back_a_message(make: Make) -> None:
    rig = make()
    engine = rig.jobs.database.open()
    with engine.connect() as connection:
        rig.jobs.publish("shop", {"n": 1}, connection=connection)
        connection.rollback()
        rig.jobs.publish("shop", {"n": 2}, connection=connection)
        connection.commit()
    assert [one["payload_inline"]["n"] for one in rig.sent()] == [2]


def test_a_key_keeps_a_second_message_out(make: Make) -> None:
    rig = make()
    first = rig.jobs.publish("shop", {"n": 1}, key="k")
    again = rig.jobs.publish("shop", {"n": 2}, key="k")
    assert (int(first), again.created) == (int(again), False)
    assert len(rig.sent()) == 1


def test_a_refused_message_is_retried_and_its_group_waits_for_it(make: Make) -> None:
    rig = make(min_wait=10, max_wait=10)
    for n in range(3):
        rig.jobs.publish("shop", n, key=f"k{n}", group="g")
    rig.jobs.publish("shop", "other", key="k9", group="h")
    rig.sink.refuse["k0"] = Refused("k0", "not now", after=60)
    assert [one["payload_inline"] for one in rig.sent()] == ["other"]
    rig.sink.refuse.clear()
    rig.clock.advance(59)
    assert len(rig.sent()) == 2, "what was refused is published now, but not yet due"
    rig.clock.advance(2)
    sent = [one["payload_inline"] for one in rig.sent()]
    assert [one for one in sent if one != "other"][-3:] == [0, 1, 2]


def test_a_final_refusal_and_the_last_attempt_are_dead_letters(make: Make) -> None:
    rig = make(min_wait=1, max_wait=1, max_attempts=3)
    final = rig.jobs.publish("shop", 1, key="final")
    tried = rig.jobs.publish("shop", 2, key="tried")
    rig.sink.refuse = {"final": Refused("final", "malformed", final=True), "tried": Refused("tried", "busy")}
    for _ in range(4):
        drain(rig.jobs)
        rig.clock.advance(5)
    assert [(t.state, t.attempt) for t in map(rig.jobs.get_task, (final, tried))] == [("dead", 1), ("dead", 3)]
    assert rig.jobs.get_last_error(tried) == "PermanentError: busy; tried 3 times"
    rig.sink.refuse = {}
    rig.sink.batches = []
    rig.jobs.dead_letters.replay(tried)
    assert [one["idempotency_key"] for one in rig.sent()] == ["tried"]


def test_while_the_transport_is_away_messages_wait(make: Make) -> None:
    rig = make(min_wait=10, max_wait=10)
    rig.sink.down = True
    rig.jobs.publish("shop", 1)
    drain(rig.jobs)
    assert rig.waiting() == 1
    rig.sink.down = False
    rig.clock.advance(11)
    assert len(rig.sent()) == 1


def test_a_message_over_the_limit_is_refused_or_points_to_its_payload(make: Make, tmp_path: Any) -> None:
    rig = make()
    made = rig.jobs.publish("shop", "x" * 2000)
    drain(rig.jobs)
    assert "2,2" in str(rig.jobs.get_last_error(made))
    assert 'large = "pointer"' in str(rig.jobs.get_last_error(made))
    rig = make(large="pointer", blobs=str(tmp_path))
    rig.jobs.publish("shop", "x" * 2000, key="large")
    message = rig.sent()[-1]
    assert "payload_inline" not in message
    assert BlobStore(tmp_path).get_json(message["payload_ref"]) == "x" * 2000
    with pytest.raises(PermanentError, match="names no blob"):
        BlobStore(tmp_path).get_json("s3://bucket/42")
    with pytest.raises(PermanentError, match="there is no blob"):
        BlobStore(tmp_path).get_json("blob:f1~" + "A" * 43)
    with pytest.raises(ConfigError, match=r"set blobs in \[files\]"):
        make(large="pointer")


def test_what_its_task_has_given_up_is_published_by_its_next_attempt_only(make: Make) -> None:
    """A sink that stood still would publish it once for each attempt; and no task ends the thread that answers it."""
    began, goes_on = threading.Event(), threading.Event()

    class Slow(MemorySink):
        def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
            began.set()
            assert goes_on.wait(60)
            return super().publish(batch)

    rig, sink = make(), Slow()
    publisher = Publisher("shop", sink, SinkSection(type="memory"), rig.jobs.database.now, rig.jobs.traffic)
    first, given_up, last = (Outgoing(key=key, body=b"{}", message=Message()) for key in "abc")
    under_way = publisher.put(first)
    assert began.wait(60)
    waits, after_it = publisher.put(given_up), publisher.put(last)
    assert waits.cancel()
    assert not under_way.cancel(), "it is being published"
    goes_on.set()
    assert [under_way.result(60), after_it.result(60)] == [Published("a"), Published("c")]
    assert sink.published == [first, last]
    publisher.stop()
    assert publisher.join(60)


def test_a_publisher_whose_thread_could_not_be_started_tries_it_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    rig, sink = make(), MemorySink()
    publisher = Publisher("shop", sink, SinkSection(type="memory"), rig.jobs.database.now, rig.jobs.traffic)
    first, again = (Outgoing(key=key, body=b"{}", message=Message()) for key in "aa")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TransportError, match="can't start new thread"):
            publisher.put(first).result(60)
    assert publisher.put(again).result(60) == Published("a")
    assert sink.published == [again]
    publisher.stop()
    assert publisher.join(60)


def test_what_is_no_message_is_refused_at_once(make: Make) -> None:
    rig = make()
    with pytest.raises(PayloadError, match="over the limit"):
        rig.jobs.publish("shop", "x" * 140_000)
    with pytest.raises(PayloadError, match="not JSON"):
        rig.jobs.publish("shop", object())
    with pytest.raises(PayloadError, match="not JSON: it has nan"):
        rig.jobs.publish("shop", [math.nan])
    with pytest.raises(PayloadError, match="not JSON: it has inf"):
        rig.jobs.publish("shop", 1, headers={"x": math.inf})
    with pytest.raises(PayloadError, match="key of a message is a text"):
        rig.jobs.publish("shop", 1, key="")
    with pytest.raises(PayloadError, match="headers must be a mapping"):
        rig.jobs.publish("shop", 1, headers=[])  # type: ignore[arg-type]
    for version in (0, 2**31, "2", math.nan):
        with pytest.raises(ConfigError, match="schema_version must be a whole number"):
            rig.jobs.publish("shop", 1, schema_version=version)  # type: ignore[arg-type]
    for number in (2**63, 1.5, "1"):
        with pytest.raises(ConfigError, match="sequence must be a whole number"):
            rig.jobs.publish("shop", 1, sequence=number)  # type: ignore[arg-type]
    assert rig.jobs.list_tasks() == []
    with pytest.raises(ConfigError, match="a sink is named"):
        rig.jobs.publish("", 1)
    with pytest.raises(ConfigError, match="on_success must name a sink"):

        class Wrong(Task, on_success="shop"):
            def run(self, ctx: Context) -> None: ...


def outgoing(sizes: list[int]) -> list[Outgoing]:
    return [Outgoing(key=str(n), body=b"x" * size, message=None) for n, size in enumerate(sizes)]


@given(
    some.lists(some.integers(0, 140_000), max_size=300),
    some.builds(
        Limits,
        max_size=some.sampled_from([None, 128_000, 1_000_000]),
        max_batch=some.integers(1, 200),
        max_batch_size=some.sampled_from([None, 256_000, 1_048_576]),
        overhead=some.integers(0, 200),
    ),
    some.integers(1, 200),
)
def test_batches_keep_to_all_limits_with_headroom(sizes: list[int], limits: Limits, most: int) -> None:
    taken = [one for one in outgoing(sizes) if too_large(one, limits) is None]
    batches = list(pack(taken, limits, most))
    assert [one for batch in batches for one in batch] == taken, "none is lost, and their order stays"
    for batch in batches:
        assert 0 < len(batch) <= min(most, limits.max_batch)
        size = sum(one.size + limits.overhead for one in batch)
        assert limits.max_batch_size is None or size <= limits.max_batch_size * 0.98
        assert limits.max_size is None or all(one.size <= limits.max_size * 0.98 for one in batch)
    for left, right in itertools.pairwise(batches):  # no batch is split without a need
        more = sum(one.size + limits.overhead for one in [*left, right[0]])
        full = len(left) == min(most, limits.max_batch)
        assert full or (limits.max_batch_size is not None and more > int(limits.max_batch_size * 0.98))


def test_a_sink_that_no_worker_has_published_yet_is_said(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    jobs = Scheduler.for_testing(url=database.url)
    with caplog.at_level(logging.WARNING):
        task_id = int(jobs.publish("nosuch", {}))
        with jobs.database.open().begin() as connection:
            theirs = int(jobs.publish("nosuch", {}, connection=connection))
    told = [record for record in caplog.records if "[sinks.nosuch]" in record.getMessage()]
    assert [record.task for record in told] == [task_id, theirs]  # type: ignore[attr-defined]


def test_a_sink_that_nobody_has_is_refused_with_those_that_there_are(make: Make) -> None:
    rig = make()
    drain(rig.jobs)  # publishes the kinds
    with pytest.raises(ConfigError, match="there is no sink 'shpo'; known are shop: write it as"):
        rig.jobs.publish("shpo", {})
    assert rig.jobs.list_tasks() == []
    with rig.jobs.database.open().connect() as connection, pytest.raises(ConfigError, match="no sink 'shpo'"):
        rig.jobs.publish("sinks.shpo", {}, connection=connection)
    rig.jobs.publish("shop", {})
    rig.jobs.known_sinks = frozenset({"new"})
    rig.jobs.publish("new", {})
    assert len(rig.jobs.list_tasks()) == 2


class Mistyped(Task, on_success="sinks.shpo"):
    n: int = 0

    def run(self, ctx: Context) -> None: ...


Way = Callable[[Scheduler], object]


def in_a_batch(jobs: Scheduler) -> None:
    with jobs.batch() as batch:
        batch.task(Told("fine"))
        batch.task(Mistyped())


def with_the_callers_rows(jobs: Scheduler) -> None:
    with jobs.database.open().begin() as connection:
        jobs.task(Mistyped()).schedule(connection=connection)


WAYS: dict[str, Way] = {
    "one": lambda jobs: jobs.task(Mistyped()).schedule(),
    "a batch": in_a_batch,
    "a schedule": lambda jobs: jobs.task(Mistyped()).every(60).schedule(),
    "the caller's connection": with_the_callers_rows,
    "asynchronous": lambda jobs: asyncio.run(jobs.task(Mistyped()).schedule_async()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_type_that_names_a_sink_that_nobody_has_is_refused(make: Make, way: str) -> None:
    rig = make()
    drain(rig.jobs)  # publishes the kinds
    program = Scheduler.for_testing(url=rig.config.store.url)
    program.register(Mistyped)
    program.register(Told)
    text = "kind Mistyped has on_success=\"sinks.shpo\", but there is no sink 'shpo'; known are shop: write it"
    with pytest.raises(ConfigError, match=re.escape(text)):
        WAYS[way](program)
    assert program.list_tasks() == []
    assert program.schedules.list() == []
    program.known_sinks = frozenset({"shpo"})
    WAYS[way](program)
    assert program.list_tasks() or program.schedules.list()


def test_a_type_whose_sink_no_worker_has_published_yet_is_said_once(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Scheduler.for_testing(url=database.url)
    jobs.register(Mistyped)
    with caplog.at_level(logging.WARNING):
        jobs.task(Mistyped()).schedule()
        jobs.task(Mistyped()).schedule()
    assert [record.getMessage() for record in caplog.records if "[sinks.shpo]" in record.getMessage()] == [
        "no worker has published a sink yet: messages of kind Mistyped wait for a daemon that has [sinks.shpo]"
    ]
