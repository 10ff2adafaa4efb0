"""Bulks with a frozen scope: what the plan shows is done once, even if the worker dies meanwhile."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import pytest

from scheduler import (
    ConfigError,
    InvalidTransitionError,
    PayloadError,
    PermanentError,
    Secret,
    UnknownBulkError,
    UnknownTaskError,
    task,
)
from scheduler.client import bulks as client
from scheduler.client.bulks import BulkRunner
from scheduler.model import bulk as model
from scheduler.model.bulk import BulkState, ItemResult
from scheduler.operations import stored_bulks
from scheduler.ports import SECOND
from scheduler.store import bulks
from scheduler.store.admin import bulk_plan
from scheduler.store.admin.retention import purge_batch
from scheduler.store.views import delete, save, saved_views
from support.bench import Bench


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_bulks, "BATCH", 2)
    monkeypatch.setattr(bulk_plan, "_PAGE", 3)


def due(bench: Bench, count: int, name: str = "s", **options: Any) -> list[int]:
    made = []
    for number in range(count):
        builder = bench.step(f"{name}{number}")
        for method, value in options.items():
            builder = getattr(builder, method)(value)
        made.append(int(builder.schedule()))
    return made


def test_the_scope_is_what_the_plan_showed(bench: Bench, small: None) -> None:
    first = due(bench, 5, subject="ada")
    plan = bench.jobs.bulks.plan("cancel", subject="ada")
    assert (sorted(plan.ids), plan.will, plan.more) == (first, 5, False)
    assert plan.kinds == {"Step": {"scheduled": 5}}
    made = bench.jobs.bulks.create("cancel", subject="ada")
    assert bench.states(*first) == ["scheduled"] * 5, "nothing is done before it is run"
    late = due(bench, 3, subject="ada")
    seen: list[int] = []
    done = bench.jobs.bulks.run(made.name, each=lambda now: seen.append(now.looked_at))
    assert (done.state, done.done, done.passed, done.total) == (BulkState.DONE, 5, 0, 5)
    assert seen == [2, 4], "each batch is a transaction"
    assert bench.states(*first) == ["cancelled"] * 5
    assert bench.states(*late) == ["scheduled"] * 3, "what came later is not in the scope"
    assert {entry.bulk for entry in bench.jobs.audit(action="cancel")} == {made.name}
    with pytest.raises(InvalidTransitionError, match="is done"):
        bench.jobs.bulks.run(made.name)


def test_retry_passes_over_what_cannot_run_again_and_says_why(bench: Bench, small: None) -> None:
    dead = bench.die("a", "b", "c", subject="ada")
    keyed = bench.die("keyed", key="order-7", subject="ada")
    bench.script.failing.clear()
    holder = int(bench.step("holder").key("order-7").after(3600).schedule())
    below = int(bench.step("below", dead[0]).schedule())
    good = due(bench, 1, subject="ada")
    bench.drain()
    assert bench.states(below, *good) == ["failed", "success"]
    plan = bench.jobs.bulks.plan("retry", subject="ada", status=["dead", "success"])
    assert plan.will == 3
    assert plan.passed == {"another task has its key": 1, "is success": 1}
    assert plan.examples == {"another task has its key": keyed, "is success": good}
    assert plan.dependants == 1
    made = bench.jobs.bulks.create("retry", subject="ada", status=["dead", "success"])
    bench.jobs.cancel_task(holder)
    bench.jobs.retry_task(dead[2])
    done = bench.jobs.bulks.run(made.name)
    assert (done.done, done.passed, done.failed, done.dependants) == (3, 2, 0, 1), "the key is free by now"
    notes = {item.task_id: item.note for item in bench.jobs.bulks.items(made.name, result="passed over")}
    assert notes == {good[0]: "is success", dead[2]: "is scheduled"}
    assert bench.states(*dead[:2], below, *keyed) == ["scheduled", "scheduled", "waiting", "scheduled"]


def test_each_verb(bench: Bench, small: None) -> None:
    dead = bench.die("d1", "d2", "d3", "d4", queue="mail")
    for verb, some in (("replay", dead[:2]), ("purge", dead[2:])):
        made = bench.jobs.bulks.create(verb, ids=some)  # type: ignore[arg-type]
        assert bench.jobs.bulks.run(made.name).done == 2
    assert bench.states(*dead[:2]) == ["scheduled"] * 2
    with bench.jobs.database.read() as tx:
        assert tx.run("SELECT count(*) FROM schedd_tasks").scalar_one() == 2
    bench.script.failing.clear()
    bench.drain()
    made = bench.jobs.bulks.create("rerun", ids=dead[:2])
    assert bench.jobs.bulks.run(made.name).done == 2
    assert bench.states(*dead[:2]) == ["scheduled"] * 2
    with pytest.raises(ConfigError, match="no bulk"):
        bench.jobs.bulks.create("explode", ids=dead)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="say which"):
        bench.jobs.bulks.plan("cancel")
    with pytest.raises(UnknownBulkError, match="nothing"):
        bench.jobs.bulks.get("nothing")


def test_one_task_goes_first_and_the_rest_if_it_succeeds(bench: Bench, small: None) -> None:
    dead = bench.die("d1", "d2", "d3", "d4", "d5")
    made = bench.jobs.bulks.create("replay", ids=dead)
    bench.jobs.bulks.start(made.name, canary=True)
    for _ in range(2):  # the second waits for what the first has begun
        waits = stored_bulks.run(bench.jobs.desk, made.name, runner="console", patient=False)
        assert (waits.state, waits.position) == (BulkState.RUNNING, 1)
    assert bench.states(*dead) == ["scheduled", *["dead"] * 4]
    bench.drain()  # it dies again
    stopped = stored_bulks.run(bench.jobs.desk, made.name, runner="console")
    assert (stopped.state, stopped.done) == (BulkState.STOPPED, 1)
    assert bench.jobs.audit(action="bulk stopped")[0].after["canary"] == dead[0]
    assert bench.states(*dead) == ["dead"] * 5, "the rest is as it was"
    bench.script.failing.clear()
    again = bench.jobs.bulks.create("replay", ids=dead)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        bench.drain()

    bench.jobs.bulks.start(again.name, canary=True)
    done = stored_bulks.run(bench.jobs.desk, again.name, wait=wait)
    assert (done.state, done.done, len(waited)) == (BulkState.DONE, 5, 1)
    assert bench.states(*dead) == ["success", *["scheduled"] * 4]
    gone_on = bench.jobs.bulks.run(made.name)
    assert (gone_on.state, gone_on.options["canary"]) == (BulkState.DONE, False), "started again, none goes first"
    with pytest.raises(ConfigError, match="runs no task"):
        bench.jobs.bulks.start(bench.jobs.bulks.create("cancel", ids=dead).name, canary=True)


@pytest.mark.parametrize("hindrance", ["queue", "kind", "nobody", "pause"])
def test_a_canary_that_no_worker_runs_stops_the_bulk_at_once(
    bench: Bench, hindrance: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait for ever without a word. Once a worker serves it, the bulk goes on."""
    dead = bench.die("d1", "d2", "d3")
    bench.script.failing.clear()
    bench.execute("""UPDATE schedd_workers SET queues = '["default"]'""")
    if hindrance in ("queue", "kind"):
        value = "gone" if hindrance == "queue" else "Gone"
        bench.execute(f"UPDATE schedd_tasks SET {hindrance} = :value", value=value)
    elif hindrance == "pause":
        bench.jobs.pause(kind="Step")
    else:
        bench.execute("UPDATE schedd_workers SET state = 3")
    made = bench.jobs.bulks.create("replay", ids=dead)
    bench.jobs.bulks.start(made.name, canary=True)
    stopped = stored_bulks.run(bench.jobs.desk, made.name, wait=lambda _: pytest.fail("it waits"))
    assert (stopped.state, stopped.done) == (BulkState.STOPPED, 1)
    assert bench.states(*dead) == ["scheduled", "dead", "dead"], "the rest is as it was"
    words = {
        "queue": ("no live worker serves queue 'gone'", "`schedctl set task --queue gone --to-queue "),
        "kind": ("no live worker serves kind 'Gone'", "`schedctl bulk plan cancel --kind Gone`"),
        "nobody": ("no worker is live", "`schedctl workers`"),
        "pause": ("kind Step is paused", "`schedctl resume --kind Step`"),
    }[hindrance]
    said = bench.jobs.audit(action="bulk stopped")[0].after["waits"]
    for word in words:
        assert word in said
    again = bench.jobs.bulks.run(made.name, canary=True)
    assert (again.state, again.done) == (BulkState.STOPPED, 1), "it has not run yet"
    assert any(words[0] in one.getMessage() for one in caplog.records), "a console says it in its log"
    bench.execute("UPDATE schedd_tasks SET queue = 'default', kind = 'Step'")
    bench.execute("UPDATE schedd_workers SET state = 0")
    bench.jobs.resume(kind="Step")
    bench.jobs.bulks.start(made.name, canary=True)
    done = stored_bulks.run(bench.jobs.desk, made.name, wait=lambda _: bench.drain())
    assert (done.state, done.done) == (BulkState.DONE, 3)


