"""Traces across processes: two daemons, and a child process with spans of its own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from scheduler import Context, Scheduler, task
from scheduler.model.trace import TraceContext
from support.databases import Database
from support.otlp import Receiver
from support.processes import Nursery

TASKS = """
import logging
from opentelemetry import trace
from scheduler import task

@task(isolation="process", queue="first")
def charge(ctx):
    trace.get_current_span().set_attribute("shop.total", 12)
    with trace.get_tracer("shop").start_as_current_span("look up"):
        pass
    ctx.step("card", card)
    ctx.log.info("charged")

def card():
    with trace.get_tracer("shop").start_as_current_span("card"):
        pass

@task(isolation="process", queue="first")
def dies(ctx):
    import os
    trace.get_current_span().set_attribute("shop.total", 13)
    os._exit(3)

@task(queue="second")
def ship(ctx):
    logging.getLogger("shop").warning("shipping")
"""


@task(isolation="process")
def charge(ctx: Context) -> None: ...


@task(isolation="process")
def dies(ctx: Context) -> None: ...


@task
def ship(ctx: Context) -> None: ...


def config(database: Database, otlp: Receiver, queue: str) -> str:
    return f"""
[store]
url = "{database.url}"
[tasks]
modules = ["shop_tasks"]
path = ["."]
[worker]
queues = ["{queue}"]
processes = 1
[otel]
enabled = true
endpoint = "{otlp.url}"
ratio = 0
service = "{queue} daemon"
"""


def test_a_trace_crosses_daemons_and_children(database: Database, otlp: Receiver, tmp_path: Path) -> None:
    headers = {"traceparent": TraceContext(0xABC, 0xDEF).traceparent}
    sender = Scheduler(database.url)
    for kind in (charge, dies, ship):
        sender.register(kind)
    with sender.batch() as batch:
        first = batch.task(charge).queue("first").headers(headers)
        second = batch.task(dies).queue("first")
        batch.task(ship).queue("second").headers(headers).depend_on(first).depend_on(second, when="finished")
    sender.close()
    with Nursery(tmp_path) as nursery:
        nursery.write("shop_tasks.py", TASKS)
        daemons = []
        for queue in ("first", "second"):
            place = nursery.write(f"{queue}.toml", config(database, otlp, queue))
            daemons.append(nursery.start("-m", "scheduler.daemon", "--config", str(place)))
        line = json.loads(daemons[1].expect("shipping"))
        charged = json.loads(daemons[0].expect('"charged"'))
        for daemon in daemons:
            daemon.kill(signal.SIGTERM)
        assert [daemon.end() for daemon in daemons] == [0, 0]
    process, died = sorted(otlp.named("process first"), key=lambda span: span.error)
    last = otlp.one("process second")
    assert process.links[0][:2] == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert process.attributes["shop.total"] == 12
    assert (process.service, last.service) == ("first daemon", "second daemon")
    assert sorted(last.linked("parent")) == sorted([process.ids, died.ids])
    step, card, look = otlp.one("step card"), otlp.named("card"), otlp.one("look up")
    assert (step.trace_id, step.parent_id) == process.ids
    assert [(span.trace_id, span.parent_id) for span in card] == [step.ids]
    assert (look.trace_id, look.parent_id) == process.ids
    assert look.service == "first daemon"
    assert died.attributes["error.type"] == "ProcessDied"
    assert (line["trace_id"], line["span_id"]) == last.ids
    assert (charged["trace_id"], charged["span_id"]) == process.ids


PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from scheduler import Scheduler, task

provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[2] + "/v1/traces")))
trace.set_tracer_provider(provider)

@task
def greet(ctx):
    pass

traced = sys.argv[3] == "traced"
with Scheduler(sys.argv[1], otel={"ratio": 0} if traced else None) as jobs:
    jobs.register(greet)
    with trace.get_tracer("program").start_as_current_span("request"):
        task_id = jobs.task(greet).schedule()
    jobs.task(greet).queue("untraced").schedule()
    jobs.wait(task_id, timeout=60)
    print(jobs.get_task(task_id).headers["traceparent"])
"""


@pytest.mark.parametrize("how", ["traced", "sends only"])
def test_a_programs_own_provider_is_used(database: Database, otlp: Receiver, tmp_path: Path, how: str) -> None:
    with Nursery(tmp_path) as nursery:
        program = nursery.start(str(nursery.write("program.py", PROGRAM)), database.url, otlp.url, how)
        traceparent = program.says("^00-")
        assert program.end() == 0
    request, sent = otlp.one("request"), otlp.one("send default")
    assert (sent.trace_id, sent.parent_id) == request.ids
    assert traceparent == f"00-{sent.trace_id}-{sent.span_id}-01"
    assert {span.service for span in otlp.spans} == {"program"}
    processed = otlp.named("process default")
    assert [span.linked("creation") for span in processed] == ([[sent.ids]] if how == "traced" else [])
    assert otlp.named("process untraced") == []
