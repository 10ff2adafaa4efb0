"""Edges: order, joins, due times, parents in every state, cycles, cancelling, and what a restart keeps."""

from __future__ import annotations

import pytest

from scheduler import (
    ConfigError,
    Context,
    CycleError,
    DuplicateKeyError,
    InvalidTransitionError,
    Snooze,
    UnknownDependencyError,
    UnknownTaskError,
)
from scheduler.testing import drain
from support.bench import Bench, Soft, Step, notify_and_step

LONG = 10**9


@pytest.mark.case(31)
def test_chain_in_order(bench: Bench) -> None:
    last = bench.step("0").schedule()
    for depth in range(1, 20):
        last = bench.step(str(depth), last).schedule()
    assert bench.drain() == [str(depth) for depth in range(20)]


@pytest.mark.case(31)
def test_join_waits_for_all(bench: Bench) -> None:
    bench.clock.advance(0)
    parents = [bench.step(f"p{n}").after(n).schedule() for n in range(3)]
    child = bench.step("child", *parents).schedule()
    assert bench.jobs.get_task(child).unmet == 3
    assert bench.drain() == ["p0"]
    assert bench.jobs.get_task(child).unmet == 2
    assert bench.advance(1) == ["p1"]
    assert bench.state(child) == "waiting"
    assert bench.advance(1) == ["p2", "child"]


@pytest.mark.case(31)
def test_diamond(bench: Bench) -> None:
    top = bench.step("top").schedule()
    left, right = bench.step("left", top).schedule(), bench.step("right", top).schedule()
    bench.step("bottom", left, right).schedule()
    ran = bench.drain()
    assert (ran[0], set(ran[1:3]), ran[3:]) == ("top", {"left", "right"}, ["bottom"])


@pytest.mark.case(31)
def test_a_thousand_wide(bench: Bench) -> None:
    with bench.jobs.batch() as batch:
        source = batch.task(Step("source"))
        middle = [batch.task(Step(str(n))).depend_on(source) for n in range(1000)]
        batch.task(Step("sink")).depend_on(middle)
    ran = bench.drain()
    assert (ran[0], ran[-1]) == ("source", "sink")
    assert sorted(map(int, ran[1:-1])) == list(range(1000))
    assert {t.state.value for t in bench.jobs.list_tasks(limit=2000)} == {"success"}


@pytest.mark.case(31)
def test_a_batch_out_of_creation_order(bench: Bench) -> None:
    with bench.jobs.batch() as batch:
        last, first = batch.task(Step("last")), batch.task(Step("first"))
        last.depend_on(batch.task(Step("middle")).depend_on(first))
    assert bench.drain() == ["first", "middle", "last"]
    assert [t.state for t in map(bench.jobs.get_task, batch.ids)] == ["success"] * 3


@pytest.mark.case(32)
def test_edge_and_due_time(bench: Bench) -> None:
    parent = bench.step("parent").after(10).schedule()
    later = bench.step("later", parent).after(60).schedule()
    sooner = bench.step("sooner", parent).after(5).schedule()
    assert bench.advance(9) == []
    assert bench.advance(1) == ["parent", "sooner"]
    assert bench.states(later, sooner) == ["scheduled", "success"]
    assert bench.advance(49) == []
    assert bench.advance(1) == ["later"]


@pytest.mark.case(33)
def test_parent_finished_already(bench: Bench) -> None:
    parent = bench.ended("success")
    child = bench.step("child", parent).schedule()
    assert bench.state(child) == "scheduled"
    assert bench.drain() == ["child"]


@pytest.mark.case(33)
def test_unknown_parent_stores_nothing(bench: Bench) -> None:
    known = bench.step("known").schedule()
    with pytest.raises(UnknownDependencyError, match="41, 42") as caught:
        bench.step("child", known, 41, 42).schedule()
    assert caught.value.parent_ids == (41, 42)
    batch = bench.jobs.batch()
    batch.task(Step("one"))
    batch.task(Step("two")).depend_on(99)
    with pytest.raises(UnknownDependencyError), batch:
        pass
    assert [t.id for t in bench.jobs.list_tasks()] == [known]


