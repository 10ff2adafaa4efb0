"""The envelope: kept, told with every attempt, reachable in the handler, inherited by what a handler schedules."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from scheduler import (
    AsyncContext,
    Context,
    Envelope,
    PayloadError,
    PermanentError,
    Retry,
    RetryPolicy,
    Scheduler,
    Task,
    TaskId,
    task,
)
from scheduler.store.read.explain import why
from scheduler.store.read.status import status
from scheduler.testing import FakeClock, drain
from support.fleet import Fleet, ends, rows, run_claimed, step, write

AGAIN = RetryPolicy(min_wait=1, max_attempts=2, strategy="fixed", jitter=0)
NAMES = (
    *("schema_version", "message_type", "correlation_id", "causation_id", "idempotency_key", "subject", "sequence"),
    *("created_at", "payload_ref"),
)


def seen(ctx: Any) -> dict[str, Any]:
    return {name: getattr(ctx, name) for name in NAMES}


class Order(Task, schema_version=3, retry=AGAIN):
    text: str

    def run(self, ctx: Context) -> None:
        ctx.state.append(seen(ctx))
        if self.text == "refused":
            raise PermanentError("no", status=403)
        if self.text == "busy":
            raise Retry(after=1, reason="busy", status=503)


class AsyncOrder(Order):
    async def run(self, ctx: AsyncContext) -> None:  # type: ignore[override]
        ctx.state.append(seen(ctx))


def full(jobs: Scheduler, value: Any) -> Any:
    return (
        jobs.task(value)
        .key("order-42")
        .message_type("com.example.order")
        .correlation("cart-7")
        .causation("click-9")
        .subject("order/42")
        .sequence(-5)
        .payload_ref("s3://bucket/42")
    )


@pytest.mark.case(61, 62)
@pytest.mark.parametrize("kind", [Order, pytest.param(AsyncOrder, marks=pytest.mark.one_is_enough)])
def test_the_envelope_is_kept_and_reachable_in_the_handler(fleet: Fleet, clock: FakeClock, kind: type[Order]) -> None:
    jobs = fleet.worker(kind, state=[])
    made = full(jobs, kind("x")).schedule()
    clock.advance(3)
    drain(jobs)
    expected = {
        "schema_version": 3,
        "message_type": "com.example.order",
        "correlation_id": "cart-7",
        "causation_id": "click-9",
        "idempotency_key": "order-42",
        "subject": "order/42",
        "sequence": -5,
        "created_at": clock.datetime - timedelta(seconds=3),
        "payload_ref": "s3://bucket/42",
    }
    assert jobs.state == [expected]
    stored = jobs.get_task(made)
    assert (stored.message_type, stored.sequence, stored.payload_ref) == ("com.example.order", -5, "s3://bucket/42")
    (attempt,) = jobs.get_attempts(made)
    assert attempt.envelope == Envelope(**expected, payload='{"text":"x"}')


@pytest.mark.case(61)
def test_what_is_not_given_has_its_default(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(Order, state=[])
    made = jobs.task(Order("x")).schedule()
    drain(jobs)
    (got,) = jobs.state
    assert got == {
        "schema_version": 3,
        "message_type": "Order",
        "correlation_id": str(made),
        "causation_id": None,
        "idempotency_key": f"task-{made}",
        "subject": None,
        "sequence": None,
        "created_at": clock.datetime,
        "payload_ref": None,
    }
    assert jobs.get_attempts(made)[0].envelope == Envelope(**got, payload='{"text":"x"}')


@pytest.mark.case(61)
@pytest.mark.parametrize(
    ("text", "outcomes"), [("fine", ["succeeded"]), ("busy", ["retried", "dead"]), ("refused", ["dead"])]
)
def test_every_attempt_is_logged_and_recorded_with_it(
    fleet: Fleet, clock: FakeClock, caplog: pytest.LogCaptureFixture, text: str, outcomes: list[str]
) -> None:
    caplog.set_level(logging.INFO, "scheduler.engine")
    jobs = fleet.worker(Order, state=[], log_attempts="all")
    made = full(jobs, Order(text)).schedule()
    created = clock.datetime
    drain(jobs)
    clock.advance(1)
    drain(jobs)
    logged = [record.__dict__ for record in caplog.records if record.msg.startswith("attempt")]
    assert [t["outcome"] for t in logged] == outcomes
    envelope = {
        "task": made,
        "kind": "Order",
        "key": "order-42",
        "correlation": "cart-7",
        "causation": "click-9",
        "subject": "order/42",
        "sequence": -5,
        "message_type": "com.example.order",
        "schema_version": 3,
        "idempotency_key": "order-42",
        "payload_ref": "s3://bucket/42",
        "created_at": created.isoformat().replace("+00:00", "Z"),
    }
    failed = {"busy": ("Retry", 503), "refused": ("PermanentError", 403)}.get(text)
    attempts = jobs.get_attempts(made)
    assert [a.outcome.value for a in attempts] == outcomes
    for number, (line, attempt) in enumerate(zip(logged, attempts, strict=True), 1):
        assert envelope.items() <= line.items()
        assert (line["attempt"], attempt.number) == (number, number)
        assert failed is None or (line["error_class"], line["status"]) == failed
        assert (attempt.error_class, attempt.status_code) == (failed or (None, None))
        assert (attempt.envelope.subject, attempt.envelope.correlation_id) == ("order/42", "cart-7")
        assert (attempt.envelope.idempotency_key, attempt.envelope.created_at) == ("order-42", created)


@pytest.mark.case(61)
@pytest.mark.parametrize("under_way", [False, True])
def test_attempts_keep_the_envelope_that_they_ran_with(fleet: Fleet, clock: FakeClock, under_way: bool) -> None:
    jobs = fleet.worker(Order, state=[])
    texts = ["busy", "y" * 3000, "z"]
    created = []
    for n, text in enumerate(texts):
        builder = jobs.task(Order(text)).key("k", conflict="replace").subject(f"s{n}").sequence(n)
        if n:
            builder.correlation(f"c{n}").payload_ref(f"ref:{n}").message_type(f"t{n}").causation(f"cause{n}")
        made = builder.schedule()
        created.append(clock.datetime)
        if under_way:
            step(jobs)  # the next one comes before its end is recorded
            clock.advance(0.5)
        elif n < 2:
            drain(jobs)
            write(jobs, "UPDATE schedd_tasks SET state = 1, claimed_at = NULL WHERE id = :id", id=made)
            clock.advance(0.5)
        run_claimed(jobs)
    drain(jobs)
    attempts = jobs.get_attempts(made)
    envelopes = [a.envelope for a in attempts]
    assert [e.subject for e in envelopes] == ["s0", "s1", "s2"]
    assert [e.correlation_id for e in envelopes] == [str(made), "c1", "c2"]
    assert [e.causation_id for e in envelopes] == [None, "cause1", "cause2"]
    assert [e.message_type for e in envelopes] == ["Order", "t1", "t2"]
    assert [e.payload_ref for e in envelopes] == [None, "ref:1", "ref:2"]
    assert [e.payload for e in envelopes] == ['{"text":"busy"}', None, '{"text":"z"}']
    assert [e.created_at for e in envelopes] == created
    assert [got["subject"] for got in jobs.state] == ["s0", "s1", "s2"]


@pytest.mark.case(29, 61)
@pytest.mark.parametrize(("way", "end"), [("replaced", "replaced"), ("cancelled", "cancelled")])
def test_the_log_says_of_an_overruled_attempt_what_the_history_says(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, way: str, end: str
) -> None:
    caplog.set_level(logging.INFO, "scheduler.engine")
    jobs = fleet.worker(Order, state=[], log_attempts="all")
    made = jobs.task(Order("refused")).key("k").schedule()
    step(jobs)
    run_claimed(jobs)
    if way == "cancelled":
        jobs.cancel_task(made)
    else:
        jobs.task(Order("fine")).key("k", conflict="replace").schedule()
    drain(jobs)
    logged = [record.__dict__["outcome"] for record in caplog.records if record.msg.startswith("attempt")]
    assert logged[0] == jobs.get_attempts(made)[0].outcome.value == end
    assert jobs.get_attempts(made)[0].error_class == "PermanentError"


@pytest.mark.case(61)
def test_a_replay_with_another_key_or_payload_leaves_the_attempts_theirs(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(Order, state=[])
    made = jobs.task(Order("refused")).key("old").schedule()
    drain(jobs)
    jobs.dead_letters.replay(made, key="new", payload={"text": "fine"})
    drain(jobs)
    first, second = [a.envelope for a in jobs.get_attempts(made)]
    assert (first.idempotency_key, first.payload) == ("old", '{"text":"refused"}')
    assert (second.idempotency_key, second.payload) == ("new", '{"text":"fine"}')


@pytest.mark.case(61)
def test_the_idempotency_key_is_the_same_over_retries_replay_and_copies(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(Order, state=[])
    made = jobs.task(Order("busy")).schedule()
    for _ in range(2):
        drain(jobs)
        clock.advance(1)
    jobs.dead_letters.replay(made)
    for _ in range(2):
        drain(jobs)
        clock.advance(1)
    jobs.dead_letters.replay(made, copy=True)
    drain(jobs)
    assert {got["idempotency_key"] for got in jobs.state} == {f"task-{made}"}
    assert {got["correlation_id"] for got in jobs.state} == {str(made)}
    assert len(jobs.state) == 5


# what a handler schedules


class State(list[Any]):
    """What orders have seen; and the scheduler, for handlers."""

    jobs: Scheduler
    builder: Any


class Parent(Task):
    how: str

    def run(self, ctx: Context) -> list[int]:
        jobs: Scheduler = ctx.state.jobs
        if self.how == "explicit":
            return [jobs.task(Order("x")).correlation("mine").causation("why").schedule()]
        if self.how == "batch":
            with jobs.batch() as batch:
                batch.task(Order("x"))
                batch.task(Order("y")).key("k", conflict="replace")
            with jobs.batch(correlation="theirs") as other:
                other.task(Order("z"))
            return [*batch.ids, *other.ids]
        if self.how == "builder from outside":
            return [ctx.state.builder.schedule()]
        if self.how == "recurring":
            jobs.task(Order("x")).key("often").every(60).schedule()
            return []
        with jobs.database.write() as tx:
            return [jobs.task(Order("x")).schedule(connection=tx.connection)]


class AsyncParent(Task):
    async def run(self, ctx: AsyncContext) -> list[int]:
        jobs: Scheduler = ctx.state.jobs
        return [await jobs.task(Order("x")).schedule_async()]


def run_parent(jobs: Scheduler, value: Task, **options: str) -> tuple[TaskId, list[Any]]:
    builder = jobs.task(value)
    for method, argument in options.items():
        builder = getattr(builder, method)(argument)
    made = builder.schedule()
    drain(jobs)
    return made, [jobs.get_task(i) for i in jobs.result(made, timeout=0)]


@pytest.mark.case(61)
@pytest.mark.parametrize("given", [None, "cart-7"])
def test_children_inherit_the_correlation_and_name_their_cause(
    fleet: Fleet, clock: FakeClock, given: str | None
) -> None:
    state = State()
    jobs = fleet.worker(Order, Parent, AsyncParent, state=state)
    state.jobs, state.builder = jobs, jobs.task(Order("outside"))
    options = {} if given is None else {"correlation": given}
    for value in (AsyncParent(), Parent("transaction"), Parent("builder from outside")):
        parent, (child,) = run_parent(jobs, value, **options)
        assert (child.correlation, child.causation) == (given or str(parent), str(parent))
    parent, children = run_parent(jobs, Parent("batch"), **options)
    assert [c.causation for c in children] == [str(parent)] * 3
    assert [c.correlation for c in children] == [given or str(parent)] * 2 + ["theirs"]
    parent, (child,) = run_parent(jobs, Parent("explicit"), **options)
    assert (child.correlation, child.causation) == ("mine", "why")
    drain(jobs)
    got = state[-1]
    assert (got["correlation_id"], got["causation_id"]) == ("mine", "why")
    assert jobs.get_task(jobs.task(Order("outside")).schedule()).causation is None


@pytest.mark.case(61)
def test_the_runs_of_a_schedule_that_a_handler_registers_have_no_parent(fleet: Fleet, clock: FakeClock) -> None:
    state = State()
    jobs = fleet.worker(Order, Parent, state=state)
    state.jobs = jobs
    run_parent(jobs, Parent("recurring"))
    clock.advance(60)
    drain(jobs)
    (made,) = jobs.list_tasks(kind="Order")
    assert (made.correlation, made.causation) == (str(made.id), None)


# payloads: old versions, and too long ones


@pytest.mark.case(62)
def test_an_older_schema_version_goes_through_upgrade(fleet: Fleet) -> None:
    class First(Task, kind="mail"):
        to: str

        def run(self, ctx: Context) -> None: ...

    class Third(Task, kind="mail", schema_version=3):
        recipients: list[str]

        def run(self, ctx: Context) -> Any:
            return [self.recipients, ctx.schema_version]

        @staticmethod
        def upgrade(payload: dict[str, Any], version: int) -> dict[str, Any]:
            assert version == 1
            return {"recipients": [payload["to"]]}

    old, new = fleet.worker(First), fleet.worker(Third)
    made = [old.task(First("a@b.c")).schedule(), new.task(Third(["d@e.f", "g@h.i"])).schedule()]
    drain(new)
    assert [new.result(i, timeout=0) for i in made] == [[["a@b.c"], 1], [["d@e.f", "g@h.i"], 3]]
    assert [new.get_attempts(i)[0].envelope.schema_version for i in made] == [1, 3]


@pytest.mark.case(62)
def test_a_newer_schema_version_is_left_to_newer_workers(fleet: Fleet, clock: FakeClock) -> None:
    """An old program beside it keeps no older task waiting for it, either."""

    class Old(Task, kind="mail"):
        to: str

        def run(self, ctx: Context) -> str:
            return f"old {self.to}"

    class New(Task, kind="mail", schema_version=2):
        to: str

        def run(self, ctx: Context) -> str:
            return f"new {self.to}"

        @staticmethod
        def upgrade(payload: dict[str, Any], version: int) -> dict[str, Any]:
            return payload

    old, new = fleet.worker(Old), fleet.worker(New)
    newer = [new.task(New(f"n{n}")).schedule() for n in range(3)]
    older = old.task(Old("o")).schedule()
    for _ in range(8):
        step(old)
        run_claimed(old)
        clock.advance(1.0)
    step(old)  # which records what has gone back
    assert old.result(older, timeout=0) == "old o"
    for one in newer:
        record = old.get_task(one)
        assert (record.state, record.attempts_used, record.error) == ("scheduled", 0, None)
        assert ends(old, one) == []
    sentence = "no live worker knows schema_version 2 of kind 'mail', the newest knows 1"
    with old.database.read() as tx:
        assert sentence in (why(tx, newer[0]) or "")
        (stuck,) = status(tx).stuck
    assert (stuck.text, stuck.tasks) == (f"3 tasks are ready, but {sentence}", tuple(newer))
    drain(new)  # the worker that handed them back makes no newer worker wait
    assert [new.result(one, timeout=0) for one in newer] == ["new n0", "new n1", "new n2"]


@pytest.mark.case(62)
def test_a_payload_over_the_limit_is_refused_with_advice(fleet: Fleet) -> None:
    jobs = fleet.worker(Order, state=[])
    room = 128 * 1024 - len('{"text":""}')
    for text in ("x" * (room + 1), "é" * (room // 2 + 1)):
        with pytest.raises(PayloadError, match=r"over the limit of 131072; .* pass a reference \(see payload_ref\)"):
            jobs.task(Order(text))
    assert rows(jobs, "SELECT id FROM schedd_tasks") == []
    made = jobs.task(Order("x" * room)).payload_ref("file:///data").schedule()
    drain(jobs)
    assert jobs.state[0]["payload_ref"] == "file:///data"
    assert len(jobs.get_attempts(made)[0].envelope.payload or "") == 128 * 1024


# the inbox: what there is about a subject, and running again what failed


@pytest.mark.case(61)
def test_what_failed_about_a_subject_is_run_again_and_nothing_else(fleet: Fleet, clock: FakeClock) -> None:
    class Soft(Task, dead_letter=False):
        text: str

        def run(self, ctx: Context) -> None:
            if self.text in ctx.state:
                raise ValueError(self.text)

    class Hard(Soft, dead_letter=True):
        pass

    state = ["bad"]
    jobs = fleet.worker(Soft, Hard, state=state)

    def put(value: Task, subject: str = "s", correlation: str = "c") -> Any:
        clock.advance(1)
        return jobs.task(value).subject(subject).correlation(correlation)

    dead, failed = put(Hard("bad")).schedule(), put(Soft("bad")).schedule()
    child = put(Hard("child")).depend_on(dead).schedule()
    fine, cancelled = put(Hard("fine")).schedule(), put(Hard("x")).schedule()
    other, elsewhere = put(Hard("bad"), "t").schedule(), put(Hard("bad"), "t", "d").schedule()
    keyed = put(Hard("bad"), "k").key("k").schedule()
    jobs.cancel_task(cancelled)
    drain(jobs)
    state.clear()
    again = jobs.retry_failed(subject="s", limit=1)
    assert again == [dead]
    assert jobs.get_task_status(child) == "waiting"
    assert jobs.retry_failed(subject="s", kind="Hard") == []
    assert jobs.retry_failed(subject="s") == [failed]
    assert jobs.retry_failed(correlation="d") == [elsewhere]
    assert jobs.retry_failed(correlation=str(other)) == []
    drain(jobs)
    ends = [jobs.get_task_status(i).value for i in (dead, failed, child, fine, cancelled, other, elsewhere)]
    assert ends == ["success", "success", "success", "success", "cancelled", "dead", "success"]
    assert len(jobs.get_attempts(fine)) == 1
    anew = jobs.task(Hard("fine")).key("k").schedule()
    assert jobs.retry_failed(key="k") == []  # it was sent anew
    assert jobs.get_task_status(keyed) == "dead"
    jobs.cancel_task(anew)
    assert jobs.retry_failed(key="k") == [keyed]
    own = jobs.task(Hard("bad")).schedule()
    state.append("bad")
    drain(jobs)
    assert jobs.retry_failed(correlation=str(own)) == [own]
    for wrong in ({}, {"kind": "Hard", "limit": 0}, {"kind": "Hard", "limit": True}):
        with pytest.raises(Exception, match=r"retry_failed wants|limit must"):
            jobs.retry_failed(**wrong)  # type: ignore[arg-type]


@pytest.mark.case(61)
def test_dead_letters_are_found_by_their_envelope(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(Order, state=[])
    ids = [
        jobs.task(Order("refused")).key(f"k{n}").subject(f"s{n % 2}").correlation(f"c{n % 3}").schedule()
        for n in range(6)
    ]
    drain(jobs)

    def found(**filters: Any) -> list[int]:
        return sorted(letter.id for letter in jobs.dead_letters.list(**filters))

    assert found(subject="s1") == ids[1::2]
    assert found(correlation="c0") == [ids[0], ids[3]]
    assert found(key="k4") == [ids[4]]
    assert found(subject="s1", correlation="c0") == [ids[3]]
    assert jobs.dead_letters.groups(subject="s0")[0].count == 3
    assert jobs.dead_letters.replay_all(subject="s1", limit=2) == ids[1:4:2]
    clock.advance(1)
    assert jobs.dead_letters.purge(0, correlation="c2") == 2
    assert found() == [ids[0], ids[4]]


@pytest.mark.case(61)
def test_children_inherit_the_headers_of_the_trace_and_no_others(fleet: Fleet) -> None:
    trace = {"Traceparent": "00-a", "tracestate": "b", "baggage": "c", "authorization": "secret"}

    @task(kind="leaf")
    def leaf(ctx: Context) -> None: ...

    @task(kind="root")
    def root(ctx: Context, own: dict[str, str], spawns: bool) -> int:
        builder = ctx.state.task(leaf)
        if own:
            builder.headers(own)
        return int(ctx.spawn(builder) if spawns else builder.schedule())

    jobs = fleet.worker(leaf, root)
    jobs.state = jobs
    for own, expected in (
        ({}, {"Traceparent": "00-a", "tracestate": "b", "baggage": "c"}),
        ({"x": "1"}, {"x": "1", "Traceparent": "00-a", "tracestate": "b", "baggage": "c"}),
        ({"traceparent": "00-z"}, {"traceparent": "00-z", "baggage": "c"}),
    ):
        for spawns in (True, False):
            made = jobs.task(root, own, spawns).headers(trace).schedule()
            drain(jobs)
            assert jobs.get_task(jobs.result(made, 0)).headers == expected


@pytest.mark.case(61)
def test_a_list_says_whether_there_are_more_and_finds_a_message_type(fleet: Fleet) -> None:
    jobs = fleet.worker(Order)
    ids = [jobs.task(Order("x")).message_type("com.example.order" if i % 2 else "other").schedule() for i in range(6)]
    own = jobs.task(Order("x")).depend_on(ids[0]).schedule()
    page = jobs.list_tasks("Pending", limit=4)
    assert ([t.id for t in page], page.more, page.cursor) == (ids[:1:-1], True, ids[2])
    rest = jobs.list_tasks("Pending", limit=4, cursor=page.cursor)
    assert ([t.id for t in rest], rest.more, rest.cursor) == ([ids[1], ids[0]], False, None)
    assert isinstance(rest, list)
    assert [t.id for t in jobs.list_tasks(message_type="com.example.order")] == ids[5::-2]
    assert [t.id for t in jobs.list_tasks(message_type="Order")] == [own]
    (edge,) = jobs.get_task_dependencies(own)
    assert (edge.id, edge.status) == (ids[0], "scheduled")
    (edge,) = jobs.get_dependents(ids[0])
    assert (edge.id, edge.status) == (own, "waiting")


@pytest.mark.case(61)
def test_a_tasks_way_is_logged_at_debug(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    @task(kind="step")
    def step_(ctx: Context) -> None: ...

    jobs = fleet.worker(step_)
    with caplog.at_level(logging.DEBUG, "scheduler"):
        parent = jobs.task(step_).schedule()
        child = jobs.task(step_).depend_on(parent).schedule()
        keyed = jobs.task(step_).key("k").depend_on(child, when="failure").schedule()
        drain(jobs)
    logged = [(r.getMessage(), r.__dict__["task"]) for r in caplog.records if r.getMessage().startswith("task ")]
    assert logged == [
        ("task scheduled", parent),
        ("task waiting", child),
        ("task waiting", keyed),
        ("task claimed", parent),
        ("task started", parent),
        ("task released", child),
        ("task claimed", child),
        ("task started", child),
    ]
    ends = [r.__dict__ for r in caplog.records if r.getMessage().startswith("attempt ")]
    assert [(end["task"], end["outcome"], end["ms"]) for end in ends] == [
        (parent, "succeeded", 0),
        (child, "succeeded", 0),
    ]
