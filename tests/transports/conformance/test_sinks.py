"""What every sink has to do, whatever its transport: what was committed arrives, always with the same key.

Messages are counted where they arrive. A transport is a rig in RIGS: see ``support.sink_rigs``.
"""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduler.config.load import load
from scheduler.messages.outbox import Publisher
from scheduler.model.outgoing import OUTBOX
from scheduler.model.state import TaskState
from scheduler.ports import SystemClock
from scheduler.telemetry.traffic import Traffic
from scheduler.transports import types
from scheduler.transports.envelope import Message, encode
from scheduler.transports.ports import Outgoing, Published
from support import publishing, sink_rigs
from support.databases import Database

RIGS: list[Any] = [
    pytest.param(sink_rigs.SpoolSinkRig, id="spool"),
    pytest.param(sink_rigs.CloudEventsSinkRig, id="cloudevents"),
    pytest.param(sink_rigs.CloudflareSinkRig, id="cloudflare"),
    pytest.param(sink_rigs.SqsSinkRig, id="sqs"),
    pytest.param(sink_rigs.FifoSinkRig, id="fifo"),
    pytest.param(sink_rigs.NatsSinkRig, id="nats"),
    pytest.param(sink_rigs.RedisSinkRig, id="redis", marks=pytest.mark.transports),
    pytest.param(sink_rigs.RabbitSinkRig, id="rabbitmq", marks=pytest.mark.transports),
]
REFUSING = [one for one in RIGS if one.values[0].refuses]
POINTS = ("before transaction commit", "after transaction commit", "outbox.publishing", "outbox.published")
PATIENCE = 60.0
ROOM = 0.98  # of a limit in bytes is used at most


def section(rig: Any) -> str:
    waits = "min_wait = 0.1\nmax_wait = 0.3\nmax_attempts = 500\n"
    return f'[sinks.out]\ntype = "{rig.type_name}"\n{waits}{rig.sink_table}'


def publisher_of(config_file: Path) -> Publisher:
    config = load(str(config_file), {})
    now = SystemClock().now
    return Publisher("out", types.make_sink(config, "out"), config.sinks["out"], now, Traffic())


