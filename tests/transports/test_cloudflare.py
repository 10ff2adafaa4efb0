"""Cloudflare Queues over the HTTP API: what it takes, refuses and answers, and what schedd makes of that.

The tests with an ``account`` run against the fake, and against the real service as well if CLOUDFLARE_ACCOUNT_ID and
CLOUDFLARE_API_TOKEN name one; it takes some seconds until a real queue delivers.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.config.load import load
from scheduler.errors import ConfigError
from scheduler.messages.outbox import pack, too_large
from scheduler.messages.service import make_sources
from scheduler.transports import cloudflare
from scheduler.transports.cloudflare import (
    CloudflareSink,
    CloudflareSinkSettings,
    CloudflareSource,
    CloudflareSourceSettings,
)
from scheduler.transports.ports import Ack, Dead, Delivery, Outgoing, Published, Refused, Retry, TransportError
from support.cloudflare_api import ACCOUNT, MAX_DELAY, TOKEN, CloudflareApi, Failure
from support.cloudflare_rig import Account, Fake, fake_account, real_account

ACCOUNTS = ["fake", *(["real"] if real_account() is not None else [])]
PATIENCE = 60.0
OTHER = "f" * 32


@pytest.fixture(params=ACCOUNTS)
def account(request: pytest.FixtureRequest) -> Iterator[Account]:
    made = fake_account() if request.param == "fake" else real_account()
    assert made is not None
    yield made
    made.close()


@pytest.fixture
def fake() -> Iterator[CloudflareApi]:
    """For what cannot be had of the real service: trouble, and what only Workers send."""
    made = Fake.get()
    made.requests.clear()
    yield made
    made.failures.clear()


@pytest.fixture
def faked(fake: CloudflareApi) -> Iterator[Account]:
    made = fake_account()
    yield made
    made.close()


def source(account: Account, queue: str, **more: Any) -> CloudflareSource:
    return CloudflareSource("in", account.source_settings(queue, **{"poll": 0.2, **more}))


def sink(account: Account, queue: str, **more: Any) -> CloudflareSink:
    return CloudflareSink("out", account.sink_settings(queue, **more))


def outgoing(number: int, size: int = 0, **more: Any) -> Outgoing:
    """``size``: bytes of the body; 0: as small as it is."""
    body = b'{"number":%d,"fill":"%s"}' % (number, b"x" * max(0, size - len(b'{"number":%d,"fill":""}' % number)))
    assert size in (0, len(body))
    return Outgoing(key=f"k{number}", body=body, message=None, **more)


def numbers(deliveries: list[Delivery]) -> list[int]:
    return sorted(msgspec.json.decode(one.body)["number"] for one in deliveries)


def receive(made: CloudflareSource, count: int) -> list[Delivery]:
    """As many messages; they may come in several pulls."""
    found: list[Delivery] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} came"
        found += made.receive(100, 1.0)
    return found


@pytest.mark.parametrize("content", ["json", "text"])
def test_what_was_sent_is_pulled_and_once_acknowledged_gone(account: Account, content: str) -> None:
    queue, _ = account.make()
    (outcome,) = sink(account, queue, content_type=content).publish([outgoing(1)])
    assert outcome == Published("k1")
    made = source(account, queue)
    (one,) = receive(made, 1)
    assert (one.body, one.content_type, one.attempts) == (outgoing(1).body, content, 1)
    assert one.sent_at is not None
    assert abs(one.sent_at / 1e6 - time.time()) < PATIENCE
    assert [outcome.error for outcome in made.settle([Ack(one.receipt)])] == [None]
    assert account.ask("POST", f"/{queue}/messages/pull", {"batch_size": 1})["messages"] == []


def test_a_batch_of_a_hundred_is_one_request_and_comes_whole(account: Account) -> None:
    queue, _ = account.make()
    answers = sink(account, queue).publish([outgoing(number) for number in range(100)])
    assert answers == [Published(f"k{number}") for number in range(100)]
    made = source(account, queue)
    found = receive(made, 100)
    assert numbers(found) == list(range(100))
    assert all(one.error is None for one in made.settle([Ack(one.receipt) for one in found]))


def test_a_message_that_is_to_be_tried_again_comes_again_with_another_lease(account: Account) -> None:
    queue, _ = account.make()
    sink(account, queue).publish([outgoing(1)])
    made = source(account, queue)
    (first,) = receive(made, 1)
    assert made.settle([Retry(first.receipt, 0.0)])[0].error is None
    (second,) = receive(made, 1)
    assert (second.message_id, second.attempts) == (first.message_id, 2)
    assert second.receipt != first.receipt


def test_a_delay_of_thirteen_hours_is_capped_at_twelve(account: Account) -> None:
    queue, _ = account.make()
    sink(account, queue).publish([outgoing(1), outgoing(2, delay=13 * 3600.0)])
    made = source(account, queue)
    (one,) = receive(made, 1)
    assert numbers([one]) == [1], "the other one waits"
    assert made.settle([Retry(one.receipt, 13 * 3600.0)])[0].error is None


def test_visibility_that_ran_out_brings_it_again_and_a_late_acknowledgement_is_taken(account: Account) -> None:
    queue, _ = account.make()
    sink(account, queue).publish([outgoing(1)])
    made = source(account, queue, visibility=0.5)
    (first,) = receive(made, 1)
    (second,) = receive(made, 1)
    assert second.message_id == first.message_id
    assert made.settle([Ack(first.receipt)])[0].error is None, "a lease is no fence"


def test_after_max_retries_it_is_in_the_dead_letter_queue(account: Account) -> None:
    dead, name = account.make()
    queue, _ = account.make(max_retries=1, dead_letters=name)
    sink(account, queue).publish([outgoing(1)])
    made = source(account, queue)
    for attempt in (1, 2):
        (one,) = receive(made, 1)
        assert one.attempts == attempt
        made.settle([Retry(one.receipt, 0.0)])
    (one,) = receive(source(account, dead), 1)
    assert numbers([one]) == [1]


def test_a_dead_message_is_sent_to_the_dead_letter_queue_and_acknowledged(account: Account) -> None:
    dead, name = account.make()
    queue, _ = account.make(dead_letters=name)
    sink(account, queue).publish([outgoing(1), outgoing(2)])
    sink(account, queue, content_type="text").publish([Outgoing(key="k", body="nö".encode(), message=None)])
    made = source(account, queue, dead_letter_queue=dead)
    found = receive(made, 3)
    assert all(one.error is None for one in made.settle([Dead(one.receipt, "why", one) for one in found]))
    buried = receive(source(account, dead), 3)
    assert sorted((one.body, one.content_type) for one in buried) == sorted(
        [(outgoing(1).body, "json"), (outgoing(2).body, "json"), ("nö".encode(), "text")]
    )


def test_sizes_at_the_limit_and_above_it(account: Account) -> None:
    """The reference's limit has up to 100 bytes of metadata in it."""
    queue, _ = account.make()
    made = sink(account, queue)
    assert made.publish([outgoing(1, 127_900)]) == [Published("k1")]
    (outcome,) = made.publish([outgoing(2, 128_001)])
    assert isinstance(outcome, Refused)
    assert outcome.final
    assert "10204" in outcome.reason


