"""Counters of messages, and what status and alerts say of sources and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import Context, Scheduler, Task
from scheduler.config.messages import SinkSection, SourceSection
from scheduler.messages.intake import Intake
from scheduler.messages.outbox import Publisher
from scheduler.messages.receiver import OLD_LASTS, TROUBLE_LASTS, Receiver
from scheduler.model.problem import Problem, TransportProblem
from scheduler.ports import SECOND
from scheduler.store.read.status import status
from scheduler.telemetry.metrics import (
    MESSAGES_DEAD,
    MESSAGES_PUBLISHED,
    MESSAGES_RECEIVED,
    MESSAGES_REFUSED,
    MESSAGES_SETTLED,
    TRANSPORT_UNREACHABLE,
    Metric,
)
from scheduler.telemetry.traffic import REPEAT_S, Traffic
from scheduler.testing import FakeClock, drain, engine_of
from scheduler.transports.envelope import Message
from scheduler.transports.ports import Outgoing, Refused, TransportError
from support.databases import Database
from support.fleet import step
from support.memory_queue import MemoryQueue, MemorySink, MemorySource

DAY = 86_400.0


class TakeOrder(Task):
    order: int

    def run(self, ctx: Context) -> None:
        """Does nothing."""


class Rig:
    """A worker with one source, whose receiver is turned by hand."""

    def __init__(self, database: Database, **section: Any) -> None:
        self.clock = FakeClock()
        self.jobs = Scheduler.for_testing(url=database.url, clock=self.clock, metrics=True)
        self.jobs.traffic = Traffic(self.clock.monotonic)
        self.jobs.traffic.know(["orders"], ["shop"])
        self.jobs.register(TakeOrder)
        self.queue = MemoryQueue(lambda: self.clock.now() / SECOND)
        settings = SourceSection(**{"type": "memory", "kind": "TakeOrder", **section})
        source = MemorySource(self.queue)
        intake = Intake("orders", settings, source.limits, self.jobs.submitter, "one", self.jobs.traffic)
        self.receiver = Receiver(source, intake, self.jobs.database, "one")
        drain(self.jobs)

    def send(self, number: int, age: float = 0.0) -> None:
        self.queue.send({"idempotency_key": f"order-{number}", "payload_inline": {"order": number}})
        self.queue.messages[-1].sent_at = self.clock.now() - round(age * SECOND)

    def turn(self) -> None:
        """As the receiver's thread does, once."""
        self.receiver._look_at = 0.0
        self.receiver._stopping.clear()
        pauses = iter([True])
        self.receiver._stopping.is_set = lambda: not next(pauses, False)  # type: ignore[method-assign]
        self.receiver._stopping.wait = lambda _seconds=None: True  # type: ignore[method-assign]
        self.receiver._run()

    def stuck(self) -> list[Problem]:
        step(self.jobs)
        with self.jobs.database.read() as tx:
            return status(tx).stuck

    def values(self, metric: Metric) -> dict[tuple[str, ...], float]:
        registry = engine_of(self.jobs).metrics
        assert registry is not None
        (family,) = [one for one in registry.snapshot() if one.metric is metric]
        return {one.labels: one.value for one in family.samples}


Make = Callable[..., Rig]


@pytest.fixture
def make(database: Database) -> Iterator[Make]:
    made: list[Rig] = []

    def build(**section: Any) -> Rig:
        made.append(Rig(database, **section))
        return made[-1]

    yield build
    for one in made:
        one.jobs.close()


def test_what_a_source_has_brought_is_counted(make: Make) -> None:
    rig = make()
    assert rig.values(MESSAGES_RECEIVED) == {("orders",): 0}
    assert rig.values(MESSAGES_SETTLED) == {("orders", verdict): 0 for verdict in ("ack", "retry", "dead")}
    for number in range(3):
        rig.send(number)
    rig.queue.send(b"\xff")
    rig.turn()
    rig.send(0)  # it comes again
    rig.turn()
    assert rig.values(MESSAGES_RECEIVED) == {("orders",): 5}
    assert rig.values(MESSAGES_SETTLED) == {("orders", "ack"): 4, ("orders", "retry"): 0, ("orders", "dead"): 1}
    assert rig.values(MESSAGES_DEAD) == {("orders",): 1}
    rig.queue.lose_settles = True
    rig.send(9)
    rig.turn()
    assert rig.values(MESSAGES_SETTLED)["orders", "ack"] == 4, "the transport has not taken it"


def test_what_a_sink_has_taken_is_counted(make: Make) -> None:
    rig, sink = make(), MemorySink()
    publisher = Publisher("shop", sink, SinkSection(type="memory"), rig.jobs.database.now, rig.jobs.traffic)
    sink.refuse["1"] = Refused("1", "no")
    for number in range(3):
        publisher._publish([one := outgoing(number)], {id(one): done()})
    assert (rig.values(MESSAGES_PUBLISHED), rig.values(MESSAGES_REFUSED)) == ({("shop",): 2}, {("shop",): 1})
    assert rig.stuck() == []
    sink.down = True
    publisher._publish([one := outgoing(3)], {id(one): (failed := done())})
    assert isinstance(failed.exception(), TransportError)
    assert rig.values(TRANSPORT_UNREACHABLE) == {("source", "orders"): 0, ("sink", "shop"): 1}
    ((problem, text, number, *_),) = rig.stuck()
    assert (problem, number) == ("sink", 1)
    assert text.startswith("sink shop cannot be used since ")
    assert text.endswith(": the queue is away")
    sink.down = False
    publisher._publish([one := outgoing(4)], {id(one): done()})
    assert (rig.stuck(), rig.values(MESSAGES_REFUSED)) == ([], {("shop",): 2})


