"""All that a source owes beside receiving, shown on both ways in: messages that are fetched, and posted ones."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from scheduler import Context, Scheduler, Task
from scheduler.config.messages import SourceSection
from scheduler.messages.duties import SourceDuties
from scheduler.messages.group_commit import Busy, PushedIntake
from scheduler.messages.intake import Intake
from scheduler.messages.receiver import Receiver
from scheduler.model.inbox import InboxState
from scheduler.ports import SECOND
from scheduler.store import inbox, pauses
from scheduler.store.read.message_ends import source_statuses
from scheduler.store.read.status import status
from scheduler.telemetry.metrics import MESSAGES_RECEIVED, MESSAGES_SETTLED
from scheduler.telemetry.traffic import Traffic
from scheduler.testing import FakeClock, drain
from scheduler.transports.ports import Answer, Auth, Delivery, Finding, Limits, Request, Verdict
from support.databases import Database
from support.fleet import step
from support.memory_queue import MemoryQueue, MemorySource

DAY = 86_400.0
LIMITS = Limits(max_batch=10, visibility=30.0, max_delay=3600.0, retention=4 * DAY, has_dlq=True)


class TakeOrder(Task):
    order: int

    def run(self, ctx: Context) -> None:
        ctx.state.append(self.order)


class Later(Task):
    """A kind that no program has at first."""

    order: int

    def run(self, ctx: Context) -> None:
        ctx.state.append(self.order)


class Posted:
    """A push source; the test puts deliveries behind it."""

    limits = LIMITS
    auth = Auth(token="t")

    def accept(self, request: Request) -> Sequence[Delivery]:
        raise NotImplementedError

    def answer(self, verdicts: Sequence[Verdict]) -> Answer:
        raise NotImplementedError

    def check(self) -> Sequence[Finding]:
        return []

    def close(self) -> None: ...


class Way:
    """A source that is turned by hand; ``pushed``: its messages are posted."""

    def __init__(self, database: Database, pushed: bool, **section: Any) -> None:
        self.clock, self.ran, self.pushed = FakeClock(), [], pushed
        self.url = database.url
        self.section = {"type": "memory", "kind": "TakeOrder", **section}
        self.begin()

    def begin(self) -> None:
        """A new process."""
        self.ran: list[int] = []
        self.jobs = Scheduler.for_testing(url=self.url, clock=self.clock, state=self.ran)
        self.jobs.traffic = Traffic(self.clock.monotonic)
        self.jobs.register(TakeOrder)
        self.queue = MemoryQueue(lambda: self.clock.now() / SECOND, LIMITS)
        settings = SourceSection(**self.section)
        intake = Intake("orders", settings, LIMITS, self.jobs.submitter, "me", self.jobs.traffic)
        self.source: SourceDuties = (
            PushedIntake(Posted(), intake)
            if self.pushed
            else Receiver(MemorySource(self.queue), intake, self.jobs.database, "me")
        )
        if isinstance(self.source, Receiver):
            self.source._stopping.wait = lambda _seconds=None: True  # type: ignore[method-assign]

    def bring(self, *bodies: bytes | dict[str, Any], age: float = 0.0) -> list[Verdict | None]:
        """Deliver; returns the verdicts of a push source that has taken them."""
        for body in bodies:
            self.queue.send(body)
            self.queue.messages[-1].sent_at = self.clock.now() - round(age * SECOND)
        return self.turn()

    def turn(self, seconds: float = 0.0) -> list[Verdict | None]:
        """As the source's thread does, once."""
        self.clock.advance(seconds)
        self.source._look_at = self.source._overdue_at = 0.0
        if isinstance(self.source, Receiver):
            running = iter([False, True])
            self.source._stopping.is_set = lambda: next(running, True)  # type: ignore[method-assign]
            self.source._run()
            return []
        self.source.look()
        if not self.queue.messages:
            return []
        deliveries = [
            Delivery(message_id=one.message_id, body=one.body, receipt=str(n), sent_at=one.sent_at)
            for n, one in enumerate(self.queue.messages)
        ]
        answer = self.source.put(deliveries)
        batch = self.source._waiting.get_nowait()
        assert batch is not None
        self.source._take([batch])
        if answer.exception(0) is None:
            self.queue.messages.clear()
            return list(answer.result(0))
        return []

    def order(self, number: int, sequence: int | None = None, **more: Any) -> dict[str, Any]:
        made = {"idempotency_key": f"order-{number}", "payload_inline": {"order": number}, **more}
        return made if sequence is None else {**made, "subject": "s", "sequence": sequence}

    def run(self) -> list[int]:
        before = len(self.ran)
        drain(self.jobs)
        return self.ran[before:]

    def stuck(self) -> dict[str, str]:
        step(self.jobs)
        with self.jobs.database.read() as tx:
            return {one.name: one.text for one in status(tx).stuck}

    def states(self) -> dict[str, InboxState]:
        with self.jobs.database.read() as tx:
            return {row.key: row.state for row in inbox.inbox_records(tx)}


