"""The default rules over real stores: what each fires for, and what not, under a clock that only the test moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler import Context, Retry, Scheduler, Task, Weekday
from scheduler.alerts.evaluator import Evaluator
from scheduler.alerts.observer import Retained
from scheduler.config.alerts import AlertRules, Alerts, AlertSink
from scheduler.model.alerts import Alert, AlertPhase, Silence
from scheduler.model.problem import TransportProblem
from scheduler.ports import SECOND
from scheduler.store import alerts as store
from scheduler.store import inbox
from scheduler.store.inbox import Arrival
from scheduler.testing import FakeClock, engine_of
from support.bench import Bench, Step
from support.databases import one_database
from support.fleet import Fleet, step, write

DAY = 86_400 * SECOND
SINKS = {
    "ops": AlertSink(type="command", command=("x",)),
    "some": AlertSink(type="slack", url="x", rules=("long_run",)),
}


class Watch:
    """An evaluator beside a bench, and the messages that it has stored for a sink."""

    def __init__(self, jobs: Scheduler, clock: FakeClock, holder: str = "one", **settings: Any) -> None:
        self.clock = clock
        self.database = jobs.database
        self.evaluator = Evaluator(jobs.database, Alerts(sinks=SINKS, **settings), Retained(30 * DAY, 90 * DAY), holder)

    def look(self, looks: int = 1) -> None:
        for _ in range(looks):
            self.clock.advance(15)
            self.evaluator.look()

    def alerts(self) -> list[Alert]:
        with self.database.read() as tx:
            return list(store.alerts(tx).values())

    def firing(self) -> list[tuple[str, str]]:
        return [(a.key.rule, a.key.kind) for a in self.alerts() if a.phase is AlertPhase.FIRING]

    def messages(self, sink: str = "ops") -> list[dict[str, Any]]:
        with self.database.read() as tx:
            sql = "SELECT body FROM schedd_alert_messages t WHERE sink = :sink ORDER BY number"
            return [json.loads(row.body) for row in tx.run(sql, sink=sink)]

    def sent(self) -> list[tuple[str, str]]:
        return [(m["event"], m["rule"]) for m in self.messages()]


@pytest.fixture
def watch(bench: Bench) -> Watch:
    return Watch(bench.jobs, bench.clock)


@pytest.fixture(autouse=True)
def closing(bench: Bench) -> Iterator[None]:
    yield
    for jobs in bench.workers:
        jobs.database.dispose()


def alive(bench: Bench, watch: Watch, looks: int = 1) -> None:
    """Looks, while the worker renews its lease and runs what is due."""
    for _ in range(looks):
        bench.drain()
        watch.look()


def test_nothing_is_wrong_in_an_empty_store(bench: Bench, watch: Watch) -> None:
    alive(bench, watch, 10)
    assert watch.alerts() == []
    assert watch.messages() == []


def fail(error: type[Exception]) -> None:
    raise error("password=hunter2 is wrong")


def test_dead_letters_are_one_message_with_the_largest_causes(bench: Bench, watch: Watch) -> None:
    for error, number in ((ValueError, 12), (KeyError, 3), (TypeError, 2), (OSError, 1)):
        bench.script.bodies[error.__name__] = lambda ctx, error=error: fail(error)
        for _ in range(number):
            bench.step(error.__name__).schedule()
    alive(bench, watch, 6)
    (message,) = watch.messages()
    assert (message["event"], message["rule"], message["number"]) == ("fired", "dead_letters", 18)
    assert watch.messages("some") == [], "it takes other rules only"
    assert "hunter2" not in json.dumps(message)
    lines = message["text"].splitlines()
    assert lines[:3] == [
        "12 dead letters of Step: ValueError: password=*** is wrong",
        "3 dead letters of Step: KeyError: 'password=*** is wrong'",
        "2 dead letters of Step: TypeError: password=*** is wrong",
    ]
    assert lines[3] == "and 1 more"
    task = message["alerts"][0]["detail"]["tasks"][0]
    assert bench.state(task) == "dead"
    more = [bench.step("ValueError") for _ in range(90)]
    for one in more:
        one.schedule()
    alive(bench, watch, 2)
    assert watch.sent() == [("fired", "dead_letters"), ("grew", "dead_letters")], "a hundred is a step"
    bench.jobs.dead_letters.purge(0)
    alive(bench, watch, 12)
    over = watch.messages()[-1]
    assert over["event"] == "recovered"
    assert "it lasted" in over["text"]
    assert watch.alerts() == []


def test_dead_letters_that_retention_removes_soon(bench: Bench, watch: Watch) -> None:
    bench.die("a", "b")
    alive(bench, watch, 6)
    assert watch.firing() == [("dead_letters", "Step")]
    bench.clock.advance(28 * 86_400 - 3600)
    alive(bench, watch)
    assert "dead_letters_expiring" not in dict(watch.firing())
    bench.clock.advance(3600)
    alive(bench, watch)
    (message,) = [m for m in watch.messages() if m["rule"] == "dead_letters_expiring"]
    assert message["text"].startswith("retention removes 2 dead letters of Step, the first in 1 d 23 h")


def test_a_kind_whose_attempts_are_retried_often(bench: Bench, watch: Watch) -> None:
    def again(ctx: Any) -> None:
        if ctx.attempt < 2:
            raise Retry(after=0.1, reason="busy")

    bench.script.bodies["again"] = again
    for _ in range(12):
        bench.step("again").with_automatic_retry().schedule()
    bench.drain()
    bench.advance(1)
    engine_of(bench.jobs).write_rollups()
    alive(bench, watch)
    (message,) = watch.messages()
    assert message["rule"] == "retry_rate"
    assert message["text"].startswith("50% of the last 24 attempts of Step were retried")
    for _ in range(80):
        bench.step("fine").schedule()
    bench.drain()
    engine_of(bench.jobs).write_rollups()
    watch.look()
    assert watch.firing() == [("retry_rate", "Step")], "11 % is between the thresholds"
    bench.clock.advance(700)
    bench.drain()
    watch.look()
    assert watch.sent() == [("fired", "retry_rate"), ("recovered", "retry_rate")]


@one_database
def test_few_attempts_say_nothing(bench: Bench, watch: Watch) -> None:
    bench.script.bodies["again"] = lambda ctx: (_ for _ in ()).throw(Retry(after=9999))
    for _ in range(19):
        bench.step("again").with_automatic_retry().schedule()
    bench.drain()
    engine_of(bench.jobs).write_rollups()
    alive(bench, watch, 2)
    assert watch.messages() == []


def test_a_queue_whose_oldest_task_waits_long(bench: Bench, watch: Watch) -> None:
    bench.drain()
    bench.step("late").queue("mail").schedule()
    bench.clock.advance(280)
    watch.look()
    assert watch.firing() == []
    watch.look(2)
    mine = [m for m in watch.messages() if m["rule"] == "backlog_age"]
    assert [m["event"] for m in mine] == ["fired"], "after two looks over five minutes"
    assert "queue mail (Step) waits since 5 min" in mine[0]["text"]
    bench.drain()
    watch.look(2)
    assert ("backlog_age", "mail") not in [(m["rule"], "") for m in watch.messages() if m["event"] == "recovered"]
    watch.look()
    assert ("recovered", "backlog_age") in watch.sent()


def test_a_queue_that_waits_long_says_whether_it_drains(bench: Bench, watch: Watch) -> None:
    bench.drain()
    for _ in range(12):
        bench.step("more").queue("mail").schedule()
        bench.clock.advance(60)
        watch.look()
    (message,) = [m for m in watch.messages() if m["rule"] == "backlog_age"]
    assert " out a second; it never drains at that rate, and grows" in message["text"]
    (seen,) = [one for one in watch.alerts() if one.key.rule == "backlog_age"]
    assert (seen.detail["out"], seen.detail["drained_in"]) == (0, None)
    assert seen.detail["in"] == pytest.approx(1 / 75, abs=0.004)


def test_a_paused_queue_is_no_backlog(bench: Bench, watch: Watch) -> None:
    bench.drain()
    bench.step("late").queue("mail").schedule()
    bench.jobs.pause(queue="mail", reason="maintenance")
    bench.clock.advance(1000)
    alive(bench, watch, 3)
    assert watch.firing() == []


def test_a_backlog_that_grows_and_would_take_long(bench: Bench) -> None:
    watch = Watch(bench.jobs, bench.clock, rules=AlertRules())
    bench.drain()
    for minute in range(20):
        bench.step("more").queue("etl").schedule()
        bench.clock.advance(45)
        watch.look()
        grown = ("backlog_growth", "etl") in watch.firing()
        assert grown is (minute >= 15), minute
    message = next(m for m in watch.messages() if m["rule"] == "backlog_growth")
    assert "queue etl has grown from 1 to 16 ready tasks in 15 min, and none of them ended" in message["text"]
    bench.drain()
    alive(bench, watch, 12)
    assert ("recovered", "backlog_growth") in watch.sent()


@one_database
def test_one_large_batch_is_no_growth(bench: Bench, watch: Watch) -> None:
    bench.drain()
    bench.step("first").queue("etl").schedule()
    for minute in range(25):
        if minute == 12:
            for _ in range(50):
                bench.step("batch").queue("etl").schedule()
        bench.clock.advance(45)
        watch.look()
    assert "backlog_growth" not in dict(watch.firing())


class Slow(Task):
    """Runs until its script says."""

    def run(self, ctx: Context) -> None:
        ctx.state.play("slow", ctx)


def test_an_attempt_that_runs_far_longer_than_its_kind_does(bench: Bench, watch: Watch) -> None:
    bench.script.bodies["slow"] = lambda ctx: bench.clock.advance(10)
    bench.jobs.register(Slow)
    for _ in range(25):
        bench.jobs.task(Slow()).schedule()
    bench.drain()
    engine_of(bench.jobs).write_rollups()
    bench.jobs.task(Slow()).schedule()
    step(bench.jobs)
    write(bench.jobs, "UPDATE schedd_tasks SET state = 5, started_at = claimed_at WHERE state = 4")
    watch.look(1)
    assert [one for one in watch.firing() if one[0] == "long_run"] == [], "15 s are not unusual"
    watch.look(5)
    assert ("long_run", "Slow") in watch.firing()
    (message,) = watch.messages("some")
    assert message["text"].startswith("1 attempt of Slow run for up to 1 min")
    assert "95 % of its attempts end within 9 s" in message["text"]


@pytest.mark.parametrize("graph", [False, True])
def test_a_schedule_that_has_not_succeeded_in_time(bench: Bench, watch: Watch, graph: bool) -> None:
    jobs = bench.jobs
    if graph:
        with jobs.recurring("nightly").every(3600) as dag:
            dag.task(Step("first"))
            dag.task(Step("nightly"))
    else:
        jobs.task(Step("nightly")).key("nightly").every(3600).schedule()
    for _ in range(3):
        bench.clock.advance(1800)
        alive(bench, watch)
    bench.clock.advance(1000)
    alive(bench, watch, 6)
    assert "silent_schedule" not in dict(watch.firing()), "it has succeeded"
    bench.script.failing.add("nightly")
    bench.clock.advance(700)
    alive(bench, watch, 5)
    assert "silent_schedule" not in dict(watch.firing()), "it has a quarter of an hour"
    bench.clock.advance(900)
    alive(bench, watch, 5)
    assert ("silent_schedule", "nightly") in watch.firing()
    bench.script.failing.clear()
    bench.clock.advance(3600)
    alive(bench, watch, 6)
    assert ("recovered", "silent_schedule") in watch.sent()


def test_a_schedule_whose_success_retention_has_removed(bench: Bench, watch: Watch) -> None:
    bench.jobs.task(Step("weekly")).key("weekly").weekly_on(Weekday.MONDAY, 3, 0).schedule()
    for _ in range(20):
        bench.clock.advance(86_400)
        alive(bench, watch)
        bench.jobs.cleanup_completed_tasks(older_than_hours=1)
    assert bench.script.ran.count("weekly") == 3
    assert "silent_schedule" not in dict(watch.firing())


def test_a_schedule_is_missed_while_no_worker_runs_and_is_late(bench: Bench, watch: Watch) -> None:
    bench.jobs.task(Step("hourly")).key("hourly").every(3600).schedule()
    bench.drain()
    bench.clock.advance(3600 + 61)
    watch.look(6)
    assert ("late_schedule", "schedule") in watch.firing()
    bench.clock.advance(900)
    watch.look(5)
    assert ("silent_schedule", "hourly") in watch.firing()


@one_database
def test_a_long_run_of_a_schedule_is_not_silent(bench: Bench, watch: Watch) -> None:
    bench.jobs.task(Step("hourly")).key("hourly").every(3600).schedule()
    bench.drain()
    bench.clock.advance(3600)
    step(bench.jobs)
    step(bench.jobs)
    bench.clock.advance(1200)
    watch.look(5)
    assert "silent_schedule" not in dict(watch.firing()), "it is claimed, so it goes on"


@one_database
def test_a_fixed_delay_that_fails(bench: Bench, watch: Watch) -> None:
    bench.jobs.task(Step("loop")).key("loop").every(600, mode="fixed_delay").schedule()
    for _ in range(10):
        bench.clock.advance(600)
        alive(bench, watch)
    assert watch.firing() == []
    bench.script.failing.add("loop")
    for _ in range(5):
        bench.clock.advance(600)
        alive(bench, watch)
    assert ("silent_schedule", "loop") in watch.firing()


def test_what_status_calls_stuck(bench: Bench, watch: Watch) -> None:
    bench.drain()
    bench.step("here").queue("mail").schedule()
    other = bench.worker(queues=["other"])
    step(other)
    bench.jobs._engine._drop_connection()  # type: ignore[union-attr]
    write(other, "UPDATE schedd_workers SET state = 2 WHERE queues NOT LIKE '%other%'")
    for _ in range(8):
        step(other)
        watch.look()
    assert ("unserved", "unserved") in watch.firing()
    message = next(m for m in watch.messages() if m["rule"] == "unserved")
    assert message["severity"] == "critical"
    assert "1 task is ready, but" in message["text"]


@one_database
def test_a_worker_that_lost_its_lease_while_it_holds_tasks(bench: Bench, watch: Watch) -> None:
    bench.drain()
    bench.step("held").schedule()
    step(bench.jobs)
    bench.clock.advance(31)
    watch.look(6)
    assert ("lease_lost", "lease") in watch.firing()


# One of the fleet


def test_one_of_two_evaluates_and_the_other_takes_over(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker()
    one, two = Watch(jobs, clock, "one"), Watch(jobs, clock, "two")
    assert one.evaluator.look().leading
    assert not two.evaluator.look().leading
    clock.advance(44)
    assert not two.evaluator.look().leading
    assert one.evaluator.look().leading
    clock.advance(46)
    assert two.evaluator.look().leading, "the first has not looked for three looks"
    assert not one.evaluator.look().leading
    two.evaluator.give_up()
    assert one.evaluator.look().leading, "at once"


@pytest.mark.parametrize("back", [3700, 86_400])
def test_after_a_clock_was_set_back_another_evaluator_and_what_waits_go_on(
    fleet: Fleet, clock: FakeClock, back: float
) -> None:
    jobs = fleet.worker()
    one, two = Watch(jobs, clock, "one"), Watch(jobs, clock, "two")
    assert one.evaluator.look().leading
    with jobs.database.write() as tx:
        store.put(tx, [("ops", {"id": "m"})])
        taken = store.take(tx, "ops", 600 * SECOND)
    assert taken is not None
    clock.jump(-back)
    assert two.evaluator.look().leading, "the first does not look any more"
    with jobs.database.write() as tx:
        again = store.take(tx, "ops", 600 * SECOND)
    assert again is not None
    assert again.number == taken.number


def test_an_evaluator_that_was_overtaken_writes_nothing(
    bench: Bench, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still between its reading and its writing, and another one has evaluated meanwhile."""
    bench.die("a")
    other = Watch(bench.jobs, bench.clock, "other", rules=AlertRules())
    observer = watch.evaluator._observer
    real = observer.observe

    def slow(tx: Any, samples: Any) -> Any:
        found = real(tx, samples)
        bench.clock.advance(100)
        for _ in range(6):
            bench.clock.advance(15)
            assert other.evaluator.look().leading
        other.evaluator.give_up()
        return found

    monkeypatch.setattr(observer, "observe", slow)
    before = watch.evaluator.look()
    assert not before.leading
    assert watch.sent().count(("fired", "dead_letters")) == 1, "said by the other one"