@pytest.mark.case(33)
@pytest.mark.parametrize("end", ["success", "dead", "failed", "cancelled", "skipped"])
def test_parent_removed_by_retention_counts_by_its_outcome(bench: Bench, end: str) -> None:
    retention = {"success": 10.0, "failed": 10.0, "outcomes": float(LONG)}
    bench.worker(retention=retention)
    parent = bench.ended(end, Soft if end == "failed" else Step)
    before = [int(bench.step(when, parent, when=when).schedule()) for when in ("success", "failure")]
    bench.drain()
    bench.clock.advance(25 * 3600)
    bench.drain()
    for gone in (parent, *before):
        with pytest.raises(UnknownTaskError):
            bench.jobs.get_task(gone)
    good = bench.step("good", parent).schedule()
    bad = bench.step("bad", parent, when="failure").schedule()
    expected = {"success": ("success", "skipped"), "skipped": ("skipped", "skipped")}
    bench.drain()
    assert tuple(bench.states(good, bad)) == expected.get(end, ("failed", "success"))


@pytest.mark.case(33)
def test_retention_leaves_a_parent_that_a_task_waits_for(bench: Bench) -> None:
    bench.worker(retention={"success": 10.0, "failed": 10.0, "outcomes": float(LONG)})
    dead = bench.ended("dead")
    waits = bench.step("waits", dead, otherwise="wait").schedule()
    bench.clock.advance(25 * 3600)
    bench.drain()
    assert bench.states(dead, waits) == ["dead", "waiting"]
    bench.script.failing.clear()
    bench.jobs.retry_task(dead)
    assert bench.drain() == ["ends dead", "waits"]


@pytest.mark.case(34)
def test_cycles_by_add_dependency(bench: Bench) -> None:
    a, b, c = (int(bench.step(name).schedule()) for name in "abc")
    with pytest.raises(CycleError) as caught:
        bench.jobs.add_dependency(a, a)
    assert caught.value.path == (a, a)
    bench.jobs.add_dependency(b, a)
    with pytest.raises(CycleError) as caught:
        bench.jobs.add_dependency(a, b)
    assert caught.value.path == (a, b, a)
    bench.jobs.add_dependency(c, b)
    with pytest.raises(CycleError) as caught:
        bench.jobs.add_dependency(a, c, when="finished")
    assert caught.value.path == (a, b, c, a)
    edges = [(e.parent, e.child) for i in (a, b, c) for e in bench.jobs.get_task_dependencies(i)]
    assert edges == [(a, b), (b, c)]
    for task_id in (a, b, c):
        bench.jobs.check_for_cycles(task_id)
    assert bench.drain() == ["a", "b", "c"]


@pytest.mark.case(34)
def test_cycles_in_a_batch(bench: Bench) -> None:
    batch = bench.jobs.batch()
    batch.task(Step("alone"))
    a, b, c = (batch.task(Step(name)) for name in "abc")
    a.depend_on(c)
    b.depend_on(a)
    c.depend_on(b)
    with pytest.raises(CycleError) as caught, batch:
        pass
    path = caught.value.path
    assert path[0] == path[-1]
    assert set(path) == {"Step#1", "Step#2", "Step#3"}
    batch = bench.jobs.batch()
    own = batch.task(Step("own"))
    own.depend_on(own)
    with pytest.raises(CycleError) as caught, batch:
        pass
    assert caught.value.path == ("Step#0", "Step#0")
    assert bench.jobs.list_tasks() == []


@pytest.mark.case(34)
def test_check_for_cycles_finds_one_made_by_other_hands(bench: Bench) -> None:
    a = bench.step("a").schedule()
    b = bench.step("b", a).schedule()
    columns = "(parent, child, on_end, otherwise, ok)"
    bench.execute(f"INSERT INTO schedd_edges {columns} VALUES (:b, :a, 0, 0, 1)", a=int(a), b=int(b))
    with pytest.raises(CycleError) as caught:
        bench.jobs.check_for_cycles(a)
    assert caught.value.path == (a, b, a)


@pytest.mark.case(35)
def test_add_dependency_judges_a_parent_that_has_ended(bench: Bench) -> None:
    good, dead = bench.ended("success"), bench.ended("dead")
    ids = [int(bench.step(f"child {n}").schedule()) for n in range(4)]
    bench.jobs.add_dependency(ids[0], good)
    bench.jobs.add_dependency(ids[1], dead)
    bench.jobs.add_dependency(ids[2], dead, otherwise="wait")
    under = bench.step("under", ids[1]).schedule()
    bench.jobs.add_dependency(ids[3], dead, when="failure")
    assert bench.states(*ids, under) == ["scheduled", "failed", "waiting", "scheduled", "failed"]
    assert bench.drain() == ["child 0", "child 3"]


