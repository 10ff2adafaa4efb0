"""Messages become tasks: once each, whatever is delivered again, and nothing is acknowledged before the commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler import Context, RetryPolicy, Scheduler, Task
from scheduler.config.messages import SourceSection
from scheduler.errors import StoreUnavailableError
from scheduler.messages.intake import Intake
from scheduler.messages.receiver import Receiver
from scheduler.messages.service import UnreadableMessage
from scheduler.model.inbox import InboxState
from scheduler.model.json_text import elements, too_deep
from scheduler.model.times import to_datetime
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import inbox, pauses
from scheduler.testing import FakeClock, drain
from scheduler.transports.ports import Ack, Dead, Limits, Retry
from support.databases import Database
from support.memory_queue import MemoryQueue, MemorySource


class TakeOrder(Task, schema_version=2, retry=RetryPolicy(min_wait=100, max_wait=100, jitter=0, max_attempts=3)):
    order: int
    note: str = ""

    def run(self, ctx: Context) -> int:
        ctx.state.append((self.order, ctx.idempotency_key, ctx.subject))
        if self.note == "fail":
            raise RuntimeError("not now")
        return self.order

    @staticmethod
    def upgrade(payload: dict[str, Any], version: int) -> dict[str, Any]:
        return {"order": payload["number"]}


class TakeOrder3(Task, schema_version=3):
    order: int

    def run(self, ctx: Context) -> None:
        ctx.state.append((self.order, ctx.idempotency_key, ctx.subject))


class Rig:
    """A scheduler, a queue, and a receiver that a test turns by hand."""

    def __init__(self, database: Database, **section: Any) -> None:
        self.clock = FakeClock()
        self.ran: list[tuple[int, str, str | None]] = []
        self.jobs = Scheduler.for_testing(url=database.url, clock=self.clock, state=self.ran)
        self.jobs.register(TakeOrder)
        self.queue = MemoryQueue(lambda: self.clock.now() / SECOND)
        self.section = {"type": "memory", "kind": "TakeOrder"} | section
        self.receiver = self.make_receiver()

    def make_receiver(self, holder: str = "one") -> Receiver:
        source = MemorySource(self.queue)
        intake = Intake("orders", SourceSection(**self.section), source.limits, self.jobs.submitter, holder)
        return Receiver(source, intake, self.jobs.database, holder)

    def send(self, *numbers: int, **more: Any) -> None:
        for number in numbers:
            self.queue.send({
                "schema_version": 2, "idempotency_key": f"order-{number}", "payload_inline": {"order": number}, **more,
            })  # fmt: skip

    def turn(self, seconds: float = 0.0) -> int:
        self.clock.advance(seconds)
        self.receiver._look_at = self.receiver._overdue_at = 0.0
        self.receiver._open = dict.fromkeys(self.receiver._open, 0.0)  # as if it were time to extend them
        return self.receiver.turn()

    def run(self) -> list[int]:
        before = len(self.ran)
        drain(self.jobs)
        return [number for number, _, _ in self.ran[before:]]

    def rows(self) -> list[inbox.InboxRecord]:
        with self.jobs.database.read() as tx:
            return sorted(inbox.inbox_records(tx), key=lambda row: row.key)


Make = Callable[..., Rig]


@pytest.fixture
def make(database: Database) -> Make:
    return lambda **section: Rig(database, **section)


def test_a_batch_becomes_tasks_with_one_commit_and_is_acknowledged_after_it(make: Make) -> None:
    rig = make()
    rig.send(1, 2, 3, subject="order", correlation_id="cart", message_type="order.created", tenant="acme")
    seen: list[tuple[str, int, int]] = []

    def hit(name: str) -> None:
        with rig.jobs.database.read() as tx:
            stored = len(inbox.inbox_records(tx))
        seen.append((name, stored, len(rig.queue.verdicts)))

    FAILPOINTS.hit = hit
    try:
        assert rig.turn() == 3
    finally:
        FAILPOINTS.hit = lambda name: None
    assert seen == [("inbox.received", 0, 0), ("inbox.stored", 3, 0), ("inbox.settling", 3, 0), ("inbox.settled", 3, 3)]
    assert rig.queue.messages == []
    task = rig.jobs.get_task(rig.rows()[0].task_id or 0)
    assert (task.key, task.subject, task.correlation, task.message_type) == (
        "orders:order-1",
        "order",
        "cart",
        "order.created",
    )
    assert task.headers == {"tenant": "acme"}
    assert rig.run() == [1, 2, 3]


def test_what_comes_again_becomes_no_second_task_even_after_its_end(make: Make) -> None:
    rig = make()
    rig.send(1, 1)
    rig.turn()
    rig.run()
    rig.clock.advance(10 * 86_400)
    rig.send(1)
    rig.turn()
    assert rig.run() == []
    (row,) = rig.rows()
    assert (row.deliveries, row.state) == (2, InboxState.DONE)
    assert [type(one) for one in rig.queue.verdicts] == [Ack] * 3


def test_it_is_remembered_for_four_days_longer_than_the_transport_may_deliver(make: Make) -> None:
    rig = make()
    rig.send(1)
    rig.turn()
    rig.run()
    for days, left in ((7.9, 1), (0.2, 0)):
        rig.clock.advance(days * 86_400)
        with rig.jobs.database.write() as tx:
            assert not inbox.purge(tx)
        assert len(rig.rows()) == left


def test_nothing_is_acknowledged_if_the_commit_is_in_doubt(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has committed, and its answer was lost."""
    rig = make()
    rig.send(1)
    change = rig.jobs.database.change

    def lost(work: Any) -> Any:
        change(work)
        raise StoreUnavailableError("the connection was lost")

    monkeypatch.setattr(rig.jobs.database, "change", lost)
    with pytest.raises(StoreUnavailableError):
        rig.turn()
    assert rig.queue.verdicts == []
    monkeypatch.undo()
    assert rig.turn(31) == 1
    assert rig.queue.messages == []
    assert rig.run() == [1]