@one_database
def test_a_restart_says_nothing_again(bench: Bench, watch: Watch) -> None:
    bench.die("a")
    alive(bench, watch, 8)
    for number in range(3):
        watch.evaluator.give_up()
        again = Watch(bench.jobs, bench.clock, f"after restart {number}")
        alive(bench, again, 4)
    assert watch.sent() == [("fired", "dead_letters")]


def test_a_silence_and_its_audit(bench: Bench, watch: Watch) -> None:
    with bench.jobs.acting("alice", reason="known"):
        made = bench.jobs.database.change(
            lambda tx: store.silence(tx, Silence("dead_letters", "Step", None, tx.now + 300 * SECOND))
        )
    bench.die("a")
    alive(bench, watch, 8)
    assert watch.messages() == []
    with bench.jobs.acting("bob"):
        ended = bench.jobs.database.change(lambda tx: store.unsilence(tx, made.id))
        assert ended is not None
        assert (ended.actor, ended.reason) == ("alice", "known")
        assert bench.jobs.database.change(lambda tx: store.unsilence(tx, made.id)) is None
    alive(bench, watch)
    assert watch.sent() == [("fired", "dead_letters")]
    assert [
        (e.action, e.subject, e.actor, e.reason) for e in bench.jobs.audit(subject="alerts of dead_letters, kind Step")
    ] == [
        ("unsilence", "alerts of dead_letters, kind Step", "bob", None),
        ("silence", "alerts of dead_letters, kind Step", "alice", "known"),
    ]


