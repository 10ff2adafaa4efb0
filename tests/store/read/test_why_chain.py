"""Why a task does not run, followed to the root, in whatever asks: schedctl, a timeout's error, the page."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import Context
from scheduler.store.read.explain import why
from scheduler.store.read.tasks import get_task
from scheduler.store.read.why_chain import LONGEST, whole_why, why_chain
from support.bench import Bench, Soft, notify_and_step
from support.consoles import ask, console_on

pytestmark = pytest.mark.case(102)


def said(bench: Bench, task_id: int) -> str:
    with bench.jobs.database.read() as tx:
        return str(whole_why(tx, task_id))


def test_what_waits_for_a_task_says_why_that_does_not_run(bench: Bench) -> None:
    root = int(bench.step("root").schedule())
    child = int(bench.step("child", root).schedule())
    last = int(bench.step("last", child).schedule())
    assert said(bench, child) == f"waits for 1 of 1 task: {root} (scheduled); task {root} (Step): {said(bench, root)}"
    assert said(bench, root).endswith(", but no worker is live")
    way = f"{last} -> {child} -> {root}"
    assert f"; task {root} (Step) (by way of {way}): due since" in said(bench, last)


def test_a_timeouts_error_says_the_root(bench: Bench) -> None:
    root = int(bench.step("root").queue("mail").schedule())
    child = bench.step("child", root).schedule()
    with pytest.raises(TimeoutError, match=f"task {root} .*no worker is live"):
        bench.jobs.wait([child], timeout=0.01)


def test_one_that_runs_is_named_with_its_beginning(bench: Bench) -> None:
    root = int(bench.step("root").schedule())
    notify_and_step(bench.jobs)
    bench.execute(f"UPDATE schedd_tasks SET state = 5, started_at = claimed_at WHERE id = {root}")
    child = int(bench.step("child", root).schedule())
    assert f"; task {root} (Step): it runs since " in said(bench, child)


def test_one_of_many_that_are_awaited(bench: Bench) -> None:
    """``ctx.map`` over ten: which of them is named does not matter, that its cause is does."""

    def body(ctx: Context) -> Any:
        return ctx.map(Soft, [{"name": f"child {n}"} for n in range(10)])

    bench.script.bodies["parent"] = body
    parent = int(bench.step("parent").schedule())
    bench.jobs.pause(kind="Soft")
    bench.drain()
    assert bench.state(parent) == "suspended"
    assert "(Soft): due since" in said(bench, parent)
    assert "kind Soft is paused" in said(bench, parent)


def test_the_end_of_a_long_chain_is_shown(bench: Bench) -> None:
    made = [int(bench.step("first").schedule())]
    for n in range(LONGEST + 20):
        made.append(int(bench.step(f"{n}", made[-1]).schedule()))
    assert f"; task {made[0]} (Step) (by way of {made[-1]} -> " in said(bench, made[-1])
    with bench.jobs.database.read() as tx:
        chain = why_chain(tx, get_task(tx, made[-1]))
    assert [chain[0].id, chain[-1].id, len(chain)] == [made[-1], made[0], LONGEST]


def test_a_ring_is_told_once(bench: Bench) -> None:
    ids: list[int] = []
    bench.script.bodies |= {
        "a": lambda ctx: ctx.await_task(ids[1]),
        "b": lambda ctx: ctx.await_task(ids[0]),
    }
    ids += [int(bench.step("a").schedule()), int(bench.step("b").schedule())]
    bench.drain()
    with bench.jobs.database.read() as tx:
        assert whole_why(tx, ids[0]) == why(tx, ids[0])
    assert "wait for one another" in said(bench, ids[0])


def test_the_page_has_the_same_root(bench: Bench) -> None:
    root = int(bench.step("root").schedule())
    child = int(bench.step("child", root).schedule())
    with console_on(bench.database) as gate:
        chain = ask(gate, "GET", f"/tasks/{child}.json").json["chain"]
    assert [one["id"] for one in chain] == [child, root]
    assert chain[-1]["why"] in said(bench, child)
