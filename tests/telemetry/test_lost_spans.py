"""Spans of attempts that were taken back: their worker died, or lost its lease and goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import Context, Scheduler, TaskState, task
from scheduler.model.trace import TraceContext
from scheduler.store.read.tasks import get_task
from scheduler.store.tasks.claim import mark_running
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import notify_and_step, run_claimed
from support.databases import Database
from support.otlp import Receiver
from support.processes import Nursery

LEASE = 30.0
TASKS = """
import os
from scheduler import task

@task(queue="mail")
def send(ctx):
    if ctx.attempt == 1:
        os.write(1, b"sending\\n")
        with open("gate"):  # a FIFO whose other end is never opened
            pass
"""


class Two:
    """Two workers of one store, on one clock. The first one's attempts end while the second one takes them back."""

    def __init__(self, database: Database, otlp: Receiver) -> None:
        self.clock = FakeClock()
        self.meanwhile: list[str] = []

        @task(queue="mail")
        def send(ctx: Context) -> str:
            if ctx.attempt == 1:
                self._note_that_it_runs(ctx)
                self.lapse()
                (taken_back,) = self.first.get_attempts(ctx.id)
                self.meanwhile.append(taken_back.outcome)
            return "sent"

        self.send = send
        self.first, self.second = (self._worker(database, otlp) for _ in range(2))
        notify_and_step(self.second)

    def _worker(self, database: Database, otlp: Receiver) -> Scheduler:
        made = Scheduler.for_testing(
            url=database.url, clock=self.clock, lease=LEASE, otel={"endpoint": otlp.url, "ratio": 0}
        )
        made.register(self.send)
        return made

    def _note_that_it_runs(self, ctx: Context) -> None:
        """As each worker does that stays in its loop, for what runs for a second or so."""
        worker = engine_of(self.first).worker
        claim = self.first.database.change(lambda tx: get_task(tx, ctx.id)).claim
        self.first.database.change(lambda tx: mark_running(tx, worker, [(ctx.id, claim, tx.now)]))

    def lapse(self) -> None:
        """The first one renews its lease no more. The second one takes back what it holds, and claims it."""
        for _ in range(8):
            self.clock.advance(LEASE / 4)
            notify_and_step(self.second)

    def close(self) -> None:
        self.first.close()
        self.second.close()


@pytest.fixture
def two(database: Database, otlp: Receiver) -> Iterator[Two]:
    made = Two(database, otlp)
    yield made
    made.close()


def test_what_is_taken_back_has_one_span_although_its_old_worker_ends_it(two: Two, otlp: Receiver) -> None:
    headers = {"traceparent": TraceContext(0xABC, 0xDEF).traceparent}
    task_id = two.first.task(two.send).key("k").headers(headers).schedule()
    notify_and_step(two.first)
    run_claimed(two.first)
    drain(two.second)
    notify_and_step(two.first)  # its outcome is refused
    assert two.meanwhile == ["lost"]
    lost, won = two.second.get_attempts(task_id)
    assert (lost.outcome, won.outcome) == ("lost", "succeeded")
    two.close()
    first, second = otlp.named("process mail")
    assert (first.error, first.status) == (True, "lease lost")
    assert not second.error
    assert first.attributes["schedd.task.outcome"] == "lost"
    assert first.attributes["error.type"] == "WorkerDied"
    assert (first.attributes["schedd.task.attempt"], first.attributes["schedd.task.key"]) == (1, "k")
    assert first.linked("creation") == second.linked("creation") == [(f"{0xABC:032x}", f"{0xDEF:016x}")]
    assert second.linked("previous") == [first.ids]
    assert lost.trace == f"00-{first.trace_id}-{first.span_id}-01"
    assert lost.started_at is not None
    assert lost.finished_at is not None
    assert first.start == round((lost.started_at or lost.claimed_at).timestamp() * 1e6) * 1000
    assert first.end == round(lost.finished_at.timestamp() * 1e6) * 1000


def test_what_had_not_begun_has_no_span(two: Two, otlp: Receiver) -> None:
    task_id = two.first.task(two.send).schedule()
    notify_and_step(two.first)
    two.lapse()
    (lost,) = two.second.get_attempts(task_id)
    assert lost.outcome == "lost"
    two.close()
    assert otlp.named("process mail") == []


def test_of_a_daemon_that_was_killed_another_one_writes_the_span(
    database: Database, otlp: Receiver, tmp_path: Path
) -> None:
    jobs = Scheduler(database.url)

    @task(queue="mail")
    def send(ctx: Any) -> None: ...

    jobs.register(send)
    task_id = jobs.task(send).schedule()
    with Nursery(tmp_path) as nursery:
        nursery.write("mail_tasks.py", TASKS)
        os.mkfifo(tmp_path / "gate")
        nursery.write(
            "config.toml",
            f'[store]\nurl = "{database.url}"\n[tasks]\nmodules = ["mail_tasks"]\npath = ["."]\n'
            f'[worker]\nprocesses = 1\nlease = 2\n[otel]\nenabled = true\nendpoint = "{otlp.url}"\nratio = 0\n',
        )
        doomed = nursery.start("-m", "scheduler.daemon")
        doomed.says("sending")
        other = nursery.start("-m", "scheduler.daemon")
        other.expect('"ready"')
        doomed.kill(signal.SIGKILL)
        doomed.end()
        assert jobs.wait([task_id], timeout=60)[task_id].state is TaskState.SUCCESS
        other.kill(signal.SIGTERM)
        assert other.end() == 0
    (lost, _) = jobs.get_attempts(task_id)
    jobs.close()
    (span,) = otlp.named("process mail")
    assert span.error
    assert span.attributes["schedd.task.outcome"] == "lost"
    assert span.attributes["messaging.client.id"].endswith(f":{doomed.process.pid}")
    assert lost.trace == f"00-{span.trace_id}-{span.span_id}-01"
