"""``worker drain`` and ``worker resume``, and what ``workers`` tells of each."""

from __future__ import annotations

import pytest

from scheduler.testing import engine_of
from support.bench import Bench, notify_and_step

from .conftest import Ctl


def state(ctl: Ctl) -> str:
    (worker,) = ctl.json("workers")
    return str(worker["state"])


def steps(live: Bench, count: int = 1) -> None:
    """Step the worker; each step reads its row, which it else does four times a second at most."""
    for _ in range(count):
        engine_of(live.jobs).periodic.timers.bring_forward("commands")
        notify_and_step(live.jobs)


def test_what_each_runs_is_named(ctl: Ctl, live: Bench) -> None:
    notify_and_step(live.jobs)
    running = [int(live.step(f"s{n}").schedule()) for n in range(7)]
    notify_and_step(live.jobs)
    live.execute("UPDATE schedd_tasks SET state = 5, started_at = 1000000 WHERE state = 4")
    (worker,) = ctl.json("workers")
    assert [(t["id"], t["kind"], t["since"]) for t in worker["running"]] == [
        (i, "Step", "1970-01-01T00:00:01Z") for i in running
    ]
    assert abs(worker["skew"]) < 1  # on the same machine, which may be busy
    shown = ctl("workers").stdout
    assert f"{running[0]} Step, {running[1]} Step" in shown
    assert "and 2 more" in shown
    assert "medium:8+100" in shown


@pytest.mark.case(3)
def test_handlers_that_lost_their_claims_are_reported(ctl: Ctl, live: Bench) -> None:
    """They fill slots, although nothing is held."""
    notify_and_step(live.jobs)
    pools = '{"medium":[8,0],"processes":2,"orphans":[[1,0,2,[5,7],true],[2,0,1,[9],false]]}'
    live.execute("UPDATE schedd_workers SET pools = :pools", pools=pools)
    (worker,) = ctl.json("workers")
    assert (worker["holds"], worker["orphans"]) == (0, {"count": 3, "tasks": [5, 7, 9]})
    result = ctl("workers")
    assert "0 (+3 lost)" in result.stdout
    text = f"worker {worker['host']}:{worker['pid']} runs 3 attempts that lost their claims (task 5, 7, 9)"
    assert f"{text}; they fill their slots until they end" in result.stderr
    (stuck,) = ctl.json("status")["stuck"]
    assert stuck["problem"] == "orphans"
    assert text in ctl("status").stdout
    live.execute("UPDATE schedd_workers SET state = 2")
    assert ctl.json("workers", "--all")[0]["orphans"] == {"count": 0, "tasks": []}
    assert text not in ctl("workers", "--all").stderr


def test_one_that_drains_claims_nothing_until_it_resumes(ctl: Ctl, live: Bench) -> None:
    first = live.step("first").schedule()
    notify_and_step(live.jobs)
    worker = engine_of(live.jobs).worker
    assert live.state(first) == "claimed"
    assert ctl("worker", "drain", worker).stdout == f"worker {worker} drains\n"
    assert state(ctl) == "draining", "at once, before the worker itself has noticed"
    label = "{host}:{pid}".format(**ctl.json("workers")[0])
    second = live.step("second").schedule()
    steps(live, 3)
    assert live.states(first, second) == ["scheduled", "scheduled"], "what it had not begun goes back"
    assert state(ctl) == "draining"
    assert f"every live worker is draining ({label}): tasks wait until one resumes, or another is started" in (
        ctl("status").stderr
    )
    assert ctl("workers").stderr == f"schedctl: every live worker is draining ({label})\n"
    assert ctl.json("show", second)["why"].endswith(f", but every live worker is draining ({label})")

    assert ctl("worker", "resume", worker).stdout == f"worker {worker} claims tasks again\n"
    steps(live)
    assert live.drain() == ["first", "second"]
    assert state(ctl) == "live"


def test_waiting_for_it_ends_when_it_holds_nothing(ctl: Ctl, live: Bench) -> None:
    live.step("first").schedule()
    notify_and_step(live.jobs)
    worker = engine_of(live.jobs).worker
    late = ctl("worker", "drain", worker, "--wait", "--timeout", "0")
    assert late.exit_code == 124
    assert f"worker {worker} still holds 1 task" in late.stderr
    steps(live, 3)
    assert ctl("worker", "drain", worker, "--wait").stdout == f"worker {worker} has drained\n"
    answer = {"id": worker, "draining": True, "drained": True}
    assert ctl.json("worker", "drain", worker) == answer | {"drained": False}
    assert ctl.json("worker", "drain", worker, "--wait") == answer
    assert ctl.json("worker", "resume", worker) == {"id": worker, "draining": False, "drained": False}


def test_waiting_for_one_that_died_ends(ctl: Ctl, live: Bench) -> None:
    live.step("first").schedule()
    notify_and_step(live.jobs)
    worker = engine_of(live.jobs).worker
    live.execute("UPDATE schedd_workers SET lease_until = 1")
    assert f"worker {worker} lost its lease and still holds 1 task" in ctl.fails(1, "worker", "drain", worker, "--wait")