@pytest.mark.case(35)
def test_add_dependency_again_replaces_the_conditions(bench: Bench) -> None:
    dead, open_parent = bench.ended("dead"), bench.step("open").after(5).schedule()
    child = bench.step("child", dead, otherwise="wait").schedule()
    bench.jobs.add_dependency(child, dead, when="failure")
    assert bench.state(child) == "scheduled"
    bench.jobs.add_dependency(child, open_parent)
    assert (bench.state(child), bench.jobs.get_task(child).unmet) == ("waiting", 1)
    bench.jobs.add_dependency(child, open_parent, when="finished")
    edges = [(e.parent, e.when, e.satisfied) for e in bench.jobs.get_task_dependencies(child)]
    assert edges == [(dead, "failure", True), (open_parent, "finished", False)]
    assert bench.advance(5) == ["open", "child"]


@pytest.mark.case(34, 35)
def test_add_dependency_is_refused_once_claimed(bench: Bench) -> None:
    bench.script.bodies["child"] = lambda ctx: refused(bench, ctx.id, parent)
    parent = int(bench.step("parent").after(60).schedule())
    child = int(bench.step("child").schedule())
    notify_and_step(bench.jobs)
    refused(bench, child, parent)
    assert bench.drain() == ["child"]
    assert bench.state(child) == "success"
    refused(bench, child, parent)
    with pytest.raises(UnknownTaskError):
        bench.jobs.add_dependency(77, parent)
    with pytest.raises(UnknownDependencyError):
        bench.jobs.add_dependency(parent, 77)


@pytest.mark.both_databases
@pytest.mark.case(35)
def test_add_dependency_is_refused_once_started(bench: Bench) -> None:
    def body(ctx: Context) -> None:
        if len(bench.script.ran) == 1:
            raise Snooze(60)

    bench.script.bodies["child"] = body
    parent, child = int(bench.step("parent").after(90).schedule()), int(bench.step("child").schedule())
    assert bench.drain() == ["child"]
    assert bench.state(child) == "scheduled"
    refused(bench, child, parent)
    assert bench.advance(60) == ["child"]


def refused(bench: Bench, child: int, parent: int) -> None:
    with pytest.raises(InvalidTransitionError):
        bench.jobs.add_dependency(child, parent)
    assert bench.jobs.get_task_dependencies(child) == []


def test_conditions_are_checked_when_built(bench: Bench) -> None:
    one = bench.step("one").schedule()
    builder = bench.step("child", one)
    builder.depend_on(one)  # the same again is harmless
    for change in ({"when": "finished"}, {"otherwise": "skip"}, {"when": "ever"}, {"otherwise": "no"}):
        with pytest.raises(ConfigError):
            builder.depend_on(one, **change)
    for wrong in (0, -1, True, "1", bench.jobs.task(Step("elsewhere"))):
        with pytest.raises(ConfigError):
            builder.depend_on([wrong])  # type: ignore[list-item]
    child = builder.schedule()
    assert [e.parent for e in bench.jobs.get_task_dependencies(child)] == [one]


@pytest.mark.case(25, 30)
def test_a_held_key_is_looked_at_before_broken_edges(bench: Bench) -> None:
    dead = bench.ended("dead")
    holder = bench.step("holder").key("k").after(60).schedule()
    again = bench.step("again", dead).key("k").schedule()
    assert (again, again.created) == (holder, False)
    with pytest.raises(DuplicateKeyError) as caught:
        bench.step("again", dead).key("k", conflict="reject").schedule()
    assert caught.value.existing_id == holder
    assert len(bench.jobs.list_tasks()) == 2


@pytest.mark.case(25, 30)
def test_the_key_of_a_task_that_a_broken_edge_ended_is_free(bench: Bench) -> None:
    ended = bench.step("ended", bench.ended("dead")).key("k").schedule()
    assert bench.state(ended) == "failed"
    fresh = bench.step("fresh").key("k").schedule()
    assert fresh.created
    assert fresh != ended