@pytest.mark.case(92)
def test_a_sink_that_takes_nothing_is_said_though_it_answers(make: Make) -> None:
    rig, sink = make(), MemorySink()
    publisher = Publisher("shop", sink, SinkSection(type="memory"), rig.jobs.database.now, rig.jobs.traffic)
    sink.refuse["1"] = Refused("1", "503 from\x00there")
    publisher._publish([one := outgoing(1)], {id(one): done()})
    ((problem, text, *_),) = rig.stuck()
    assert (problem, text.endswith("503 from\ufffdthere")) == ("sink", True)
    publisher._publish([one := outgoing(2)], {id(one): done()})
    assert rig.stuck() == []
    sink.refuse["3"] = Refused("3", "it is malformed", final=True)
    publisher._publish([one := outgoing(3)], {id(one): done()})
    assert rig.stuck() == [], "that is the message's own trouble"


@pytest.mark.case(92)
def test_a_message_that_its_transport_cannot_take_harms_none_of_its_batch(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, sink = make(), MemorySink()
    publisher = Publisher("shop", sink, SinkSection(type="memory"), rig.jobs.database.now, rig.jobs.traffic)
    publish = sink.publish

    def fail(batch: Any) -> Any:
        if any(one.key == "2" for one in batch):
            raise ValueError("no header can have that")
        return publish(batch)

    monkeypatch.setattr(sink, "publish", fail)
    batch = [outgoing(number) for number in (1, 2, 3)]
    waiting = {id(one): done() for one in batch}
    publisher._publish(batch, waiting)
    assert [one.key for one in sink.published] == ["1", "3"]
    found = [waiting[id(one)].exception(0) for one in batch]
    assert [type(one) for one in found] == [type(None), ValueError, type(None)]


def outgoing(number: int) -> Outgoing:
    return Outgoing(key=str(number), body=b"{}", message=Message())


def done() -> Any:
    from concurrent.futures import Future

    return Future()


def test_a_source_that_cannot_be_reached_is_said_and_its_end_too(make: Make) -> None:
    rig = make()
    rig.turn()
    assert rig.stuck() == []
    rig.queue.down = True
    rig.turn()
    ((problem, text, *_),) = rig.stuck()
    assert problem == "source"
    assert text.startswith("source orders cannot be used since")
    assert text.endswith("the queue is away")
    assert rig.values(TRANSPORT_UNREACHABLE)["source", "orders"] == 1
    rig.queue.down = False
    rig.turn()
    assert (rig.stuck(), rig.values(TRANSPORT_UNREACHABLE)["source", "orders"]) == ([], 0)


def test_a_source_whose_kind_no_worker_has_is_said(make: Make) -> None:
    rig = make(kind="Other")
    rig.turn()
    ((problem, text, *_),) = rig.stuck()
    assert (problem, "no worker has registered the kind 'Other'" in text) == ("source", True)
    assert rig.queue.receives == 0


def test_a_receiver_that_says_nothing_more_has_no_trouble(make: Make) -> None:
    rig = make()
    rig.queue.down = True
    rig.turn()
    rig.clock.advance(TROUBLE_LASTS + 1)
    assert rig.stuck() == []


def test_messages_that_the_transport_is_about_to_drop_are_said(make: Make) -> None:
    rig = make()
    rig.send(1, age=2 * DAY)  # of four
    rig.turn()
    assert rig.stuck() == []
    rig.send(2, age=3.5 * DAY)
    rig.turn()
    (one,) = rig.stuck()
    assert one.name == "old_messages"
    assert "messages of source orders come 3 d 12 h after they were sent" in one.text
    assert "drops them after 4 d" in one.text
    rig.send(3)
    rig.turn()
    assert rig.stuck() == []
    rig.send(4, age=3.5 * DAY)
    rig.turn()
    rig.clock.advance(OLD_LASTS + 1)
    assert rig.stuck() == []


def test_a_trouble_keeps_its_beginning_and_its_text_for_a_minute() -> None:
    clock = FakeClock()
    traffic = Traffic(clock.monotonic)
    for number in range(3):
        traffic.tell(TransportProblem("source", "orders", number, f"text {number}"), 100.0)
        assert traffic.troubles == (TransportProblem("source", "orders", 0, "text 0"),)
    clock.advance(REPEAT_S)
    traffic.tell(TransportProblem("source", "orders", 9, "another"), 100.0)
    assert traffic.troubles == (TransportProblem("source", "orders", 0, "another"),)
    traffic.is_well("source", "orders")
    assert traffic.troubles == ()
