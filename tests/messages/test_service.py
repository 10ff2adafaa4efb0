"""What a daemon runs for its sources and sinks: it stops at once, closes what it opened, and makes one end alone."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from scheduler import Context, Scheduler, Task
from scheduler.config.messages import DoorSection, SinkSection, SourceSection
from scheduler.config.model import Config, StoreSection
from scheduler.errors import ConfigError
from scheduler.messages.service import MessageService, check_source, examine
from scheduler.transports import types
from scheduler.transports.envelope import Message
from scheduler.transports.ports import Delivery, Outgoing, Published, TransportError
from support.databases import Database, one_database
from support.fleet import until
from support.memory_queue import MemoryQueue, MemorySink, MemorySource, Settings


class TakeOrder(Task):
    order: int

    def run(self, ctx: Context) -> None:
        """Does nothing."""


class WaitingSource(MemorySource):
    """Its receive waits until a message comes, or it is closed; however long it is to wait."""

    def __init__(self, queue: MemoryQueue) -> None:
        super().__init__(queue)
        self.waits = threading.Event()

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        with self.queue.arrived:
            self.waits.set()
            self.queue.arrived.wait_for(lambda: self.closed or self.queue.messages)
        if self.closed:
            raise TransportError("the connection was closed")
        return super().receive(most, wait)

    def close(self) -> None:
        with self.queue.arrived:
            super().close()
            self.queue.arrived.notify_all()


class Ends:
    """The sources and sinks of the type ``memory``, by name."""

    def __init__(self) -> None:
        self.ends: dict[str, list[Any]] = {}
        self.queues: dict[str, MemoryQueue] = {}

    def make(self, group: str, name: str, settings: Any) -> Any:
        if name == "broken":
            raise ConfigError("source broken: no such thing")
        if group == types.SINKS:
            end: Any = MemorySink()
        else:
            end = WaitingSource(self.queues.setdefault(settings.queue, MemoryQueue(time.monotonic)))
        self.ends.setdefault(name, []).append(end)
        return end

    def newest(self, name: str) -> Any:
        return self.ends[name][-1]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    made = Ends()

    def find(group: str, _type: str) -> Any:
        class Factory:
            Settings: ClassVar[type[msgspec.Struct]] = Settings

            def __new__(cls, name: str, settings: Any) -> Any:
                return made.make(group, name, settings)

        return Factory

    monkeypatch.setattr(types, "find", find)
    return made


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(TakeOrder)
    yield made
    made.close()


def config(database: Database, sources: Mapping[str, str], sinks: Sequence[str] = ()) -> Config:
    """``sources``: the queue of each."""
    return Config(
        store=StoreSection(url=database.url),
        sources={
            name: SourceSection(type="memory", kind="TakeOrder", options={"queue": queue})
            for name, queue in sources.items()
        },
        sinks={name: SinkSection(type="memory") for name in sinks},
    )


def outgoing(number: int) -> Outgoing:
    return Outgoing(key=str(number), body=b"{}", message=Message(idempotency_key=str(number)))


def test_sources_need_no_uvicorn_and_the_door_asks_for_it(
    database: Database, jobs: Scheduler, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scheduler.messages.door", "scheduler.http_server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not installed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    service = MessageService(config(database, {"orders": "q"}), jobs)
    service.start()
    service.stop()
    wanted = msgspec.structs.replace(config(database, {}), door=DoorSection(listen="127.0.0.1:0", token="t"))
    with pytest.raises(ConfigError, match=r"\[door\] listen needs uvicorn: pip install 'schedd\[door\]'"):
        MessageService(wanted, jobs)


def test_a_stop_ends_the_wait_of_an_idle_source(
    database: Database, jobs: Scheduler, ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    service = MessageService(config(database, {"orders": "q"}), jobs)
    service.start()
    assert ends.newest("orders").waits.wait(60)
    with caplog.at_level(logging.WARNING):
        service.stop()
    assert service.receivers["orders"].join(0), "its thread has ended"
    assert ends.newest("orders").closed
    assert not [one.message for one in caplog.records if "orders" in one.message], "a stop is no trouble"


def test_a_stop_publishes_what_waits_and_closes_the_sinks(database: Database, jobs: Scheduler, ends: Ends) -> None:
    service = MessageService(config(database, {}, ["shop", "idle"]), jobs)
    service.start()
    answers = [service.publishers["shop"].put(outgoing(number)) for number in range(30)]
    service.stop()
    assert all(isinstance(one.result(60), Published) for one in answers)
    assert [ends.newest(name).closed for name in ("shop", "idle")] == [True, True]
    late = service.publishers["shop"].put(outgoing(31))
    assert isinstance(late.exception(60), TransportError), "its task is tried again, by another worker"


def test_a_sink_that_hangs_delays_no_stop(database: Database, jobs: Scheduler, ends: Ends) -> None:
    service = MessageService(config(database, {}, ["shop"]), jobs)
    service.start()
    sink, hangs, over = ends.newest("shop"), threading.Event(), threading.Event()

    def publish(_batch: Sequence[Outgoing]) -> Sequence[Published]:
        hangs.set()
        over.wait(100)
        return []

    sink.publish = publish
    service.publishers["shop"].put(outgoing(1))
    assert hangs.wait(60)
    service.stop()
    assert sink.closed, "its connection is given up under it"
    over.set()


def orders(jobs: Scheduler) -> list[int]:
    return sorted(json.loads(one.payload or "")["order"] for one in jobs.list_tasks(kind="TakeOrder"))


def send(ends: Ends, queue: str, number: int) -> None:
    ends.queues.setdefault(queue, MemoryQueue(time.monotonic)).send(
        {"idempotency_key": f"order-{number}", "payload_inline": {"order": number}}
    )


def test_changed_sources_are_begun_anew_and_no_message_is_lost(database: Database, jobs: Scheduler, ends: Ends) -> None:
    service = MessageService(config(database, {"orders": "a", "stays": "b", "goes": "c"}), jobs)
    service.start()
    old, stays, goes = (ends.newest(name) for name in ("orders", "stays", "goes"))
    for number, queue in enumerate("abc"):
        send(ends, queue, number)
    until(lambda: orders(jobs) == [0, 1, 2], 60)
    change = service.prepare(config(database, {"orders": "d", "stays": "b", "more": "e"}))
    assert change is not None
    assert not old.closed, "nothing is changed yet"
    change()
    assert (old.closed, stays.closed, goes.closed) == (True, False, True)
    assert ends.newest("stays") is stays
    for number, queue in enumerate("abcde", 10):
        send(ends, queue, number)
    until(lambda: orders(jobs) == [0, 1, 2, 11, 13, 14], 60)
    back = service.prepare(config(database, {"orders": "a", "stays": "b", "goes": "c"}))
    assert back is not None
    back()
    until(lambda: orders(jobs) == [0, 1, 2, 10, 11, 12, 13, 14], 60)
    assert service.prepare(config(database, {"orders": "a", "stays": "b", "goes": "c"})) is None
    service.stop()
    assert all(end.closed for made in ends.ends.values() for end in made)


def test_a_mistake_leaves_all_as_it_is(database: Database, jobs: Scheduler, ends: Ends) -> None:
    service = MessageService(config(database, {"orders": "a"}, ["shop"]), jobs)
    service.start()
    for wrong in (
        config(database, {"orders": "b", "broken": "a"}, ["shop"]),
        config(database, {"orders": "b"}, ["shop", "broken"]),
    ):
        with pytest.raises(ConfigError, match="no such thing"):
            service.prepare(wrong)
    send(ends, "a", 1)
    until(lambda: orders(jobs) == [1], 60)
    service.stop()


def test_a_changed_sink_gets_what_comes_next(database: Database, jobs: Scheduler, ends: Ends) -> None:
    service = MessageService(config(database, {}, ["shop"]), jobs)
    service.start()
    jobs.start()
    first = ends.newest("shop")
    jobs.result(jobs.publish("shop", {"n": 1}), timeout=60)
    changed = config(database, {}, ["shop", "more"])
    changed = msgspec.structs.replace(changed, sinks={**changed.sinks, "shop": SinkSection(type="memory", batch=7)})
    change = service.prepare(changed)
    assert change is not None
    change()
    for sink in ("shop", "more"):
        jobs.result(jobs.publish(sink, {"n": 2}), timeout=60)
    until(lambda: first.closed, 60)
    sent = [[one.message.payload_inline["n"] for one in sink.published] for sink in (first, *ends.ends["shop"][1:])]
    assert sent == [[1], [2]]
    assert len(ends.newest("more").published) == 1
    service.stop()


@one_database
def test_one_source_is_checked_without_the_others(database: Database, ends: Ends) -> None:
    both = config(database, {"orders": "q", "broken": "q"})
    assert [one.ok for one in check_source(both, "orders")] == [True]
    assert list(ends.ends) == ["orders"]
    assert {one.what: one.ok for one in examine(both)} == {"source orders": True, "source broken": False}
