"""A run beside the last good one."""

from __future__ import annotations

import pytest

from scheduler import UnknownTaskError
from scheduler.model.compare import FieldChange, changes, pattern, text_diff
from scheduler.model.state import TaskState
from scheduler.ports import SECOND
from scheduler.store.read.compare import Comparison, compare, last_good
from support.bench import Bench, Step


def compared(bench: Bench, task_id: int, other: int | None = None) -> Comparison:
    with bench.jobs.database.read() as tx:
        found = compare(tx, task_id, other)
    assert found is not None
    return found


def good_before(bench: Bench, task_id: int) -> int | None:
    with bench.jobs.database.read() as tx:
        return last_good(tx, task_id)


def nightly(bench: Bench, pages: int, seconds: float) -> list[int]:
    """A graph: fetch, then ``pages`` of the same kind, then a report."""
    for name in ("fetch", "page", "report"):
        bench.script.bodies[name] = lambda ctx: bench.clock.advance(seconds)
    fetch = int(bench.step("fetch").schedule())
    some = [int(bench.step("page", fetch).schedule()) for _ in range(pages)]
    report = int(bench.step("report", *some).schedule())
    bench.drain()
    return [fetch, *some, report]


def test_graphs_are_compared_by_role_whatever_their_width(bench: Bench) -> None:
    before, after = nightly(bench, 3, 10), nightly(bench, 5, 20)
    found = compared(bench, after[0], before[0])
    assert [len(pair.ours.tasks) for pair in found.roles] == [1, 5, 1]
    assert [len(pair.theirs.tasks) for pair in found.roles] == [1, 3, 1]
    assert [pair.theirs.run_time // SECOND for pair in found.roles] == [10, 30, 10]
    assert [pair.ours.run_time // SECOND for pair in found.roles] == [20, 100, 20]
    assert found.roles[1].ours.ends == {TaskState.SUCCESS: 5}
    ours, theirs = found.whole
    assert ours is not None
    assert theirs is not None
    assert (ours // SECOND, theirs // SECOND) == (140, 50)


def test_graphs_of_another_shape_are_compared_by_kind(bench: Bench) -> None:
    one = int(bench.step("one").schedule())
    before = int(bench.step("two", one).schedule())
    bench.drain()
    a, b = int(bench.step("a").schedule()), int(bench.step("b").schedule())
    after = int(bench.step("c", a, b).schedule())
    bench.step("d", after).schedule()
    bench.drain()
    (pair,) = compared(bench, after, before).roles
    assert (len(pair.ours.tasks), len(pair.theirs.tasks)) == (4, 2)


def test_the_last_good_run_of_a_schedule(bench: Bench) -> None:
    bench.jobs.task(Step("fetch")).key("nightly").hourly_at(0).schedule()
    bench.jobs.task(Step("fetch")).key("other").hourly_at(0).schedule()
    made = []
    for outcome in ("good", "good", "bad", "bad"):
        bench.script.failing = {"fetch"} if outcome == "bad" else set()
        bench.advance(3600)
        with bench.jobs.database.read() as tx:
            made.append(tx.run("SELECT max(id) FROM schedd_tasks WHERE schedule = 'nightly'").scalar_one())
    assert good_before(bench, made[3]) == made[1]
    assert good_before(bench, made[1]) == made[0]
    assert good_before(bench, made[0]) is None
    with bench.jobs.database.read() as tx:
        assert compare(tx, made[0]) is None
    found = compared(bench, made[3])
    assert (found.task.state, found.other.state) == (TaskState.DEAD, TaskState.SUCCESS)


def test_a_run_of_a_graph_is_good_only_as_a_whole(bench: Bench) -> None:
    with bench.jobs.recurring("etl").hourly_at(0) as dag:
        dag.task(Step("report")).key("report").depend_on(dag.task(Step("load")).key("load"))
    made = []
    for failing in (set(), {"report"}, set()):
        bench.script.failing = failing
        bench.advance(3600)
        with bench.jobs.database.read() as tx:
            made.append(
                tx.run(
                    "SELECT min(id) FROM schedd_tasks WHERE schedule = 'etl' AND slot = "
                    "(SELECT max(slot) FROM schedd_tasks WHERE schedule = 'etl')"
                ).scalar_one()
            )
    assert good_before(bench, made[2]) == made[0], "in the second run only the report failed"
    assert good_before(bench, made[2] + 1) == made[0] + 1, "the task of the same name in the graph"


def test_the_last_good_task_of_the_same_pattern(bench: Bench) -> None:
    good = int(bench.step("mail").correlation("order-17").schedule())
    bench.step("mail").correlation("invoice-18").schedule()
    bench.step("mail").schedule()
    bench.drain()
    bench.script.failing.add("mail")
    bad = int(bench.step("mail").correlation("order-18").schedule())
    alone = int(bench.step("mail").key("k-1").schedule())
    bench.drain()
    assert good_before(bench, bad) == good
    assert good_before(bench, alone) is None
    with pytest.raises(UnknownTaskError):
        good_before(bench, 10**9)


def test_two_tasks_of_one_graph(bench: Bench) -> None:
    made = nightly(bench, 2, 5)
    (pair,) = compared(bench, made[1], made[2]).roles
    assert (pair.ours.tasks, pair.theirs.tasks) == ((made[1],), (made[2],))


def test_changes_of_values() -> None:
    before = {"to": "ada", "lines": [{"id": 1}, {"id": 2}], "paid": 1, "gone": None}
    after = {"to": "bob", "lines": [{"id": 1, "n": 3}], "paid": True, "new": [1]}
    assert changes(before, after) == [
        FieldChange("to", "ada", "bob"),
        FieldChange("lines[0].n", None, 3, added=True),
        FieldChange("lines[1]", {"id": 2}, None, removed=True),
        FieldChange("paid", 1, True),
        FieldChange("gone", None, None, removed=True),
        FieldChange("new", None, [1], added=True),
    ]
    assert changes(1, 1) == []
    assert changes([], {}) == [FieldChange("", [], {})]
    assert len(changes(list(range(1000)), [])) == 200


def test_differences_of_texts() -> None:
    found = text_diff("a\nb\nc\n", "a\nB\nc\n")
    assert [line for line in found.lines if line[0] in "+-"] == ["-b", "+B"]
    assert not found.truncated
    assert text_diff("same", "same").lines == []
    timed = [f"2026-03-01T02:30:0{n}.123Z INFO loads {n % 2}" for n in range(4)]
    assert text_diff(timed[0], timed[2]).lines == [], "each run has other times"
    assert [line for line in text_diff(timed[0], timed[1]).lines if line[0] in "+-"] == [
        "-INFO loads 0",
        "+INFO loads 1",
    ]
    assert text_diff("x\n" * 3000, "").truncated
    assert pattern("order-4711/deadbeef01") == "order-#/#"
