"""What only Redis Streams have: groups, entries of other programs, a server that has lost its memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.transports import redis as streams
from scheduler.transports.envelope import Message
from scheduler.transports.ports import Ack, Dead, Outgoing, Published, Retry, TransportError
from support.redis_rig import DEAD, STREAM, RedisRig

pytestmark = pytest.mark.transports


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[RedisRig]:
    made = RedisRig(tmp_path)
    yield made
    made.close()


def source(rig: RedisRig, **settings: Any) -> streams.RedisSource:
    given = {"visibility": 0.2, "dead": DEAD, **settings}
    return streams.RedisSource("orders", streams.RedisSourceSettings(stream=STREAM, url=rig.server.url, **given))


def again(of: streams.RedisSource) -> Any:
    """What comes next, once it has been let lie for long enough."""
    while not (found := of.receive(10, 0.1)):
        pass
    return found


def test_a_receipt_is_worth_nothing_once_another_consumer_has_the_entry(rig: RedisRig) -> None:
    rig.send(b"1")
    first, second = source(rig), source(rig)
    (late,) = first.receive(10, 1.0)
    (taken,) = again(second)
    assert (late.message_id, late.attempts, taken.attempts) == (taken.message_id, 1, 2)
    verdicts = [Ack(late.receipt), Retry(late.receipt), Dead(late.receipt, "no", late)]
    assert [one.gone for one in [*first.settle(verdicts), *first.extend([late.receipt], 0.2)]] == [True] * 4
    assert (rig.left(), rig.dead()) == (1, [])
    assert second.settle([Ack(taken.receipt)])[0].error is None
    assert rig.left() == 0


def test_a_retry_comes_when_its_time_has_come(rig: RedisRig) -> None:
    rig.send(b"1")
    one = source(rig, visibility=60.0)
    (delivery,) = one.receive(10, 1.0)
    assert one.settle([Retry(delivery.receipt, 0.0)])[0].error is None
    (soon,) = one.receive(10, 1.0)
    assert (soon.attempts, soon.receipt != delivery.receipt) == (2, True)
    one.settle([Retry(soon.receipt, 30.0)])
    assert not one.receive(10, 0.05)


def test_a_dead_message_of_more_fields_than_a_script_can_take_keeps_its_body(rig: RedisRig) -> None:
    with rig.client() as client:
        for number in (3_900, 4_200):
            client.xadd(STREAM, {"body": "b", **{f"h{i}": "v" for i in range(number)}})
    one = source(rig)
    few, many = one.receive(10, 1.0)
    assert [
        settled.error for settled in one.settle([Dead(few.receipt, "no", few), Dead(many.receipt, "no", many)])
    ] == [
        None,
        None,
    ]
    assert rig.left() == 0
    with rig.client() as client:
        kept = [fields for _, fields in client.xrange(DEAD)]
    assert [len(fields) for fields in kept] == [3_903, 3]
    assert kept[1] == {b"body": b"b", b"reason": b"no", b"id": many.message_id.encode()}
    assert one.redrive(10) == 2
    assert rig.left() == 2


def test_fields_beside_the_body_are_headers(rig: RedisRig) -> None:
    rig.send(b"{}", {"Idempotency_Key": "k", "x": "ü"})
    with rig.client() as client:
        client.xadd(STREAM, {"payload": "7"})  # another program's
    both = source(rig).receive(10, 1.0)
    assert [(one.body, one.headers) for one in both] == [
        (b"{}", {"idempotency_key": "k", "x": "ü"}),
        (b"", {"payload": "7"}),
    ]
    assert both[0].sent_at is not None


def test_a_server_that_has_lost_its_memory_gets_its_group_again(rig: RedisRig) -> None:
    one = source(rig)
    rig.send(b"1")
    assert len(one.receive(10, 1.0)) == 1
    with rig.client() as client:
        client.flushall()
    with pytest.raises(TransportError, match="redis"):
        one.receive(10, 0.05)
    rig.send(b"2")
    assert [d.body for d in one.receive(10, 1.0)] == [b"2"]


def test_a_sink_appends_in_order(rig: RedisRig) -> None:
    sink = streams.RedisSink("done", streams.RedisSinkSettings(stream="done", url=rig.server.url))
    batch = [Outgoing(key=f"k{n}", body=str(n).encode(), message=Message()) for n in range(3)]
    answers = sink.publish(batch)
    assert all(isinstance(one, Published) and one.message_id for one in answers)
    with rig.client() as client:
        assert [(f[b"key"], f[b"body"]) for _, f in client.xrange("done")] == [
            (b"k0", b"0"), (b"k1", b"1"), (b"k2", b"2"),
        ]  # fmt: skip
        client.set("text", "x")
    assert all(one.ok for one in sink.check())
    wrong = streams.RedisSink("done", streams.RedisSinkSettings(stream="text", url=rig.server.url))
    assert [one.ok for one in wrong.check()] == [False, True]
    rig.stop_server()
    with pytest.raises(TransportError):
        sink.publish(batch)


def test_without_a_stream_for_dead_messages_it_has_no_dead_letter_queue(rig: RedisRig) -> None:
    one = source(rig, dead=None)
    assert not one.limits.has_dlq
    assert [finding.ok for finding in one.check()] == [True, True, True], 'dlq = "none" was chosen'


def test_an_address_that_is_none(rig: RedisRig) -> None:
    wrong = streams.RedisSink("done", streams.RedisSinkSettings(stream="x", url="http://127.0.0.1"))
    with pytest.raises(TransportError, match="redis"):
        wrong.check()


def test_a_dead_entry_keeps_its_fields_and_is_redriven_with_them(rig: RedisRig) -> None:
    rig.send(b"1", {"idempotency_key": "k"})
    one = source(rig)
    (delivery,) = one.receive(10, 1.0)
    one.settle([Dead(delivery.receipt, "no", delivery)])
    with rig.client() as client:
        ((_, fields),) = client.xrange(DEAD)
    assert fields == {
        b"body": b"1", b"idempotency_key": b"k", b"reason": b"no", b"id": delivery.message_id.encode(),
    }  # fmt: skip
    assert one.redrive(10) == 1
    (again,) = one.receive(10, 1.0)
    assert (again.body, again.headers, rig.dead()) == (b"1", {"idempotency_key": "k"}, [])