def test_a_canary_whose_worker_is_gone_stops_the_bulk(bench: Bench) -> None:
    dead = bench.die("d1", "d2")
    made = bench.jobs.bulks.create("replay", ids=dead)
    bench.jobs.bulks.start(made.name, canary=True)
    stored_bulks.run(bench.jobs.desk, made.name, runner="console", patient=False)
    bench.execute("UPDATE schedd_tasks SET state = 5, worker = 1, claim = 9 WHERE id = :id", id=dead[0])
    waits = stored_bulks.run(bench.jobs.desk, made.name, runner="console", patient=False)
    assert waits.state is BulkState.RUNNING
    bench.execute("UPDATE schedd_workers SET state = 3")
    stopped = stored_bulks.run(bench.jobs.desk, made.name, runner="console", patient=False)
    assert stopped.state is BulkState.STOPPED


def test_a_replay_changes_a_field_of_each_payload(bench: Bench, small: None) -> None:
    dead = bench.die("d1", "d2", "d3")
    made = bench.jobs.bulks.create("replay", ids=dead, fields={"name": "mended"})
    assert made.options["fields"] == {"name": "mended"}
    assert bench.jobs.bulks.run(made.name).done == 3
    assert bench.drain() == ["mended"] * 3
    assert bench.states(*dead) == ["success"] * 3
    again = bench.die("e1")
    with pytest.raises(PayloadError, match="name"):
        bench.jobs.bulks.create("replay", ids=again, fields={"name": 7})
    with pytest.raises(ConfigError, match="those that a replay changes"):
        bench.jobs.bulks.create("retry", ids=again, fields={"name": "x"})
    with pytest.raises(ConfigError, match="those that a replay changes"):
        bench.jobs.bulks.create("replay", ids=again, fields={})


