"""Tasks that a batch replaces, and that end with it: the new set's parent has failed long since."""

from __future__ import annotations

import pytest

from support.bench import Bench, Step, notify_and_step

pytestmark = pytest.mark.case(28, 31)


def replaced(bench: Bench, key: str = "k") -> int:
    return bench.step("old", bench.step("open").after(3600).schedule()).key(key).schedule()


def test_what_the_batch_adds_below_waits_for_its_other_parents(bench: Bench) -> None:
    old, dead = replaced(bench), bench.ended("dead")
    other = bench.step("other").after(60).schedule()
    with bench.jobs.batch() as batch:
        new = batch.task(Step("new")).depend_on(dead).key("k", conflict="replace")
        batch.task(Step("both")).depend_on(new, when="failure").depend_on(other)
        batch.task(Step("one")).depend_on(new, when="finished")
        none = batch.task(Step("none")).depend_on(new)
        batch.task(Step("below")).depend_on([none, other])
    ids = dict(zip(("new", "both", "one", "none", "below"), batch.ids, strict=True))
    assert ids["new"] == old
    assert bench.states(*batch.ids) == ["failed", "waiting", "scheduled", "failed", "failed"]
    assert bench.jobs.get_task(ids["none"]).error == f"not run: task {old} ended failed"
    assert bench.drain() == ["one"]
    assert bench.advance(60) == ["other", "both"]


def test_what_it_replaces_below_sees_that_end(bench: Bench) -> None:
    first, second, third = (replaced(bench, key) for key in ("a", "b", "c"))
    dead = bench.ended("dead")
    with bench.jobs.batch() as batch:
        a = batch.task(Step("a")).depend_on(dead).key("a", conflict="replace")
        batch.task(Step("b")).depend_on(a).key("b", conflict="replace")
        batch.task(Step("c")).depend_on(a, when="failure").key("c", conflict="replace")
    assert list(batch.ids) == [first, second, third]
    assert bench.states(first, second, third) == ["failed", "failed", "scheduled"]
    assert bench.drain() == ["c"]


def test_only_the_last_set_of_a_batch_counts(bench: Bench) -> None:
    old, dead = replaced(bench), bench.ended("dead")
    below = bench.jobs.task(Step("below")).depend_on(old, when="finished").schedule()
    with bench.jobs.batch() as batch:
        batch.task(Step("one")).depend_on(dead).key("k", conflict="replace")
        batch.task(Step("two")).key("k", conflict="replace")
    assert list(batch.ids) == [old, old]
    assert bench.states(old, below) == ["scheduled", "waiting"]
    assert bench.drain() == ["two", "below"]


def test_one_that_runs_does_not_end_with_its_replacement(bench: Bench) -> None:
    """What waits for it is judged when its attempt has ended, not by the parents of the set that is put aside."""
    dead = bench.ended("dead")
    task_id = bench.step("one").key("k").schedule()
    below = bench.step("below", task_id).schedule()
    notify_and_step(bench.jobs)
    assert bench.step("two", dead).key("k", conflict="replace").schedule() == task_id
    assert bench.states(task_id, below) == ["claimed", "waiting"]


@pytest.mark.parametrize("otherwise", ["run", "fail", "skip"])
@pytest.mark.parametrize("last", ["runs", "ends", "waits"])
def test_of_a_key_that_is_new_the_last_set_counts_too(bench: Bench, otherwise: str, last: str) -> None:
    """The first set ends at once, and what the batch lets wait for it is judged by what comes of the last one."""
    dead, other = bench.ended("dead"), bench.step("other").after(60).schedule()
    with bench.jobs.batch() as batch:
        above = batch.task(Step("above")).depend_on(dead)
        one = batch.task(Step("one")).depend_on(above).key("k", conflict="replace")
        batch.task(Step("below")).depend_on(one, otherwise=otherwise)
        two = batch.task(Step("two")).key("k", conflict="replace")
        if last != "runs":
            two.depend_on(dead if last == "ends" else other)
    key, below = int(batch.ids[1]), int(batch.ids[2])
    assert int(batch.ids[3]) == key
    if last == "ends":
        ended = {"run": "scheduled", "fail": "failed", "skip": "skipped"}[otherwise]
        assert bench.states(key, below) == ["failed", ended]
        return
    assert bench.states(key, below) == ["scheduled" if last == "runs" else "waiting", "waiting"]
    assert bench.step("three").key("k").schedule() == key
    assert bench.jobs.get_task(key).error is None
    ran = bench.drain() + bench.advance(60)
    assert [name for name in ran if name != "other"] == ["two", "below"]