class Trial:
    """One sink on one database."""

    def __init__(self, rig: Any, database: Database, place: Path) -> None:
        self.rig = rig
        self.config = place / "config.toml"
        self.config.write_text(f'[store]\nurl = "{database.url}"\n[files]\nblobs = "{place / "blobs"}"\n{section(rig)}')
        (place / "blobs").mkdir()
        self.jobs = publishing.jobs_of(self.config, rig.type_name, rig.sink_factory)

    def run(self) -> None:
        """Until every task has ended."""
        with self.jobs:
            self.until(lambda: not self.jobs.list_tasks(publishing.LIVE, limit=1))

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture(params=RIGS)
def rig_class(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def trial(rig_class: Any, database: Database, tmp_path: Path) -> Iterator[Trial]:
    rig = rig_class(tmp_path)
    made = Trial(rig, database, tmp_path)
    try:
        yield made
    finally:
        made.jobs.close()
        rig.close()


def assert_in_order(arrived: Sequence[sink_rigs.Arrived]) -> None:
    """Each group's messages came in their order; one that came again did so before the next."""
    places: dict[str, list[int]] = {}
    for one in arrived:
        if "group" in one.payload:
            places.setdefault(one.payload["group"], []).append(one.payload["place"])
    assert places
    assert all(found == sorted(found) for found in places.values()), places


@pytest.mark.faults
def test_kills_between_two_steps_lose_nothing_and_what_comes_twice_has_one_key(trial: Trial) -> None:
    """A process is killed at each of the steps, each with tasks of its own; the last one runs what they have left."""
    for stage, point in enumerate(POINTS):
        assert publishing.start(trial.config, trial.rig, stage, point).wait(PATIENCE) == -signal.SIGKILL
    assert publishing.start(trial.config, trial.rig, len(POINTS)).wait(PATIENCE) == 0
    arrived = trial.rig.arrived()
    assert {one.key for one in arrived} == publishing.keys_of(len(POINTS) + 1)
    payloads = {(one.key, repr(one.payload)) for one in arrived}
    assert len(payloads) == len(publishing.keys_of(len(POINTS) + 1)), "one key, one message"
    twice = [key for key, times in Counter(one.key for one in arrived).items() if times > 1]
    limits = publisher_of(trial.config).sink.limits
    assert bool(twice) != limits.dedupes, "it was killed after it had published"
    if limits.orders or limits.max_batch == 1:
        assert_in_order(arrived)


@pytest.mark.faults
def test_while_the_server_is_away_messages_wait_and_arrive_after_its_restart(trial: Trial) -> None:
    trial.rig.stop_server()
    process = publishing.start(trial.config, trial.rig, 0)
    kind = "sinks.out"
    trial.until(lambda: any(one.attempt > 1 for one in trial.jobs.list_tasks(kind=kind, status=TaskState.RETRY)))
    assert process.poll() is None
    trial.rig.start_server()
    assert process.wait(PATIENCE) == 0
    arrived = trial.rig.arrived()
    assert Counter(one.key for one in arrived) == Counter(publishing.keys_of(1))


@pytest.mark.parametrize("rig_class", REFUSING)
def test_what_is_refused_for_good_is_a_dead_letter_with_the_reason(trial: Trial) -> None:
    if hasattr(trial.rig, "refuse"):
        trial.rig.refuse()
    refused = trial.jobs.publish("out", {"say": "refuse" * 500}, key="no")
    taken = trial.jobs.publish("out", {"say": "take"}, key="yes")
    trial.run()
    assert [trial.jobs.get_task(one).state for one in (refused, taken)] == ["dead", "success"]
    assert trial.jobs.get_task(refused).attempt == 1
    assert trial.jobs.get_last_error(refused).startswith("PermanentError: ")
    assert [one.key for one in trial.rig.arrived()] == ["yes"]


@pytest.mark.parametrize("rig_class", RIGS)
def test_batches_keep_within_what_the_server_takes(rig_class: Any, tmp_path: Path) -> None:
    """More, and larger, than one request may have."""
    rig, config = rig_class(tmp_path), tmp_path / "config.toml"
    types.OWN[types.SINKS][rig.type_name] = rig.sink_factory  # type: ignore[index]
    config.write_text(section(rig))
    publisher, batches = publisher_of(config), list[list[Outgoing]]()
    sink, publish = publisher.sink, publisher.sink.publish

    def noted(batch: Sequence[Outgoing]) -> Any:
        batches.append(list(batch))
        return publish(batch)

    sink.publish = noted  # type: ignore[method-assign]
    messages = []
    for number in range(45):
        message = Message(idempotency_key=f"k{number}", payload_inline={"number": number, "more": "x" * 60_000})
        messages.append(Outgoing(key=f"k{number}", body=encode(message), message=message, group="g"))
    answers = [waiting.result(PATIENCE) for waiting in [publisher.put(one) for one in messages]]
    assert all(isinstance(one, Published) for one in answers), answers
    sink.close()
    limits = sink.limits
    assert max(map(len, batches)) <= limits.max_batch
    sizes = [sum(one.size + limits.overhead for one in batch) for batch in batches]
    assert limits.max_batch_size is None or max(sizes) <= ROOM * limits.max_batch_size
    assert sorted(itertools.chain.from_iterable(batches), key=lambda one: int(one.key[1:])) == messages
    assert Counter(one.key for one in rig.arrived()) == Counter(one.key for one in messages)
    rig.close()


@pytest.mark.parametrize("rig_class", [one for one in RIGS if one.id != "fifo"])
def test_a_message_above_the_limit_is_a_dead_letter_or_says_where_its_payload_is(trial: Trial) -> None:
    trial.jobs.task(publishing.Told(1, size=1_048_000)).schedule()
    trial.run()
    (message,) = trial.jobs.list_tasks(queue=OUTBOX)
    limit = publisher_of(trial.config).sink.limits.max_size
    if limit is not None and limit > 2_000_000:
        assert message.state == "success"
        assert len(trial.rig.arrived()[0].payload["more"]) == 1_048_000
        return
    assert (message.state, trial.rig.arrived()) == ("dead", [])
    assert "more than" in str(trial.jobs.get_last_error(message.id))
    trial.config.write_text(f'{trial.config.read_text()}large = "pointer"\n')
    pointing = publishing.jobs_of(trial.config, trial.rig.type_name, trial.rig.sink_factory)
    pointing.dead_letters.replay(message.id)
    with pointing:
        trial.until(lambda: not pointing.list_tasks(publishing.LIVE, limit=1))
    pointing.close()
    assert pointing.get_task(message.id).state == "success"
    assert trial.rig.arrived()[0].payload.startswith("blob:f1~")