def test_a_secret_is_no_field_of_a_bulk(bench: Bench) -> None:
    @task
    def Pay(ctx: Any, pin: Annotated[str, Secret], to: str = "", password: str = "", more: Any = None) -> None:
        raise PermanentError("no")

    bench.jobs.register(Pay)
    made = int(bench.jobs.task(Pay, "hunter2").schedule())
    bench.drain()
    assert bench.state(made) == "dead"
    for name, value in {"pin": "hunter3", "password": "hunter3", "more": {"api_key": "hunter3"}}.items():
        with pytest.raises(ConfigError, match=f"{name} of Pay is a secret"):
            bench.jobs.bulks.create("replay", ids=[made], fields={name: value})
    bulk = bench.jobs.bulks.create("replay", ids=[made], fields={"to": "ada"})
    assert bench.jobs.bulks.run(bulk.name).done == 1
    assert bench.jobs.get_task(made).payload == '{"pin":"hunter2","to":"ada","password":"","more":null}'


def test_a_bulk_whose_process_died_is_gone_on_with_once(bench: Bench, small: None) -> None:
    """The first process dies after two of its transactions: its time has to pass before another one goes on."""
    tasks = due(bench, 7, subject="ada")
    made = bench.jobs.bulks.create("cancel", subject="ada")
    bench.jobs.bulks.start(made.name)
    database = bench.jobs.database
    for _ in range(2):
        database.change(lambda tx: stored_bulks.step(tx, made.name, "dead process"))
    with pytest.raises(InvalidTransitionError, match="another process"):
        bench.jobs.bulks.run(made.name)
    bench.clock.advance(bulks.RUNNER_US / SECOND + 1)
    assert bench.jobs.bulks.run(made.name).done == 7
    assert bench.states(*tasks) == ["cancelled"] * 7
    late = database.change(lambda tx: stored_bulks.step(tx, made.name, "dead process"))
    assert late.state is BulkState.DONE, "the first process was only slow, and finds nothing left to do"
    assert len(bench.jobs.audit(bulk=made.name, action="cancel")) == 7, "none was changed twice"


