"""``rerun``, ``copy`` and ``set task``."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import StoreUnavailableError
from scheduler.operations import bulk
from support.bench import Bench, notify_and_step

from .conftest import Ctl

_WHO = ("--by", "ada", "--reason", "slow")


def test_rerun_of_a_success(ctl: Ctl, live: Bench) -> None:
    a = int(live.step("a").schedule())
    b = int(live.step("b", a).schedule())
    live.drain()
    assert f"task {a} has succeeded" in ctl.fails(4, "retry", a)
    assert ctl.json("rerun", a, b) == [
        {"id": a, "kind": "Step", "state": "scheduled"},
        {"id": b, "kind": "Step", "state": "waiting"},
    ]
    assert live.drain() == ["a", "b"]
    ctl("rerun", "--no-downstream", a)
    assert live.drain() == ["a"]
    assert ctl.fails(3, "rerun", 4711) == "schedctl: there is no task 4711\n"


def test_rerun_waits_for_what_runs_below(ctl: Ctl, live: Bench) -> None:
    a = int(live.step("a").schedule())
    live.drain()
    b = int(live.step("b", a).schedule())
    notify_and_step(live.jobs)
    assert f"task {b}, below task {a}, is claimed and has begun" in ctl.fails(4, "rerun", a)


def test_copy_with_another_field(ctl: Ctl, live: Bench) -> None:
    a = int(live.step("a").schedule())
    live.drain()
    made = ctl.json("copy", a, "-P", "name=b", "--priority", "high", "--key", "k")
    assert made["copied"] == a
    assert live.drain() == ["b"]
    assert f"task {made['id']}" in ctl.fails(4, "copy", a, "--key", "k")
    assert int(ctl("copy", a, "--in", "1h").stdout) > made["id"]
    assert "payload of Step does not fit: Expected `str`, got `int`" in ctl.fails(2, "copy", a, "-P", "name:=3")


def test_set_task_changes_all_or_none(ctl: Ctl, live: Bench) -> None:
    live.drain()  # publishes the kinds
    a, b = int(live.step("a").schedule()), int(live.step("b").schedule())
    rows = ctl.json("set", "task", a, b, "--priority", "high", "--to-queue", "q", "--in", "1h", "--retry", "2")
    assert [(row["priority"], row["queue"], row["max_attempts"]) for row in rows] == [("high", "q", 3)] * 2
    assert live.drain() == []
    ctl("set", "task", a, "--in", "0", "--to-queue", "default", "-P", "name=other", "--headers", '{"x": 1}')
    assert live.drain() == ["other"]
    assert f"task {a} is success; it has ended" in ctl.fails(4, "set", "task", a, b, "--priority", "low")
    assert ctl.json("show", b)["priority"] == "high"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "say what to change"),
        (("--in", "1h", "--at", "2030-01-01T00:00:00Z"), "--in and --at exclude each other"),
        (("-P", "name=a", "--payload", "{}"), "-P and --payload exclude each other"),
        (("--payload", "{"), "--payload is not JSON"),
        (("--headers", "["), "--headers is not JSON"),
        (("--timeout", "0"), "timeout must be more than 0"),
        (("-P", "name"), "neither NAME=TEXT nor NAME:=JSON"),
    ],
)
def test_set_task_refuses(ctl: Ctl, live: Bench, arguments: tuple[str, ...], text: str) -> None:
    live.drain()
    a = int(live.step("a").schedule())
    result = ctl("set", "task", a, *arguments)
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert "Traceback" not in result.output


def test_cancel_by_filter_says_its_plan_first(ctl: Ctl, live: Bench) -> None:
    ids = [int(live.step(name).subject("ada").schedule()) for name in "abc"]
    child = int(live.step("child", ids[0]).schedule())
    shown = ctl("cancel", "--subject", "ada", "--dry-run")
    assert shown.stdout == (
        "KIND  STATE      TASKS\nStep  scheduled      3\n\nwould cancel 3 tasks; 1 other task may end or run again\n"
    ).replace("\n\n", "\n")
    refused = ctl("cancel", "--subject", "ada")
    assert (refused.exit_code, "this would cancel 3 tasks: say --yes" in refused.stderr) == (2, True)
    assert live.states(*ids) == ["scheduled"] * 3
    done = ctl("cancel", "--subject", "ada", "--field", "name=b", "--yes", "--reason", "wrong")
    assert done.stdout == "1 task cancelled\n0 dependants ended with them\n"
    made = ctl.json("cancel", "--subject", "ada", "--yes")
    assert (made["cancelled"], made["dependants"], made["dry_run"]) == ([ids[0], ids[2]], 1, False)
    assert live.states(*ids, child) == [*["cancelled"] * 3, "failed"]
    assert ctl.json("cancel", "--subject", "ada", "--yes")["cancelled"] == []


def test_a_bulk_that_breaks_off_says_how_far_it_came(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = live.die(*(f"m{i}" for i in range(5)))
    real, calls = bulk.apply, []

    def breaks_off(*args: Any, **given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise StoreUnavailableError("the server is away")
        return real(*args, **given)

    monkeypatch.setattr(bulk, "_RETRIED", 2)
    monkeypatch.setattr(bulk, "apply", breaks_off)
    message = ctl.fails(5, "retry", "--kind", "Step")
    assert message.startswith("schedctl: broke off: retry was done for 4 tasks by then; the same command goes on\n")
    assert "the server is away" in message
    assert [row["id"] for row in ctl.json("retry", "--kind", "Step")] == made[4:]


def test_retry_by_filter_has_a_dry_run(ctl: Ctl, live: Bench) -> None:
    dead = live.die("a", "b", subject="ada")
    planned = ctl("-o", "json", "retry", "--subject", "ada", "--status", "dead", "--dry-run")
    assert planned.exit_code == 0
    assert "a dry run: nothing was retried" in planned.stderr
    assert live.states(*dead) == ["dead", "dead"]
    assert [row["id"] for row in ctl.json("retry", "--subject", "ada", "--field", "name=b")] == [dead[1]]
    assert "--dry-run goes with filters" in ctl("retry", dead[0], "--dry-run").stderr
    assert "cannot be chosen here" in ctl.fails(2, "retry", "--status", "success")


def test_settings_say_what_is_in_effect_and_who_set_it(ctl: Ctl, live: Bench) -> None:
    live.drain()
    shown = ctl("set", "kind", "Step", "--max-concurrency", "2", "--rate-limit", "10/min", *_WHO)
    assert shown.stdout == "kind Step: max_concurrency 2, rate_limit 10/min\n"
    assert "it was so already" in ctl("set", "kind", "Step", "--max-concurrency", "2").stderr
    assert ctl.json("set", "pool", "high", "--slots", "3")["value"] == {"slots": 3}
    assert ctl.json("set", "key", "Step", "k", "--max-concurrency", "none")["setting"] == "key Step/k"
    queue = ctl("set", "queue", "etl", "--max-concurrency", "2", "--rate-limit", "5/s", *_WHO)
    assert queue.stdout == "queue etl: max_concurrency 2, rate_limit 5/s\n"
    assert ctl.json("set", "key", "Step", "k", "--rate-limit", "3/h")["value"]["rate_limit"] == "3/h"
    assert ctl.json("set", "kind", "Step", "--max-per-worker", "4", *_WHO)["value"]["max_per_worker"] == 4
    rows = {row["setting"]: row for row in ctl.json("settings")}
    assert rows["kind Step rate_limit"]["value"] == "10/min"
    assert [rows["queue etl max_concurrency"]["value"], rows["queue etl rate_limit"]["value"]] == [2, "5/s"]
    assert [rows["key Step/k rate_limit"]["value"], rows["kind Step max_per_worker"]["value"]] == ["3/h", 4]
    assert "schedctl set by ada since" in rows["kind Step rate_limit"]["source"]
    assert ": slow" in rows["kind Step rate_limit"]["source"]
    worker = next(name for name in rows if name.endswith("pool high slots"))
    assert rows[worker]["source"].startswith("3 soon, schedctl set by")
    assert rows[worker.replace("high", "low")]["source"] == "its configuration"
    checked = {row["setting"]: row for row in ctl.json("config", "check")}
    assert (checked["pools.high.slots"]["value"], checked["pools.low.slots"]["value"]) == (3, 4)
    assert "schedctl set by" in checked["pools.high.slots"]["source"]
    assert (checked["queue etl max_concurrency"]["value"], checked["key Step/k rate_limit"]["value"]) == (2, "3/h")
    assert ctl("set", "queue", "etl", "--reset").stdout == "queue etl: as programs and configurations say\n"
    assert ctl("set", "kind", "Step", "--reset").stdout == "kind Step: as programs and configurations say\n"
    assert "kind Step rate_limit" not in {row["setting"] for row in ctl.json("settings")}


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("kind", "Step"), 2, "say either what to change, or --reset"),
        (("kind", "Step", "--reset", "--max-concurrency", "2"), 2, "say either what to change, or --reset"),
        (("kind", "Step", "--max-concurrency", "0"), 2, "--max-concurrency is a whole number"),
        (("kind", "Step", "--rate-limit", "often"), 2, "rate_limit must look like"),
        (("kind", "Step", "--max-per-worker", "0"), 2, "--max-per-worker is a whole number"),
        (("queue", "etl"), 2, "say either what to change, or --reset"),
        (("queue", "etl", "--max-concurrency", "many"), 2, "--max-concurrency is a whole number"),
        (("pool", "high", "--slots", "2", "--worker", "4711"), 3, "there is no worker 4711"),
    ],
)
def test_set_refuses(ctl: Ctl, live: Bench, arguments: tuple[str, ...], status: int, text: str) -> None:
    live.drain()
    result = ctl("set", *arguments)
    assert (result.exit_code, text in result.stderr) == (status, True), result.output


def test_set_task_by_filter(ctl: Ctl, live: Bench) -> None:
    ids = [int(live.step(name).schedule()) for name in "abc"]
    assert "would change 3 tasks" in ctl("set", "task", "--kind", "Step", "--priority", "low", "--dry-run").stdout
    done = ctl.json("set", "task", "--kind", "Step", "--field", "name=a", "--to-queue", "q", "--yes")
    assert done["changed"] == [ids[0]]
    assert [live.jobs.get_task(i).queue for i in ids] == ["q", "default", "default"]
    assert ctl("set", "task", "--kind", "Step", "--yes").exit_code == 2
    assert ctl("set", "task", ids[0], "--kind", "Step", "--priority", "low").exit_code == 2


def test_words_of_a_filter_in_one_argument_or_several(ctl: Ctl, live: Bench) -> None:
    live.drain()
    a, b, c = (int(live.step(name).subject("ada").schedule()) for name in "abc")
    assert ctl.json("cancel", "subject:ada -name=b id:1", "--yes")["cancelled"] == ([a] if a == 1 else [])
    done = ctl.json("cancel", "kind:St*", "subject:ada", "--field", "name=c", "--yes")
    assert done["cancelled"] == [c]
    ctl("set", "task", f"id:{b}", "--to-queue", "q", "--yes")
    assert [row["id"] for row in ctl.json("list", "queue:q", "stored:<1h")] == [b]
    assert c in [row["id"] for row in ctl.json("list", "--", "-queue:q", "state:cancelled")]
    assert [row["id"] for row in ctl.json("retry", "state:cancelled", "name=c")] == [c]
    assert "say either IDs, or a filter" in ctl.fails(2, "cancel")
    assert "neither an id nor a word such as kind:Mail" in ctl.fails(2, "cancel", "mail", "--yes")
    assert "there is no field nosuch" in ctl.fails(2, "retry", "nosuch:1")
    assert "say how old they are" in ctl.fails(2, "dlq", "purge", "kind:Step", "--yes")


def test_rerun_takes_a_filter(ctl: Ctl, live: Bench) -> None:
    top = int(live.step("top").subject("ada").schedule())
    below = int(live.step("below", top).schedule())
    live.drain()
    unasked = ctl("rerun", "subject:ada")
    assert unasked.exit_code == 2
    assert "this would rerun 1 task: say --yes" in unasked.stderr
    assert live.states(top, below) == ["success", "success"]
    shown = ctl("rerun", "subject:ada", "--dry-run")
    assert "nothing was run again; up to 1 other tasks" in shown.stderr
    assert ctl.json("rerun", "subject:ada", "--yes", "--rate", "100") == [
        {"id": top, "kind": "Step", "state": "scheduled"}
    ]
    assert live.states(top, below) == ["scheduled", "waiting"]
    for refused in (("rerun", top, "--rate", 2), ("cancel", top, "--rate", 2), ("rerun", top, "--dry-run")):
        assert "goes with filters" in ctl.fails(2, *refused)
    assert "tasks a second" in ctl.fails(2, "cancel", "kind:Step", "--yes", "--rate", "0")


def test_a_fairness_key_and_its_weight(ctl: Ctl, live: Bench) -> None:
    live.drain()  # publishes the kinds
    made = ctl.json("submit", "Step", "-P", "name=a", "--fairness-key", "ada", "--fairness-weight", "2.5")
    assert ctl.json("show", made["id"])["fairness_key"] == "ada"
    ctl("submit", "Step", "-P", "name=b", "--fairness-key", "bob")
    shown = ctl("list", "--fairness-key", "ada", "--columns", "id,fairness_key").stdout.split()
    assert shown == ["ID", "FAIRNESS", "KEY", str(made["id"]), "ada"]
    assert "a fairness key has no control characters" in ctl.fails(
        2, "submit", "Step", "-P", "name=a", "--fairness-key", "a\n"
    )
    assert "a fairness weight is a number from 0.001 to 1000" in ctl.fails(
        2, "submit", "Step", "-P", "name=a", "--fairness-weight", "0"
    )
    assert ctl.json("set", "key", "ada", "--weight", "3") == {
        "setting": "key ada",
        "value": {"weight": 3.0},
        "changed": True,
    }
    assert ctl.json("set", "key", "Step", "ada", "--weight", "2", "--max-concurrency", "1")["setting"] == "key Step/ada"
    assert "name the kind, too" in ctl.fails(2, "set", "key", "ada", "--max-concurrency", "1")
    assert "--weight is a number, or none" in ctl.fails(2, "set", "key", "ada", "--weight", "much")
    assert "a kind and a key, or a fairness key alone" in ctl.fails(2, "set", "key", "a", "b", "c", "--weight", "1")
    assert ctl.json("set", "key", "ada", "--reset")["value"] == {}
