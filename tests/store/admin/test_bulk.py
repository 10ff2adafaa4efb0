"""Cancel, retry and change of what a filter chooses: bounded transactions, plans, and going on after a break."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from msgspec import field

from scheduler import ConfigError, Context, Task, TaskState
from scheduler.model.task_filter import TaskFilter, only
from scheduler.operations import bulk, bulk_changes
from scheduler.store.tasks import control
from support.bench import Bench, Soft, Step, notify_and_step


class Order(Task):
    customer: str
    lines: dict[str, Any] = field(default_factory=dict)
    paid: bool = False

    def run(self, ctx: Context) -> Any:
        return ctx.state.play(self.customer, ctx)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BATCH", "_RETRIED", "_PAGE"):
        monkeypatch.setattr(bulk, name, 2)


def steps(bench: Bench, count: int, **options: Any) -> list[int]:
    made = []
    for number in range(count):
        builder = bench.step(f"s{number}")
        for method, value in options.items():
            builder = getattr(builder, method)(value)
        made.append(int(builder.schedule()))
    return made


def test_each_filter_chooses(bench: Bench) -> None:
    bench.jobs.register(Order)
    old = int(bench.step("old").schedule())
    bench.clock.advance(3600)
    soft = int(bench.jobs.task(Soft("soft")).schedule())
    mail = int(bench.step("mail").queue("mail").schedule())
    keyed = int(bench.step("keyed").key("k").schedule())
    together = int(bench.step("together").correlation("c").schedule())
    about = int(bench.step("about").subject("ada").schedule())
    typed = int(bench.step("typed").message_type("com.example").schedule())
    later = int(bench.step("waiting", old).schedule())
    ada = int(bench.jobs.task(Order("ada", {"first": {"id": 1}}, paid=True)).schedule())
    bench.jobs.task(Order("bob", {"first": {"id": 2}})).schedule()
    long = int(bench.jobs.task(Order("x" * 2000)).schedule())

    def chosen(**filters: Any) -> list[int]:
        plan = bench.jobs.cancel_tasks(dry_run=True, **filters)
        assert plan.dry_run
        return sorted(plan.ids)

    assert chosen(kind="Soft") == [soft]
    assert chosen(kind=["Soft", "Order"], payload={"customer": "ada"}) == [ada]
    assert chosen(queue="mail") == [mail]
    assert chosen(key="k") == [keyed]
    assert chosen(correlation="c") == [together]
    assert chosen(correlation=str(soft)) == [soft]
    assert chosen(subject="ada") == [about]
    assert chosen(message_type="com.example") == [typed]
    assert chosen(message_type="Soft") == [soft]
    assert chosen(status="waiting") == [later]
    assert chosen(older_than=1800) == [old]
    assert chosen(newer_than=1800, kind="Soft") == [soft]
    assert chosen(payload={"lines.first.id": 1}) == [ada]
    assert chosen(payload={"paid": True, "customer": "ada"}) == [ada]
    assert chosen(payload={"paid": 1}) == []  # yes is not one
    assert chosen(payload={"customer": "x" * 2000}) == [long]
    assert chosen(payload={"nothing": None}) == []
    assert not bench.jobs.list_tasks("cancelled")


@pytest.mark.usefixtures("small")
def test_a_cancel_of_many_batches_ends_all_as_cancelled(bench: Bench) -> None:
    parents = steps(bench, 3, correlation="c")
    children = [int(bench.step("child", parent).correlation("c").schedule()) for parent in parents]
    below = int(bench.step("below", children[0]).schedule())
    other = int(bench.step("other").schedule())
    plan = bench.jobs.cancel_tasks(correlation="c", dry_run=True)
    assert (sorted(plan.ids), plan.dependants) == (parents + children, 1)
    assert plan.kinds == {"Step": {"scheduled": 3, "waiting": 3}}
    with bench.jobs.acting("alice", reason="wrong order"):
        done = bench.jobs.cancel_tasks(correlation="c")
    assert (sorted(done.ids), done.dependants, done.kinds, done.more) == (parents + children, 1, plan.kinds, False)
    assert bench.states(*parents, *children) == ["cancelled"] * 6
    assert bench.states(below, other) == ["failed", "scheduled"]
    entries = [entry for entry in bench.jobs.audit() if entry.action == "cancel"]
    assert {entry.task_id for entry in entries} == {*parents, *children}
    states = ["claimed", "retry", "running", "scheduled", "suspended", "waiting"]
    assert all(entry.filter == {"correlation": "c", "status": states, "up_to": other} for entry in entries)
    assert {(entry.actor, entry.bulk) for entry in entries} == {("alice", done.bulk)}


@pytest.mark.usefixtures("small")
def test_a_plan_freezes_what_is_chosen(bench: Bench) -> None:
    ids = steps(bench, 5)
    plan = bench.jobs.cancel_tasks(kind="Step", dry_run=True)
    later = int(bench.step("later").schedule())
    assert plan.up_to == ids[-1]
    done = bench.jobs.cancel_tasks(kind="Step", up_to=plan.up_to)
    assert sorted(done.ids) == ids
    assert bench.state(later) == "scheduled"
    with pytest.raises(ConfigError, match="say which tasks"):
        bench.jobs.cancel_tasks(up_to=plan.up_to)
    failed = bench.die("a", "b")
    bench.script.failing.clear()
    assert bench.jobs.retry_tasks(kind="Step", up_to=failed[0]).ids == failed[:1]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("verb", ["cancel", "retry", "change"])
def test_a_bulk_is_stopped_and_goes_on_under_its_name(bench: Bench, verb: str) -> None:
    ids = bench.die(*"abcde") if verb == "retry" else steps(bench, 5)
    bench.script.failing.clear()
    seen: list[int] = []

    def work(**given: Any) -> Any:
        if verb == "cancel":
            return bench.jobs.cancel_tasks(kind="Step", bulk="by-page-1", **given)
        if verb == "retry":
            return bench.jobs.retry_tasks(kind="Step", bulk="by-page-1", **given)
        return bench.jobs.update_tasks({"kind": "Step"}, bulk="by-page-1", queue="slow", **given)

    def stop(done: Any) -> bool:
        seen.append(len(done.ids))
        return False

    part = work(each=stop)
    assert part.more
    assert seen == [len(part.ids)]
    assert 0 < len(part.ids) < 5
    rest = work(each=lambda _: None)
    assert not rest.more
    assert {*part.ids, *rest.ids} == set(ids)
    assert {e.task_id for e in bench.jobs.audit(bulk="by-page-1")} == set(ids)


def test_named_ids_are_a_filter_like_others(bench: Bench) -> None:
    a, b, c, d = steps(bench, 4)
    other = int(bench.jobs.task(Soft("x")).schedule())
    assert sorted(bench.jobs.cancel_tasks(ids=[a, b, other], kind="Step", dry_run=True).ids) == [a, b]
    assert sorted(bench.jobs.cancel_tasks(ids=[a, b, other]).ids) == [a, b, other]
    assert bench.states(c, d) == ["scheduled"] * 2
    assert bench.jobs.retry_tasks(ids=[b, c], status="cancelled").ids == [b]
    (entry,) = bench.jobs.audit(b, action="retry")
    assert entry.filter is not None
    assert entry.filter["ids"] == f"{b}-{c}"
    for wrong in ([], "12", 12, ["x"]):
        with pytest.raises(ConfigError):
            bench.jobs.cancel_tasks(ids=wrong)  # type: ignore[arg-type]
    for name in ("", "a b", "x" * 41):
        with pytest.raises(ConfigError, match="bulk is a name"):
            bench.jobs.cancel_tasks(kind="Step", bulk=name)


def test_failures_are_chosen_by_their_cause(bench: Bench) -> None:
    a, b = bench.die("a", "b")
    info = bench.jobs.get_task(a)
    assert info.error_class == "PermanentError"
    assert bench.jobs.retry_tasks(error_class="OSError", dry_run=True).ids == []
    assert bench.jobs.retry_tasks(error_class="PermanentError", dry_run=True).ids == [a, b]
    assert a in bench.jobs.retry_tasks(fingerprint=info.fingerprint or "", dry_run=True).ids


def test_what_runs_is_asked_to_end(bench: Bench) -> None:
    running = int(bench.step("running").schedule())
    notify_and_step(bench.jobs)
    waiting = int(bench.step("child", running).schedule())
    done = bench.jobs.cancel_tasks(kind="Step", cascade=True)
    assert (done.ids, done.requested, done.dependants) == ([waiting], [running], 0)
    bench.drain()
    assert bench.states(running, waiting) == ["cancelled", "cancelled"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("verb", ["cancel", "change"])
def test_the_same_call_goes_on_after_a_break(bench: Bench, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    ids = steps(bench, 5)
    at, name = (control, "cancel") if verb == "cancel" else (bulk_changes, "patch")
    real, calls = getattr(at, name), []

    def breaks(*args: Any, **given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **given)

    monkeypatch.setattr(at, name, breaks)

    def work() -> Any:
        if verb == "cancel":
            return bench.jobs.cancel_tasks(kind="Step")
        return bench.jobs.update_tasks({"kind": "Step"}, queue="slow")

    with pytest.raises(KeyboardInterrupt):
        work()
    changed = "cancelled" if verb == "cancel" else "scheduled"
    assert bench.states(*ids[3:]) == [changed] * 2  # the newest, in the transaction that had been committed
    assert bench.states(*ids[:3]) == ["scheduled"] * 3
    assert len(work().ids) == (3 if verb == "cancel" else 5)
    tasks = [bench.jobs.get_task(i) for i in ids]
    assert {task.state.value if verb == "cancel" else task.queue for task in tasks} == {
        "cancelled" if verb == "cancel" else "slow"
    }


@pytest.mark.usefixtures("small")
def test_retries_are_chosen_and_bounded(bench: Bench) -> None:
    dead = bench.die("a", "b", "c", subject="ada")
    (other,) = bench.die("d", subject="bob")
    child = int(bench.step("child", dead[0]).schedule())
    cancelled = int(bench.step("e").subject("ada").schedule())
    bench.jobs.cancel_task(cancelled)
    plan = bench.jobs.retry_tasks(subject="ada", dry_run=True)
    assert (plan.ids, plan.dependants) == (dead, 1)
    assert bench.jobs.retry_tasks(subject="ada", payload={"name": "b"}).ids == [dead[1]]
    first = bench.jobs.retry_tasks(subject="ada", limit=1)
    assert (first.ids, first.more) == ([dead[0]], True)
    assert bench.states(child) == ["waiting"]
    done = bench.jobs.retry_tasks(subject="ada", status=["dead", "cancelled"])
    assert (done.ids, done.kinds) == ([dead[2], cancelled], {"Step": {"dead": 1, "cancelled": 1}})
    assert bench.states(other) == ["dead"]


def test_a_retry_of_many_leaves_a_key_that_another_task_has(bench: Bench) -> None:
    (dead,) = bench.die("a", key="k")
    bench.script.failing.clear()
    holder = int(bench.step("again").key("k").schedule())
    assert bench.jobs.retry_tasks(kind="Step").conflicts == {dead: holder}


@pytest.mark.both_databases
def test_a_change_of_many(bench: Bench) -> None:
    ids = steps(bench, 3)
    running = int(bench.step("running").priority("high").schedule())
    plan = bench.jobs.update_tasks({"kind": "Step"}, priority="low", dry_run=True)
    assert sorted(plan.ids) == [*ids, running]
    done = bench.jobs.update_tasks({"payload": {"name": "s1"}}, fields={"name": "other"}, priority="high")
    assert done.ids == [ids[1]]
    assert "other" in bench.drain()
    assert bench.jobs.update_tasks({"kind": "Step"}, priority="low").ids == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda jobs: jobs.cancel_tasks(), "say which tasks"),
        (lambda jobs: jobs.cancel_tasks(kind=[]), "say which tasks"),
        (lambda jobs: jobs.cancel_tasks(colour="red"), "there is no filter colour"),
        (lambda jobs: jobs.cancel_tasks(status="success"), "success tasks cannot be chosen here"),
        (lambda jobs: jobs.retry_tasks(status="success"), "success tasks cannot be chosen here"),
        (lambda jobs: jobs.cancel_tasks(status="gone"), "there is no state 'gone'"),
        (lambda jobs: jobs.cancel_tasks(kind="Step", limit=0), "limit must be"),
        (lambda jobs: jobs.cancel_tasks(payload=3), "payload must map"),
        (lambda jobs: jobs.cancel_tasks(key=3), "key must be a text"),
        (lambda jobs: jobs.update_tasks({"kind": "Step"}), "say what to change"),
    ],
)
def test_wrong_filters_change_nothing(bench: Bench, call: Any, text: str) -> None:
    task_id = int(bench.jobs.task(Step("a")).schedule())
    with pytest.raises(ConfigError, match=text):
        call(bench.jobs)
    assert bench.states(task_id) == ["scheduled"]


def test_a_rate_bounds_each_verb(bench: Bench) -> None:
    ids = steps(bench, 7)
    waits: list[float] = []
    wanted = TaskFilter((only("kind", "Step"),))
    run = bulk.Run(rate=3, wait=waits.append)
    assert bulk.change(bench.jobs.desk, wanted, {"queue": "slow"}, run).size == 7
    assert waits == [1.0, 1.0]  # three a second, and the last one needs no wait
    assert bulk.cancel(bench.jobs.desk, wanted, run).changed == [*sorted(ids[4:]), *sorted(ids[1:4]), ids[0]]
    assert waits == [1.0] * 4
    assert bulk.rerun(bench.jobs.desk, wanted, run._replace(limit=4)).size == 4
    assert len(waits) == 5
    with pytest.raises(ConfigError, match="tasks a second"):
        bench.jobs.cancel_tasks(kind="Step", rate=0)


def test_a_batch_has_one_savepoint_and_each_task_one_only_if_one_is_refused(bench: Bench) -> None:
    made: list[str] = []
    sa.event.listen(bench.jobs.database.open(), "savepoint", lambda _connection, name: made.append(name))
    bench.die(*"abc")
    bench.script.failing.clear()
    bench.clock.advance(1)
    wanted = TaskFilter((only("kind", "Step"),))
    made.clear()
    assert bulk.retry(bench.jobs.desk, wanted).size == 3
    assert len(made) == 1
    bench.drain()
    (keyed,) = bench.die("keyed", key="k")
    other = bench.die("other")
    bench.script.failing.clear()
    bench.clock.advance(1)
    holder = bench.jobs.task(Step("holder")).key("k").schedule()
    made.clear()
    done = bulk.retry(bench.jobs.desk, wanted)
    assert (done.conflicts, done.changed) == ({keyed: int(holder)}, other)
    assert len(made) == 1 + 2


def test_a_rate_holds_for_dead_letters(bench: Bench) -> None:
    bench.die(*"abcde")
    waits: list[float] = []
    run = bulk.Run(rate=2, wait=waits.append)
    bench.clock.advance(1)
    assert bulk.replay(bench.jobs.desk, TaskFilter(()), run._replace(limit=3)).size == 3
    assert bulk.purge(bench.jobs.desk, TaskFilter(()), run).size == 2
    assert waits == [1.0]


def test_a_rerun_of_many_runs_each_once(bench: Bench) -> None:
    top = int(bench.step("top").schedule())
    below = int(bench.step("below", top).schedule())
    other = int(bench.jobs.task(Soft("other")).schedule())
    bench.drain()
    assert bench.states(top, below, other) == ["success"] * 3
    plan = bench.jobs.rerun_tasks("kind:Step", dry_run=True)
    assert (sorted(plan.ids), plan.kinds, plan.dry_run) == ([top, below], {"Step": {"success": 2}}, True)
    assert bench.states(top, below) == ["success"] * 2
    done = bench.jobs.rerun_tasks("kind:Step")
    assert done.ids == [top]  # the one below it runs again with it
    assert bench.states(top, below, other) == ["scheduled", "waiting", "success"]
    bench.drain()
    assert [bench.jobs.get_task(i).attempt for i in (top, below, other)] == [2, 2, 1]
    assert bench.jobs.rerun_tasks("kind:Step", downstream=False).ids == [top, below]


def test_a_rerun_of_many_leaves_what_cannot_run_again(bench: Bench) -> None:
    keyed = int(bench.step("keyed").key("k", retention=0).schedule())
    bench.drain()
    holder = int(bench.step("holder").key("k").schedule())
    parent = int(bench.step("parent").schedule())
    bench.drain()
    assert bench.states(keyed, holder, parent) == ["success"] * 3
    again = int(bench.step("again").key("k2").schedule())
    done = bench.jobs.rerun_tasks(ids=[keyed, parent, again])
    assert done.ids == [parent]
    assert done.conflicts == {keyed: holder}


def test_a_retry_of_many_says_the_state_before_it(bench: Bench) -> None:
    (dead,) = bench.die("a")
    bench.jobs.retry_tasks(kind="Step")
    (entry,) = bench.jobs.audit(dead, action="retry")
    assert entry.before == TaskState.DEAD
