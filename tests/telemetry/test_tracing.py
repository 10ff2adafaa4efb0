"""Traces of tasks as a real OTLP receiver gets them."""

from __future__ import annotations

import logging
import os
from typing import Any

import pytest
from opentelemetry import trace

from scheduler import AsyncContext, Context, PermanentError, RetryPolicy, Scheduler, task
from scheduler.model.trace import TraceContext
from scheduler.testing import drain
from support.databases import Database
from support.otlp import Receiver


@task
def fine(ctx: Context) -> str:
    return "done"


@task
def flaky(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise ConnectionError("away")


def scheduler(database: Database, otlp: Receiver, *kinds: Any, **otel: Any) -> Scheduler:
    otel.setdefault("ratio", 1)
    jobs = Scheduler.for_testing(url=database.url, otel={"endpoint": otlp.url, **otel})
    for kind in kinds:
        jobs.register(kind)
    return jobs


def test_a_task_is_sent_and_processed(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, fine, service="shop")
    task_id = jobs.task(fine).queue("mail").key("order-7").schedule()
    drain(jobs)
    (attempt,) = jobs.get_attempts(task_id)
    jobs.close()
    send, process = otlp.one("send mail"), otlp.one("process mail")
    assert (send.kind, process.kind) == ("PRODUCER", "CONSUMER")
    assert process.trace_id != send.trace_id
    assert process.parent_id == send.parent_id == ""
    assert process.linked("creation") == [send.ids]
    assert send.attributes["messaging.message.id"] == str(task_id)
    assert process.service == "shop"
    attributes = process.attributes
    assert attributes.pop("messaging.client.id").endswith(f":{os.getpid()}")
    assert attributes == {
        "messaging.system": "schedd",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(task_id),
        "messaging.message.conversation_id": str(task_id),
        "schedd.task.kind": "fine",
        "schedd.task.attempt": 1,
        "schedd.task.key": "order-7",
        "schedd.task.outcome": "succeeded",
        "schedd.pool": "medium",
    }
    assert attempt.trace == f"00-{process.trace_id}-{process.span_id}-01"
    assert attempt.started_at is not None
    assert process.start == round(attempt.started_at.timestamp() * 1e6) * 1000
    assert not process.error


def test_a_retry_links_to_the_attempt_before(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, flaky)
    jobs.task(flaky).with_retry(RetryPolicy(min_wait=0)).schedule()
    drain(jobs)
    drain(jobs)
    jobs.close()
    first, second = otlp.named("process default")
    assert first.error
    assert first.attributes["error.type"] == "ConnectionError"
    assert first.attributes["schedd.task.outcome"] == "retried"
    assert second.linked("previous") == [first.ids]
    assert first.linked("previous") == []
    assert (second.attributes["schedd.task.attempt"], second.error) == (2, False)


def test_a_join_links_to_its_parents(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, fine)
    with jobs.batch() as batch:
        parents = [batch.task(fine).queue("left"), batch.task(fine).queue("right")]
        batch.task(fine).queue("join").depend_on(parents)
    drain(jobs)
    jobs.close()
    sent = otlp.one("send")
    assert sent.kind == "CLIENT"
    assert sent.attributes["messaging.batch.message_count"] == 3
    join = otlp.one("process join")
    assert sorted(join.linked("parent")) == sorted(otlp.one(f"process {side}").ids for side in ("left", "right"))
    assert join.linked("creation") == [sent.ids]


def headers(*, sampled: bool) -> dict[str, str]:
    return {"traceparent": TraceContext(0xABC, 0xDEF, sampled).traceparent, "tracestate": "vendor=1"}


def test_the_context_of_the_sender_decides(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, fine, ratio=0)
    given = jobs.task(fine).queue("yes").headers(headers(sampled=True)).schedule()
    jobs.task(fine).queue("no").headers(headers(sampled=False)).schedule()
    jobs.task(fine).queue("none").schedule()
    drain(jobs)
    assert jobs.get_task(given).headers == headers(sampled=True)
    jobs.close()
    (span,) = otlp.spans
    assert span.name == "process yes"
    assert span.linked("creation") == [(f"{0xABC:032x}", f"{0xDEF:016x}")]
    unsampled = scheduler(database, otlp, fine, ratio=1)
    unsampled.task(fine).queue("no").headers(headers(sampled=False)).schedule()
    drain(unsampled)
    unsampled.close()
    assert otlp.named("process no") == []


def test_an_attempt_may_be_a_child_of_its_sender(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, fine, parent="producer")
    jobs.task(fine).schedule()
    drain(jobs)
    jobs.close()
    sent, process = otlp.one("send default"), otlp.one("process default")
    assert (process.trace_id, process.parent_id) == sent.ids


@task
def dies(ctx: Context) -> None:
    raise PermanentError("the secret of the payload")


def test_failures_are_always_traced(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, dies, flaky, fine, ratio=0)
    dead = jobs.task(dies).queue("dead").schedule()
    jobs.task(flaky).queue("flaky").with_retry(RetryPolicy(min_wait=0)).schedule()
    jobs.task(fine).schedule()
    drain(jobs)
    drain(jobs)
    (attempt,) = jobs.get_attempts(dead)
    jobs.close()
    assert sorted(span.name for span in otlp.spans) == ["process dead", "process flaky"]
    span = otlp.one("process dead")
    assert attempt.trace == f"00-{span.trace_id}-{span.span_id}-01"
    assert span.attributes["schedd.task.outcome"] == "dead"
    assert span.attributes["error.type"] == "PermanentError"
    assert span.error
    assert "secret" not in repr(otlp.spans)


def test_slow_attempts_are_always_traced(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, ratio=0, slow=5)

    @task
    def takes(ctx: Context, seconds: int) -> None:
        jobs.clock.advance(seconds)  # type: ignore[attr-defined]

    jobs.register(takes)
    for seconds in (1, 5, 6):
        jobs.task(takes, seconds).queue(f"q{seconds}").schedule()
        drain(jobs)
    jobs.close()
    (span,) = otlp.spans
    assert span.name == "process q6"
    assert span.end - span.start == 6 * 10**9


def test_the_ratio_decides_for_all_others(database: Database, otlp: Receiver) -> None:
    sender = Scheduler.for_testing(url=database.url)  # in a program that does not trace
    sender.register(fine)
    with sender.batch() as batch:
        for _ in range(400):
            batch.task(fine)
    sender.close()
    jobs = scheduler(database, otlp, fine, ratio=0.25)
    drain(jobs)
    jobs.close()
    assert 50 < len(otlp.spans) < 150
    assert {span.name for span in otlp.spans} == {"process default"}


def test_what_handlers_do_is_inside(database: Database, otlp: Receiver) -> None:
    @task
    def order(ctx: Context) -> None:
        trace.get_current_span().set_attributes({"shop.total": 12, "shop.tags": ["a", "b"], "bad": object()})
        ctx.step("charge", charge)
        ctx.spawn(jobs.task(fine).queue("spawned"))
        ctx.map(fine_of, [1, 2], name="both")
        ctx.sleep_for(60, name="calm down")
        with ctx.transaction():
            pass

    @task
    def fine_of(ctx: Context, number: int) -> int:
        return number

    def charge() -> None:
        with trace.get_tracer("shop").start_as_current_span("charge card"):
            trace.get_current_span().set_attribute("card", "visa")

    jobs = scheduler(database, otlp, order, fine, fine_of)
    task_id = jobs.task(order).queue("orders").schedule()
    drain(jobs)
    jobs.clock.advance(60)  # type: ignore[attr-defined]
    drain(jobs)
    attempts = jobs.get_attempts(task_id)
    jobs.close()
    *earlier, last = otlp.named("process orders")
    assert [a.trace for a in attempts] == [f"00-{s.trace_id}-{s.span_id}-01" for s in (*earlier, last)]
    first = earlier[0]
    assert first.attributes["shop.total"] == 12
    assert first.attributes["shop.tags"] == ["a", "b"]
    assert "bad" not in first.attributes
    assert {span.attributes["schedd.task.outcome"] for span in earlier} == {"suspended"}
    assert last.linked("previous") == [earlier[-1].ids]
    step, own = otlp.one("step charge"), otlp.one("charge card")
    assert (step.kind, step.parent_id, step.trace_id) == ("INTERNAL", first.span_id, first.trace_id)
    assert (own.parent_id, own.trace_id, own.scope) == (step.span_id, first.trace_id, "shop")
    spawn = otlp.one("spawn fine")
    assert otlp.one("process spawned").linked("creation") == [spawn.ids]
    assert otlp.one("map both").parent_id == first.span_id
    assert otlp.one("transaction").parent_id == last.span_id
    events = {name for span in earlier for name in span.events}
    assert events == {"await_task", "sleep"}
    (slept,) = [span.events["sleep"] for span in earlier if "sleep" in span.events]
    assert slept["schedd.sleep"] == "calm down"


def test_coroutines_are_traced_each_by_itself(database: Database, otlp: Receiver) -> None:
    @task
    async def both(ctx: AsyncContext, name: str) -> None:
        async def work() -> None:
            with trace.get_tracer("shop").start_as_current_span(f"work {name}"):
                pass

        await ctx.step(f"step of {name}", work)
        async with ctx.transaction():
            trace.get_current_span().set_attribute("name", name)

    jobs = scheduler(database, otlp, both)
    for name in ("a", "b"):
        jobs.task(both, name).queue(name).schedule()
    drain(jobs)
    jobs.close()
    for name in ("a", "b"):
        process, step = otlp.one(f"process {name}"), otlp.one(f"step step of {name}")
        assert step.parent_id == process.span_id
        assert otlp.one(f"work {name}").parent_id == step.span_id
    inner = otlp.named("transaction")
    assert {span.attributes["name"] for span in inner} == {"a", "b"}


def test_a_failed_step_says_so(database: Database, otlp: Receiver) -> None:
    @task
    def breaks(ctx: Context) -> None:
        def charge() -> None:
            raise ConnectionError("away")

        ctx.step("charge", charge)

    jobs = scheduler(database, otlp, breaks)
    jobs.task(breaks).schedule()
    drain(jobs)
    jobs.close()
    step = otlp.one("step charge")
    assert step.error
    assert step.attributes["error.type"] == "ConnectionError"


def test_what_a_handler_sends_is_a_child_of_its_span(database: Database, otlp: Receiver) -> None:
    @task
    def parent(ctx: Context) -> None:
        jobs.task(fine).queue("child").schedule()

    jobs = scheduler(database, otlp, parent, fine)
    jobs.task(parent).queue("parent").schedule()
    drain(jobs)
    jobs.close()
    process, sent = otlp.one("process parent"), otlp.one("send child")
    assert (sent.trace_id, sent.parent_id) == process.ids
    assert otlp.one("process child").linked("creation") == [sent.ids]


def test_log_lines_carry_the_ids(database: Database, otlp: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    @task
    def speaks(ctx: Context) -> None:
        ctx.log.info("hello", to="you")
        raise PermanentError("enough")

    jobs = scheduler(database, otlp, speaks)
    jobs.task(speaks).schedule()
    with caplog.at_level(logging.INFO):
        drain(jobs)
    jobs.close()
    span = otlp.one("process default")
    lines = [record for record in caplog.records if record.name.startswith(("scheduler.task", "scheduler.engine.att"))]
    assert len(lines) == 2
    assert {(record.trace_id, record.span_id) for record in lines} == {span.ids}  # type: ignore[attr-defined]


def test_a_commit_may_have_a_span(database: Database, otlp: Receiver) -> None:
    jobs = scheduler(database, otlp, fine, settle=True)
    for _ in range(3):
        jobs.task(fine).schedule()
    drain(jobs)
    jobs.close()
    settled = otlp.named("settle")
    assert sum(span.attributes["messaging.batch.message_count"] for span in settled) == 3
    assert {span.kind for span in settled} == {"CLIENT"}