def test_waiting_for_it_ends_when_no_handler_is_left(ctl: Ctl, live: Bench) -> None:
    notify_and_step(live.jobs)
    worker = engine_of(live.jobs).worker
    pools = '{"medium":[8,0],"orphans":[[1,0,1,[5]]]}'
    live.execute("UPDATE schedd_workers SET pools = :pools, state = 1", pools=pools)
    late = ctl("worker", "drain", worker, "--wait", "--timeout", "0")
    assert late.exit_code == 124
    assert f"worker {worker} still runs 1 attempt that lost its claim (task 5)" in late.stderr
    live.execute("UPDATE schedd_workers SET state = 2")
    assert ctl("worker", "drain", worker, "--wait").exit_code == 4


def test_a_worker_that_is_not_there_or_has_ended(ctl: Ctl, live: Bench) -> None:
    notify_and_step(live.jobs)
    worker = engine_of(live.jobs).worker
    for command in ("drain", "resume"):
        assert "there is no worker 99" in ctl.fails(3, "worker", command, 99)
        assert "is not in the range" in ctl.fails(2, "worker", command, 2**70)
    live.execute("UPDATE schedd_workers SET state = 2")
    assert f"worker {worker} is stopped" in ctl.fails(4, "worker", "drain", worker)
    assert "--timeout belongs to --wait" in ctl.fails(2, "worker", "drain", worker, "--timeout", "5")


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_clock_that_is_off_is_reported(ctl: Ctl, live: Bench) -> None:
    notify_and_step(live.jobs)
    live.execute("UPDATE schedd_workers SET skew = -600000000")
    found = {f["check"]: f for f in ctl.json("doctor")}
    assert found["workers' clocks"]["level"] == "note"
    assert "by 10 min" in found["workers' clocks"]["text"]
    assert ctl.json("workers")[0]["skew"] == -600.0


@pytest.mark.case(77)
def test_a_worker_is_asked_to_restart(ctl: Ctl, live: Bench, caplog: pytest.LogCaptureFixture) -> None:
    steps(live)
    worker = engine_of(live.jobs).worker
    restarts: list[str] = []
    engine_of(live.jobs).on_restart(lambda: restarts.append("restart"))
    assert ctl.json("worker", "restart", worker) == {"id": worker, "restarting": True}
    steps(live, 2)
    assert restarts == ["restart"], "once"
    assert "no worker 99" in ctl.fails(3, "worker", "restart", 99)


@pytest.mark.case(77)
def test_a_handler_that_hangs_is_reported(ctl: Ctl, live: Bench) -> None:
    """In ``workers``, ``status``, ``doctor``, ``show`` and by ``cancel``, each with the ways out."""
    steps(live)
    task_id = int(live.step("s").schedule())
    notify_and_step(live.jobs)
    worker = engine_of(live.jobs).worker
    live.execute("UPDATE schedd_tasks SET state = 5, started_at = 1000000 WHERE state = 4")
    live.execute(
        "UPDATE schedd_workers SET pools = :pools",
        pools=f'{{"medium":[8,0],"processes":2,"hung":[[{task_id},1,"Step",1,0,1000000,false,[]]]}}',
    )
    live.execute(
        "INSERT INTO schedd_task_values VALUES (:id, 'stack:1', :text)", id=task_id, text="  in s\n    wait()\n"
    )
    ways = f"`schedctl cancel --force {task_id}` ends the task, `schedctl worker restart {worker}` frees the slot"
    (shown,) = ctl.json("workers")
    assert shown["hung"] == [{"id": task_id, "kind": "Step", "since": "1970-01-01T00:00:01Z", "blocks_loop": False}]
    assert ways in ctl("status").stdout
    doctor = ctl("doctor")
    assert ways in doctor.stdout
    assert doctor.exit_code == 1
    show = ctl("show", task_id).stdout
    assert ways in show
    assert "it hangs in:\n    in s\n      wait()\n" in show
    cancel = ctl("cancel", task_id)
    assert ways in cancel.stderr
    assert "cancel requested" in cancel.stdout
    assert "requested by force" in ctl("cancel", "--force", task_id).stdout


@pytest.mark.case(77)
def test_what_runs_for_long_without_a_timeout_is_noted(ctl: Ctl, live: Bench) -> None:
    """So many times its worker may have died under it, too, which ``list`` tells apart from its budget."""
    steps(live)
    task_id = int(live.step("s").schedule())
    notify_and_step(live.jobs)
    live.execute("UPDATE schedd_tasks SET state = 5, started_at = 1000000, attempt = 2 WHERE state = 4")
    text = f"1 task running for more than 1 h without a timeout: {task_id}; should one hang, nothing reports it"
    assert text in ctl("doctor").stdout
    assert "  1/1 +1  " in ctl("list").stdout