Make = Callable[..., Way]


@pytest.fixture(params=[False, True], ids=["fetched", "posted"])
def make(database: Database, request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Way] = []

    def build(**section: Any) -> Way:
        made.append(Way(database, request.param, **section))
        return made[-1]

    yield build
    for one in made:
        one.jobs.close()


@pytest.mark.case(91)
def test_a_gap_that_lasts_too_long_is_passed_over_after_a_restart_too(make: Make) -> None:
    way = make(ordered_by="subject", gap_timeout=60)
    way.bring(way.order(1, 1), way.order(3, 3), way.order(4, 4))
    assert way.run() == [1]
    way.turn(50)
    assert way.run() == []
    way.jobs.close()
    way.begin()
    way.turn(11)
    assert way.run() == [3, 4]
    way.bring(way.order(2, 2))
    assert way.run() == []
    assert way.states()["order-2"] is InboxState.LATE


@pytest.mark.case(91)
def test_what_was_held_under_other_settings_goes_at_the_next_start(make: Make) -> None:
    way = make(ordered_by="subject", gap_timeout=600)
    way.bring(way.order(1, 1), way.order(3, 3))
    assert way.run() == [1]
    way.jobs.close()
    del way.section["ordered_by"]
    way.begin()
    way.turn()
    assert way.run() == [3]


@pytest.mark.case(91)
def test_a_held_message_that_cannot_be_read_holds_up_no_other_subject(make: Make) -> None:
    way = make(ordered_by="subject", gap_timeout=60)
    way.bring(way.order(3, 3), way.order(5, 5, idempotency_key="other") | {"subject": "t"})
    with way.jobs.database.write() as tx:
        tx.run("UPDATE schedd_inbox SET held = '{' WHERE subject = 's'")
    way.turn(61)
    assert way.run() == [5]
    assert "source orders cannot be used" in way.stuck()["source"]


@pytest.mark.case(91)
def test_messages_that_the_transport_is_about_to_drop_are_said(make: Make) -> None:
    way = make()
    way.bring(way.order(1), age=2 * DAY)
    assert way.stuck() == {}
    way.bring(way.order(2), age=3.5 * DAY)
    assert "messages of source orders come 3 d 12 h after they were sent" in way.stuck()["old_messages"]
    way.bring(way.order(3))
    assert way.stuck() == {}


@pytest.mark.case(91)
def test_a_kind_that_no_worker_has_is_said_before_a_message_comes_and_is_over_once_there(make: Make) -> None:
    way = make(kind="Later")
    way.turn()
    way.turn()
    assert "no worker has registered the kind 'Later'" in way.stuck()["source"]
    assert way.bring(way.order(1)) == []
    assert way.states() == {}, "nothing is taken"
    way.jobs.register(Later)
    way.turn()
    assert way.stuck() == {}
    assert way.run() == [1]


@pytest.mark.case(91)
def test_nothing_is_taken_while_the_source_is_paused_or_too_much_waits(make: Make) -> None:
    way = make(max_backlog=2)
    way.bring(*(way.order(number) for number in range(3)))
    way.bring(way.order(4))
    assert len(way.states()) == 3
    assert way.run() == [0, 1, 2]
    with way.jobs.database.write() as tx:
        pauses.pause(tx, pauses.SOURCE, "orders")
    way.turn()
    assert len(way.states()) == 3
    with way.jobs.database.write() as tx:
        pauses.resume(tx, pauses.SOURCE, "orders")
    way.turn()
    assert way.run() == [4]


@pytest.mark.case(91)
def test_what_comes_and_what_is_settled_is_counted(make: Make) -> None:
    way = make()
    way.bring(way.order(1), b"[]")
    found = {one.metric: {s.labels: s.value for s in one.samples} for one in way.jobs.traffic.families()}
    assert found[MESSAGES_RECEIVED] == {("orders",): 2}
    assert found[MESSAGES_SETTLED] == {("orders", "ack"): 1, ("orders", "dead"): 1}