def test_one_message_too_large_harms_no_other_of_its_batch(account: Account) -> None:
    queue, _ = account.make()
    answers = sink(account, queue).publish([outgoing(1), outgoing(2, 128_001), outgoing(3)])
    assert [isinstance(one, Published) for one in answers] == [True, False, True]
    assert numbers(receive(source(account, queue), 2)) == [1, 3]


@pytest.mark.parametrize(
    ("path", "fields", "code"),
    [
        ("messages/batch", {"messages": [{"body": 1}] * 101}, 10206),
        ("messages/batch", {"messages": [{"body": "x" * 100_000}] * 3}, 10205),
        ("messages", {"body": "x" * 128_001}, 10204),
    ],
)
def test_the_api_refuses_what_is_over_its_limits(account: Account, path: str, fields: Any, code: int) -> None:
    import httpx2

    queue, _ = account.make()
    url = f"{account.api}/accounts/{account.account}/queues/{queue}/{path}"
    answer = httpx2.post(url, json=fields, headers={"authorization": f"Bearer {account.token}"}, timeout=60)
    assert (answer.status_code // 100, answer.json()["errors"][0]["code"]) == (4, code)


def test_a_queue_that_is_not_there_and_a_wrong_token_are_trouble_of_the_transport(account: Account) -> None:
    with pytest.raises(TransportError, match="10104"):
        sink(account, OTHER).publish([outgoing(1)])
    with pytest.raises(TransportError, match="10104"):
        source(account, OTHER).receive(1, 0.0)
    queue, _ = account.make()
    settings = account.sink_settings(queue)
    with pytest.raises(TransportError, match=r"the sink out: the API answered 4\d\d") as caught:
        CloudflareSink("out", msgspec.structs.replace(settings, token="of-another")).publish([outgoing(1)])
    assert "of-another" not in str(caught.value)


def test_a_queue_without_a_pull_consumer_is_trouble_that_the_check_explains(account: Account) -> None:
    queue, _ = account.make(pulled=False)
    made = source(account, queue)
    with pytest.raises(TransportError, match="405"):
        made.receive(1, 0.0)
    assert "wrangler queues consumer http add" in made.check()[1].text


def test_a_check_says_what_is_missing(account: Account) -> None:
    dead, name = account.make()
    queue, _ = account.make(dead_letters=name)
    found = source(account, queue, dead_letter_queue=dead).check()
    assert [one.ok for one in found] == [True, True]
    assert name in found[1].text
    assert [one.ok for one in source(account, dead).check()] == [True, False], "its consumer has no dead-letter queue"
    assert sink(account, queue).check()[0].ok
    with pytest.raises(TransportError, match="10104"):
        source(account, queue, dead_letter_queue=OTHER).check()


def test_a_hundred_and_one_messages_or_too_many_bytes_are_several_batches(fake: CloudflareApi, faked: Account) -> None:
    """What the outbox packs is taken by the API, which counts more than the bodies."""
    queue, _ = faked.make()
    made = sink(faked, queue)
    sizes = [0] * 101 + [125_000] * 5 + [1_000] * 300
    messages = [outgoing(number, size) for number, size in enumerate(sizes)]
    batches = list(pack(messages, made.limits, 1000))
    assert [len(batch) for batch in batches[:2]] == [100, 3]
    assert list(itertools.chain(*batches)) == messages
    for batch in batches:
        assert made.publish(batch) == [Published(one.key) for one in batch]
    paths = [path for path, _ in fake.requests if path.endswith(("/batch", "/messages"))]
    assert len(paths) == len(batches), "none was refused and sent again"
    assert too_large(outgoing(1, 127_900), made.limits) is not None, "2 % are left for what Cloudflare adds"
    assert too_large(outgoing(1, 125_000), made.limits) is None


def test_many_dead_messages_go_to_their_queue_in_requests_within_the_limits(
    fake: CloudflareApi, faked: Account
) -> None:
    dead, _ = faked.make()
    queue, _ = faked.make()
    for number in range(150):
        fake.put(queue, {"number": number, "fill": "x" * 5_000}, "json")
    made = source(faked, queue, dead_letter_queue=dead)
    found = receive(made, 150)
    made.settle([Dead(one.receipt, "why", one) for one in found])
    assert numbers(receive(source(faked, dead), 150)) == list(range(150))
    assert sum(path == f"/{dead}/messages/batch" for path, _ in fake.requests) == 4
    assert fake.queues[queue].held == []


def test_what_is_no_text_reaches_the_dead_letter_queue_in_an_object(fake: CloudflareApi, faked: Account) -> None:
    dead, _ = faked.make()
    queue, _ = faked.make()
    fake.put(queue, b"\xff\x00", "bytes")
    fake.put(queue, b"\xff\x0fo", "v8")
    fake.put(queue, b"{}", "bytes")
    made = source(faked, queue, dead_letter_queue=dead)
    found = receive(made, 3)
    assert [one.unreadable is None for one in found] == [True, False, True]
    assert "send it as json" in (found[1].unreadable or "")
    made.settle([Dead(one.receipt, "why", one) for one in found])
    assert [one.body for one in fake.queues[dead].held] == [
        {"body_base64": "/wA=", "content_type": "bytes", "reason": "why"},
        {"body_base64": "/w9v", "content_type": "v8", "reason": "why"},
        "{}",
    ]


def test_a_dead_message_that_its_queue_does_not_take_is_not_acknowledged(fake: CloudflareApi, faked: Account) -> None:
    dead, _ = faked.make()
    queue, _ = faked.make()
    fake.put(queue, b"\xff" * 127_000, "bytes")  # as text it is over the limit
    fake.put(queue, {"number": 2}, "json")
    made = source(faked, queue, dead_letter_queue=dead, visibility=0.5)
    found = receive(made, 2)
    first, second = made.settle([Dead(one.receipt, "why", one) for one in found])
    assert "10204" in (first.error or "")
    assert (second.error, first.gone) == (None, False)
    assert [one.content for one in fake.queues[queue].held] == ["bytes"]
    fake.failures = [Failure(500, 15000, "Unknown error")]
    with pytest.raises(TransportError, match="15000"):
        made.settle([Dead(found[0].receipt, "why", found[0])])
    assert len(fake.queues[queue].held) == 1


@pytest.mark.parametrize(
    ("failure", "after"),
    [
        (Failure(429, 10250, "Queue is overloaded"), None),
        (Failure(429, 10251, "Queue storage limit exceeded"), None),
        (Failure(429, 10252, "Queue disabled"), None),
        (Failure(429, 971, "Please wait", {"retry-after": "17"}), 17.0),
        (Failure(500, 15000, "Unknown error"), None),
    ],
    ids=lambda one: str(one.code) if isinstance(one, Failure) else "",
)
def test_trouble_that_passes_is_told_with_the_time_to_wait(
    fake: CloudflareApi, faked: Account, failure: Failure, after: float | None
) -> None:
    queue, _ = faked.make()
    made, out = source(faked, queue), sink(faked, queue)
    attempts: list[Callable[[], Any]] = [
        lambda: made.receive(10, 1.0),
        lambda: made.settle([Ack("lease")]),
        lambda: out.publish([outgoing(1)]),
        lambda: out.publish([outgoing(1), outgoing(2)]),
    ]
    for attempt in attempts:
        fake.failures = [failure]
        with pytest.raises(TransportError, match=str(failure.code)) as caught:
            attempt()
        assert caught.value.after == after
    assert fake.queues[queue].held == []
    assert out.publish([outgoing(1)]) == [Published("k1")], "and it is over"


def test_a_queue_that_is_full_or_paused_says_so(fake: CloudflareApi, faked: Account) -> None:
    queue, _ = faked.make()
    fake.queues[queue].most_bytes = 150
    out = sink(faked, queue)
    out.publish([outgoing(1)])
    with pytest.raises(TransportError, match="10251"):
        out.publish([outgoing(2)])
    faked.ask("PATCH", f"/{queue}", {"settings": {"delivery_paused": True}})
    with pytest.raises(TransportError, match="10252"):
        source(faked, queue).receive(10, 1.0)


def test_an_unknown_lease_is_told_as_gone(faked: Account) -> None:
    queue, _ = faked.make()
    sink(faked, queue).publish([outgoing(1)])
    made = source(faked, queue)
    (one,) = receive(made, 1)
    known, unknown = made.settle([Ack(one.receipt), Ack("another")])
    assert (known.error, unknown.gone) == (None, True)


def test_an_empty_queue_is_asked_ever_more_seldom_and_at_once_after_a_message(
    fake: CloudflareApi, faked: Account
) -> None:
    """Each pull is billed, also one that brings nothing."""
    queue, _ = faked.make()
    made = source(faked, queue, poll=1000.0)
    pulls = lambda: sum(path.endswith("/pull") for path, _ in fake.requests)  # noqa: E731
    began, waits = time.monotonic(), 0
    while pulls() < 4:
        assert made.receive(10, 10.0) == []
        waits += 1
    assert (waits, time.monotonic() - began >= 0.2 + 0.4 + 0.8) == (4, True)
    assert made.receive(10, 0.0) == []
    assert pulls() == 4, "the pause is longer than it may wait"
    made._poll_at = 0.0
    sink(faked, queue).publish([outgoing(1), outgoing(2)])
    for _ in range(2):
        assert len(made.receive(1, 0.0)) == 1


def test_a_close_ends_the_pause_of_a_receive(faked: Account) -> None:
    queue, _ = faked.make()
    made = source(faked, queue, poll=1000.0)
    made._poll_at = time.monotonic() + 1000
    thread = threading.Thread(target=lambda: made.receive(10, 1000.0))
    thread.start()
    made.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_the_end_of_a_task_is_waited_for_with_the_longest_visibility() -> None:
    """Nothing extends a lease, and each time that it runs out uses one of the consumer's retries."""
    settings = CloudflareSourceSettings(account=ACCOUNT, queue=OTHER, token=TOKEN)
    usual = CloudflareSource("in", settings).limits
    assert (usual.visibility, usual.retention) == (cloudflare.VISIBILITY, 14 * 86_400.0)
    at_end = CloudflareSource("in", msgspec.structs.replace(settings, ack="end"))
    assert at_end.limits.visibility == 43_200.0
    assert at_end.extend(["a"], 60.0)[0].error == "Cloudflare extends no lease"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"visibility": 43_201.0}, "visibility: expected at most 12 h"),
        ({"queue": "orders"}, "queue: expected the id of queue, 32 hexadecimal digits, not 'orders'"),
        ({"account": "me"}, "account: expected the id of account"),
        ({"dead_letter_queue": "orders-dead"}, "dead_letter_queue: expected the id"),
        ({"api": "api.cloudflare.com"}, "api: expected an address"),
    ],
)
def test_mistakes_in_the_settings_are_named(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CloudflareSource("in", CloudflareSourceSettings(**{"account": ACCOUNT, "queue": OTHER, "token": TOKEN, **more}))
    if set(more) <= set(CloudflareSinkSettings.__struct_fields__):
        with pytest.raises(ConfigError, match=message):
            CloudflareSink(
                "out", CloudflareSinkSettings(**{"account": ACCOUNT, "queue": OTHER, "token": TOKEN, **more})
            )


def test_a_source_without_a_dead_letter_queue_is_refused_unless_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    table = (
        f'[sources.orders]\ntype = "cloudflare"\naccount = "{ACCOUNT}"\nqueue = "{OTHER}"\n'
        f'token_file = "{tmp_path / "token"}"\n'
    )
    file = tmp_path / "config.toml"
    file.write_text(table)
    with pytest.raises(ConfigError, match="source orders has no dead-letter queue"):
        make_sources(load(str(file), {}))
    for more in ('dlq = "none"', f'dead_letter_queue = "{OTHER}"'):
        file.write_text(f"{table}{more}\n")
        made = make_sources(load(str(file), {}))["orders"]
        assert isinstance(made, CloudflareSource)
        assert made._settings.token == TOKEN
        assert made.limits.has_dlq == ("dlq" not in more)


def test_the_client_logs_no_line_for_each_pull(faked: Account, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    queue, _ = faked.make()
    caplog.clear()
    source(faked, queue).receive(1, 0.0)
    sink(faked, queue).publish([outgoing(1)])
    assert caplog.records == []


def test_the_fakes_cap_is_the_one_that_schedd_keeps_to() -> None:
    assert MAX_DELAY == cloudflare.MAX_DELAY
