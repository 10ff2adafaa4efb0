"""What every source has to do, whatever its transport: each intent has its effect once, and nothing is lost.

Effects are counted outside of the store: lines in a file. A transport is a rig in RIGS, with the methods of
``support.spool.SpoolRig``; its server outlives the processes that receive.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.errors import SchedulerError
from scheduler.messages import receiver as receiver_module
from scheduler.messages.receiver import Receiver
from scheduler.model.pauses import SOURCE
from scheduler.store import inbox, pauses
from scheduler.testing import drain
from scheduler.transports.ports import Redrives, TransportError
from support.cloudflare_rig import CloudflareRig
from support.databases import Database
from support.nats_rig import NatsRig
from support.rabbitmq_rig import RabbitRig
from support.receiving import Order, receiver_of
from support.redis_rig import RedisRig
from support.session import TESTS
from support.spool import SpoolRig
from support.sqs_rig import SqsRig
from support.warm import Forked, warm

RIGS: list[Any] = [
    pytest.param(SpoolRig, id="spool"),
    pytest.param(SqsRig, id="sqs"),
    pytest.param(CloudflareRig, id="cloudflare"),
    pytest.param(NatsRig, id="nats"),
    pytest.param(RedisRig, id="redis", marks=pytest.mark.transports),
    pytest.param(RabbitRig, id="rabbitmq", marks=pytest.mark.transports),
]
POINTS = ("inbox.received", "inbox.stored", "inbox.settling", "inbox.settled")
PATIENCE = 60.0
LONG = 10.0  # seconds that a receive waits for messages
LATE = 0.75  # of a visibility: an extension after so long comes too late on a busy machine


class Trial:
    """One source on one database, its receivers, and the file of effects."""

    def __init__(self, rig: Any, database: Database, place: Path) -> None:
        self.rig = rig
        self.effects_file = place / "effects"
        self.effects_file.touch()
        self.config = place / "config.toml"
        self.store = database.url
        self.receivers: list[Receiver] = []
        self.configure()

    def configure(self, **section: str) -> None:
        lines = "".join(f'{name} = "{value}"\n' for name, value in section.items())
        self.config.write_text(
            f'[store]\nurl = "{self.store}"\n[sources.orders]\ntype = "{self.rig.type_name}"\nkind = "Order"\n'
            f"{self.rig.table}{lines}"
        )

    def body(self, number: int, **more: Any) -> bytes:
        payload = {"number": number, "file": str(self.effects_file)}
        fields = {"schema_version": 2, "idempotency_key": f"order-{number}", "payload_inline": payload}
        return msgspec.json.encode({**fields, **more})

    def process(self, point: str = "-", number: int = 1, idle: int = 1) -> Forked:
        given = [str(self.config), self.rig.type_name, self.rig.factory, point, str(number), str(idle)]
        with open(os.devnull, "rb") as null:
            return warm.start("support.receiving", given, TESTS, dict(os.environ), [null.fileno(), 1, 2])

    def receiver(self, holder: str = "test") -> Receiver:
        made, self.jobs = receiver_of(str(self.config), self.rig.type_name, self.rig.factory, holder)
        self.receivers.append(made)
        return made

    def receive_all(self) -> None:
        """Until the transport has nothing left: also what only comes again once its visibility is over."""
        receiver, deadline = self.receiver(), time.monotonic() + PATIENCE
        while self.rig.left():
            assert time.monotonic() < deadline
            receiver.turn()

    def run_tasks(self) -> None:
        receiver_of(str(self.config), self.rig.type_name, self.rig.factory, "runner")
        drain(self.jobs)

    def effects(self) -> Counter[int]:
        return Counter(int(line.split()[0]) for line in self.effects_file.read_text().splitlines())


@pytest.fixture(params=RIGS)
def trial(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Trial]:
    rig = request.param(tmp_path)
    made = Trial(rig, database, tmp_path)
    try:
        yield made
    finally:
        for receiver in made.receivers:
            receiver._source.close()
        rig.close()


@pytest.mark.faults
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_between_two_steps_loses_nothing_and_doubles_nothing(trial: Trial, point: str) -> None:
    """Messages come twice, in any order, and the receiver is killed in its second batch."""
    bodies = [trial.body(number) for number in [*range(20), *range(5)]]
    random.Random(point).shuffle(bodies)
    for body in bodies:
        trial.rig.send(body)
    assert trial.process(point, 2).wait(PATIENCE) == -signal.SIGKILL
    assert trial.rig.left() > 0, "it was killed before its end"
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects() == Counter(range(20))


def test_a_stop_ends_the_wait_for_messages(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receiver_module, "IDLE_WAIT", LONG)
    receiver = trial.receiver()
    trial.jobs.register(Order)
    idle, receive, came = threading.Event(), receiver._source.receive, [0]

    def watched(most: int, wait: float) -> Any:
        if came[0]:
            idle.set()
        found = receive(most, wait)
        came[0] += len(found)
        return found

    receiver._source.receive = watched  # type: ignore[method-assign]
    receiver.start()
    trial.rig.send(trial.body(1))
    assert idle.wait(PATIENCE)
    receiver.stop()
    cannot_be_cut = trial.rig.type_name == "sqs"  # its long poll is a request
    assert receiver.join(3 * LONG if cannot_be_cut else LONG / 2)
    assert not [one.message for one in caplog.records if "unexpected" in one.message]


@pytest.mark.faults
def test_two_receivers_of_one_queue_share_it(trial: Trial) -> None:
    for number in [*range(30), *range(30)]:
        trial.rig.send(trial.body(number))
    both = [trial.process(idle=2), trial.process(idle=2)]
    assert [one.wait(PATIENCE) for one in both] == [0, 0]
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects() == Counter(range(30))


def test_what_was_acknowledged_and_comes_again_has_no_second_effect(trial: Trial) -> None:
    name = trial.rig.send(trial.body(1))
    trial.receive_all()
    trial.run_tasks()
    trial.rig.send(trial.body(1), message_id=name)
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects() == Counter([1])


def test_poison_goes_to_the_dead_letter_queue_and_harms_no_other(trial: Trial) -> None:
    poison = [
        b"\xff",
        msgspec.json.encode({"payload_inline": {}}),  # no key
        trial.body(7, schema_version=3, idempotency_key="too new"),
        trial.body(8, payload_inline={"number": "x"}, idempotency_key="misfit"),
    ]
    for number, body in enumerate(poison):
        trial.rig.send(trial.body(number))
        trial.rig.send(body)
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects() == Counter(range(4))
    assert sorted(trial.rig.dead()) == sorted(poison)


def test_a_message_that_is_too_large_is_dead(trial: Trial) -> None:
    trial.config.write_text(trial.config.read_text() + "max_size = 1000\n")
    large = trial.body(1, more="x" * 1000)
    trial.rig.send(large)
    trial.rig.send(trial.body(2))
    trial.receive_all()
    trial.run_tasks()
    assert (trial.effects(), trial.rig.dead()) == (Counter([2]), [large])


def test_an_old_schema_is_upgraded(trial: Trial) -> None:
    payload = {"no": 3, "file": str(trial.effects_file)}
    trial.rig.send(trial.body(3, schema_version=1, payload_inline=payload))
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects() == Counter([3])


def test_a_dead_message_is_sent_to_its_origin_again(trial: Trial) -> None:
    trial.rig.send(trial.body(1, schema_version=9))
    trial.receive_all()
    (body,) = trial.rig.dead()
    trial.rig.send(body.replace(b'"schema_version":9', b'"schema_version":2'))
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects() == Counter([1])


def test_dead_messages_are_redriven(trial: Trial) -> None:
    """Two of three, once they can be read; what was done before is not done again."""
    settings = trial.config.read_text()
    trial.config.write_text(settings + "max_size = 1000\n")
    for number in range(3):
        trial.rig.send(trial.body(number, more="x" * 1000))
    trial.rig.send(trial.body(3))
    trial.receive_all()
    trial.config.write_text(settings)
    source = trial.receiver()._source
    assert isinstance(source, Redrives)
    assert source.redrive(2) == 2
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects()[3] == 1
    assert sum(trial.effects().values()) == 3
    assert source.redrive(10) == 1
    assert source.redrive(10) == 0
    trial.receive_all()
    trial.run_tasks()
    assert (trial.effects(), trial.rig.dead()) == (Counter(range(4)), [])


def test_a_delay_above_the_cap_is_capped(trial: Trial) -> None:
    receiver = trial.receiver()
    trial.rig.send(trial.body(1))
    (delivery,) = receiver._source.receive(1, 1.0)
    verdict = receiver._intake.retry(delivery.receipt, 30 * 86_400.0, "much later")
    (settled,) = receiver._source.settle([verdict])
    assert settled.error is None
    assert verdict.after == receiver._source.limits.max_delay


def test_a_long_task_keeps_its_message_while_it_runs(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """``ack = "end"``: longer than the visibility; it is acknowledged when the task has ended.

    It is delivered once, unless the transport cannot extend a delivery: then it comes again, to no effect.
    """
    trial.configure(ack="end")
    trial.rig.send(trial.body(1))
    receiver, visibility, deadline = trial.receiver(), trial.rig.visibility, time.monotonic() + PATIENCE
    extends, extend = getattr(trial.rig, "extends", True), receiver._source.extend
    kept: list[float] = []  # when it was delivered, and when each extension was sent

    def extend_and_note(receipts: Sequence[str], seconds: float) -> Any:
        kept.append(time.monotonic())
        return extend(receipts, seconds)

    monkeypatch.setattr(receiver._source, "extend", extend_and_note)
    kept.append(time.monotonic())
    assert receiver.turn() == 1
    until, again = time.monotonic() + 3 * visibility, 0
    while time.monotonic() < until or (again == 0 and not extends):
        assert time.monotonic() < deadline
        again += receiver.turn()
        if extends and again and _were_apart(kept, LATE * visibility):  # it is delivered anew, and extended from now on
            until, again = time.monotonic() + 3 * visibility, 0
            kept[:] = [time.monotonic()]
    assert (again == 0) == extends, "it came again, although it was extended"
    assert trial.rig.left() == 1
    trial.run_tasks()
    receiver.turn()
    assert trial.rig.left() == 0
    assert trial.effects() == Counter([1])


def _were_apart(times: Sequence[float], seconds: float) -> bool:
    return any(after - before > seconds for before, after in itertools.pairwise([*times, time.monotonic()]))


def test_the_message_of_a_dead_receiver_comes_to_another_one(trial: Trial) -> None:
    """``ack = "end"``: its visibility is extended no more; its task has been stored once, and runs once."""
    trial.configure(ack="end")
    trial.rig.send(trial.body(1))
    first = trial.receiver("first")
    assert first.turn() == 1
    first._source.close()  # as the system does for a process that dies
    other, deadline = trial.receiver("second"), time.monotonic() + PATIENCE
    while not other.turn():
        assert time.monotonic() < deadline
    trial.run_tasks()
    while trial.rig.left():
        assert time.monotonic() < deadline
        other.turn()
    assert trial.effects() == Counter([1])


def test_while_the_source_is_paused_messages_stay_where_they_are(trial: Trial) -> None:
    receiver = trial.receiver()
    with trial.jobs.database.write() as tx:
        pauses.pause(tx, SOURCE, "orders")
    trial.rig.send(trial.body(1))
    assert receiver.turn() == 0
    with trial.jobs.database.read() as tx:
        assert inbox.inbox_records(tx) == []
    with trial.jobs.database.write() as tx:
        pauses.resume(tx, SOURCE, "orders")
    trial.receive_all()
    trial.run_tasks()
    assert trial.effects() == Counter([1])


def test_after_a_restart_of_the_server_it_goes_on(trial: Trial) -> None:
    receiver = trial.receiver()
    trial.rig.send(trial.body(1))
    trial.rig.stop_server()
    with pytest.raises(TransportError):
        receiver.turn()
    trial.rig.start_server()
    receiver.turn()
    trial.run_tasks()
    assert trial.effects() == Counter([1])
    assert issubclass(TransportError, SchedulerError)


def test_a_check_finds_the_queue(trial: Trial) -> None:
    assert all(one.ok for one in trial.receiver()._source.check())
