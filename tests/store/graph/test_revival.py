"""Retrying a parent brings back what ended because of it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import InvalidTransitionError, RetryPolicy, Snooze, UnknownTaskError
from scheduler.store.admin import doctor as checks
from support.bench import Bench, Side, Soft, Step, notify_and_step, run_claimed, wait_until_blocked_or_ended

REVIVABLE = ("dead", "failed", "cancelled")


def mend(bench: Bench, *names: str) -> None:
    bench.script.failing -= set(names)


def dies(bench: Bench, name: str, **edges: Any) -> int:
    bench.script.failing.add(name)
    return int(bench.step(name).schedule())


@pytest.mark.case(36)
@pytest.mark.parametrize("end", REVIVABLE)
def test_the_whole_way_down_comes_back(bench: Bench, end: str) -> None:
    if end != "cancelled":
        bench.script.failing.add("parent")
    parent = int(bench.jobs.task((Soft if end == "failed" else Step)("parent")).after(5).schedule())
    child = bench.step("child", parent).schedule()
    skips = bench.step("skips", parent, otherwise="skip").schedule()
    below = bench.step("below", child, skips).schedule()
    cleans = bench.step("cleans", parent, when="failure").schedule()
    if end == "cancelled":
        bench.jobs.cancel_task(parent)
    assert bench.advance(5) == (["cleans"] if end == "cancelled" else ["parent", "cleans"])
    assert bench.states(parent, child, skips, below, cleans) == [end, "failed", "skipped", "failed", "success"]

    bench.clock.advance(100)
    mend(bench, "parent")
    bench.jobs.retry_task(parent)
    assert bench.states(parent, child, skips, below, cleans) == ["scheduled", *["waiting"] * 3, "success"]
    for revived in map(bench.jobs.get_task, (child, skips, below)):
        assert (revived.error, revived.error_class, revived.ended_by, revived.finished_at) == (None,) * 4
        assert revived.unmet == (2 if revived.id == below else 1)
    ran = bench.drain()
    assert (ran[0], set(ran[1:3]), ran[3:]) == ("parent", {"child", "skips"}, ["below"])
    assert bench.states(parent, child, skips, below) == ["success"] * 4


@pytest.mark.case(36)
def test_without_downstream_only_itself(bench: Bench) -> None:
    parent = dies(bench, "parent")
    child = bench.step("child", parent).schedule()
    bench.drain()
    mend(bench, "parent")
    bench.jobs.retry_task(parent, downstream=False)
    assert bench.drain() == ["parent"]
    assert bench.states(parent, child) == ["success", "failed"]


@pytest.mark.case(36)
def test_two_dead_parents_one_retried(bench: Bench) -> None:
    one, two = dies(bench, "one"), dies(bench, "two")
    child = bench.step("child", one, two).schedule()
    below = bench.step("below", child).schedule()
    bench.drain()
    assert bench.jobs.get_task(child).ended_by == one
    mend(bench, "one", "two")
    bench.jobs.retry_task(one)
    assert bench.states(child, below) == ["failed", "failed"]  # judged again: the other one is still dead
    assert bench.jobs.get_task(child).ended_by == two
    assert bench.jobs.get_last_error(child) == f"not run: task {two} ended dead"
    assert bench.drain() == ["one"]
    bench.jobs.retry_task(two)
    assert bench.drain() == ["two", "child", "below"]


@pytest.mark.case(36)
def test_the_other_one_of_two_dead_parents_retried(bench: Bench) -> None:
    """It is not what ended the child, but the child is judged anew once the one that did is retried, too."""
    one, two = dies(bench, "one"), dies(bench, "two")
    child = bench.step("child", one, two).schedule()
    bench.drain()
    mend(bench, "one", "two")
    bench.jobs.retry_task(two)
    assert bench.drain() == ["two"]
    assert bench.state(child) == "failed"
    bench.jobs.retry_task(one)
    assert bench.drain() == ["one", "child"]


@pytest.mark.case(36)
def test_a_finished_child_with_another_open_parent(bench: Bench) -> None:
    """Its first parent is retried before the other ends: it waits for both again."""
    first = dies(bench, "first")
    other = bench.step("other").after(10).schedule()
    child = bench.step("child", first, other, when="finished").schedule()
    bench.drain()
    assert (bench.state(child), bench.jobs.get_task(child).unmet) == ("waiting", 1)
    bench.script.bodies["first"] = lambda ctx: None
    bench.jobs.set_retry_policy(other, RetryPolicy())
    bench.execute("UPDATE schedd_tasks SET run_at = run_at + 60000000 WHERE id = :id", id=first)
    bench.jobs.retry_task(first)
    assert (bench.state(child), bench.jobs.get_task(child).unmet) == ("waiting", 2)
    notify_and_step(bench.jobs)  # first is claimed
    bench.clock.advance(10)
    notify_and_step(bench.jobs)
    assert (bench.state(other), bench.state(child)) == ("claimed", "waiting")
    assert sorted(bench.drain()[:2]) == ["first", "other"]
    assert bench.state(child) == "success"


@pytest.mark.case(36)
def test_a_ready_child_waits_again(bench: Bench) -> None:
    """It was due later and had not started when its parent was retried."""
    parent = dies(bench, "parent")
    finished = bench.step("finished", parent, when="finished").after(60).schedule()
    cleans = bench.step("cleans", parent, when="failure").after(60).schedule()
    bench.drain()
    assert bench.states(finished, cleans) == ["scheduled", "scheduled"]
    mend(bench, "parent")
    bench.jobs.retry_task(parent)
    assert bench.states(finished, cleans) == ["waiting", "waiting"]
    assert bench.drain() == ["parent"]
    assert bench.states(finished, cleans) == ["scheduled", "skipped"]
    assert bench.advance(60) == ["finished"]


@pytest.mark.case(36)
@pytest.mark.parametrize("kept", ["claimed", "retry", "scheduled", "success", "dead"])
def test_children_that_have_started_are_left_alone(bench: Bench, kept: str) -> None:
    parent = dies(bench, "parent")
    child = int(bench.step("child", parent, when="finished").with_retry(RetryPolicy(10, 10, jitter=0)).schedule())

    def body(ctx: Any) -> None:
        if kept == "scheduled" and ctx.attempt == 1 and len(bench.script.ran) < 3:
            raise Snooze(60)
        if kept == "retry" and ctx.attempt == 1:
            raise ValueError

    bench.script.bodies["child"] = body
    if kept == "dead":
        del bench.script.bodies["child"]
        bench.script.failing.add("child")
    if kept == "claimed":
        notify_and_step(bench.jobs)
        run_claimed(bench.jobs)
        notify_and_step(bench.jobs)
    else:
        bench.drain()
    assert bench.state(child) == kept
    before = bench.jobs.get_task(child)
    mend(bench, "parent")
    bench.jobs.retry_task(parent)
    assert bench.jobs.get_task(child) == before
    bench.drain()
    bench.advance(60)
    assert bench.state(child) == ("dead" if kept == "dead" else "success")
    assert bench.state(parent) == "success"


@pytest.mark.case(36)
def test_a_waiting_edge_is_satisfied_by_the_retry(bench: Bench) -> None:
    parent = dies(bench, "parent")
    child = bench.step("child", parent, otherwise="wait").schedule()
    late = None
    for _ in range(2):
        bench.drain()
        late = late or bench.step("late", parent, otherwise="wait").schedule()
        assert bench.states(child, late) == ["waiting", "waiting"]
        assert bench.jobs.get_task(child).unmet == 1
        bench.jobs.retry_task(parent)
    mend(bench, "parent")
    assert bench.drain() == ["parent", "child", "late"]


@pytest.mark.case(36)
def test_a_task_ended_when_it_was_stored_comes_back(bench: Bench) -> None:
    parent = dies(bench, "parent")
    bench.drain()
    with bench.jobs.batch() as batch:
        child = batch.task(Step("child")).depend_on(parent)
        batch.task(Step("below")).depend_on(child)
    assert bench.states(*batch.ids) == ["failed", "failed"]
    mend(bench, "parent")
    bench.jobs.retry_task(parent)
    assert bench.drain() == ["parent", "child", "below"]


@pytest.mark.case(36)
def test_dies_again(bench: Bench) -> None:
    parent = dies(bench, "parent")
    child = bench.step("child", parent).schedule()
    below = bench.step("below", child, when="finished").schedule()
    bench.drain()
    for _ in range(3):
        bench.jobs.retry_task(parent)
        bench.drain()
    assert bench.states(parent, child, below) == ["dead", "failed", "success"]
    assert bench.script.ran == ["parent", "below", "parent", "parent", "parent"]
    assert [a.number for a in bench.jobs.get_attempts(parent)] == [1, 2, 3, 4]
    mend(bench, "parent")
    bench.jobs.retry_task(parent)
    assert bench.drain() == ["parent", "child"]


@pytest.mark.case(36)
def test_retrying_the_child_is_judged_by_its_parents(bench: Bench) -> None:
    parent = dies(bench, "parent")
    child = int(bench.step("child", parent).schedule())
    bench.drain()
    bench.jobs.retry_task(child)
    assert bench.state(child) == "failed"
    assert bench.jobs.get_task(child).ended_by == parent
    mend(bench, "parent")
    bench.jobs.retry_task(parent, downstream=False)
    bench.drain()
    bench.jobs.retry_task(child)
    assert bench.drain() == ["child"]


@pytest.mark.case(36)
def test_a_diamond_comes_back_once(bench: Bench) -> None:
    top = dies(bench, "top")
    left, right = bench.step("left", top).schedule(), bench.step("right", top).schedule()
    bottom = bench.step("bottom", left, right).schedule()
    bench.drain()
    mend(bench, "top")
    bench.jobs.retry_task(top)
    assert bench.jobs.get_task(bottom).unmet == 2
    ran = bench.drain()
    assert sorted(ran) == ["bottom", "left", "right", "top"]
    assert ran[-1] == "bottom"


@pytest.mark.case(36)
def test_of_a_cascaded_cancel_only_the_task_itself_comes_back(bench: Bench) -> None:
    """What cascade cancelled was cancelled, it did not end by its edges; each can be retried by itself."""
    parent = int(bench.step("parent").after(5).schedule())
    child = int(bench.step("child", parent).schedule())
    bench.jobs.cancel_task(parent, cascade=True)
    bench.jobs.retry_task(parent)
    assert bench.drain() == ["parent"]
    assert bench.states(parent, child) == ["success", "cancelled"]
    bench.jobs.retry_task(child)
    assert bench.drain() == ["child"]


@pytest.mark.case(30, 36)
@pytest.mark.parametrize("taken", [False, True])
def test_keys_are_held_again_if_they_are_free(bench: Bench, taken: bool) -> None:
    parent = dies(bench, "parent")
    child = int(bench.step("child", parent).key("k").schedule())
    bench.drain()
    other = bench.step("other").key("k").after(60).schedule() if taken else None
    mend(bench, "parent")
    bench.jobs.retry_task(parent)
    again = bench.step("again").key("k").schedule()
    assert (again, again.created) == (other if taken else child, False)
    assert bench.drain() == (["parent"] if taken else ["parent", "child"])


@pytest.mark.case(16, 23)
def test_what_is_due_keeps_its_place(bench: Bench) -> None:
    order = (("3", 60), ("2", 5), ("1", 0))  # by their ids, in which they would run if all were due now
    ids = [bench.step(name).after(delay).schedule() for name, delay in order]
    bench.clock.advance(10)
    for task_id in ids:
        bench.jobs.retry_task(task_id)
    assert bench.drain() == ["1", "2", "3"]


@pytest.mark.case(23)
def test_what_cannot_be_retried(bench: Bench) -> None:
    done, waits = bench.ended("success"), bench.step("waits", bench.step("open").after(5).schedule()).schedule()
    with pytest.raises(UnknownTaskError):
        bench.jobs.retry_task(99)
    for task_id in (done, waits):
        with pytest.raises(InvalidTransitionError, match=str(task_id)):
            bench.jobs.retry_task(task_id)
    assert bench.states(done, waits) == ["success", "waiting"]


@pytest.mark.case(35, 36)
def test_a_claim_that_went_back_keeps_its_edges_as_they_were(bench: Bench) -> None:
    """Whether its handler had begun is unknown: its edges no longer count, and doctor leaves them out, too."""
    parent = bench.ended("dead")
    child = int(bench.step("child", parent, when="failure").schedule())
    notify_and_step(bench.jobs)
    assert bench.state(child) == "claimed"
    bench.jobs.retry_task(parent)
    bench.clock.advance(2)
    bench.script.failing = set()
    bench.execute("UPDATE schedd_tasks SET run_at = run_at + 60000000 WHERE id = :id", id=child)
    notify_and_step(bench.jobs)
    assert bench.state(child) == "scheduled"
    another = int(bench.step("another").schedule())
    with pytest.raises(InvalidTransitionError):
        bench.jobs.add_dependency(child, another)
    with bench.jobs.database.read() as tx:
        assert checks.wrong_counts(tx) == []
    bench.drain()
    assert bench.advance(60) == ["child"]


@pytest.mark.case(4, 36)
def test_what_it_did_to_its_workers_is_forgotten(bench: Bench) -> None:
    task_id = dies(bench, "task")
    bench.drain()
    bench.execute("UPDATE schedd_tasks SET suspect = 3, deaths = 3, lane = '!' || lane")
    bench.jobs.retry_task(task_id)
    with bench.jobs.database.read() as tx:
        left = tx.connection.exec_driver_sql("SELECT suspect, deaths, lane FROM schedd_tasks").one()
    assert tuple(left) == (0, 0, "Step")


on_postgres = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)


def statements_of(bench: Bench, work: Callable[[], object]) -> int:
    """How many statements a caller's work takes."""
    seen: list[object] = []

    def before(*given: Any) -> None:
        seen.append(given)

    engine = bench.jobs.database.open()
    sa.event.listen(engine, "before_cursor_execute", before)
    work()
    sa.event.remove(engine, "before_cursor_execute", before)
    return len(seen)