@one_database
def test_one_rule_that_meets_a_broken_row_stops_no_other(bench: Bench, watch: Watch) -> None:
    bench.die("a")
    bench.jobs.task(Step("s")).key("s").every(3600).schedule()
    alive(bench, watch, 6)
    write(bench.jobs, "UPDATE schedd_schedules SET recurrence = 'nonsense'")
    alive(bench, watch, 8)
    assert ("dead_letters", "Step") in watch.firing()


def test_a_source_that_cannot_be_used(bench: Bench, watch: Watch) -> None:
    trouble = TransportProblem("source", "orders", bench.jobs.database.now(), "cannot connect: password=hunter2")
    bench.jobs.traffic.tell(trouble, 3600.0)
    alive(bench, watch, 6)
    assert watch.firing() == [("unreachable", "source")]
    (message,) = watch.messages()
    assert message["severity"] == "critical"
    assert "source orders cannot be used since" in message["text"]
    assert "hunter2" not in json.dumps(message)
    bench.jobs.traffic.is_well("source", "orders")
    alive(bench, watch, 10)
    assert watch.sent() == [("fired", "unreachable"), ("recovered", "unreachable")]


def test_messages_that_can_become_no_task(bench: Bench, watch: Watch) -> None:
    def arrive(*numbers: int, error: str | None = "it is no JSON") -> None:
        arrivals = [Arrival(f"k{n}", f"m{n}", None, f"{error}: token=geheim") for n in numbers]
        bench.jobs.database.change(lambda tx: inbox.store(tx, "orders", arrivals, inbox.InboxRules(30 * DAY)))

    arrive(1)
    alive(bench, watch, 2)
    assert watch.firing() == [("dead_messages", "orders")]
    bench.clock.advance(60)
    arrive(*range(2, 13))
    alive(bench, watch, 2)
    first, second = watch.messages()
    text = "1 message of source orders could become no task, the last one: it is no JSON: token=***"
    assert first["text"].startswith(text)
    assert second["number"] == 12, "again at 10"
    bench.clock.advance(86_400)
    alive(bench, watch, 2)
    assert watch.firing() == []
    with bench.jobs.database.read() as tx:
        assert len(inbox.inbox_records(tx)) == 12, "they are there, and old"
