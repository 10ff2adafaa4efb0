"""The sink and the source of type sqs, against moto's server."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import ConfigError
from scheduler.transports.ports import Dead, Delivery, Outgoing, Published, TransportError
from scheduler.transports.sqs import MAX_BATCH, MAX_SIZE, SqsSink, SqsSinkSettings, SqsSource, SqsSourceSettings
from support.sqs_rig import KEYS, SqsRig


@pytest.fixture
def rig(tmp_path: Path) -> SqsRig:
    return SqsRig(tmp_path)


def sink(rig: SqsRig, url: str | None = None) -> SqsSink:
    return SqsSink("out", SqsSinkSettings(queue_url=url or rig.url, endpoint_url=rig.endpoint, **KEYS))


def outgoing(number: int, **more: Any) -> Outgoing:
    return Outgoing(key=f"k{number}", body=b'{"number": %d}' % number, message=None, **more)


def bodies(rig: SqsRig, url: str) -> list[str]:
    found = []
    while more := rig.client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [one["Body"] for one in more]
    return found


def test_a_full_batch_is_published_and_confirmed_one_by_one(rig: SqsRig) -> None:
    answers = sink(rig).publish([outgoing(number) for number in range(MAX_BATCH)])
    assert [one.key for one in answers] == [f"k{number}" for number in range(MAX_BATCH)]
    assert all(isinstance(one, Published) and one.message_id for one in answers)
    assert sorted(bodies(rig, rig.url)) == [f'{{"number": {number}}}' for number in range(MAX_BATCH)]


def test_a_fifo_queue_keeps_the_order_of_a_group_and_drops_a_repeated_key(rig: SqsRig) -> None:
    name = f"{uuid.uuid4().hex}.fifo"
    url = rig.client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    made = sink(rig, url)
    assert (made.limits.dedupes, made.limits.orders, made.limits.max_delay) == (True, True, 0.0)
    for _ in range(2):
        made.publish([outgoing(number, group="one customer") for number in range(3)])
    assert bodies(rig, url) == [f'{{"number": {number}}}' for number in range(3)]


def test_a_delayed_message_is_not_there_yet(rig: SqsRig) -> None:
    sink(rig).publish([outgoing(1, delay=600.0)])
    assert bodies(rig, rig.url) == []


def test_a_message_above_the_limit_is_an_error_that_says_so(rig: SqsRig) -> None:
    with pytest.raises(TransportError, match=r"the sink out: .*"):
        sink(rig).publish([Outgoing(key="k", body=b"x" * (MAX_SIZE + 1), message=None)])


def test_a_check_of_a_queue_that_is_not_there_fails(rig: SqsRig) -> None:
    with pytest.raises(TransportError, match="does not exist"):
        sink(rig, f"{rig.url}-other").check()
    assert sink(rig).check()[0].ok


def test_a_source_without_a_dead_letter_queue_says_so(rig: SqsRig) -> None:
    assert not SqsSource("in", SqsSourceSettings(queue_url=rig.url)).limits.has_dlq
    with pytest.raises(ConfigError, match="from 1 s to 12 h"):
        SqsSource("in", SqsSourceSettings(queue_url=rig.url, visibility=0.5))


def test_a_dead_message_keeps_its_attributes_and_is_redriven_with_them(rig: SqsRig) -> None:
    own = SqsSourceSettings(queue_url=rig.url, dead_letter_url=rig.dead_url, endpoint_url=rig.endpoint, **KEYS)
    source = SqsSource("in", own)
    rig.send(b"1", {f"h{number}": "x" for number in range(9)})
    (delivery,) = source.receive(1, 1.0)
    assert source.settle([Dead(delivery.receipt, "no", delivery)])[0].error is None
    assert source.redrive(10) == 1
    (again,) = source.receive(1, 1.0)
    assert (again.body, again.headers) == (b"1", delivery.headers)
    assert source.redrive(10) == 0


def test_a_dead_message_of_a_fifo_queue_is_redriven(rig: SqsRig) -> None:
    """SQS refuses a message without a group there: it would come again until the queue drops it."""
    url, dead = (
        rig.client.create_queue(QueueName=f"{uuid.uuid4().hex}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        for _ in range(2)
    )
    own = SqsSourceSettings(queue_url=url, dead_letter_url=dead, endpoint_url=rig.endpoint, **KEYS)
    source = SqsSource("in", own)
    sink(rig, url).publish([outgoing(1)])
    for _ in range(2):  # also within the five minutes in which a repeated key is dropped
        (delivery,) = source.receive(1, 1.0)
        assert source.settle([Dead(delivery.receipt, "no", delivery)])[0].error is None
        assert source.redrive(10) == 1


def test_a_redrive_asks_all_servers_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a wait SQS asks some of them, and says that there is nothing."""
    source = SqsSource("in", SqsSourceSettings(queue_url="q", dead_letter_url="d"))
    sent: list[dict[str, Any]] = []

    def call(method: str, **given: Any) -> Any:
        sent.append(given)
        return {}

    monkeypatch.setattr(source._api, "call", call)
    assert source.redrive(1) == 0
    assert sent[0]["WaitTimeSeconds"] > 0


def test_a_dead_message_that_fills_a_request_goes_without_its_reason(rig: SqsRig) -> None:
    """SQS counts attributes, too: it would be refused, and come again until the queue drops it."""
    own = SqsSourceSettings(queue_url=rig.url, dead_letter_url=rig.dead_url, endpoint_url=rig.endpoint, **KEYS)
    source, sent = SqsSource("in", own), []
    source._api.call = lambda method, **given: sent.append(given)  # type: ignore[method-assign,assignment,misc]
    for size in (MAX_SIZE, MAX_SIZE - 100):
        delivery = Delivery(message_id="m", body=b"x" * size, receipt="r", headers={"h": "y"})
        assert source._bury([Dead("r", "no", delivery)])[0].error is None
    assert [set(one["MessageAttributes"]) for one in sent] == [set(), {"h", "reason"}]