@pytest.mark.case(36)
def test_reviving_many_takes_few_statements(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.script.failing.add("root")
    root = bench.step("root").schedule()
    with bench.jobs.batch() as batch:
        for i in range(300):
            made = batch.task(Step(f"child{i}")).depend_on(root)
            if i % 100 == 0:
                made.key(f"key{i}")
    bench.drain()
    bench.script.failing.clear()
    taken = bench.step("other").key("key100").schedule()
    assert statements_of(bench, lambda: bench.jobs.retry_task(root)) < 60
    bench.drain()
    refused = batch.ids[100]  # another task has its key
    assert bench.states(refused) == ["failed"]
    assert set(bench.states(root, taken, *(i for i in batch.ids if i != refused))) == {"success"}
    assert bench.jobs.list_tasks(key="key0")[0].state == "success"


@pytest.mark.case(30, 36, 70)
def test_reviving_a_long_chain_with_keys_takes_few_statements(bench: Bench) -> None:
    """Two of them have one key: the first has it again, and the second stays as it ended, with what waits for it."""
    (root,) = bench.die("root")
    chain = [root]
    with bench.jobs.batch() as batch:
        above: Any = root
        for i in range(60):
            above = batch.task(Step(f"link{i}")).depend_on(above)
            above.key(f"key{i}")
    chain += map(int, batch.ids)
    assert set(bench.states(*chain[1:])) == {"failed"}
    bench.execute("UPDATE schedd_tasks SET key = 'key3' WHERE id = :id", id=chain[40])
    assert statements_of(bench, lambda: bench.jobs.retry_task(root)) < 30
    assert set(bench.states(*chain[1:40])) == {"waiting"}
    assert set(bench.states(*chain[40:])) == {"failed"}
    assert bench.step("again").key("key3").schedule() == chain[4]
    bench.script.failing.clear()
    assert bench.drain() == ["root", *(f"link{i}" for i in range(39))]


@on_postgres
@pytest.mark.case(30, 36, 70)
def test_a_key_that_is_taken_while_its_task_is_revived(bench: Bench) -> None:
    (root,) = bench.die("root")
    with bench.jobs.batch() as batch:
        for i in range(3):
            batch.task(Step(f"child{i}")).depend_on(root).key(f"key{i}")
    caller, other = bench.worker(), bench.worker()
    with caller.database.write() as tx:
        taken = caller.task(Step("other")).key("key1").after(60).schedule(connection=tx.connection)
        side = Side(lambda: other.retry_task(root))
        wait_until_blocked_or_ended(bench, side)
    side.result()
    assert bench.states(*batch.ids) == ["waiting", "failed", "waiting"]
    again = [bench.step("again").key(f"key{i}").schedule() for i in range(3)]
    assert again == [batch.ids[0], taken, batch.ids[2]]
