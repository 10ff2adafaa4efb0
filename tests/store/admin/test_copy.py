"""``copy_task``: a copy of any task, with other arguments, as new work."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import DuplicateKeyError, PayloadError, UnknownTaskError
from support.bench import Bench, Step


def test_a_copy_is_new_work_with_other_arguments(bench: Bench) -> None:
    seen: list[Any] = []
    for name in ("a", "b"):
        bench.script.bodies[name] = lambda ctx: seen.append((ctx.idempotency_key, dict(ctx.headers)))
    task_id = int(bench.step("a").key("k").headers({"x": 1}).priority("low").subject("s").timeout(9).schedule())
    bench.drain()
    copied = bench.jobs.copy_task(task_id, payload=Step("b"))
    made, original = bench.jobs.get_task(copied), bench.jobs.get_task(task_id)
    assert (made.key, made.subject, made.priority, made.timeout) == (None, "s", original.priority, original.timeout)
    assert made.correlation == original.correlation
    assert bench.drain() == ["b"]
    assert seen == [("k", {"x": 1}), (f"task-{int(copied)}", {"x": 1})]
    assert bench.jobs.get_task(task_id) == original


@pytest.mark.parametrize("end", ["success", "failed", "dead", "cancelled", "skipped"])
def test_whatever_its_end_a_copy_runs(bench: Bench, end: str) -> None:
    kind = Step if end == "dead" else next(k for k in Step.__subclasses__() if k.__name__ == "Soft")
    task_id = bench.ended(end, kind)
    bench.drain()
    copied = bench.jobs.copy_task(task_id, fields={"name": "copy"}, dependencies=False)
    assert bench.drain() == ["copy"]
    assert bench.states(copied) == ["success"]
    assert bench.states(task_id) == [end]


def test_a_copy_waits_for_what_the_original_waits_for(bench: Bench) -> None:
    parent = int(bench.step("parent").after(60).schedule())
    child = int(bench.step("child", parent).schedule())
    copied = bench.jobs.copy_task(child, fields={"name": "copy"})
    alone = bench.jobs.copy_task(child, fields={"name": "alone"}, dependencies=False)
    assert bench.states(copied, alone) == ["waiting", "scheduled"]
    assert bench.drain() == ["alone"]
    assert sorted(bench.advance(60)) == ["child", "copy", "parent"]


@pytest.mark.both_databases
def test_its_key_must_be_free(bench: Bench) -> None:
    task_id = int(bench.step("a").key("k").schedule())
    with pytest.raises(DuplicateKeyError) as raised:
        bench.jobs.copy_task(task_id, key="k")
    assert raised.value.existing_id == task_id
    made = bench.jobs.copy_task(task_id, key="k2", after=60, queue="default", priority="high")
    assert bench.jobs.get_task(made).key == "k2"
    with pytest.raises(DuplicateKeyError):
        bench.jobs.copy_task(task_id, key="k2")
    assert len(bench.jobs.list_tasks()) == 2


def test_bad_copies_store_nothing(bench: Bench) -> None:
    task_id = int(bench.step("a").schedule())
    with pytest.raises(PayloadError):
        bench.jobs.copy_task(task_id, payload={"nme": "a"})
    with pytest.raises(PayloadError):
        bench.jobs.copy_task(task_id, key="")
    with pytest.raises(UnknownTaskError):
        bench.jobs.copy_task(task_id + 1)
    assert len(bench.jobs.list_tasks()) == 1