def test_what_breaks_off_inside_a_transaction_is_not_done(bench: Bench, small: None) -> None:
    tasks = bench.die("a", "b", "c", "d")
    bench.script.failing.clear()
    made = bench.jobs.bulks.create("retry", ids=tasks)
    calls = []

    def broken(tx: Any, *given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise RuntimeError("the machine lost power")
        return original(tx, *given, **named)

    original = bulks.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulks, "write", broken)
        with pytest.raises(RuntimeError):
            bench.jobs.bulks.run(made.name)
    assert bench.states(*tasks) == ["scheduled", "scheduled", "dead", "dead"]
    bench.clock.advance(100)
    assert bench.jobs.bulks.run(made.name).done == 4
    assert bench.states(*tasks) == ["scheduled"] * 4


def test_stopping_and_going_on(bench: Bench, small: None) -> None:
    tasks = due(bench, 6, subject="ada")
    made = bench.jobs.bulks.create("cancel", subject="ada")

    def stop(now: Any) -> None:
        if now.looked_at == 4:
            with bench.jobs.acting("bob", reason="too many"):
                bench.jobs.bulks.stop(made.name)

    with bench.jobs.acting("alice"):
        half = bench.jobs.bulks.run(made.name, each=stop)
    assert (half.state, half.done) == (BulkState.STOPPED, 4)
    assert bench.states(*tasks).count("scheduled") == 2
    stopped = bench.jobs.audit(subject="bulk")[0]
    assert (stopped.action, stopped.actor, stopped.reason) == ("bulk stopped", "bob", "too many")
    assert bench.jobs.bulks.run(made.name).done == 6
    with pytest.raises(InvalidTransitionError):
        bench.jobs.bulks.stop(made.name)


def test_a_cancel_of_what_had_not_begun_can_be_taken_back(bench: Bench, small: None) -> None:
    soon, later = due(bench, 1, subject="ada")[0], due(bench, 1, "later", subject="ada", after=3600)[0]
    below = int(bench.step("below", soon).subject("ada").schedule())
    with bench.jobs.acting("alice", reason="wrong customer", via="page"):
        made = bench.jobs.bulks.create("cancel", subject="ada")
    bench.jobs.bulks.run(made.name)
    assert bench.states(soon, later, below) == ["cancelled"] * 3
    back = bench.jobs.bulks.undo(made.name)
    assert (back.verb, back.undoes, back.total) == ("uncancel", made.name, 3)
    assert bench.jobs.bulks.run(back.name).done == 3
    assert bench.states(soon, later, below) == ["scheduled", "scheduled", "waiting"]
    when = bench.jobs.get_task(later).run_at
    assert when is not None
    assert when.timestamp() - bench.clock.now() / SECOND == pytest.approx(3600, abs=5), "at its old time"
    entry = bench.jobs.audit(bulk=made.name, action="cancel")[0]
    assert (entry.actor, entry.reason, entry.via) == ("alice", "wrong customer", "page")
    assert entry.filter is not None
    assert entry.filter["subject"] == "ada"
    retried = bench.jobs.bulks.create("retry", ids=[soon])
    with pytest.raises(InvalidTransitionError, match="cannot be undone"):
        bench.jobs.bulks.undo(retried.name)


