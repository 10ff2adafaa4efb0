"""``cancel`` and ``retry``."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.bench import Bench, notify_and_step

from .conftest import Ctl


def test_cancel_ends_what_is_not_running(ctl: Ctl, live: Bench) -> None:
    a, b = int(live.step("a").schedule()), int(live.step("b").after(60).schedule())
    c = int(live.step("c", a).schedule())
    d = int(live.step("d", a, when="finished").schedule())
    result = ctl("cancel", a, b)
    assert result.exit_code == 0
    assert result.stdout == f"task {a} cancelled\ntask {b} cancelled\n1 dependant ended with it: {c}\n"
    assert live.states(a, b, c, d) == ["cancelled", "cancelled", "failed", "scheduled"]
    assert live.drain() == ["d"]


def test_cascade_ends_dependants_as_cancelled(ctl: Ctl, live: Bench) -> None:
    a = int(live.step("a").schedule())
    b = int(live.step("b", a).schedule())
    c = int(live.step("c", b).schedule())
    plan = {"cancelled": [a], "requested": [], "finished": {}, "dependants": [b, c], "later": []}
    assert ctl.json("cancel", "--cascade", "--dry-run", a) == plan
    shown = ctl("cancel", "--cascade", "--dry-run", a)
    assert shown.stdout == f"task {a} would be cancelled\n2 dependants would end with it: {b}, {c}\n"
    assert live.states(a, b, c) == ["scheduled", "waiting", "waiting"]
    assert ctl.json("cancel", "--cascade", a) == plan
    assert live.states(a, b, c) == ["cancelled"] * 3


def test_cascade_of_what_is_running_says_what_will_follow(ctl: Ctl, live: Bench) -> None:
    a = int(live.step("a").schedule())
    b = int(live.step("b", a).schedule())
    notify_and_step(live.jobs)
    shown = ctl("cancel", "--cascade", "--dry-run", a)
    assert shown.stdout == (
        f"task {a} is running: cancel would be requested\n0 dependants would end with it\n"
        f"1 dependant would be cancelled when what is running has ended: {b}\n"
    )
    shown = ctl("cancel", "--cascade", a)
    assert shown.stdout == (
        f"task {a} is running: cancel requested\n0 dependants ended with it\n"
        f"1 dependant will be cancelled when what is running has ended: {b}\n"
    )
    assert live.states(a, b) == ["claimed", "waiting"]
    live.drain()
    assert live.states(a, b) == ["cancelled", "cancelled"]


def test_cancel_of_an_unknown_task_changes_nothing(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("a").schedule())
    assert ctl.fails(3, "cancel", made, 4711) == "schedctl: there is no task 4711\n"
    assert live.state(made) == "scheduled"


def test_cancel_of_what_is_running_names_nothing_that_it_does_not_do(ctl: Ctl, live: Bench) -> None:
    a = int(live.step("a").schedule())
    notify_and_step(live.jobs)
    assert ctl("cancel", a).stdout == f"task {a} is running: cancel requested\n0 dependants ended with it\n"


@pytest.mark.case(48)
def test_cancel_in_every_state(ctl: Ctl, live: Bench) -> None:
    """Threads; the handler ends at its next call of the context."""
    started, looked = threading.Event(), threading.Event()

    def body(ctx: Any) -> None:
        started.set()
        while True:
            ctx.check_cancelled()
            looked.wait(0.005)

    live.script.bodies["running"] = body
    pending = int(live.step("pending").after(3600).schedule())
    done = live.ended("success")
    running = int(live.step("running").schedule())
    jobs = live.worker()
    jobs.start()
    try:
        assert started.wait(20)
        first = ctl.json("cancel", running)
        asked = ctl.json("show", running)
        assert first["requested"] == [running] or asked["state"] == "cancelled"
        assert asked["cancel_requested"] is not None
        assert ctl("cancel", running).exit_code == 0
        assert ctl.json("show", running)["cancel_requested"] == asked["cancel_requested"]
        assert ctl.json("wait", running, "--timeout", "30", status=1)[0]["state"] == "cancelled"
        assert ctl.json("cancel", pending)["cancelled"] == [pending]
        assert ctl.json("cancel", pending)["finished"] == {str(pending): "cancelled"}
        live.execute("UPDATE schedd_tasks SET run_at = 1000000")
        probe = int(live.step("probe").schedule())
        assert ctl("wait", probe, "--timeout", "30").exit_code == 0
    finally:
        jobs.stop()
    assert "pending" not in live.script.ran
    assert ctl("cancel", done).stdout.startswith(f"task {done} had ended already: success\n")
    assert live.states(pending, running, done) == ["cancelled", "cancelled", "success"]
    assert ctl.fails(3, "cancel", 4711) == "schedctl: there is no task 4711\n"


@pytest.mark.case(23)
def test_retry_of_what_cannot_be_retried(ctl: Ctl, live: Bench) -> None:
    assert ctl.fails(3, "retry", 4711) == "schedctl: there is no task 4711\n"
    done = live.ended("success")
    assert "has succeeded; only what failed or was cancelled can be retried" in ctl.fails(4, "retry", done)
    held = int(live.step("held").schedule())
    notify_and_step(live.jobs)
    assert f"task {held} is claimed; it can be retried once it has ended" in ctl.fails(4, "retry", held)
    live.execute(f"UPDATE schedd_tasks SET state = 5 WHERE id = {held}")
    assert f"task {held} is running; it can be retried once it has ended" in ctl.fails(4, "retry", held)
    assert live.states(done, held) == ["success", "running"]


def test_retry_revives_and_runs(ctl: Ctl, live: Bench) -> None:
    dead = live.ended("dead")
    child = int(live.step("child", dead).schedule())
    assert live.state(child) == "failed"
    live.script.failing.clear()
    assert ctl.json("retry", dead) == [{"id": dead, "kind": "Step", "state": "scheduled"}]
    assert live.state(child) == "waiting"
    assert live.drain() == ["ends dead", "child"]
    assert live.states(dead, child) == ["success", "success"]


def test_retry_without_downstream(ctl: Ctl, live: Bench) -> None:
    dead = live.ended("dead")
    child = int(live.step("child", dead).schedule())
    live.script.failing.clear()
    assert ctl("retry", "--no-downstream", dead).exit_code == 0
    assert live.drain() == ["ends dead"]
    assert live.state(child) == "failed"


@pytest.mark.case(23, 36)
@pytest.mark.parametrize("downstream", [[], ["--no-downstream"]])
@pytest.mark.parametrize("first", ["parent", "child"])
def test_retry_of_a_task_and_of_what_ended_because_of_it(
    ctl: Ctl, live: Bench, first: str, downstream: list[str]
) -> None:
    dead = live.ended("dead")
    child = int(live.step("child", dead).schedule())
    both = [dead, child] if first == "parent" else [child, dead]
    states = {dead: "scheduled", child: "waiting"}
    assert ctl.json("retry", *downstream, *both) == [{"id": i, "kind": "Step", "state": states[i]} for i in both]
    live.script.failing.clear()
    assert live.drain() == ["ends dead", "child"]


@pytest.mark.case(36)
def test_retry_of_what_ends_again_at_once_is_reported(ctl: Ctl, live: Bench) -> None:
    dead = live.ended("dead")
    child = int(live.step("child", dead).schedule())
    result = ctl("retry", child)
    assert result.exit_code == 0
    assert result.stderr == f"schedctl: task {child} has ended again at once, not run: task {dead} ended dead\n"
    assert live.states(dead, child) == ["dead", "failed"]


def test_retry_is_all_or_nothing(ctl: Ctl, live: Bench) -> None:
    dead, done = live.ended("dead"), live.ended("success")
    assert "has succeeded" in ctl.fails(4, "retry", dead, done)
    assert live.state(dead) == "dead"


def test_a_command_that_writes_wakes_an_idle_worker(ctl: Ctl, live: Bench) -> None:
    """Through the notifier: the worker's own looks are hours apart."""
    dead = live.ended("dead")
    live.script.failing.clear()
    ran = threading.Event()
    live.script.bodies["ends dead"] = lambda ctx: ran.set()
    jobs = live.worker()
    jobs.start()
    try:
        assert ctl("retry", dead).exit_code == 0
        assert ran.wait(20)
    finally:
        jobs.stop()


