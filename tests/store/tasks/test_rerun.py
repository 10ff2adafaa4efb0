"""``rerun``: what has ended runs again from its beginning, alone or with all that is below it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from scheduler import DuplicateKeyError, InvalidTransitionError, UnknownTaskError
from support.bench import Bench, notify_and_step


def chain(bench: Bench, *names: str) -> list[int]:
    made: list[int] = []
    for name in names:
        made.append(int(bench.step(name, *made[-1:]).schedule()))
    return made


def test_a_success_and_all_below_it_run_again_in_order(bench: Bench) -> None:
    ids = chain(bench, "a", "b", "c")
    beside = int(bench.step("beside").schedule())
    bench.drain()
    bench.script.bodies["a"] = lambda ctx: "another"
    bench.jobs.rerun(ids[0])
    assert bench.states(*ids, beside) == ["scheduled", "waiting", "waiting", "success"]
    assert bench.jobs.get_task(ids[0]).result is None
    assert bench.drain() == ["a", "b", "c"]
    assert [bench.jobs.result(i, 0) for i in ids] == ["another", "b", "c"]
    assert [bench.jobs.get_task(i).attempt for i in ids] == [2, 2, 2]


def test_alone_it_leaves_what_has_ended_and_holds_back_what_has_not_begun(bench: Bench) -> None:
    a, b = chain(bench, "a", "b")
    bench.drain()
    later = int(bench.step("later", a).after(60).schedule())
    bench.jobs.rerun(a, downstream=False)
    assert bench.states(a, b, later) == ["scheduled", "success", "waiting"]
    assert bench.drain() == ["a"]
    assert bench.advance(60) == ["later"]


def test_what_failed_below_runs_again_too(bench: Bench) -> None:
    bench.script.failing.add("b")
    ids = chain(bench, "a", "b", "c")
    skipped = int(bench.step("skipped", ids[0], when="failure").schedule())
    bench.drain()
    assert bench.states(*ids, skipped) == ["success", "dead", "failed", "skipped"]
    bench.script.failing.clear()
    bench.jobs.rerun(ids[0])
    assert bench.drain() == ["a", "b", "c"]
    assert bench.states(*ids, skipped) == ["success", "success", "success", "skipped"]


def test_a_rerun_that_fails_fails_what_is_below(bench: Bench) -> None:
    a, b = chain(bench, "a", "b")
    bench.drain()
    bench.script.failing.add("a")
    bench.jobs.rerun(a)
    assert bench.drain() == ["a"]
    assert bench.states(a, b) == ["dead", "failed"]
    bench.script.failing.clear()
    bench.jobs.retry_task(a)
    assert bench.drain() == ["a", "b"]


def test_what_has_begun_below_refuses_all(bench: Bench) -> None:
    a, b = chain(bench, "a", "b")
    bench.drain()
    below = int(bench.step("below", b).schedule())
    notify_and_step(bench.jobs)
    with pytest.raises(InvalidTransitionError, match=f"task {below}, below task {a}, is claimed"):
        bench.jobs.rerun(a)
    assert bench.states(a, b, below) == ["success", "success", "claimed"]
    bench.jobs.rerun(a, downstream=False)
    assert sorted(bench.drain()) == ["a", "below"]


@pytest.mark.parametrize("state", ["scheduled", "claimed"])
def test_only_what_has_ended_runs_again(bench: Bench, state: str) -> None:
    task_id = int(bench.step("a").schedule())
    if state == "claimed":
        notify_and_step(bench.jobs)
    with pytest.raises(InvalidTransitionError, match=f"task {task_id} is {state}"):
        bench.jobs.rerun(task_id)
    with pytest.raises(UnknownTaskError):
        bench.jobs.rerun(task_id + 1)


def test_a_key_that_its_own_success_holds_is_no_hindrance(bench: Bench) -> None:
    first = bench.step("a").key("k", retention=60).schedule()
    bench.drain()
    bench.jobs.rerun(first)
    assert bench.step("again").key("k").schedule() == first
    assert bench.drain() == ["a"]
    bench.clock.advance(59)
    assert bench.step("again").key("k").schedule() == first  # its retention counts from the second success
    bench.clock.advance(1)
    assert bench.step("again").key("k").schedule() != first


@pytest.mark.parametrize("other", ["scheduled", "success"])
def test_a_key_that_another_task_has_refuses_it(bench: Bench, other: str) -> None:
    first = int(bench.step("a").key("k", retention=60).schedule())
    bench.drain()
    bench.clock.advance(60)
    holder = bench.step("again").key("k", retention=1).schedule()
    if other == "success":
        bench.drain()
        bench.clock.advance(10)
    before = bench.jobs.get_task(first)
    with pytest.raises(DuplicateKeyError) as raised:
        bench.jobs.rerun(first)
    assert (raised.value.existing_id, raised.value.completed) == (holder, other == "success")
    assert bench.jobs.get_task(first) == before


def test_below_it_a_task_whose_key_another_has_stays(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    a = int(bench.step("a").schedule())
    b = int(bench.step("b", a).key("k", retention=1).schedule())
    bench.drain()
    bench.clock.advance(10)
    bench.step("again").key("k").schedule()
    with caplog.at_level(logging.WARNING):
        bench.jobs.rerun(a)
    assert "has its key 'k'" in caplog.text
    assert bench.states(a, b) == ["scheduled", "success"]


def test_long_results_and_recorded_steps_are_forgotten(bench: Bench) -> None:
    def body(ctx: Any) -> str:
        return str(ctx.step("once", lambda: ctx.state.ran.append("step") or "x" * 5000))

    bench.script.bodies["a"] = body
    task_id = int(bench.step("a").schedule())
    assert bench.drain() == ["a", "step"]
    bench.jobs.rerun(task_id)
    assert bench.jobs.get_task(task_id).result is None
    assert bench.drain() == ["a", "step"]
    assert bench.jobs.result(task_id, 0) == "x" * 5000


def test_every_verb_says_who_and_why(bench: Bench) -> None:
    a, _ = chain(bench, "a", "b")
    bench.drain()
    with bench.jobs.acting(by="alice", reason="ticket 42"):
        bench.jobs.rerun(a)
        bench.jobs.update_task(a, priority="high", fields={"name": "secret"})
        bench.jobs.update_task(a, priority="high")  # it has that already
        made = bench.jobs.copy_task(a, after=60)
    found = [entry for entry in bench.jobs.audit() if entry.task_id in (a, made)]
    assert sorted((entry.action, entry.actor, entry.reason) for entry in found) == [
        (action, "alice", "ticket 42") for action in ("copied", "copy", "patch", "rerun")
    ]
    by_action = {entry.action: entry for entry in found}
    assert by_action["patch"].before == {"priority": "medium"}
    assert by_action["patch"].after == {"priority": "high", "payload": "replaced"}
    assert (by_action["rerun"].before, by_action["rerun"].detail) == ("success", {"downstream": True, "below": 1})
