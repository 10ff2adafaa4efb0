"""What ``schedctl`` says of graphs that run, of the coming day, of the past, and of an earlier run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.operations import stored_bulks
from scheduler.ports import SECOND
from support.bench import Bench, Step
from tasks import CommandTask

from .conftest import Ctl


def known(bench: Bench, seconds: float, number: int = 3) -> None:
    """Let the rollups say that a Step takes so long, and its worker be live."""
    bench.step("first").schedule()
    bench.drain()
    from scheduler.model.rollup import MINUTE, Cell, Measure, bucket_of
    from scheduler.store import rollups

    us = round(seconds * SECOND)
    with bench.jobs.database.write() as tx:
        tx.run("DELETE FROM schedd_rollups")
        at = tx.now - tx.now % (MINUTE * SECOND)
        rollups.add(tx, [Cell(MINUTE, at, "Step", "default", 0, int(Measure.RUN), bucket_of(us), number, number * us)])


def test_graph_says_what_is_left(ctl: Ctl, live: Bench) -> None:
    known(live, 600)
    top = int(live.step("top").after(3600).schedule())
    left, right = int(live.step("left", top).schedule()), int(live.step("right", top).schedule())
    bottom = int(live.step("bottom", left, right).schedule())
    result = ctl("graph", top)
    assert "4 tasks left: at least 1 h 2" in result.stderr
    assert f"longest path: {top} > {left} > {bottom}" in result.stderr
    assert f"3 tasks come after task {top}" in result.stderr
    found = ctl.json("graph", top)["estimate"]
    assert found["remaining"] == 4
    assert 3600 + 3 * 500 < found["low"] <= found["high"] < 3600 + 3 * 700
    assert found["blockers"] == [{"id": top, "below": 3}]
    live.jobs.cancel_task(top, cascade=True)
    assert ctl("graph", top).stderr == ""


def test_graph_says_why_an_estimate_has_no_upper_bound(ctl: Ctl, live: Bench) -> None:
    known(live, 600)
    top = int(live.step("top").after(3600).schedule())
    live.jobs.register(CommandTask)
    live.jobs.task(CommandTask(["true"])).depend_on(top).schedule()
    assert "2 tasks left: at least 1 h" in (note := ctl("graph", top).stderr)
    assert "no upper bound: 1 task of kinds that have not run lately" in note


def test_forecast(ctl: Ctl, live: Bench) -> None:
    known(live, 1200)
    soon = datetime.now(UTC) + timedelta(hours=2)
    for number in range(12):
        live.step(f"nightly{number}").key(f"nightly-{number}").daily_at(soon.hour, soon.minute).schedule()
    result = ctl("cron", "forecast")
    assert result.exit_code == 0, result.output
    assert "12 of 12 medium thread slots" not in result.stderr
    view = ctl.json("cron", "forecast", "--hours", "12")
    assert len(view["schedules"]) == 12
    assert {one["count"] for one in view["schedules"]} == {1}
    slots = view["slots"]["medium thread"]
    assert slots == 12, "the medium pool's slots and the low one's"
    for number in range(3):
        live.step(f"more{number}").key(f"more-{number}").daily_at(soon.hour, soon.minute).schedule()
    result = ctl("cron", "forecast")
    assert "15 of 12 medium thread slots are wanted" in result.stderr
    assert "nightly-0" in result.stdout
    assert "hours" in ctl.fails(2, "cron", "forecast", "--hours", "0")


def test_show_at_a_past_time(ctl: Ctl, live: Bench) -> None:
    task = int(live.step("task").after(3600).schedule())
    live.execute("UPDATE schedd_tasks SET created_at = created_at - 7200000000")
    live.jobs.cancel_task(task)
    (view,) = ctl.json("show", task, "--at", "1h")
    assert (view["id"], view["state"], view["attempt"]) == (task, "scheduled", None)
    (before,) = ctl.json("show", task, "--at", "3h")
    assert before["state"] == "not made yet"
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert "still to come" in ctl.fails(2, "show", task, "--at", later)
    ctl.fails(3, "show", 10**6, "--at", "1h")


def test_compare(ctl: Ctl, live: Bench) -> None:
    def run(ctx: Any) -> str:
        ctx.log.info("fetched", pages=ctx.state.ran.count("mail"))
        return "done"

    live.script.bodies["mail"] = run
    good = int(live.jobs.task(Step("mail")).correlation("order-1").schedule())
    live.drain()
    live.script.bodies.clear()
    live.script.failing.add("letter")
    bad = int(live.jobs.task(Step("letter")).correlation("order-2").schedule())
    live.drain()
    view = ctl.json("compare", bad)
    assert (view["task"], view["other"]) == (bad, good)
    assert [role["states"] for role in view["roles"]] == [{"dead": 1}]
    assert [role["other_states"] for role in view["roles"]] == [{"success": 1}]
    assert [(c["path"], c["before"], c["after"]) for c in view["payload"]] == [("name", "mail", "letter")]
    assert any(line.startswith("-") and "fetched" in line for line in view["log"])
    text = ctl("compare", bad, good).stdout
    assert "1 success > 1 dead" in text
    assert "payload name: mail > letter" in text
    lonely = int(live.step("lonely").correlation("x").schedule())
    assert "no earlier good run" in ctl.fails(3, "compare", lonely)


def test_secrets_are_masked_in_a_comparison(ctl: Ctl, live: Bench) -> None:
    one = int(live.jobs.task("Step", {"name": "a"}).schedule())
    other = int(live.jobs.task("Step", {"name": "b"}).schedule())
    for task, token in ((one, "hunter2"), (other, "swordfish")):
        live.execute("UPDATE schedd_tasks SET payload = :p WHERE id = :id", id=task, p=f'{{"api_token": "{token}"}}')
    result = ctl("compare", one, other)
    assert result.exit_code == 0
    assert "hunter2" not in result.output
    assert "swordfish" not in result.output


def test_bulk_from_plan_to_undo(ctl: Ctl, live: Bench) -> None:
    tasks = [int(live.step(f"s{n}").subject("ada").after(3600).schedule()) for n in range(3)]
    made = ctl.json("bulk", "plan", "cancel", "--subject", "ada", "--by", "alice", "--reason", "wrong customer")
    assert (made["state"], made["total"], made["plan"]["will"]) == ("planned", 3, 3)
    done = ctl.json("bulk", "run", made["name"])
    assert (done["state"], done["done"], done["reason"]) == ("done", 3, "wrong customer")
    assert live.states(*tasks) == ["cancelled"] * 3
    items = ctl.json("bulk", "show", made["name"], "--result", "done")
    assert [item["before"] for item in items] == ["scheduled"] * 3
    assert "is done" in ctl.fails(4, "bulk", "stop", made["name"])
    back = ctl("bulk", "undo", made["name"])
    assert back.exit_code == 0, back.output
    assert live.states(*tasks) == ["scheduled"] * 3
    assert [one["verb"] for one in ctl.json("bulk", "list")] == ["uncancel", "cancel"]
    text = ctl("bulk", "plan", "cancel", "--subject", "ada").stdout
    assert "would cancel 3 tasks of 3" in text
    assert "Step: 3 scheduled" in text
    assert "which tasks" in ctl.fails(2, "bulk", "plan", "cancel")
    ctl.fails(3, "bulk", "run", "nothing")
    ctl.fails(2, "bulk", "plan", "cancel", "--subject", "ada", "--limit", "3")


@pytest.mark.case(98)
def test_a_canary_that_dies_ends_with_1(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    live.die("a", "b", "c")
    mark = ctl.json("dlq", "list")[0]["fingerprint"]
    made = ctl.json("bulk", "plan", "replay", "--fingerprint", mark, "--error-class", "PermanentError", "-P", "name=a")
    assert made["total"] == 3
    assert ctl.json("bulk", "plan", "replay", "--error-class", "OSError")["total"] == 0
    monkeypatch.setitem(stored_bulks.run.__kwdefaults__, "wait", lambda _: live.drain())
    result = ctl("bulk", "run", made["name"], "--canary")
    assert result.exit_code == 1, result.output
    assert "2 tasks are left: the canary did not succeed" in result.stderr
    assert live.jobs.bulks.get(made["name"]).state == "stopped"


def test_a_canary_that_nobody_serves_says_so_and_ends_with_1(ctl: Ctl, live: Bench) -> None:
    live.die("a", "b", "c", queue="old")
    live.execute("UPDATE schedd_workers SET queues = '[\"new\"]'")
    made = ctl.json("bulk", "plan", "replay", "--kind", "Step")
    result = ctl("bulk", "run", made["name"], "--canary")
    assert result.exit_code == 1, result.output
    assert "2 tasks are left: the canary, task " in result.stderr
    assert "no live worker serves queue 'old'" in result.stderr
    assert "`schedctl set task --queue old --to-queue new`" in result.stderr
    assert f"`schedctl bulk run {made['name']} --canary`" in result.stderr


@pytest.mark.case(98)
def test_an_interrupted_bulk_says_how_to_go_on(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        live.step(f"s{number}").subject("ada").after(3600).schedule()
    made = ctl.json("bulk", "plan", "cancel", "--subject", "ada")
    steps: list[Any] = []
    step = stored_bulks.step

    def once(*given: Any) -> Any:
        if steps:
            raise KeyboardInterrupt
        steps.append(step(*given))
        return steps[0]

    monkeypatch.setattr(stored_bulks, "BATCH", 2)
    with monkeypatch.context() as patch:
        patch.setattr(stored_bulks, "step", once)
        result = ctl("bulk", "run", made["name"], "--rate", "1000")
    assert f"interrupted after 2 of 3: `schedctl bulk run {made['name']}` goes on" in result.stderr
    (listed,) = ctl.json("bulk", "list")
    assert (listed["state"], listed["left"], listed["options"]["rate"]) == ("interrupted", 1, 1000.0)
    assert ctl.json("bulk", "run", made["name"])["state"] == "done"
    assert "a second" in ctl.fails(2, "bulk", "run", made["name"], "--rate", "0")


@pytest.mark.parametrize("verb", ["retry", "plan"])
def test_ages_of_what_has_ended_count_from_the_end(ctl: Ctl, live: Bench, verb: str) -> None:
    old, new = live.die("old", "new")
    for task_id, stored, ended in ((old, 1, 9), (new, 9, 1)):
        live.execute(
            "UPDATE schedd_tasks SET created_at = created_at - :stored, finished_at = finished_at - :ended "
            "WHERE id = :id",
            id=task_id, stored=stored * 3_600_000_000, ended=ended * 3_600_000_000,
        )  # fmt: skip
    command = ["retry", "--dry-run"] if verb == "retry" else ["bulk", "plan", "retry"]
    for age, expected in (("--newer-than", new), ("--older-than", old)):
        found = ctl.json(*command, "--kind", "Step", age, "2h")
        if verb == "plan":
            found = ctl.json("bulk", "show", found["name"])
            assert [item["task_id"] for item in found] == [expected]
        else:
            assert [task["id"] for task in found] == [expected]


def test_a_bulk_that_passed_tasks_over_ends_with_4(ctl: Ctl, live: Bench) -> None:
    tasks = live.die("a", "b")
    made = ctl.json("bulk", "plan", "retry", "--kind", "Step")
    live.jobs.retry_task(tasks[0])
    result = ctl("bulk", "run", made["name"])
    assert result.exit_code == 4
    assert "1 done, 1 passed over" in result.stdout
    assert "is scheduled" in ctl("bulk", "show", made["name"], "--result", "passed over").stdout
