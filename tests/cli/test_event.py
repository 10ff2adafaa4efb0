"""``event emit`` and ``event list``, and what ``show`` tells of a durable task."""

from __future__ import annotations

from typing import Any

from support.bench import Bench

from .conftest import Ctl


def durable(ctx: Any) -> Any:
    ctx.step("reserve", lambda: {"seat": 12})
    ctx.sleep_for(0, name="nap")
    ctx.emit_event("reserved", "x" * 300)
    try:
        ctx.await_event("paid", timeout=0)
    except TimeoutError:
        pass
    return ctx.await_event("approved", timeout=3600)


def test_emitting_wakes_who_waits(ctl: Ctl, live: Bench) -> None:
    live.script.bodies["flow"] = durable
    task_id = int(live.step("flow").schedule())
    live.drain()
    assert live.state(task_id) == "suspended"
    listed = {row["name"]: row for row in ctl.json("event", "list")}
    assert (listed["approved"]["waiting"], listed["approved"]["emitted_at"]) == (1, None)
    assert (listed["reserved"]["emitted_by"], listed["reserved"]["size"], listed["reserved"]["payload"]) == (
        task_id,
        302,
        None,  # too long to be listed
    )
    result = ctl("event", "emit", "approved", '{"by": "alice"}')
    assert (result.exit_code, result.stdout) == (0, "event approved emitted\n")
    live.drain()
    assert live.jobs.result(task_id, 0) == {"by": "alice"}
    (row,) = [row for row in ctl.json("event", "list") if row["name"] == "approved"]
    assert (row["waiting"], row["payload"], row["emitted_by"]) == (0, {"by": "alice"}, None)


def test_the_first_emit_wins(ctl: Ctl) -> None:
    assert ctl.json("event", "emit", "e", "1")["first"] is True
    assert ctl.json("event", "emit", "e", "1")["first"] is False
    assert ctl("event", "emit", "e", "1").exit_code == 0
    assert "its payload is another one, which stays" in ctl.fails(4, "event", "emit", "e", "2")
    assert ctl.json("event", "list")[0]["payload"] == 1
    assert ctl.json("event", "emit", "none")["payload"] is None


def test_what_cannot_be_emitted(ctl: Ctl, empty_ctl: Ctl) -> None:
    assert "is not JSON" in ctl.fails(2, "event", "emit", "e", "yes")
    assert "1 to 255 characters" in ctl.fails(2, "event", "emit", "n" * 256)
    assert "1 to 255 characters" in ctl.fails(2, "event", "emit", "")
    assert ctl.json("event", "list") == []


def test_doctor_finds_and_wakes_who_overslept(ctl: Ctl, live: Bench) -> None:
    live.script.bodies["flow"] = durable
    task_id = int(live.step("flow").schedule())
    live.drain()
    (checked,) = [row for row in ctl.json("doctor") if row["check"] == "waits"]
    assert checked["level"] == "ok"
    old = "INSERT INTO schedd_events (name, emitted_at) VALUES ('approved', 1)"  # by other hands: it wakes no waiter
    live.execute(old)
    (checked,) = [row for row in ctl.json("doctor", status=1) if row["check"] == "waits"]
    assert (checked["level"], checked["tasks"]) == ("problem", [task_id])
    result = ctl("doctor", "--repair")
    assert (result.exit_code, f"woke 1 task: {task_id}" in result.stderr) == (0, True)
    live.drain()
    assert live.state(task_id) == "success"


def test_show_lists_children(ctl: Ctl, live: Bench) -> None:
    def body(ctx: Any) -> Any:
        made = [ctx.spawn(live.step("child").after(3600)) for _ in range(25)]
        return ctx.await_task(made[0])

    live.script.bodies["flow"] = body
    task_id = int(live.step("flow").schedule())
    live.drain()
    shown = ctl.json("show", task_id)
    assert (shown["children"]["count"], len(shown["children"]["tasks"])) == (25, 20)
    first = shown["children"]["tasks"][0]["id"]
    assert shown["why"].startswith(f"suspended, awaits task {first}; task {first} (Step): due at ")
    assert ctl.json("show", first)["spawned_by"] == task_id
    assert "spawned (20 of 25):" in ctl("show", task_id).stdout


def test_show_lists_what_is_recorded_and_awaited(ctl: Ctl, live: Bench) -> None:
    live.script.bodies["flow"] = durable
    task_id = int(live.step("flow").schedule())
    live.drain()
    shown = ctl.json("show", task_id)
    listed = [(row["name"], row["type"], row["size"]) for row in shown["recorded"]]
    assert listed == [
        ("reserve", "step", 11),
        ("nap", "sleep", 16),
        ("$emit:reserved", "emit", 4),
        ("$event:paid", "await event", 0),
    ]
    reserve, nap, _, paid = shown["recorded"]
    assert reserve["value"] == {"seat": 12}
    assert reserve["seconds"] >= 0
    assert nap["value"].startswith("20")
    assert paid["error"].startswith("TimeoutError: event 'paid'")
    (wait,) = shown["waits"]
    assert (wait["event"], wait["task"], wait["until"] > wait["since"]) == ("approved", None, True)
    assert shown["why"].endswith("awaits event 'approved'")
    text = ctl("show", task_id).stdout
    assert "recorded:" in text
    assert "waits for:" in text
    live.jobs.emit_event("approved")
    live.drain()
    assert ctl.json("show", task_id)["waits"] == []