@pytest.mark.case(92)
def test_what_a_source_failed_at_is_said_until_it_is_over(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    way = make()
    take = Intake.take

    def fail(_self: Intake, _deliveries: Any) -> Any:
        raise ValueError("no such thing")

    monkeypatch.setattr(Intake, "take", fail)
    way.bring(way.order(1))
    assert way.stuck()["source"].endswith("ValueError: no such thing")
    with way.jobs.database.read() as tx:
        (found,) = source_statuses(tx, ["orders"])
    assert "ValueError: no such thing" in (found.trouble or "")
    monkeypatch.setattr(Intake, "take", take)
    way.turn(31)
    assert way.stuck() == {}
    assert way.run() == [1]


@pytest.mark.case(91)
def test_what_is_held_is_seen_and_released_by_hand(make: Make) -> None:
    way = make(ordered_by="subject", gap_timeout=2 * DAY)
    way.bring(way.order(3, 3), way.order(4, 4), way.order(9, 9) | {"subject": "t"})
    assert way.run() == []
    with way.jobs.database.read() as tx:
        (held,) = status(tx).held
        (source,) = source_statuses(tx, ["orders"])
    assert (held.source, held.number, held.subjects, source.held) == ("orders", 3, 2, 3)
    assert way.stuck() == {}
    way.clock.advance(DAY + 1)
    with way.jobs.database.read() as tx:
        assert "`schedctl inbox release orders` runs them" in {s.name: s.text for s in status(tx).stuck}["held"]
    assert len(way.jobs.release_held("orders", subject="s", by="ann", reason="2 is lost")) == 2
    assert way.run() == [3, 4]
    assert len(way.jobs.release_held("orders")) == 1
    assert way.jobs.release_held("orders") == []
    assert way.run() == [9]
    entries = [one for one in way.jobs.audit(subject="source orders") if one.action == "release"]
    assert [(one.actor, one.reason, json.loads(json.dumps(one.detail))["messages"]) for one in entries][-1] == (
        "ann", "2 is lost", 2,
    )  # fmt: skip


def test_a_posted_source_that_owes_nothing_by_time_waits_without_an_end(database: Database) -> None:
    way = Way(database, True)
    way.turn()
    assert way.source.until_look() is None
    ordered = Way(database, True, ordered_by="subject")
    ordered.turn()
    assert ordered.source.until_look() is not None
    for one in (way, ordered):
        one.jobs.close()


def test_a_refusal_says_when_to_come_again(database: Database) -> None:
    way = Way(database, True, retry=7)
    with way.jobs.database.write() as tx:
        pauses.pause(tx, pauses.SOURCE, "orders")
    assert isinstance(way.source, PushedIntake)
    answer = way.source.put([Delivery(message_id="m", body=b"{}", receipt="0")])
    batch = way.source._waiting.get_nowait()
    assert batch is not None
    way.source._take([batch])
    error = answer.exception(0)
    assert isinstance(error, Busy)
    assert (str(error), error.after) == ("the source is paused", 7)
    with pytest.raises(queue.Empty):
        way.source._waiting.get_nowait()
    way.jobs.close()


@pytest.mark.both_databases
@pytest.mark.case(95)
def test_a_published_schema_is_taken_as_soon_as_it_is_there(make: Make) -> None:
    """Without the type in this program, and with an older one."""
    way = make(kind="Later")
    worker = Scheduler.for_testing(url=way.url, clock=way.clock)

    class First(Task, kind="Later"):
        order: int

        def run(self, ctx: Context) -> None: ...

    class Second(Task, kind="Later", schema_version=2):
        number: int

        def run(self, ctx: Context) -> None: ...

    worker.register(First)
    drain(worker)
    way.bring(way.order(1))
    worker.close()
    worker = Scheduler.for_testing(url=way.url, clock=way.clock)
    worker.register(Second)
    drain(worker)
    way.bring({"schema_version": 2, "idempotency_key": "new", "payload_inline": {"number": 2}})
    assert {key: state.value for key, state in way.states().items()} == {"order-1": "done", "new": "done"}
    way.jobs.register(First)  # an older program
    way.bring({"schema_version": 2, "idempotency_key": "newer", "payload_inline": {"number": 2}})
    assert way.states()["newer"] is InboxState.DONE
    worker.close()
