"""What only RabbitMQ has: connections that hold messages, copies that wait or are dead, returns and confirmations."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pytest

from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.transports import amqp, rabbitmq
from scheduler.transports.envelope import Message
from scheduler.transports.ports import Ack, Dead, Delivery, Outgoing, Published, Refused, Retry, TransportError
from scheduler.transports.rabbitmq import RabbitSink, RabbitSinkSettings, RabbitSource, RabbitSourceSettings
from support.databases import Database
from support.rabbitmq_rig import RabbitRig
from support.receiving import receiver_of

pytestmark = pytest.mark.transports
PATIENCE = 60.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RabbitRig]:
    made = RabbitRig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def source(rig: RabbitRig) -> Iterator[Callable[..., RabbitSource]]:
    made: list[RabbitSource] = []

    def make(**settings: Any) -> RabbitSource:
        given = {"url": rig.node.url, "queue": rig.queue, "dead": rig.dead_queue, **settings}
        made.append(RabbitSource("orders", RabbitSourceSettings(**given)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sink(rig: RabbitRig) -> Iterator[Callable[..., RabbitSink]]:
    made: list[RabbitSink] = []

    def make(**settings: Any) -> RabbitSink:
        made.append(RabbitSink("done", RabbitSinkSettings(url=rig.node.url, **settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (it := found()):
        assert time.monotonic() < deadline
    return it


def publish(rig: RabbitRig, body: bytes, **properties: Any) -> None:
    rig.channel().basic_publish("", rig.queue, body, pika.BasicProperties(**properties), mandatory=True)


def outgoing(number: int, **message: Any) -> Outgoing:
    return Outgoing(key=f"k{number}", body=b'{"number": %d}' % number, message=Message(**message))


def test_a_message_that_is_to_come_again_keeps_its_properties_and_counts(
    rig: RabbitRig, source: Callable[..., RabbitSource]
) -> None:
    one = source()
    headers = {
        "Idempotency_Key": "k",
        "n": 7,
        "x-death": [{"queue": rig.queue, "reason": "expired"}],
        "CC": [rig.queue],
    }
    publish(
        rig, b"{}", message_id="m", headers=headers, type="order", correlation_id="c", content_type="text/x", priority=1
    )
    both = until(lambda: one.receive(10, 1.0))  # what "CC" sends is a message of its own
    one.settle([Ack(extra.receipt) for extra in both[1:]])
    for count in (2, 3):  # it comes back although it has expired before
        (settled,) = one.settle([Retry(both[0].receipt, 0.05)])
        assert settled.error is None
        both = until(lambda: one.receive(10, 1.0))
        assert len(both) == 1, "a copy goes nowhere else"
        assert both[0].attempts == count
    (again,) = both
    assert (again.message_id, again.body, again.content_type) == ("m", b"{}", "text/x")
    assert again.headers == {
        "idempotency_key": "k", "n": "7", "message_type": "order", "correlation_id": "c",
        rabbitmq.DELIVERIES: "2",
    }  # fmt: skip
    one.settle([Ack(again.receipt)])
    assert rig.left() == 0


def test_a_retry_waits_in_the_server_for_its_time(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one = source()
    rig.send(b"1")
    (delivery,) = one.receive(10, 1.0)
    one.settle([Retry(delivery.receipt, 30.0)])
    assert (rig.total(rig.queue), rig.total(rig.retry_queue)) == (0, 1)
    one.close()
    rig.stop_server()
    rig.start_server()
    assert rig.total(rig.retry_queue) == 1
    (waiting,) = rig.take(rig.retry_queue)
    assert (waiting[0].expiration, waiting[0].delivery_mode) == ("30000", 2)


def test_a_dead_message_has_its_reason_with_it(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one = source()
    publish(rig, b"\xff", message_id="m", user_id="guest", headers={"a": "b"})
    (delivery,) = one.receive(10, 1.0)
    assert one.settle([Dead(delivery.receipt, "it is no JSON", delivery)])[0].error is None
    ((properties, body),) = rig.take(rig.dead_queue)
    assert (properties.message_id, body) == ("m", b"\xff")
    assert (properties.headers["a"], properties.headers[rabbitmq.REASON]) == ("b", "it is no JSON")
    assert rig.left() == 0


def test_what_is_redriven_is_as_it_came(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one = source()
    publish(rig, b"1", message_id="m", type="order", headers={"a": "b"})
    (delivery,) = one.receive(10, 1.0)
    one.settle([Dead(delivery.receipt, "no", delivery)])
    assert one.redrive(10) == 1
    (again,) = one.receive(10, 1.0)
    assert (again.message_id, again.headers, again.attempts) == ("m", {"a": "b", "message_type": "order"}, 1)
    one.settle([Dead(again.receipt, "no", again)])
    one.close()
    rig.channel().queue_delete(rig.queue)
    with pytest.raises(TransportError, match="no queue takes messages"):
        one.redrive(10)
    one.close()
    assert len(rig.dead()) == 1, "it is where it was"


def test_a_verdict_that_the_server_refuses_is_an_error_and_the_message_comes_again(
    rig: RabbitRig, source: Callable[..., RabbitSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq, "RETURN_S", 0.05)
    one = source()
    rig.send(b"1")
    rig.send(b"2")
    first, second = until(lambda: one.receive(2, 1.0) if rig.left() == 2 else None)
    rig.channel().queue_delete(rig.dead_queue)
    settled = one.settle([Dead(first.receipt, "no", first), Ack(second.receipt)])
    assert [item.receipt for item in settled] == [first.receipt, second.receipt]
    assert "no queue takes messages" in str(settled[0].error)
    assert (settled[0].gone, settled[1].error) == (False, None)
    (again,) = until(lambda: one.receive(10, 1.0))
    assert (again.body, again.attempts) == (first.body, 2)
    assert one.settle([Ack(first.receipt)])[0].gone


def test_a_receipt_ends_with_its_connection(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one, other = source(), source()
    rig.send(b"1")
    (late,) = one.receive(10, 1.0)
    assert one.extend([late.receipt], 1.0)[0].error is None
    one.close()
    (taken,) = until(lambda: other.receive(10, 1.0))
    assert (taken.message_id, taken.attempts) == (late.message_id, 2)
    assert one.receive(10, 0.01) == []  # it has a connection again
    verdicts = [Ack(late.receipt), Retry(late.receipt), Dead(late.receipt, "no", late)]
    assert [item.gone for item in [*one.settle(verdicts), *one.extend([late.receipt], 1.0)]] == [True] * 4
    assert (rig.left(), rig.dead()) == (1, [])
    assert other.settle([Ack(taken.receipt)])[0].error is None
    assert rig.left() == 0


def test_heartbeats_go_on_while_a_batch_is_stored(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one = source(url=rig.node.url.replace("heartbeat=0", "heartbeat=1"))
    rig.send(b"1")
    (delivery,) = one.receive(10, 1.0)
    assert one._link is not None
    checker = one._link._connection._heartbeat_checker
    assert checker is not None
    while checker._heartbeat_frames_sent < 6:  # the server ends a connection that is silent for two seconds
        assert not one._link.is_ended
        time.sleep(0.05)
    assert one.settle([Ack(delivery.receipt)])[0].error is None
    assert rig.left() == 0


def test_nothing_is_held_while_nothing_is_received(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one, other = source(), source()
    rig.send(b"1")
    (delivery,) = one.receive(10, 1.0)
    one.settle([Ack(delivery.receipt)])
    rig.send(b"2")  # the first is paused, its connection lasts
    assert [item.body for item in other.receive(10, 5.0)] == [b"2"]


def test_prefetch_bounds_what_is_open(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one = source(prefetch=3)
    for number in range(5):
        rig.send(b"%d" % number)
    held: list[Delivery] = []
    while len(held) < 3:
        held += one.receive(2, 1.0)  # what is open does not count against the next two
    assert len(held) == 3
    assert one.receive(2, 0.01) == []
    one.settle([Ack(held[0].receipt)])
    assert len(until(lambda: one.receive(2, 1.0))) == 1


def test_consumer_timeout_delivers_again(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    """The server ends the channel of a message that is not acknowledged for too long; then it comes again."""
    names = ("consumer_timeout", "channel_tick_interval")
    before = [rig.node.ask(f"application:get_env(rabbit, {name}, 1800000)") for name in names]
    for name in names:
        rig.node.ask(f"application:set_env(rabbit, {name}, 100)")
    try:
        one = source()
        rig.send(b"1")
        one.receive(10, 1.0)
        assert one._link is not None
        assert until(lambda: one._link and one._link.is_ended)
        with pytest.raises(TransportError, match="timed out"):
            one._link.ask(lambda _channel, give: give(None))
    finally:
        for name, value in zip(names, before, strict=True):
            rig.node.ask(f"application:set_env(rabbit, {name}, {value})")
    (again,) = until(lambda: one.receive(10, 1.0))
    assert again.attempts == 2


def test_a_receive_ends_when_the_source_is_closed(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    one, ended = source(), threading.Event()

    def receive() -> None:
        with pytest.raises(TransportError, match="closed"):
            one.receive(10, PATIENCE)
        ended.set()

    thread = threading.Thread(target=receive)
    thread.start()
    until(lambda: rig.node.ask("length(rabbit_amqqueue:consumers_all(<<$/>>))") != "0")
    one.close()
    assert ended.wait(PATIENCE / 2)
    thread.join()
    one.close()


def test_what_could_not_be_stored_comes_again(rig: RabbitRig, database: Database, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'[store]\nurl = "{database.url}"\n[sources.orders]\ntype = "rabbitmq"\nkind = "Order"\n{rig.table}'
    )
    receiver, _ = receiver_of(str(config), rig.type_name, rig.factory, "test")
    rig.send(b"\xff")
    take = receiver._intake.take

    def away(_deliveries: Any) -> Any:
        raise StoreUnavailableError("away")

    receiver._intake.take = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        receiver.turn()
    receiver._intake.take = take  # type: ignore[method-assign]
    until(receiver.turn)
    assert rig.dead() == [b"\xff"]
    receiver._source.close()


def test_a_sink_confirms_what_a_queue_has_taken(rig: RabbitRig, sink: Callable[..., RabbitSink]) -> None:
    one = sink(queue=rig.queue)
    batch = [outgoing(number, message_type="order.done", correlation_id="c") for number in range(50)]
    assert one.publish(batch) == [Published(f"k{number}", f"k{number}") for number in range(50)]
    found = rig.take(rig.queue)
    assert [body for _, body in found] == [item.body for item in batch]
    properties = found[0][0]
    assert (properties.message_id, properties.type, properties.correlation_id, properties.delivery_mode) == (
        "k0", "order.done", "c", 2,
    )  # fmt: skip


def test_what_no_queue_takes_is_refused(rig: RabbitRig, sink: Callable[..., RabbitSink]) -> None:
    exchange = f"{rig.queue}.events"
    rig.channel().exchange_declare(exchange, "topic", durable=True)
    try:
        rig.channel().queue_bind(rig.queue, exchange, "order.*")
        one = sink(exchange=exchange)
        types = ["order.made", "mail.sent", "order.done", None]
        answers = one.publish([outgoing(number, message_type=name) for number, name in enumerate(types)])
        assert [type(item) for item in answers] == [Published, Refused, Published, Refused]
        assert isinstance(answers[1], Refused)
        assert (answers[1].final, answers[1].reason) == (False, "NO_ROUTE: no queue takes messages for 'mail.sent'")
        fixed = sink(exchange=exchange, routing_key="order.x")
        assert isinstance(fixed.publish([outgoing(9)])[0], Published)
        assert len(rig.take(rig.queue)) == 3
        assert [item.ok for item in one.check()] == [True]
    finally:
        rig.channel().exchange_delete(exchange)
    assert [(item.ok, item.text) for item in one.check()] == [(False, f"there is no exchange {exchange}")]


def test_a_full_queue_refuses_for_now(rig: RabbitRig, sink: Callable[..., RabbitSink]) -> None:
    full = f"{rig.queue}.full"
    rig.declare(full, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    try:
        answers: list[Any] = []
        until(lambda: answers.extend(sink(queue=full).publish([outgoing(1)])) or isinstance(answers[-1], Refused))
        assert (answers[-1].final, answers[-1].reason) == (False, "the server has not taken it")
    finally:
        rig.channel().queue_delete(full)


def test_long_keys_and_sinks_without_a_server(rig: RabbitRig, sink: Callable[..., RabbitSink]) -> None:
    one = sink(queue=rig.queue)
    key = "ü" * 200
    (answer,) = one.publish([Outgoing(key=key, body=b"1", message=Message(message_type=key))])
    assert answer == Published(key, key)
    ((properties, _),) = rig.take(rig.queue)
    assert len(properties.message_id) == 64
    rig.stop_server()
    try:
        for _ in range(2):  # a connection that has ended, and one that cannot be made
            with pytest.raises(TransportError, match="rabbitmq"):
                one.publish([outgoing(1)])
    finally:
        rig.start_server()
    assert isinstance(one.publish([outgoing(2)])[0], Published)


def findings(one: RabbitSource | RabbitSink) -> list[tuple[bool, str]]:
    return [(item.ok, item.text) for item in one.check()]


def test_a_check_looks_at_the_queue(
    rig: RabbitRig, source: Callable[..., RabbitSource], sink: Callable[..., RabbitSink]
) -> None:
    there, is_quorum, no_exchange, dead = findings(source())
    assert [there[0], is_quorum[0], no_exchange[0], dead[0]] == [True] * 4
    assert (is_quorum[1], "no dead-letter exchange" in no_exchange[1]) == (f"{rig.queue} is a quorum queue", True)
    assert findings(source(queue="other"))[0] == (False, "there is no queue other")
    assert findings(source(dead=None))[-1] == (True, "dead messages are kept as dead tasks")
    assert findings(source(dead="gone"))[-1] == (False, "there is no queue gone")
    assert "consumer_timeout" in findings(source(ack="end"))[-1][1]
    assert findings(sink(queue="other")) == [(False, "there is no queue other")]
    assert findings(sink(queue=rig.queue))[0][0]


def test_a_check_sees_the_arguments_of_a_queue(rig: RabbitRig, source: Callable[..., RabbitSource]) -> None:
    names = [f"{rig.queue}.{kind}" for kind in ("buried", "classic", "transient")]
    rig.declare(names[0], **{"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "k", "x-delivery-limit": 5})
    rig.channel().queue_declare(names[1], durable=True)
    rig.channel().queue_declare(names[2], durable=False)
    try:
        assert findings(source(queue=names[0]))[1:-1] == [(True, f"{names[0]} is a quorum queue")]
        for name in names[1:]:
            (wrong,) = findings(source(queue=name))[1:-1]
            assert (wrong[0], wrong[1].startswith(f"{name} is no quorum queue")) == (False, True)
    finally:
        for name in [*names, *(f"{one}.retry" for one in names)]:
            rig.channel().queue_delete(name)


def test_without_a_queue_for_dead_messages_it_has_no_dead_letter_queue(source: Callable[..., RabbitSource]) -> None:
    assert not source(dead=None).limits.has_dlq
    assert source().limits.visibility is None


def test_a_queue_that_is_deleted_under_a_consumer_is_an_error(
    rig: RabbitRig, source: Callable[..., RabbitSource]
) -> None:
    one = source()
    assert one.receive(10, 0.01) == []
    rig.channel().queue_delete(rig.queue)
    with pytest.raises(TransportError, match="no queue"):
        one.receive(10, 0.01)


def arrived(fields: bytes) -> Any:
    """The properties of a message with these header fields, as a link reads them."""
    source = RabbitSource("in", RabbitSourceSettings(queue="q", dead="d"))
    source._epoch = "e"
    read: list[Any] = []

    def read_in_a_link() -> None:
        amqp._thread.tolerant = True
        read.append(pika.BasicProperties().decode(b"\x20\x80" + struct.pack(">I", len(fields)) + fields + b"\x02\xffi"))

    link = threading.Thread(target=read_in_a_link)
    link.start()
    link.join()
    return source, read[0], source._delivery(SimpleNamespace(delivery_tag=1, redelivered=False), read[0], b"{}")


@pytest.mark.case(92)
@pytest.mark.parametrize(
    ("field", "headers"),
    [
        (b"\x02atT" + struct.pack(">Q", 1_767_225_600_000), {"at": "1767225600000"}),  # milliseconds
        (b"\x01fd" + struct.pack(">d", float("nan")), {"f": "nan"}),
        (b"\x01fA" + struct.pack(">I", 5) + b"f" + struct.pack(">f", float("inf")), {}),
        (b"\x02\xffaS\0\0\0\x02\xffb", {"\ufffda": "\ufffdb"}),
    ],
)
def test_an_odd_header_or_id_costs_no_message(field: bytes, headers: dict[str, str]) -> None:
    """pika raised for some of them, which ended the connection, and all messages came again."""
    source, properties, delivery = arrived(field)
    assert (delivery.headers, delivery.message_id) == (headers, "\ufffdi")
    copies = [source._copy(one, properties, b"{}") for one in (Dead("r", "no", delivery), Retry("r", 1.0))]
    assert all(b"".join(copy.properties.encode()) for copy in copies)


def test_headers_that_fill_a_frame_are_copied_as_they_are() -> None:
    """With a reason they would be more than a frame, and the server ends a connection that sends that."""
    wide = {f"h{number:03}": "x" * 1000 for number in range(125)}
    for given, more in ((wide, {}), ({"h": "x"}, {rabbitmq.REASON: "no"})):
        assert rabbitmq._copied(pika.BasicProperties(headers=given), {rabbitmq.REASON: "no"}).headers == {
            **given,
            **more,
        }


def test_settings_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="three different queues"):
        RabbitSource("in", RabbitSourceSettings(queue="a", dead="a"))
    for wrong in ({}, {"queue": "a", "exchange": "b"}):
        with pytest.raises(ConfigError, match="a queue or an exchange"):
            RabbitSink("out", RabbitSinkSettings(**wrong))
    with pytest.raises(ConfigError, match="leave it out"):
        RabbitSink("out", RabbitSinkSettings(queue="a", routing_key="b"))
    with pytest.raises(ConfigError) as wrong_url:
        RabbitSink("out", RabbitSinkSettings(queue="a", url="amqp://me:geh/eim@127.0.0.1"))
    assert "geh" not in str(wrong_url.value)


def test_a_wrong_password_is_said_without_it(rig: RabbitRig) -> None:
    one = RabbitSink("out", RabbitSinkSettings(queue="a", url=rig.node.url.replace("guest:guest", "guest:geheim")))
    with pytest.raises(TransportError, match="ACCESS_REFUSED") as refused:
        one.check()
    assert "geheim" not in str(refused.value)
