"""``schedctl dlq``, and what ``status`` and ``show`` tell of dead letters."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from scheduler import StoreUnavailableError
from scheduler.operations import bulk
from support.bench import Bench, Soft, Step

from .conftest import Ctl

GROUP = ["count", "what", "kind", "error_class", "fingerprint", "oldest", "newest", "id", "error"]
GROUP += ["shared_count", "shared_kinds"]


def old(bench: Bench, task_id: int, hours: float) -> None:
    """Let it have died so long ago."""
    bench.execute(
        "UPDATE schedd_tasks SET finished_at = finished_at - :by WHERE id = :id", id=task_id, by=round(hours * 3.6e9)
    )


def audit(bench: Bench) -> list[tuple[str, int, str | None]]:
    return [(a.action, a.task_id, a.actor) for a in bench.jobs.dead_letters.audit()]


def test_list_groups_by_cause(ctl: Ctl, live: Bench) -> None:
    def fails(ctx: Any) -> None:
        raise ConnectionRefusedError(f"port {ctx.id}")

    refused = []
    for i in range(3):
        live.script.bodies[f"r{i}"] = fails
        refused.append(int(live.step(f"r{i}").schedule()))
    (other,) = live.die("other")
    live.drain()
    groups = ctl.json("dlq", "list")
    assert [list(g) for g in groups] == [GROUP, GROUP]
    assert [(g["count"], g["what"], g["id"]) for g in groups] == [
        (3, "ConnectionRefusedError in Step.run", refused[-1]),
        (1, "PermanentError in Step.run", other),
    ]
    head, first, _ = ctl("dlq", "list").stdout.splitlines()
    assert head.split()[:3] == ["COUNT", "WHAT", "FINGERPRINT"]
    assert "3  ConnectionRefusedError in Step.run" in first
    mark = groups[0]["fingerprint"]
    assert [t["id"] for t in ctl.json("dlq", "list", "--each", "--fingerprint", mark)] == refused[::-1]
    assert [t["id"] for t in ctl.json("dlq", "list", "--each", "--error-class", "PermanentError")] == [other]
    assert ctl.json("dlq", "list", "--kind", "Soft") == []
    result = ctl("dlq", "list", "--limit", 1)
    assert len(result.stdout.splitlines()) == 2
    assert "there are more" in result.stderr


def test_of_many_the_newest_are_looked_at(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, soft = live.die("a", "b", "c", "d")
    live.execute("UPDATE schedd_tasks SET kind = 'Soft' WHERE id = :id", id=soft)
    for hours, task_id in enumerate((c, b, a, soft)):
        old(live, task_id, hours)
    monkeypatch.setattr("scheduler.store.read.figures.MAX_COUNTED", 2)
    said = "looked at the newest 2 dead letters, and there are older ones: --all looks at all"

    def found(*options: object) -> tuple[list[tuple[Any, int]], bool]:
        done = ctl("dlq", "list", *options, "-o", "json")
        return [(one.get("count"), one["id"]) for one in json.loads(done.stdout)], said in done.stderr

    assert found() == ([(2, c)], True)
    assert found("--all") == ([(3, c), (1, soft)], False)
    assert found("--kind", "Soft") == found("--each", "--kind", "Soft") == ([], True)
    assert found("--kind", "Soft", "--older-than", "2h30m") == ([(1, soft)], False)
    assert found("--each", "--limit", 1) == ([(None, c)], False)  # it ends before
    assert found("--newer-than", "90m") == ([(2, c)], False)
    live.execute("UPDATE schedd_tasks SET key = 'k' WHERE id = :id", id=soft)
    assert found("--key", "k") == ([(1, soft)], False)


def test_list_by_age(ctl: Ctl, live: Bench) -> None:
    a, b = live.die("a", "b")
    old(live, a, 3)
    assert [t["id"] for t in ctl.json("dlq", "list", "--each")] == [b, a]
    assert [t["id"] for t in ctl.json("dlq", "list", "--each", "--older-than", "2h")] == [a]
    assert [t["id"] for t in ctl.json("dlq", "list", "--each", "--newer-than", "2h")] == [b]
    (group,) = ctl.json("dlq", "list", "--newer-than", "1d")
    assert (group["count"], group["id"]) == (2, b)


@pytest.mark.case(19)
def test_replay_and_show(ctl: Ctl, live: Bench) -> None:
    (dead,) = live.die("mail")
    for name in ("alice", "bob"):
        rows = ctl.json("dlq", "replay", dead, "--by", name)
        assert [(r["id"], r["state"], r["original_id"]) for r in rows] == [(dead, "scheduled", dead)]
        live.drain()
        assert live.state(dead) == "dead"
    for command in (("dlq", "show"), ("show",)):
        view = ctl.json(*command, dead)
        assert (view["replay_count"], view["original_id"], len(view["attempts"])) == (2, dead, 3)
        assert [(a["actor"], a["action"]) for a in view["audit"]] == [("alice", "replay"), ("bob", "replay")]
        assert view["audit"][0]["detail"] == {"attempt": 1, "error": "PermanentError: mail failed"}
        text = ctl(*command, dead).stdout
        assert "replay count:" in text
        assert "audit:" in text
        assert "alice" in text
    live.script.failing.clear()
    ctl("dlq", "replay", dead)
    live.drain()
    assert ctl.json("dlq", "show", dead)["state"] == "success"
    assert audit(live)[-1][2]  # the user's own name


@pytest.mark.case(20)
def test_what_cannot_be_replayed(ctl: Ctl, live: Bench) -> None:
    (dead,) = live.die("mail")
    done, failed = live.ended("success"), live.ended("failed", Soft)
    assert ctl.fails(3, "dlq", "replay", 4711) == "schedctl: there is no task 4711\n"
    assert f"task {done} is success; it is no dead letter" in ctl.fails(4, "dlq", "replay", dead, done)
    assert f"task {failed} is failed" in ctl.fails(4, "dlq", "replay", failed)
    assert f"task {done} is success" in ctl.fails(4, "dlq", "show", done)
    assert ctl.fails(3, "dlq", "show", 4711) == "schedctl: there is no task 4711\n"
    assert live.state(dead) == "dead"  # all or none
    assert audit(live) == []
    for wrong in (["--by", ""], ["--key", ""], ["-P", "name"], ["--payload", "{"], ["-P", "a=b", "--payload", "{}"]):
        ctl.fails(2, "dlq", "replay", dead, *wrong)
    ctl.fails(2, "dlq", "replay", dead, done, "--key", "k")
    ctl.fails(2, "dlq", "replay")


def test_replay_with_another_payload(ctl: Ctl, live: Bench) -> None:
    a, b = live.die("a", "b")
    assert "payload of Step does not fit" in ctl.fails(2, "dlq", "replay", a, "-P", "name:=5")
    assert "payload of Step does not fit" in ctl.fails(2, "dlq", "replay", a, "--payload", "{}")
    for text in ("{", "[" * 3000):
        assert "--payload is not JSON: " in ctl.fails(2, "dlq", "replay", a, "--payload", text)
    assert live.state(a) == "dead"
    assert ctl("dlq", "replay", a, "-P", "name=mended").exit_code == 0
    assert ctl("dlq", "replay", b, "--payload", '{"name": "new"}').exit_code == 0
    assert sorted(live.drain()) == ["mended", "new"]


def test_replay_when_the_key_is_held(ctl: Ctl, live: Bench) -> None:
    (dead,) = live.die("mail", key="k1")
    holder = int(live.step("other").key("k1").after(60).schedule())
    assert f"is held by task {holder}" in ctl.fails(4, "dlq", "replay", dead)
    result = ctl("dlq", "replay-all", "-o", "json")
    assert result.exit_code == 4
    assert f'"conflicts": {{\n    "{dead}": {holder}' in result.stdout
    assert f"task {dead} was not replayed: task {holder} has its key" in result.stderr
    assert live.state(dead) == "dead"
    assert ctl("dlq", "replay", dead, "--key", "k2").exit_code == 0
    assert live.jobs.get_task(dead).key == "k2"


def test_copy(ctl: Ctl, live: Bench) -> None:
    (dead,) = live.die("mail")
    (row,) = ctl.json("dlq", "replay", dead, "--copy", "--by", "alice")
    assert (row["id"] != dead, row["original_id"], row["replay_count"]) == (True, dead, 1)
    assert live.states(dead, row["id"]) == ["dead", "scheduled"]
    assert audit(live) == [("copy", dead, "alice"), ("copied", row["id"], "alice")]


@pytest.mark.case(20)
def test_replay_all_is_bounded(ctl: Ctl, live: Bench) -> None:
    made = live.die(*(f"m{i}" for i in range(10)))
    soft = live.ended("dead")
    assert ctl("dlq", "replay-all", "--limit", 3, "--by", "alice").stdout == "3 tasks replayed, 8 left\n"
    assert live.states(*made).count("scheduled") == 3
    assert ctl.json("dlq", "replay-all", "--kind", "Other") == {"replayed": [], "conflicts": {}, "left": 0}
    old(live, soft, 3)
    assert ctl.json("dlq", "replay-all", "--older-than", "2h")["replayed"] == [soft]
    assert ctl("dlq", "replay-all").stdout == "7 tasks replayed, 0 left\n"
    ctl.fails(2, "dlq", "replay-all", "--limit", 0)


def test_what_was_done_is_reported_when_it_breaks_off(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = live.die(*(f"m{i}" for i in range(5)))
    real = bulk.apply

    def breaks_off(*given: Any) -> Any:
        if live.states(*made).count("scheduled") == 4:
            raise StoreUnavailableError("the server is away")
        return real(*given)

    monkeypatch.setattr(bulk, "_RETRIED", 2)
    monkeypatch.setattr(bulk, "apply", breaks_off)
    message = ctl.fails(5, "dlq", "replay-all")
    assert message.startswith("schedctl: broke off: replay was done for 4 tasks by then; the same command goes on\n")
    assert "the server is away" in message


@pytest.mark.case(22)
def test_purge(ctl: Ctl, live: Bench) -> None:
    a, b, c = live.die("a", "b", "c")
    old(live, a, 30)
    old(live, b, 30)
    assert "this would remove 2 tasks: say --yes" in ctl.fails(2, "dlq", "purge", "--older-than", "1d")
    assert ctl.json("dlq", "purge", "--older-than", "2d", "--yes") == {"removed": 0}
    assert ctl("dlq", "purge", "--older-than", "1d", "--yes", "--by", "alice").stdout == "2 tasks removed\n"
    assert [t["id"] for t in ctl.json("dlq", "list", "--each")] == [c]
    assert audit(live) == [("purge", a, "alice"), ("purge", b, "alice")]
    ctl.fails(2, "dlq", "purge")


@pytest.mark.case(22)
def test_status_tells_of_dead_letters(ctl: Ctl, live: Bench) -> None:
    assert ctl.json("status")["dead_letters"] == {"count": 0, "oldest": None, "oldest_age": None}
    assert "dead letter" not in ctl("status").stdout
    a, _ = live.die("a", "b")
    old(live, a, 2)
    view = ctl.json("status")["dead_letters"]
    assert (view["count"], view["oldest"]) == (2, ctl.json("show", a)["finished_at"])
    assert 7200 <= view["oldest_age"] < 7300
    assert "2 dead letters, the oldest for 2 h" in ctl("status").stdout


def test_a_replay_wakes_an_idle_worker(ctl: Ctl, live: Bench) -> None:
    (dead,) = live.die("mail")
    ran = threading.Event()
    live.script.bodies["mail"] = lambda ctx: ran.set()
    jobs = live.worker()
    jobs.start()
    try:
        assert ctl("dlq", "replay", dead).exit_code == 0
        assert ran.wait(20)
    finally:
        jobs.stop()


def test_a_kind_that_no_worker_has_published(ctl: Ctl, live: Bench) -> None:
    made = int(live.jobs.task(Step("x")).schedule())
    live.execute("UPDATE schedd_tasks SET state = 8, finished_at = 1000000")
    assert ctl.json("dlq", "list")[0]["what"] == "error in Step"
    assert "its payload cannot be checked" in ctl.fails(3, "dlq", "replay", made, "-P", "name=y")
    assert ctl("dlq", "replay", made).exit_code == 0


def test_dead_letters_are_chosen_by_the_type_of_their_message(
    ctl: Ctl, live: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    made, plain = live.die("a", "b")
    live.execute("UPDATE schedd_tasks SET message_type = 'order.created' WHERE id = :id", id=made)
    for asked, found in (("order.created", made), ("Step", plain)):
        assert [row["id"] for row in ctl.json("dlq", "list", "--each", "--message-type", asked)] == [found]
        assert [one.id for one in live.jobs.dead_letters.list(message_type=asked)] == [found]
        assert [one.id for one in live.jobs.dead_letters.groups(message_type=asked)] == [found]
    assert ctl.json("dlq", "list", "--message-type", "none") == []
    old(live, made, 2)
    assert ctl.json("dlq", "purge", "--older-than", "1h", "--message-type", "Step", "--yes")["removed"] == 0
    assert live.jobs.dead_letters.replay_all(message_type="order.created") == [made]
    assert ctl.json("dlq", "replay-all", "--message-type", "order.created")["replayed"] == []


def test_a_warning_names_the_task_and_the_holder(live: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (dead,) = live.die("mail", key="k1")
    holder = int(live.step("other").key("k1").after(60).schedule())
    live.jobs.dead_letters.replay_all()
    live.jobs.retry_failed(kind="Step")
    assert f"task {dead} is not replayed: task {holder} has its key" in caplog.text
    assert f"task {dead} is not retried: task {holder} has its key" in caplog.text
