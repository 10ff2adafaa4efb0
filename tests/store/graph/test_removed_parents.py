"""Tasks whose parents are there no more: retention or a purge removed them, their outcome is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.store.admin import doctor as checks
from scheduler.store.admin import retention
from scheduler.store.admin.doctor_repair import repair
from support.bench import Bench, Step

DAY = 86400.0
KEPT = {"success": DAY, "failed": DAY, "outcomes": 3 * DAY, "events": DAY}


def gone(bench: Bench, end: str) -> int:
    """A task that ended like this and was removed."""
    made = bench.ended(end)
    bench.clock.advance(2 * DAY)
    sweep(bench)
    bench.script.failing.clear()
    return made


def sweep(bench: Bench) -> None:
    with bench.jobs.database.write() as tx:
        retention.purge_batch(tx.at(bench.clock.now()), KEPT)


def problems(bench: Bench) -> list[str]:
    with bench.jobs.database.read() as tx:
        return [f.text for f in checks.check(tx.at(bench.clock.now())) if f.level == checks.PROBLEM]


@pytest.mark.case(33, 35)
@pytest.mark.parametrize("way", ["enqueue", "batch", "add_dependency"])
@pytest.mark.parametrize(
    ("end", "when"), [("dead", "success"), ("cancelled", "success"), ("success", "failure"), ("skipped", "success")]
)
def test_there_is_no_retry_of_it_to_wait_for(bench: Bench, way: str, end: str, when: str) -> None:
    parent = gone(bench, end)
    if way == "enqueue":
        child = bench.step("child", parent, when=when, otherwise="wait").schedule()
    elif way == "batch":
        with bench.jobs.batch() as batch:
            made = batch.task(Step("child")).depend_on(parent, when=when, otherwise="wait")
            batch.task(Step("below")).depend_on(made)
        child = batch.ids[0]
        assert bench.state(batch.ids[1]) == "failed"
    else:
        child = bench.step("child").schedule()
        below = bench.step("below", child, when="finished").schedule()
        bench.jobs.add_dependency(child, parent, when=when, otherwise="wait")
        assert bench.state(below) == "scheduled"
    found = bench.jobs.get_task(child)
    assert (found.state, found.ended_by) == ("failed", parent)
    assert found.error == f"not run: task {parent} was removed"
    assert problems(bench) == []


@pytest.mark.case(36)
def test_a_retry_of_the_child_judges_it_again(bench: Bench) -> None:
    (parent,) = bench.die("parent")
    child = bench.step("child", parent, otherwise="wait").schedule()
    below = bench.step("below", child).schedule()
    assert bench.states(child, below) == ["waiting", "waiting"]
    bench.clock.advance(1)
    assert bench.jobs.dead_letters.purge(0) == 1
    assert bench.states(child, below) == ["failed", "failed"]
    bench.jobs.retry_task(child)
    assert bench.states(child, below) == ["failed", "failed"]
    assert bench.jobs.get_task(child).error == f"not run: task {parent} was removed"
    assert problems(bench) == []


@pytest.mark.case(31, 36)
@pytest.mark.parametrize("way", ["retry", "enqueue"])
def test_waiting_in_vain_weighs_more_than_skipping(bench: Bench, way: str) -> None:
    """As failing does: one parent is gone and would have to be retried, the other one asks for a skip."""
    if way == "retry":
        removed = bench.step("first").schedule()
        other = bench.step("second").after(1.5 * DAY).schedule()
        builder = bench.step("child", other, when="failure", otherwise="skip")
        child = builder.depend_on(removed, when="failure", otherwise="wait").schedule()
        bench.drain()
        bench.clock.advance(1.6 * DAY)
        bench.drain()
        sweep(bench)
        assert bench.states(other, child) == ["success", "skipped"]
        bench.jobs.retry_task(child)
    else:
        removed, other = gone(bench, "success"), bench.ended("success")
        builder = bench.step("child", removed, when="failure", otherwise="wait")
        child = builder.depend_on(other, when="failure", otherwise="skip").schedule()
    found = bench.jobs.get_task(child)
    assert (found.state, found.error) == ("failed", f"not run: task {removed} was removed")
    assert problems(bench) == []


@pytest.mark.case(36, 51)
@pytest.mark.parametrize("otherwise", ["fail", "run", "wait"])
def test_an_outcome_lives_as_long_as_what_is_judged_by_it(bench: Bench, otherwise: str) -> None:
    """Also where outcomes are kept for a shorter time than what failed."""
    parent = bench.ended("success")
    child = bench.step("child", parent, otherwise=otherwise).schedule()
    bench.script.failing.add("child")
    bench.drain()
    bench.script.failing.clear()
    kept = KEPT | {"failed": 30 * DAY, "outcomes": 1.0}
    for _ in range(3):
        bench.clock.advance(2 * DAY)
        with bench.jobs.database.write() as tx:
            retention.purge_batch(tx.at(bench.clock.now()), kept)
    bench.jobs.retry_task(child)
    assert bench.drain() == ["child"]
    assert bench.state(child) == "success"
    bench.clock.advance(2 * DAY)
    for _ in range(3):
        with bench.jobs.database.write() as tx:
            retention.purge_batch(tx.at(bench.clock.now()), kept)
        bench.clock.advance(2 * DAY)
    assert bench.jobs.list_tasks() == []
    with bench.jobs.database.read() as tx:
        assert tx.connection.exec_driver_sql("SELECT count(*) FROM schedd_outcomes").scalar() == 0


@pytest.mark.case(36)
def test_a_forgotten_parent_counts_as_failed(bench: Bench) -> None:
    """By no way of ours; but a child must not wait for ever."""
    parent = bench.ended("success")
    child = bench.step("child", parent).after(60).schedule()
    other = bench.step("other").after(60).schedule()
    bench.execute("DELETE FROM schedd_tasks WHERE id = :id", id=parent)
    bench.execute("UPDATE schedd_tasks SET state = 0, unmet = 1 WHERE id = :id", id=child)
    assert any("never was" in text for text in problems(bench))
    with bench.jobs.database.write() as tx:
        (message,) = repair(tx.at(bench.clock.now()))
    assert message == f"counted the open edges anew of 1 task: {child}"
    assert bench.states(child, other) == ["failed", "scheduled"]
    assert problems(bench) == []


@pytest.mark.case(34)
def test_adding_a_dependency_wakes_idle_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edge may be broken already, and then others may have waited for just that."""
    dead = bench.ended("dead")
    child = bench.step("child").after(60).schedule()
    notified: list[Any] = []
    monkeypatch.setattr(bench.jobs, "_notify", lambda: notified.append(1))
    bench.jobs.add_dependency(child, dead)
    assert notified
    assert bench.state(child) == "failed"