@pytest.mark.case(25)
@pytest.mark.parametrize("stored", [False, True])
def test_two_parents_that_are_one_by_their_key(bench: Bench, stored: bool) -> None:
    holder = bench.step("holder").key("k").schedule() if stored else None
    with bench.jobs.batch() as batch:
        one, two = batch.task(Step("one")).key("k"), batch.task(Step("two")).key("k")
        child = batch.task(Step("child")).depend_on([one, two])
        if holder is not None:
            child.depend_on(holder)
    assert batch.ids[0] == batch.ids[1]
    assert [e.parent for e in bench.jobs.get_task_dependencies(batch.ids[2])] == [batch.ids[0]]
    assert bench.drain() == ["holder" if stored else "one", "child"]


@pytest.mark.case(37)
def test_cancel_without_cascade_ends_dependants_by_otherwise(bench: Bench) -> None:
    parent = bench.step("parent").after(5).schedule()
    child = bench.step("child", parent).schedule()
    below = bench.step("below", child).schedule()
    skips = bench.step("skips", parent, otherwise="skip").schedule()
    runs = bench.step("runs", parent, otherwise="run").schedule()
    cleans = bench.step("cleans", parent, when="failure").schedule()
    logs = bench.step("logs", below, when="finished").schedule()
    done = bench.jobs.cancel_task(parent)
    assert (done.cancelled, done.requested, done.finished) == ((parent,), (), {})
    assert done.affected == tuple(sorted((child, below, skips)))
    assert bench.states(parent, child, below, skips) == ["cancelled", "failed", "failed", "skipped"]
    assert sorted(bench.drain()) == ["cleans", "logs", "runs"]
    assert bench.states(runs, cleans, logs) == ["success"] * 3


@pytest.mark.case(37)
def test_cancel_with_cascade_follows_success_edges(bench: Bench) -> None:
    parent = bench.step("parent").after(5).schedule()
    child = bench.step("child", parent).schedule()
    below = bench.step("below", child).after(60).schedule()
    anyway = bench.step("anyway", child, otherwise="run").schedule()
    cleans = bench.step("cleans", below, when="failure").schedule()
    after = bench.step("after cleans", cleans).schedule()
    logs = bench.step("logs", below, when="finished").schedule()
    done = bench.jobs.cancel_task(parent, cascade=True)
    assert done.cancelled == (parent,)
    assert done.affected == tuple(sorted((child, below, anyway)))
    assert bench.states(parent, child, below, anyway) == ["cancelled"] * 4
    assert sorted(bench.drain()) == ["after cleans", "cleans", "logs"]
    assert bench.states(cleans, after, logs) == ["success"] * 3


@pytest.mark.case(37)
def test_restart_in_the_middle_keeps_every_edge(bench: Bench) -> None:
    """Half of it has run, one task is claimed, and the worker is never heard of again."""
    first = bench.worker(lease=30)
    with first.batch() as batch:
        above = [batch.task(Step(f"0.{n}")) for n in range(4)]
        held = batch.task(Step("held")).after(2)
        for row in range(1, 5):
            here = [batch.task(Step(f"{row}.{n}")) for n in range(4)]
            for n in range(4):
                here[n].depend_on([above[n], above[n - 1]])
            here[0].depend_on(above[2], when="finished")
            if row == 3:
                here[1].depend_on(held)
            above = here
    drain(first)
    bench.clock.advance(2)
    notify_and_step(first)
    assert first.get_task_status(batch.ids[4]) == "claimed"
    edges = {i: first.get_task_dependencies(i) for i in batch.ids}

    second = bench.worker(lease=30)
    before = list(bench.script.ran)
    assert len(before) == 17  # three rows, and what of the others needs no held
    assert {i: second.get_task_dependencies(i) for i in batch.ids} == edges
    for _ in range(4):  # as time passes for a worker that lives: it renews, and reaps who has not
        bench.clock.advance(10)
        drain(second)
    assert {second.get_task_status(i).value for i in batch.ids} == {"success"}
    assert bench.script.ran[:17] == before
    order = {name: place for place, name in enumerate(bench.script.ran)}
    assert len(order) == len(bench.script.ran) == 21  # each handler once
    assert order["held"] < order["3.1"]
    for row in range(1, 5):
        for n in range(4):
            parents = {f"{row - 1}.{n}", f"{row - 1}.{(n - 1) % 4}", f"{row - 1}.{2 if n == 0 else n}"}
            assert order[f"{row}.{n}"] > max(order[parent] for parent in parents)