@pytest.mark.case(70)
def test_retry_under_a_key_that_another_task_has(ctl: Ctl, live: Bench) -> None:
    (dead,) = live.die("mail", key="k")
    live.script.failing.clear()
    holder = int(live.step("again").key("k").schedule())
    live.drain()
    for command in (("retry", dead), ("dlq", "replay", dead)):
        assert ctl.fails(4, *command) == f"schedctl: key 'k' of kind Step has been completed by task {holder}\n"
    assert f"schedctl dlq replay {dead} --copy" in ctl("show", dead).stdout
    (row,) = ctl.json("dlq", "replay", dead, "--copy")
    assert live.jobs.get_task(row["id"]).key == f"k~copy-{row['id']}"


@pytest.mark.case(70)
@pytest.mark.parametrize("command", [("retry",), ("dlq", "replay"), ("retry", "--kind", "Step")])
def test_what_is_not_revived_for_its_key_is_reported(ctl: Ctl, live: Bench, command: tuple[str, ...]) -> None:
    live.script.failing.add("parent")
    parent = int(live.step("parent").schedule())
    child = int(live.step("child", parent).key("k").schedule())
    live.drain()
    holder = int(live.step("again").key("k").after(60).schedule())
    result = ctl(*command) if "--kind" in command else ctl(*command, parent)
    assert result.exit_code == (4 if "--kind" in command else 0)
    assert f"task {child} was not re" in result.stderr
    assert f"task {holder} has its key" in result.stderr
    assert live.states(parent, child) == ["scheduled", "failed"]
