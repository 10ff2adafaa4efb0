"""What only NATS JetStream has: consumers that give messages up, ids that a stream drops, subjects of dead messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import ConfigError
from scheduler.transports import nats as streams
from scheduler.transports.envelope import Message
from scheduler.transports.ports import Ack, Dead, Delivery, Outgoing, Published, Refused, Retry, TransportError
from support.nats_rig import NatsRig, NatsServer

PATIENCE = 30.0


def test_a_connection_whose_thread_could_not_be_started_tries_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sink = streams.NatsSink("done", streams.NatsSinkSettings(subject="x", url="nats://127.0.0.1:9"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            sink.publish([Outgoing(key="a", body=b"{}", message=Message())])
    with pytest.raises(TransportError):
        sink.publish([Outgoing(key="a", body=b"{}", message=Message())])
    sink.close()


@pytest.fixture
def rig() -> Iterator[NatsRig]:
    made = NatsRig()
    yield made
    made.close()


@pytest.fixture
def source(rig: NatsRig) -> Iterator[Any]:
    """Makes sources, which are closed at the end."""
    made: list[streams.NatsSource] = []

    def make(**settings: Any) -> streams.NatsSource:
        given = {"stream": rig.stream, "url": rig.server.url, "visibility": 1.0, "dead": rig.dead_subject, **settings}
        made.append(streams.NatsSource("orders", streams.NatsSourceSettings(**given)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def sink(rig: NatsRig) -> Iterator[Any]:
    made: list[streams.NatsSink] = []

    def make(subject: str = rig.subject, url: str = rig.server.url) -> streams.NatsSink:
        made.append(streams.NatsSink("out", streams.NatsSinkSettings(subject=subject, url=url)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def outgoing(number: int, body: bytes = b"{}") -> Outgoing:
    return Outgoing(key=f"k{number}", body=body, message=Message())


def again(of: streams.NatsSource) -> Delivery:
    deadline = time.monotonic() + PATIENCE
    while not (found := of.receive(10, 0.2)):
        assert time.monotonic() < deadline
    return found[0]


def add_consumer(rig: NatsRig, **config: Any) -> None:
    from nats.js.api import ConsumerConfig

    given = {"durable_name": "schedd", "ack_wait": 1.0, **config}
    rig.server.ask(lambda _, js: js.add_consumer(rig.stream, ConsumerConfig(**given)))


def test_a_repeated_key_is_dropped_and_said_to_be_a_duplicate(rig: NatsRig, sink: Any) -> None:
    batch = [outgoing(number) for number in range(3)]
    first, second = sink().publish(batch), sink().publish(batch)
    assert [(one.key, one.duplicate) for one in first] == [("k0", False), ("k1", False), ("k2", False)]
    assert [one.duplicate for one in second] == [True] * 3
    assert [one.message_id for one in second] == [one.message_id for one in first]
    assert rig.left() == 3


def test_the_same_key_on_two_subjects_of_one_stream_is_two_messages(rig: NatsRig, sink: Any) -> None:
    """A stream drops repeated ids, whatever their subject is."""
    for subject in (rig.subject, f"{rig.stream}.other"):
        (answer,) = sink(subject).publish([outgoing(1)])
        assert not answer.duplicate
    assert rig.left() == 2


def test_keys_that_a_header_cannot_hold_stay_apart(rig: NatsRig, sink: Any) -> None:
    keys = ["a", "a ", " a", "a\nb", "a b", "ü", "x" * 255]
    answers = sink().publish([Outgoing(key=key, body=b"{}", message=Message()) for key in keys])
    assert [one.key for one in answers if isinstance(one, Published) and not one.duplicate] == keys


def test_a_dead_message_is_stored_elsewhere_before_it_is_ended(rig: NatsRig, source: Any) -> None:
    rig.send(b"poison", {"Idempotency-Key": "k", "Nats-Msg-Id": "1"})
    one = source()
    delivery = again(one)
    verdict = Dead(delivery.receipt, "it is no\r\nJSON", delivery)
    assert [settled.error for _ in range(2) for settled in one.settle([verdict])] == [None, None]
    (dead,) = rig.buried()  # told twice, as after a crash between the two steps
    assert (dead.data, dead.headers["idempotency-key"], dead.headers["reason"]) == (b"poison", "k", "it is no JSON")
    assert (rig.left(), one.receive(1, 1.5)) == (0, [])


def test_a_dead_message_that_cannot_be_stored_elsewhere_comes_again(rig: NatsRig, source: Any) -> None:
    rig.send(b"poison")
    one = source()
    delivery = again(one)
    rig.server.ask(lambda _, js: js.delete_stream(rig.dead_subject))
    (settled,) = one.settle([Dead(delivery.receipt, "no", delivery)])
    assert "no stream takes the subject" in settled.error
    assert rig.left() == 1
    assert again(one).attempts == 2


def test_a_dead_message_that_fills_the_servers_limit_has_no_room_for_a_reason(tmp_path: Path) -> None:
    body = b"x" * 1_048_576
    rig = NatsRig()
    rig.send(body)
    one = streams.NatsSource(
        "orders", streams.NatsSourceSettings(stream=rig.stream, url=rig.server.url, dead=rig.dead_subject)
    )
    delivery = again(one)
    assert one.settle([Dead(delivery.receipt, "too large", delivery)])[0].error is None
    one.close()
    assert (rig.dead(), rig.left()) == ([body], 0)


def test_deliveries_are_counted_and_never_end(rig: NatsRig, source: Any) -> None:
    rig.send(b"1")
    one = source()
    for number in range(1, 12):
        delivery = again(one)
        assert delivery.attempts == number
        one.settle([Retry(delivery.receipt)])
    assert delivery.message_id == f"{rig.stream}:1"
    assert abs(delivery.sent_at / 1e6 - time.time()) < PATIENCE


def test_a_retry_waits_and_is_not_lost_with_a_server_that_crashes(rig: NatsRig, source: Any) -> None:
    """The server keeps the wait in memory: it may deliver the message early then."""
    rig.send(b"1")
    one = source()
    one.settle([Retry(again(one).receipt, 600.0)])
    assert one.receive(1, 1.5) == []
    rig.stop_server()
    with pytest.raises(TransportError):
        one.receive(1, 0.1)
    rig.start_server()
    assert [(found.body, found.attempts) for found in one.receive(1, 0.5)] in ([], [(b"1", 2)])
    assert rig.left() == 1


def test_a_heartbeat_keeps_a_message(rig: NatsRig, source: Any) -> None:
    rig.send(b"1")
    one, other = source(), source()
    delivery, until = again(one), time.monotonic() + 2.5
    while time.monotonic() < until:
        assert one.extend([delivery.receipt], 1.0)[0].error is None
        assert other.receive(1, 0.3) == []
    assert again(other).attempts == 2


def test_receivers_share_one_consumer_of_a_subject(rig: NatsRig, source: Any) -> None:
    for number in range(6):
        rig.send(b"%d" % number)
    rig.server.ask(lambda _, js: js.publish(f"{rig.stream}.other", b"not ours"))
    one, other = source(subject=rig.subject), source(subject=rig.subject)
    both = [*one.receive(3, 1.0), *other.receive(10, 1.0)]
    assert sorted(delivery.body for delivery in both) == [b"%d" % number for number in range(6)]
    assert [settled.error for settled in other.settle([Ack(delivery.receipt) for delivery in both])] == [None] * 6
    assert rig.left() == 1


def test_a_stream_that_keeps_its_messages_delivers_each_once(rig: NatsRig, source: Any, sink: Any) -> None:
    """One without the retention of a work queue: what was acknowledged stays in it."""
    sink(rig.dead_subject).publish([outgoing(number) for number in range(3)])
    one = source(stream=rig.dead_subject, dead=None)
    one.settle([Ack(delivery.receipt) for delivery in one.receive(10, 1.0)])
    one.close()
    assert one.receive(10, 1.5) == []
    assert len(rig.buried()) == 3


def test_a_consumer_that_was_deleted_is_made_again(rig: NatsRig, source: Any) -> None:
    rig.send(b"1")
    one = source()
    delivery = again(one)
    rig.server.ask(lambda _, js: js.delete_consumer(rig.stream, "schedd"))
    assert one.settle([Ack(delivery.receipt)])[0].gone
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            found = one.receive(1, 0.2)
        except TransportError:
            found = []
        if found:
            break
        assert time.monotonic() < deadline
    assert (found[0].body, found[0].attempts) == (b"1", 1)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"max_deliver": 3}, "gives a message up after 3 deliveries"),
        ({"ack_wait": 0.2}, "waits 0.2 s for an acknowledgement"),
        ({"backoff": [0.1, 2.0], "max_deliver": 5}, "waits 0.1 s for an acknowledgement"),
        ({"deliver_subject": "push"}, "pushes its messages"),
        ({"filter_subject": "{stream}.b"}, "takes {stream}.b, not {stream}.new"),
    ],
)
def test_a_consumer_that_would_lose_messages_is_refused(rig: NatsRig, source: Any, config: Any, said: str) -> None:
    add_consumer(rig, **{k: v.format(stream=rig.stream) if isinstance(v, str) else v for k, v in config.items()})
    rig.send(b"1")
    one = source(subject=rig.subject)
    said = said.format(stream=rig.stream)
    assert said in " ".join(finding.text for finding in one.check() if not finding.ok)
    with pytest.raises(TransportError, match=said):
        one.receive(1, 0.1)


def test_what_a_check_of_a_source_finds(rig: NatsRig, source: Any) -> None:
    def found(**settings: Any) -> list[tuple[bool, str]]:
        return [(one.ok, one.text.replace(rig.stream, "S")) for one in source(**settings).check()]

    assert found(stream="none") == [(False, "there is no stream none")]
    assert found() == [(True, "stream S is there; messages: 0"), (True, "dead messages go to S-dead in stream S-dead")]
    assert found(dead="nowhere")[1] == (False, "no stream takes the subject nowhere of dead messages")
    assert found(dead=f"{rig.stream}.x")[1] == (
        False,
        "dead messages on S.x would come to this consumer again: name another subject",
    )
    assert found(dead=None)[1] == (True, "dead messages are kept as dead tasks")
    rig.server.ask(lambda _, js: js.delete_consumer(rig.stream, "schedd"))
    assert found(subject=rig.subject, dead=f"{rig.stream}.x")[1] == (True, "dead messages go to S.x in stream S")
    assert not source(dead=None).limits.has_dlq


def test_what_a_check_of_a_sink_finds(rig: NatsRig, sink: Any) -> None:
    assert sink().check()[0].text == f"{rig.subject} goes to stream {rig.stream}; 1,048,576 bytes at most"
    assert [one.ok for one in sink("nowhere").check()] == [False]
    (answer,) = sink("nowhere").publish([outgoing(1)])
    assert answer == Refused("k1", "no stream takes the subject nowhere")
    assert rig.left() == 0


def test_a_sink_knows_the_servers_limit_once_it_has_connected(rig: NatsRig, sink: Any) -> None:
    one = sink()
    large, small = one.publish([outgoing(1, b"x" * 1_048_000), outgoing(2)])
    assert (large.final, "the server takes 1,048,576" in large.reason) == (False, True)
    assert isinstance(small, Published)
    assert one.limits.max_size == 1_048_576


def test_what_a_stream_never_takes_is_final(rig: NatsRig, sink: Any) -> None:
    name = f"{rig.stream}-small"
    rig.server.ask(lambda _, js: js.add_stream(name=name, subjects=[name], max_msg_size=100, max_msgs=1, discard="new"))
    one = sink(name)
    large, taken = one.publish([outgoing(1, b"x" * 200), outgoing(2)])
    assert (large.final, isinstance(taken, Published)) == (True, True)
    (full,) = one.publish([outgoing(3)])
    assert isinstance(full, Refused)
    assert not full.final


def test_a_server_that_is_away_is_found_at_once_and_the_next_call_connects(rig: NatsRig, sink: Any) -> None:
    one = sink()
    one.publish([outgoing(1)])
    rig.stop_server()
    began = time.monotonic()
    with pytest.raises(TransportError, match="nats: "):
        one.publish([outgoing(2)])
    assert time.monotonic() - began < PATIENCE / 3
    rig.start_server()
    assert isinstance(one.publish([outgoing(2)])[0], Published)


def test_closing_ends_a_receive_of_another_thread(rig: NatsRig, source: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    one = source()
    one.check()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.receive, 1, 60.0)
        while not waiting.running() or one._subscribed is None:
            time.sleep(0.01)
        one.close()
        with pytest.raises(TransportError):
            waiting.result(PATIENCE)


def test_a_server_with_a_password_and_one_of_several_that_is_there(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, "--user", "schedd", "--pass", "secret")
    server.start()
    try:
        at = f"127.0.0.1:{server.port}"
        settings = streams.NatsSinkSettings(subject="x", url=f"nats://127.0.0.1:1, nats://schedd:secret@{at}")
        right = streams.NatsSink("out", settings)
        assert right.check()[0].text == "no stream takes the subject x"
        right.close()
        wrong = streams.NatsSink("out", streams.NatsSinkSettings(subject="x", url=f"nats://schedd:wrong@{at}"))
        with pytest.raises(TransportError, match="Authorization") as caught:
            wrong.check()
        wrong.close()
        assert "wrong@" not in str(caught.value)
    finally:
        server.kill()


def test_an_address_that_is_none() -> None:
    with pytest.raises(ConfigError, match="sink out: url has to begin with nats:// or tls://"):
        streams.NatsSink("out", streams.NatsSinkSettings(subject="x", url="http://user:secret@127.0.0.1"))


@pytest.mark.parametrize("wrong", [{"stream": "a.b"}, {"consumer": "a b"}, {"dead": "dead.*"}, {"dead": ""}])
def test_names_that_nats_does_not_take(wrong: Any) -> None:
    (setting,) = wrong
    with pytest.raises(ConfigError, match=f"source orders: '.*' is not a name that NATS takes for {setting}"):
        streams.NatsSource("orders", streams.NatsSourceSettings(**{"stream": "S", **wrong}))
    with pytest.raises(ConfigError, match="takes for subject"):
        streams.NatsSink("out", streams.NatsSinkSettings(subject=">"))
