"""What happens to tasks while the receiver of their traces is away, or does not answer: nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import Any

import pytest

from scheduler import ConfigError, Context, Scheduler, task
from scheduler.telemetry import providers
from support.databases import Database, one_database
from support.fleet import rows
from support.otlp import Receiver

MANY = 300


@task
def fine(ctx: Context) -> None:
    pass


def run_many(database: Database, url: str, **otel: Any) -> Scheduler:
    jobs = Scheduler(database.url, otel={"endpoint": url, "ratio": 1, **otel})
    jobs.register(fine)
    with jobs.batch() as batch:
        for _ in range(MANY):
            batch.task(fine)
    jobs.start()
    for task_id in batch.ids:
        jobs.wait(task_id, timeout=60)
    return jobs


def traced(jobs: Scheduler) -> int:
    return len(rows(jobs, "SELECT 1 FROM schedd_attempts WHERE trace IS NOT NULL"))


def test_all_spans_are_there_when_a_program_has_stopped(database: Database, otlp: Receiver) -> None:
    jobs = run_many(database, otlp.url)
    jobs.close()
    assert len(otlp.named("process default")) == MANY
    assert len({span.ids for span in otlp.spans}) == MANY + 1
    assert traced(jobs) == MANY
    jobs.close()


def test_a_receiver_that_hangs_holds_up_neither_tasks_nor_a_stop(database: Database, otlp: Receiver) -> None:
    otlp.answering.clear()
    jobs = run_many(database, otlp.url)
    jobs.close()
    assert otlp.requests, "the exporter has not tried"
    assert otlp.spans == []
    assert traced(jobs) == MANY
    jobs.close()


def test_a_receiver_that_is_away_holds_up_nothing(database: Database, otlp: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    jobs = run_many(database, f"http://127.0.0.1:{port}")
    jobs.close()
    assert traced(jobs) == MANY
    jobs.close()


@one_database
def test_more_spans_than_fit_are_dropped(database: Database, otlp: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "MAX_QUEUED_SPANS", 20)
    monkeypatch.setattr(providers, "MAX_BATCH", 10)
    otlp.answering.clear()
    jobs = run_many(database, otlp.url)
    otlp.answering.set()
    jobs.close()
    assert 0 < len(otlp.spans) < MANY


OFF = """
import sys
from scheduler import Scheduler, task

@task
def fine(ctx):
    pass

with Scheduler(sys.argv[1]) as jobs:
    jobs.register(fine)
    jobs.wait(jobs.task(fine).schedule(), timeout=60)
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
WITHOUT = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from scheduler import ConfigError, Scheduler
jobs = Scheduler(sys.argv[1], otel={})
try:
    jobs.start()
except ConfigError as error:
    print(error)
"""
OTHER = """
import sys
from opentelemetry import trace
trace.set_tracer_provider(trace.NoOpTracerProvider())
from scheduler import ConfigError, Scheduler
try:
    Scheduler(sys.argv[1], otel={}).start()
except ConfigError as error:
    print(error)
"""


@one_database
@pytest.mark.parametrize(
    ("program", "says"),
    [
        (OFF, "[]"),
        (WITHOUT, "OpenTelemetry is not installed: pip install 'schedd[otel]'"),
        (OTHER, "otel: this program's tracer provider is NoOpTracerProvider; schedd needs"),
    ],
    ids=["off", "not installed", "another provider"],
)
def test_what_is_imported(database: Database, program: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, database.url], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.startswith(says), done.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ratio": 2}, "otel.ratio: expected a number, at most 1, not 2"),
        ({"parent": "x"}, "otel.parent: expected link or producer"),
        ({"endpoints": "x"}, "otel has no setting 'endpoints'; there are enabled, endpoint, ratio"),
        (7, "otel must be the settings of \\[otel\\] by name"),
    ],
)
def test_wrong_settings_are_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Scheduler(otel=given)