def test_the_scope_is_bounded(bench: Bench, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_plan, "MAX_TASKS", 4)
    due(bench, 7, subject="ada")
    plan = bench.jobs.bulks.plan("cancel", subject="ada")
    assert (len(plan.ids), plan.more) == (4, True)
    assert model.MAX_TASKS == 1_000_000


def test_a_thread_runs_what_is_started(bench: Bench, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOK_EVERY_S", 0.02)
    tasks = due(bench, 5, subject="ada")
    made = [bench.jobs.bulks.create("cancel", ids=some) for some in (tasks[:3], tasks[3:])]
    notified = threading.Event()

    def notify() -> None:
        if all(bench.jobs.bulks.get(one.name).state is BulkState.DONE for one in made):
            notified.set()

    runner = BulkRunner(bench.jobs.desk._replace(wake=notify))
    runner.start()
    try:
        for one in made:
            bench.jobs.bulks.start(one.name)
        runner.wake()
        assert notified.wait(30)
    finally:
        runner.stop()
    assert bench.states(*tasks) == ["cancelled"] * 5
    assert {item.result for item in bench.jobs.bulks.items(made[1].name)} == {ItemResult.DONE}


def test_old_bulks_go_with_the_audit(bench: Bench) -> None:
    old = bench.jobs.bulks.create("cancel", ids=due(bench, 2))
    bench.jobs.bulks.run(old.name)
    waiting = bench.jobs.bulks.create("cancel", ids=due(bench, 2))
    bench.clock.advance(400 * 86_400)
    bench.jobs.bulks.start(waiting.name)
    kept = dict.fromkeys(("success", "failed", "outcomes", "events", "audit"), 86400.0)
    bench.jobs.database.change(lambda tx: purge_batch(tx, kept))
    assert [one.name for one in bench.jobs.bulks.list()] == [waiting.name], "one that runs stays"
    with bench.jobs.database.read() as tx:
        assert tx.run("SELECT count(*) FROM schedd_bulk_items").scalar_one() == 2


def test_saved_views(bench: Bench) -> None:
    database = bench.jobs.database
    with database.write() as tx:
        save(tx, "tasks", "dead mail", "state=dead&kind=Mail")
        save(tx, "tasks", "mine", "subject=ada", owner="alice")
        save(tx, "tasks", "mine", "subject=bob", owner="bob")
        save(tx, "tasks", "mine", "subject=eve", owner="alice")
        save(tx, "schedules", "other", "q=1")
    with database.read() as tx:
        assert [(v.name, v.query) for v in saved_views(tx, "tasks", "alice")] == [
            ("dead mail", "state=dead&kind=Mail"),
            ("mine", "subject=eve"),
        ]
        assert [v.name for v in saved_views(tx, "tasks")] == ["dead mail"]
    with database.write() as tx:
        assert delete(tx, "tasks", "mine", "alice")
        assert not delete(tx, "tasks", "mine", "alice")
        assert not delete(tx, "tasks", "dead mail", "alice"), "it is everybody's"
        assert delete(tx, "tasks", "dead mail")
        with pytest.raises(ConfigError, match="name"):
            save(tx, "tasks", "", "x")
    assert [e.action for e in bench.jobs.audit(subject="view")] == ["view deleted", "view saved", "view saved"]


def test_one_cancel_can_be_taken_back(bench: Bench) -> None:
    later = due(bench, 1, "later", after=3600)[0]
    below = int(bench.step("below", later).schedule())
    ran = due(bench, 1, "ran")[0]
    bench.script.failing.add("ran0")
    bench.drain()
    bench.jobs.cancel_task(later)
    assert bench.states(later, below) == ["cancelled", "failed"]
    bench.jobs.uncancel_task(later)
    assert bench.states(later, below) == ["scheduled", "waiting"]
    when = bench.jobs.get_task(later).run_at
    assert when is not None
    assert when.timestamp() - bench.clock.now() / SECOND == pytest.approx(3600, abs=5)
    for other in (later, ran):
        with pytest.raises(InvalidTransitionError, match="taken back"):
            bench.jobs.uncancel_task(other)
    with pytest.raises(UnknownTaskError):
        bench.jobs.uncancel_task(10**9)