def test_one_bad_message_among_ten_harms_none(make: Make) -> None:
    rig = make()
    rig.send(*range(4))
    rig.queue.send(b"\xff not json")
    rig.queue.send({"schema_version": 2, "payload_inline": {"order": 9}})
    rig.queue.send({"schema_version": 3, "idempotency_key": "new", "payload_inline": {"order": 9}})
    rig.queue.send({"schema_version": 2, "idempotency_key": "misfit", "payload_inline": {"order": "x"}})
    rig.send(*range(4, 6))
    assert rig.turn() == 10
    assert [reason for _, reason in rig.queue.dead] == [
        "the message is no JSON: JSON is malformed: invalid character (byte 0)",
        "it has no idempotency key; the setting key_from says where else one is, if that is meant",
        "it has schema_version 3, newer than the 2 that TakeOrder knows",
        "payload of TakeOrder does not fit: Expected `int`, got `str` - at `$.order`",
    ]
    assert rig.queue.messages == []
    assert rig.run() == list(range(6))
    assert [row.error is None for row in rig.rows() if row.state is InboxState.DEAD] == [False] * 4


def test_a_message_that_the_database_refuses_harms_no_other(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make()
    rig.send(1, 2, 3)
    store = inbox.store

    def refuse(tx: Any, source: str, arrivals: Any, rules: Any) -> Any:
        if any(a.key == "order-2" and a.spec is not None for a in arrivals):
            raise ValueError("the database does not take it")
        return store(tx, source, arrivals, rules)

    monkeypatch.setattr(inbox, "store", refuse)
    rig.turn()
    assert rig.run() == [1, 3]
    assert [reason for _, reason in rig.queue.dead] == ["it cannot be stored: ValueError"]


def test_a_dead_message_that_is_sent_again_is_tried_again(make: Make) -> None:
    """From the dead-letter queue back to its origin, once a program knows its schema."""
    rig = make()
    body = {"schema_version": 3, "idempotency_key": "order-7", "payload_inline": {"order": 7}}
    rig.queue.send(body)
    rig.turn()
    rig.queue.send(body)
    rig.turn()
    assert len(rig.queue.dead) == 2
    rig.queue.send({**body, "schema_version": 2})
    rig.turn()
    assert rig.run() == [7]
    assert rig.rows()[0].state is InboxState.DONE


def test_an_older_schema_is_upgraded(make: Make) -> None:
    rig = make()
    rig.queue.send({"schema_version": 1, "idempotency_key": "old", "payload_inline": {"number": 5}})
    rig.queue.send({"schema_version": 1, "idempotency_key": "odd", "payload_inline": {}})
    rig.turn()
    assert rig.run() == [5]
    assert [reason for _, reason in rig.queue.dead] == ["it cannot be read: KeyError: 'number'"]


def test_a_source_without_a_dead_letter_queue_keeps_what_it_cannot_read_as_a_dead_task(make: Make) -> None:
    rig = make(dlq="none")
    rig.queue.send(b"no json", trace="t-1")
    rig.turn()
    assert rig.queue.dead == []
    assert rig.queue.messages == []
    (row,) = rig.rows()
    task = rig.jobs.get_task(row.task_id or 0)
    assert (task.kind, task.subject, row.state) == ("messages.unreadable", "orders", InboxState.DEAD)
    payload = msgspec.json.decode(task.payload) if isinstance(task.payload, str) else task.payload
    assert payload["headers"] == {"trace": "t-1"}


def test_a_payload_in_place_of_an_envelope_is_refused_with_the_setting_that_takes_it(make: Make) -> None:
    rig = make(key_from="payload.order")
    rig.queue.send({"order": 7})
    rig.queue.send({"order": 8, "payload": {"order": 8}})
    rig.queue.send({"schema_version": 2, "idempotency_key": "order-9", "order": 9})
    rig.queue.send({"idempotency_key": "order-10", "order": 10})
    rig.queue.send({"schema_version": 2, "idempotency_key": "order-11", "payload_inline": {"order": "x"}, "a": 1})
    rig.queue.send(b"")
    rig.turn()
    no_key, other_name, no_payload, old, unfit, empty = (reason for _, reason in rig.queue.dead)
    hint = 'the body has no payload_inline: say body = "payload" in [sources.orders] if the body is the payload itself'
    assert no_key == other_name == f"it has no payload.order, which key_from says is its idempotency key; {hint}"
    assert no_payload.endswith(f"Object missing required field `order`; {hint}")
    assert old == f"it cannot be read: KeyError: 'number'; {hint}"
    assert "payload_inline" not in unfit
    assert empty == "the message has no body"


def test_the_replay_of_a_dead_task_reads_its_message_again(make: Make) -> None:
    rig = make(dlq="none")
    UnreadableMessage.intakes = {"orders": rig.receiver._intake}
    rig.jobs.register(UnreadableMessage)
    rig.queue.send({"schema_version": 3, "idempotency_key": "order-7", "payload_inline": {"order": 7}})
    rig.turn()
    rig.run()
    dead = rig.rows()[0].task_id or 0
    assert rig.jobs.get_task(dead).state == "dead"
    assert "schema_version 3, newer than the 2" in str(rig.jobs.get_last_error(dead))
    newer = Rig.__new__(Rig)  # a program that knows version 3
    newer.__dict__.update(rig.__dict__)
    newer.jobs = Scheduler.for_testing(url=str(rig.jobs.database.absolute_url()), clock=rig.clock, state=rig.ran)
    newer.jobs.register(TakeOrder3, kind="TakeOrder")
    newer.jobs.register(UnreadableMessage)
    UnreadableMessage.intakes = {"orders": newer.make_receiver()._intake}
    newer.jobs.dead_letters.replay(dead)
    assert newer.run() == [7]
    assert rig.rows()[0].state is InboxState.DONE


def test_nothing_is_received_for_a_kind_that_no_worker_has(make: Make) -> None:
    """Its messages would all be dead."""
    rig = make(kind="Later")
    rig.receiver._stopping.set()
    rig.send(1)
    assert rig.turn() == 0
    assert "registered the kind 'Later'" in str(rig.receiver.error)
    rig.jobs.register(TakeOrder3, kind="Later")
    assert rig.turn() == 1


@pytest.mark.parametrize(
    ("way", "key"), [("id", "m1"), ("header.x-key", "from-a-header"), ("payload.order", "4"), ("payload.none.x", None)]
)
def test_key_from_says_where_the_key_is(make: Make, way: str, key: str | None) -> None:
    rig = make(body="payload", key_from=way)
    rig.queue.send({"order": 4}, **{"x-key": "from-a-header", "subject": "s"})
    rig.turn()
    rig.run()
    assert rig.ran == ([] if key is None else [(4, f"orders:{key}", "s")])
    assert len(rig.queue.dead) == (key is None)


def test_nothing_is_received_while_the_source_is_paused_or_too_much_waits(make: Make) -> None:
    rig = make(max_backlog=5)
    rig.send(*range(20))
    rig.receiver._stopping.set()  # it would wait before it looks again
    assert rig.turn() == 10
    assert rig.turn() == 0
    assert rig.run() == list(range(10))
    with rig.jobs.database.write() as tx:
        pauses.pause(tx, pauses.SOURCE, "orders")
    assert rig.turn() == 0
    with rig.jobs.database.write() as tx:
        pauses.resume(tx, pauses.SOURCE, "orders")
    assert rig.turn() == 10


def test_the_pause_of_a_source_pauses_no_kind_of_that_name(make: Make) -> None:
    rig = make()
    with rig.jobs.database.write() as tx:
        pauses.pause(tx, pauses.SOURCE, "TakeOrder")
    rig.send(1)
    rig.turn()
    assert rig.run() == [1]


# ack = "end"


def test_the_end_of_its_task_settles_a_message(make: Make) -> None:
    rig = make(ack="end")
    rig.send(1)
    rig.turn()
    assert rig.queue.verdicts == []
    assert rig.rows()[0].state is InboxState.OPEN
    rig.run()
    rig.turn()
    assert [type(one) for one in rig.queue.verdicts] == [Ack]
    assert rig.rows()[0].state is InboxState.DONE


def test_its_visibility_is_extended_while_the_task_runs(make: Make) -> None:
    rig = make(ack="end")
    rig.send(1)
    for _ in range(10):
        rig.turn(20)
    assert rig.queue.messages[0].attempts == 1
    rig.run()
    rig.turn()
    assert rig.queue.messages == []


def test_a_retry_carries_the_tasks_own_wait_within_what_the_transport_can(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "scheduler.messages")
    rig = make(ack="end")
    rig.send(1, payload_inline={"order": 1, "note": "fail"})
    rig.turn()
    rig.run()
    rig.turn()
    assert [(type(one), round(getattr(one, "after", 0))) for one in rig.queue.verdicts] == [(Retry, 100)]
    assert rig.turn(99) == 0
    assert rig.turn(1.5) == 1, "it comes again when its task is due"
    rig.queue.limits = rig.receiver._source.limits = rig.receiver._intake._limits = msgspec_replace(rig.queue.limits)
    rig.run()
    rig.turn()
    assert round(getattr(rig.queue.verdicts[-1], "after", 0)) == 40, "capped; the task waits for the rest in the store"
    assert "a message comes again in 40 s, not 100 s" in caplog.text
    assert rig.turn(41) == 1
    assert round(getattr(rig.queue.verdicts[-1], "after", 0)) == 40
    rig.clock.advance(100)
    rig.run()
    rig.turn()
    assert isinstance(rig.queue.verdicts[-1], Ack), "the last attempt has failed: the dead letter is ours"
    assert rig.queue.messages == []
    assert len(rig.ran) == 3


def msgspec_replace(limits: Limits) -> Limits:
    return Limits(max_batch=10, max_delay=40.0, visibility=30.0, has_dlq=True, counts=True)


def test_a_redelivery_to_another_receiver_takes_the_receipt_over(make: Make) -> None:
    rig = make(ack="end")
    rig.send(1)
    rig.turn()
    rig.receiver = rig.make_receiver("another")  # the first one has died
    assert rig.turn(31) == 1
    rig.run()
    rig.turn()
    assert [type(one) for one in rig.queue.verdicts] == [Ack]
    assert rig.queue.messages == []
    assert len(rig.ran) == 1


def test_a_redelivery_after_the_end_is_acknowledged_at_once(make: Make) -> None:
    rig = make(ack="end")
    rig.send(1)
    rig.turn()
    rig.run()
    rig.receiver = rig.make_receiver("another")
    assert rig.turn(31) == 1
    assert [type(one) for one in rig.queue.verdicts] == [Ack]
    assert rig.rows()[0].state is InboxState.DONE


def test_a_verdict_that_the_transport_did_not_take_is_given_again(make: Make) -> None:
    rig = make(ack="end")
    rig.send(1)
    rig.turn()
    rig.run()
    rig.queue.lose_settles = True
    rig.turn()
    rig.queue.lose_settles = False
    rig.turn()
    assert rig.queue.messages == []


# ordered_by = "subject"


def ordered(rig: Rig, *numbers: int, subject: str = "s") -> None:
    for number in numbers:
        rig.send(number, subject=subject, sequence=number, idempotency_key=f"{subject}-{number}")


def test_messages_of_a_subject_run_in_their_order_however_they_come(make: Make) -> None:
    rig = make(ordered_by="subject")
    ordered(rig, 3, 1)
    ordered(rig, 2, subject="t")
    rig.turn()
    assert rig.run() == [1]
    assert sorted(row.key for row in rig.rows() if row.state is InboxState.HELD) == ["s-3", "t-2"]
    assert rig.queue.messages == [], "what is held is in the store"
    ordered(rig, 5, 2, 4)
    ordered(rig, 1, subject="t")
    rig.turn()
    ran = rig.run()
    assert [(n, s) for n, _, s in rig.ran if s == "s"] == [(n, "s") for n in (1, 2, 3, 4, 5)]
    assert [(n, s) for n, _, s in rig.ran if s == "t"] == [(1, "t"), (2, "t")]
    assert len(ran) == 6


def test_a_task_waits_for_the_one_before_it_that_is_retried(make: Make) -> None:
    rig = make(ordered_by="subject")
    rig.send(1, subject="s", sequence=1, payload_inline={"order": 1, "note": "fail"})
    ordered(rig, 2)
    rig.turn()
    assert rig.run() == [1]
    for _ in range(2):
        rig.clock.advance(101)
        rig.run()
    assert [n for n, _, _ in rig.ran] == [1, 1, 1, 2]


def test_a_gap_that_lasts_too_long_is_passed_over_and_what_comes_late_does_not_run(make: Make) -> None:
    rig = make(ordered_by="subject", gap_timeout=60)
    ordered(rig, 1, 3, 4)
    rig.turn()
    assert rig.run() == [1]
    rig.turn(50)
    assert rig.run() == []
    rig.turn(11)
    assert rig.run() == [3, 4]
    ordered(rig, 2)
    rig.turn()
    assert rig.run() == []
    assert {row.key: row.state for row in rig.rows()}["s-2"] is InboxState.LATE


def test_gap_retry_gives_a_message_back_until_the_one_before_it_is_there(make: Make) -> None:
    rig = make(ordered_by="subject", gap="retry", retry=5)
    ordered(rig, 2)
    rig.turn()
    assert rig.queue.verdicts == [Retry("r2", 5.0, "messages of its subject before it are missing")]
    assert rig.rows() == []
    ordered(rig, 1)
    rig.turn()
    rig.turn(6)
    assert rig.run() == [1, 2]


def test_gap_skip_goes_ahead_at_once(make: Make) -> None:
    rig = make(ordered_by="subject", gap="skip")
    ordered(rig, 2, 5)
    rig.turn()
    ordered(rig, 3, 6)
    rig.turn()
    assert rig.run() == [2, 5, 6]


def test_dead_is_the_verdict_of_what_was_refused_before(make: Make) -> None:
    rig = make()
    rig.queue.send(b"[]")
    rig.turn()
    assert [type(one) for one in rig.queue.verdicts] == [Dead]


@pytest.mark.parametrize("key_from", [None, "id"])
def test_messages_to_which_the_transport_gives_no_id_are_different_ones(make: Make, key_from: str | None) -> None:
    rig = make(dlq="none", **({} if key_from is None else {"key_from": key_from}))
    for body in (b"{}", b'{"payload_inline": {"order": 1}}', b"{}"):
        rig.queue.send(body)
        rig.queue.messages[-1].message_id = ""
    rig.turn()
    assert [(row.state, row.error is None) for row in rig.rows()] == [(InboxState.DEAD, False)] * 2
    assert len({row.task_id for row in rig.rows()}) == 2
    assert rig.run() == []


# one text harms its message alone

DEEP = b'{"idempotency_key": "deep", "payload_inline": {"order": 1, "note": ' + b"[" * 10_000 + b"]" * 10_000 + b"}}"
HUGE = msgspec.json.encode({"idempotency_key": "huge", "payload_inline": {"order": 1, "note": "x" * 6_000_000}})


@pytest.mark.case(92)
@pytest.mark.parametrize("dlq", [None, "none"])
@pytest.mark.parametrize(
    "body",
    [
        {"idempotency_key": "a\x00b"},
        {"idempotency_key": "k", "subject": "a\x00b"},
        {"idempotency_key": "k", "message_type": "a\x00b", "payload_inline": {"order": 1}},
        {"idempotency_key": "k", "correlation_id": "x" * 300},
        {"idempotency_key": "k", "sequence": 10**30},
        {"idempotency_key": "k", "created_at": "0001-01-01T00:00:00+23:59"},
        {"idempotency_key": "k", "more": "x" * 20_000},
        b'{"idempotency_key": "\\ud800"}',
        DEEP,
        HUGE,
    ],
    ids=["key", "subject", "type", "long", "number", "time", "headers", "surrogate", "deep", "huge"],
)
def test_a_text_of_one_message_costs_that_message_alone(make: Make, body: Any, dlq: str | None) -> None:
    rig = make(**({} if dlq is None else {"dlq": dlq}))
    rig.send(1)
    rig.queue.send(body)
    rig.send(2)
    rig.turn()
    rig.send(3)
    rig.turn()
    assert rig.receiver.error is None
    assert rig.queue.messages == []
    assert sorted(rig.run()) == [1, 2, 3]
    (dead,) = [row for row in rig.rows() if row.state is InboxState.DEAD]
    assert dead.error
    assert len(rig.queue.dead) == (dlq is None)


@pytest.mark.case(92)
@pytest.mark.parametrize("dlq", [None, "none"])
@pytest.mark.parametrize("way", ["id", "header.x-key", "payload.key"])
@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b", "x" * 300, ""])
def test_a_text_where_the_key_is_costs_that_message_alone(make: Make, way: str, text: str, dlq: str | None) -> None:
    rig = make(body="payload", key_from=way, kind="Keyed", **({} if dlq is None else {"dlq": dlq}))
    rig.jobs.register(Keyed)
    for number, key in enumerate(("one", text, "two")):
        inside = "\x00" if "\ud800" in key else key  # JSON cannot have it
        rig.queue.send({"order": number, "key": inside}, **{"x-key": key, "\x00": "\x00"})
        if way == "id":
            rig.queue.messages[-1].message_id = key
    rig.turn()
    assert rig.receiver.error is None
    assert rig.queue.messages == []
    ran = sorted(rig.run())
    assert ran == ([0, 1, 2] if way == "id" and len(text) == 300 else [0, 2])
    dead = [row for row in rig.rows() if row.state is InboxState.DEAD]
    assert len(dead) == 3 - len(ran)


class Keyed(Task):
    order: int
    key: str

    def run(self, ctx: Context) -> None:
        ctx.state.append((self.order, ctx.idempotency_key, ctx.subject))


@pytest.mark.case(92)
def test_a_message_that_cannot_even_be_noted_comes_again_and_is_said(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make()
    rig.send(1, 2, 3)
    store = inbox.store

    def refuse(tx: Any, source: str, arrivals: Any, rules: Any) -> Any:
        if any(a.key == "order-2" for a in arrivals):
            raise ValueError("the database does not take it")
        return store(tx, source, arrivals, rules)

    monkeypatch.setattr(inbox, "store", refuse)
    rig.turn()
    rig.receiver.is_well()
    assert sorted(rig.run()) == [1, 3]
    assert "nor a note of it: ValueError" in str(rig.receiver.error)
    monkeypatch.undo()
    rig.turn(31)
    rig.receiver.is_well()
    assert rig.run() == [2]
    assert rig.receiver.error is None


@pytest.mark.case(92, pure=True)
def test_the_elements_of_a_list_are_found_however_deep_they_are() -> None:
    deep = b"[" * 9000 + b"]" * 9000
    text = b' [ {"a": "x,]\\"["} , ' + deep + b', 7, "", {} ] '
    assert list(elements(text)) == [b'{"a": "x,]\\"["}', deep, b"7", b'""', b"{}"]
    assert [list(elements(one)) for one in (b"[]", b"{}", b"", b"[1", b"[[]]")] == [[], [], [], [], [b"[]"]]
    assert [too_deep(one) for one in (deep, b'["' + b"[" * 9000 + b'"]', b"[" + b"[]," * 9000 + b"[]]")] == [
        True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("more", ["", "x" * 16_360])
def test_the_time_at_which_a_message_was_created_is_kept(make: Make, more: str) -> None:
    rig, seen = make(kind="Told"), []

    class Told(Task):
        def run(self, ctx: Context) -> None:
            seen.append((ctx.created_at.isoformat(), "created_at" in ctx.headers))

    rig.jobs.register(Told)
    fields = {"more": more} if more else {}
    rig.queue.send({"idempotency_key": "a", "created_at": "2026-01-31T12:00:00+01:00", **fields})
    rig.queue.send({"idempotency_key": "b", **fields})
    rig.turn()
    rig.run()
    stored = to_datetime(rig.clock.now()).isoformat()
    there = (stored, False)
    assert sorted(seen) == sorted([there if more else ("2026-01-31T11:00:00+00:00", True), there]), "as far as it fits"
