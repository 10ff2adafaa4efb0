"""What a parent's end does to its children: every cell, whether it ends before or after they are stored."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import pytest

from scheduler import Context, RetryPolicy
from scheduler.model.state import Otherwise, When
from support.bench import Bench, Soft, Step

# What becomes of the child, written out from the table of the design.
#   parent's end, when:     otherwise = fail, skip, run, wait
TABLE = {
    ("success", "success"): ("success", "success", "success", "success"),
    ("success", "failure"): ("failed", "skipped", "success", "waiting"),
    ("success", "finished"): ("success", "success", "success", "success"),
    ("failed", "success"): ("failed", "skipped", "success", "waiting"),
    ("failed", "failure"): ("success", "success", "success", "success"),
    ("failed", "finished"): ("success", "success", "success", "success"),
    ("dead", "success"): ("failed", "skipped", "success", "waiting"),
    ("dead", "failure"): ("success", "success", "success", "success"),
    ("dead", "finished"): ("success", "success", "success", "success"),
    ("cancelled", "success"): ("failed", "skipped", "success", "waiting"),
    ("cancelled", "failure"): ("success", "success", "success", "success"),
    ("cancelled", "finished"): ("success", "success", "success", "success"),
    ("skipped", "success"): ("skipped", "skipped", "success", "waiting"),
    ("skipped", "failure"): ("skipped", "skipped", "success", "waiting"),
    ("skipped", "finished"): ("success", "success", "success", "success"),
}
ENDS = ("success", "failed", "dead", "cancelled", "skipped")
CELLS = [(when.value, otherwise.value) for when in When for otherwise in Otherwise]


class Fate(NamedTuple):
    """What is recorded of a child in the end."""

    state: str
    error: str | None = None
    error_class: str | None = None
    ended_by: int | None = None
    finished_at: datetime | None = None
    attempts: int = 0


def begin(bench: Bench, end: str) -> int:
    """A task that will end like this, once :func:`finish` lets it."""
    if end == "skipped":
        return int(bench.step("parent", bench.step("gate").schedule(), when="failure").schedule())
    if end in ("failed", "dead"):
        bench.script.failing.add("parent")
    kind = Soft if end == "failed" else Step
    return int(bench.jobs.task(kind("parent")).schedule())


def finish(bench: Bench, parent: int, end: str) -> None:
    if end == "cancelled":
        bench.jobs.cancel_task(parent)
    bench.drain()
    assert bench.state(parent) == end


def children(bench: Bench, parent: int) -> list[int]:
    """One child for every cell."""
    return [int(bench.step(f"{w} {o}", parent, when=w, otherwise=o).schedule()) for w, o in CELLS]


def fates(bench: Bench, ids: list[int]) -> list[Fate]:
    found = []
    for t in map(bench.jobs.get_task, ids):
        attempts = len(bench.jobs.get_attempts(t.id))
        assert t.unmet == (1 if t.state == "waiting" else t.unmet)
        found.append(Fate(t.state.value, t.error, t.error_class, t.ended_by, t.finished_at, attempts))
    return found


def expected(end: str, parent: int, now: datetime) -> list[Fate]:
    fate = {
        "success": Fate("success", finished_at=now, attempts=1),
        "waiting": Fate("waiting"),
        "failed": Fate("failed", f"not run: task {parent} ended {end}", "DependencyFailed", parent, now),
        "skipped": Fate("skipped", f"skipped: task {parent} ended {end}", "DependencyFailed", parent, now),
    }
    return [fate[TABLE[end, when][list(Otherwise).index(Otherwise(other))]] for when, other in CELLS]


@pytest.mark.case(35)
@pytest.mark.parametrize("end", ENDS)
def test_parent_ends_after_its_children_were_scheduled(bench: Bench, end: str) -> None:
    parent = begin(bench, end)
    ids = children(bench, parent)
    assert bench.states(*ids) == ["waiting"] * len(CELLS)
    finish(bench, parent, end)
    assert fates(bench, ids) == expected(end, parent, bench.clock.datetime)
    assert bench.drain() == []


@pytest.mark.case(33, 35)
@pytest.mark.parametrize("end", ENDS)
def test_parent_had_ended_when_its_children_were_scheduled(bench: Bench, end: str) -> None:
    parent = begin(bench, end)
    finish(bench, parent, end)
    ids = children(bench, parent)
    at_once = [{"success": "scheduled"}.get(f.state, f.state) for f in expected(end, parent, 0)]
    assert bench.states(*ids) == at_once  # in the transaction that stores them, with no engine about
    bench.drain()
    assert fates(bench, ids) == expected(end, parent, bench.clock.datetime)


@pytest.mark.case(35)
@pytest.mark.parametrize(("cause", "end"), [("dead", "failed"), ("success", "skipped")])
def test_parent_ends_in_the_batch_that_stores_both(bench: Bench, cause: str, end: str) -> None:
    root = bench.ended(cause)
    with bench.jobs.batch() as batch:
        parent = batch.task(Step("parent")).depend_on(root, when="success" if cause == "dead" else "failure")
        for when, other in CELLS:
            batch.task(Step(f"{when} {other}")).depend_on(parent, when=when, otherwise=other)
    assert bench.state(batch.ids[0]) == end
    bench.drain()
    ids = [int(i) for i in batch.ids[1:]]
    assert fates(bench, ids) == expected(end, int(batch.ids[0]), bench.clock.datetime)


@pytest.mark.case(35)
@pytest.mark.parametrize("end", ENDS)
def test_otherwise_by_default(bench: Bench, end: str) -> None:
    """fail for success, skip for failure."""
    parent = begin(bench, end)
    before = [bench.step(f"before {when}", parent, when=when).schedule() for when in When]
    finish(bench, parent, end)
    after = [bench.step(f"after {when}", parent, when=when).schedule() for when in When]
    bench.drain()
    cells = [TABLE[end, "success"][0], TABLE[end, "failure"][1], TABLE[end, "finished"][0]]
    assert bench.states(*before) == bench.states(*after) == cells


@pytest.mark.case(35)
def test_parent_that_only_retries_releases_nothing(bench: Bench) -> None:
    tries: list[int] = []

    def body(ctx: Context) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    bench.script.bodies["parent"] = body
    parent = bench.step("parent").with_retry(RetryPolicy(10, 10, max_attempts=3, jitter=0)).schedule()
    ids = children(bench, int(parent))
    for number in (1, 2):
        bench.drain()
        assert bench.state(parent) == "retry"
        assert bench.states(*ids) == ["waiting"] * len(CELLS)
        late = bench.step("late", parent, when="finished").schedule()
        assert bench.state(late) == "waiting"
        assert tries == list(range(1, number + 1))
        bench.clock.advance(10)
    bench.drain()
    assert tries == [1, 2, 3]
    assert bench.state(late) == "success"
    assert fates(bench, ids) == expected("success", int(parent), bench.clock.datetime)


@pytest.mark.case(35)
def test_failing_weighs_more_than_skipping(bench: Bench) -> None:
    """Two edges that break in the same moment, whichever was named first."""
    parent = begin(bench, "dead")
    skipped = bench.step("skipped", parent, otherwise="skip").schedule()
    failed = bench.step("failed", parent, otherwise="fail").schedule()
    orders = ((skipped, failed), (failed, skipped))
    later = [int(bench.step("later", *order).schedule()) for order in orders]
    finish(bench, parent, "dead")
    sooner = [int(bench.step("sooner", *order).schedule()) for order in ((skipped, failed), (failed, skipped))]
    assert bench.states(skipped, failed, *later, *sooner) == ["skipped"] + ["failed"] * 5
    for child in (*later, *sooner):
        assert bench.jobs.get_task(child).ended_by == failed
        assert bench.jobs.get_last_error(child) == f"not run: task {failed} ended failed"


@pytest.mark.case(35)
def test_a_broken_edge_beats_one_that_is_satisfied_in_the_same_moment(bench: Bench) -> None:
    parent = begin(bench, "dead")
    ends = bench.step("ends", parent).schedule()
    child = bench.jobs.task(Step("child")).depend_on(parent, when="failure").depend_on(ends).schedule()
    finish(bench, parent, "dead")
    assert bench.states(ends, child) == ["failed", "failed"]
    assert "child" not in bench.script.ran


@pytest.mark.both_databases
@pytest.mark.case(35)
def test_run_tells_the_child_what_failed(bench: Bench) -> None:
    failures: list[dict[int, str]] = []
    bench.script.bodies["child"] = lambda ctx: failures.append(ctx.dependency_failures())
    dead, good = bench.ended("dead"), bench.ended("success")
    bench.step("child", dead, good, otherwise="run").schedule()
    bench.drain()
    assert failures == [{dead: "dead: PermanentError: ends dead failed"}]


@pytest.mark.case(35)
def test_only_the_root_cause_is_a_dead_letter(bench: Bench) -> None:
    """A long way down: each ends by its parent, none is dead but the first."""
    bench.script.failing.add("0")
    ids: list[Any] = [bench.step("0").schedule()]
    for depth in range(1, 30):
        ids.append(bench.step(str(depth), ids[-1]).schedule())
    after = bench.step("cleanup", ids[-1], when="failure").schedule()
    skipped = bench.step("unless", ids[-1], otherwise="skip").schedule()
    under = bench.step("under", skipped).schedule()
    assert bench.drain() == ["0", "cleanup"]
    assert bench.states(*ids) == ["dead"] + ["failed"] * 29
    assert [bench.jobs.get_task(i).ended_by for i in ids] == [None, *ids[:-1]]
    assert bench.states(after, skipped, under) == ["success", "skipped", "skipped"]
