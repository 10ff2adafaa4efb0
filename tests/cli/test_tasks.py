"""``list`` and ``show``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import RetryPolicy, Task
from scheduler.store.db import plain_reader
from scheduler.store.db.tx import Tx
from support.bench import Bench, Step

from .conftest import Ctl


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


def test_list_is_newest_first_in_pages(ctl: Ctl, live: Bench) -> None:
    made = [int(live.step(f"s{i}").schedule()) for i in range(5)]
    assert ids(ctl.json("list")) == made[::-1]
    page = ctl("list", "--limit", 2, "-o", "json")
    assert ids(json.loads(page.stdout)) == made[:2:-1]
    assert f"--cursor {made[3]}" in page.stderr
    assert ids(ctl.json("list", "--limit", 3, "--cursor", made[3])) == made[2::-1]
    assert ctl.json("list", "--cursor", 1) == []


def test_list_filters(ctl: Ctl, live: Bench) -> None:
    c = live.ended("success")
    a = int(live.step("a").key("k1").queue("mail").subject("order 7").schedule())
    b = int(live.step("b", a).correlation("flow").schedule())
    assert ids(ctl.json("list", "--key", "k1")) == [a]
    assert ids(ctl.json("list", "--queue", "mail")) == [a]
    assert ids(ctl.json("list", "--subject", "order 7")) == [a]
    assert ids(ctl.json("list", "--correlation", "flow")) == [b]
    assert ids(ctl.json("list", "--correlation", c)) == [c]
    assert ids(ctl.json("list", "--kind", "Step", "--status", "success,waiting")) == [b, c]
    assert ids(ctl.json("list", "--status", "Completed", "--status", "WaitingDeps")) == [b, c]
    assert ids(ctl.json("list", "--kind", "Step", "--status", "Pending", "--queue", "mail")) == [a]
    assert ids(ctl.json("list", "--kind", "Other")) == []


def test_failed_is_the_state_and_Failed_the_short_name(ctl: Ctl, live: Bench) -> None:
    from support.bench import Soft

    failed, dead = live.ended("failed", Soft), live.ended("dead")
    assert ids(ctl.json("list", "--status", "failed")) == [failed]
    assert ids(ctl.json("list", "--status", "Failed")) == [dead, failed]


def test_list_since(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("s").schedule())
    live.execute("UPDATE schedd_tasks SET created_at = created_at - 120000000")
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    earlier = (datetime.now(UTC) - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
    assert ids(ctl.json("list", "--since", later)) == []
    assert ids(ctl.json("list", "--since", earlier)) == [made]
    assert ids(ctl.json("list", "--since", "5m")) == [made]
    assert ids(ctl.json("list", "--since", "1969-12-31T23:59:00Z")) == [made], "not a minute ago"
    assert "no time zone" in ctl.fails(2, "list", "--since", "2026-01-01T00:00:00")


def test_the_same_rows_print_the_same_table(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("s").key("photo 1").schedule())
    first, again = ctl("list"), ctl("list")
    assert first.stdout == again.stdout
    head, row = first.stdout.splitlines()
    assert head.split()[:4] == ["ID", "KIND", "STATE", "PRIORITY"]
    assert row.split()[:4] == [str(made), "Step", "scheduled", "medium"]
    assert "photo 1" in row
    assert row.split()[5].endswith("Z")


def test_columns_choose_for_tables_and_json(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("s").schedule())
    assert ctl("list", "--columns", "state,id").stdout.split() == ["STATE", "ID", "scheduled", str(made)]
    assert ctl.json("--columns", "id, queue", "list") == [{"id": made, "queue": "default"}]
    assert ctl("-o", "jsonl", "list", "--columns", "id").stdout == f'{{"id": {made}}}\n'
    assert "there is no column 'nope'; there are id, kind" in ctl.fails(2, "list", "--columns", "nope")


def test_what_a_task_wrote_cannot_command_the_terminal(ctl: Ctl, live: Bench) -> None:
    live.step("s").key("k\x1b[2J\n\r\x9b1m").schedule()
    shown = ctl("list")
    assert "\x1b" not in shown.stdout
    assert len(shown.stdout.splitlines()) == 2


def test_show_tells_everything(ctl: Ctl, live: Bench) -> None:
    def body(ctx: Any) -> Any:
        ctx.capture("looking at x\n")
        return {"seen": ["é", 2]}

    live.script.bodies["middle"] = body
    parent = int(live.step("first").schedule())
    middle = int(live.step("middle", parent).key("m").headers({"trace": "t1"}).schedule())
    child = int(live.step("last", middle, when="failure").schedule())
    live.drain()
    shown = ctl.json("show", middle)
    assert shown["state"] == "success"
    assert shown["payload"] == {"name": "middle"}
    assert shown["result"] == {"seen": ["é", 2]}
    assert shown["headers"] == {"trace": "t1"}
    assert shown["depends_on"] == [
        {
            "id": parent,
            "kind": "Step",
            "state": "success",
            "when": "success",
            "otherwise": "fail",
            "satisfied": True,
        }
    ]
    assert [(e["id"], e["state"], e["when"]) for e in shown["dependents"]] == [(child, "skipped", "failure")]
    (attempt,) = shown["attempts"]
    assert attempt["attempt"] == 1
    assert attempt["outcome"] == "succeeded"
    assert ":" in attempt["worker"]
    assert attempt["started_at"] <= attempt["finished_at"]
    assert shown["log"] == ["looking at x"]
    assert shown["why"].startswith("succeeded at 20")
    text = ctl("show", middle).stdout
    for part in (
        "depends on:",
        "dependents:",
        "attempts:",
        "log (last",
        "why: succeeded",
        '"seen": ["é", 2]',
    ):
        assert part in text
    assert ctl("show", middle, "--columns", "state").stdout == "state: success\n"


def test_show_of_long_values_and_unusual_tasks(ctl: Ctl, live: Bench) -> None:
    name = "x" * 3000
    live.script.bodies[name] = lambda ctx: "y" * 3000
    made = int(live.step(name).schedule())
    live.drain()
    shown = ctl.json("show", made)
    assert shown["payload"] == {"name": name}
    assert shown["result"] == "y" * 3000


def test_a_payload_that_is_no_json_is_shown_as_it_is(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("s").schedule())
    live.execute("UPDATE schedd_tasks SET payload = :p, headers = :p, retry = :p", p="{broken")
    assert ctl.json("show", made)["payload"] == "{broken"
    assert "{broken" in ctl("show", made).stdout


@pytest.mark.parametrize(
    "arguments", [["list", "--kind"], ["cron", "next"], ["retry", "--key"], ["submit"], ["event", "emit"]]
)
def test_arguments_that_are_no_text(ctl: Ctl, arguments: list[str]) -> None:
    status = 3 if arguments[0] == "cron" else 2  # no schedule has such a name
    assert "\\udcff" in ctl.fails(status, *arguments, "a\udcff")


def test_show_of_very_many_edges(ctl: Ctl, live: Bench) -> None:
    with live.jobs.batch() as batch:
        parents = [batch.task(Step(str(i))) for i in range(105)]
        batch.task(Step("join")).depend_on(parents)
    *made, join = map(int, batch.ids)
    live.execute(f"UPDATE schedd_tasks SET state = 6, finished_at = created_at WHERE id < {made[-1]}")
    shown = ctl("show", join).stdout.splitlines()
    place = shown.index("depends on (100 of 105; `-o json` has all):")
    assert shown[place + 2].split()[:3] == [str(made[-1]), "Step", "scheduled"], "what it waits for comes first"
    assert len(shown) == place + 102
    assert len(ctl.json("show", join)["depends_on"]) == 105


def test_show_of_an_unknown_id(ctl: Ctl) -> None:
    assert ctl.fails(3, "show", 4711) == "schedctl: there is no task 4711\n"
    assert "is not a task id" in ctl.fails(2, "show", "abc")
    assert "is not a task id" in ctl.fails(2, "show", 2**63)


class Flaky(Task, retry=RetryPolicy(min_wait=3600, max_wait=3600, max_attempts=3)):
    def run(self, ctx: Any) -> None:
        raise OSError("the disk is on strike")


class TestWhy:
    """The sentence of ``show``, for what can keep a task from running."""

    def why(self, ctl: Ctl, task_id: int) -> str:
        return str(ctl.json("show", task_id)["why"])

    def test_parents(self, ctl: Ctl, live: Bench) -> None:
        a = live.ended("success")
        b, c = int(live.step("b").schedule()), int(live.step("c").after(60).schedule())
        child = int(live.step("child", a, b, c).schedule())
        assert self.why(ctl, child) == (
            f"waits for 2 of 3 tasks: {b} (scheduled), {c} (scheduled); task {b} (Step): {self.why(ctl, b)}"
        )

    def test_a_parent_that_only_a_retry_can_save(self, ctl: Ctl, live: Bench) -> None:
        dead = live.ended("dead")
        child = int(live.step("child", dead, otherwise="wait").schedule())
        stays = f"waits for 1 of 1 task: {dead} (dead); stays until it is retried"
        assert self.why(ctl, child) == f"{stays}; task {dead} (Step): {self.why(ctl, dead)}"

    def test_a_parent_that_nothing_can_save(self, ctl: Ctl, live: Bench) -> None:
        """It waits for a failure, and what has succeeded is neither retried nor removed while it waits."""
        done, dead = live.ended("success"), live.ended("dead")
        child = int(
            live.step("child", done, when="failure", otherwise="wait").depend_on(dead, otherwise="wait").schedule()
        )
        assert self.why(ctl, child).startswith(
            f"waits for 2 of 2 tasks: {done} (success), {dead} (dead); "
            f"task {done} has succeeded, which stays: cancel this one"
        )

    def test_no_worker(self, ctl: Ctl, live: Bench) -> None:
        made = int(live.step("s").schedule())
        assert self.why(ctl, made).endswith(", but no worker is live")

    def test_time(self, ctl: Ctl, live: Bench) -> None:
        live.drain()
        made = int(live.step("s").after(7300).schedule())
        assert self.why(ctl, made).startswith("due at 20")
        assert self.why(ctl, made).endswith(("(in 2 h 1 min)", "(in 2 h 2 min)"))

    def test_queue(self, ctl: Ctl, live: Bench) -> None:
        live.worker(queues=["default"])
        live.drain()
        made = int(live.step("s").queue("mail").schedule())
        assert self.why(ctl, made).endswith(", but no live worker serves queue 'mail'")

    def test_retry(self, ctl: Ctl, live: Bench) -> None:
        live.jobs.register(Flaky)
        made = int(live.jobs.task(Flaky()).schedule())
        live.drain()
        why = self.why(ctl, made)
        assert why.startswith("attempt 1 of 3 failed, the next is due at 20")
        assert why.endswith("OSError: the disk is on strike")

    def test_slots(self, ctl: Ctl, live: Bench) -> None:
        made = self.hold(live, slots=1)
        waiting = int(live.step("later").schedule())
        assert self.why(ctl, waiting).endswith("waits for a free thread slot of pool medium (1 busy of 1)")
        assert ": " not in self.why(ctl, made)

    def hold(self, live: Bench, slots: int) -> int:
        """A task that the bench's worker has claimed and does not run."""
        from support.bench import notify_and_step

        live.worker(pools={"high": (1, 1), "medium": (slots, 1), "low": (0, 1)})
        live.drain()
        made = int(live.step("held").schedule())
        notify_and_step(live.jobs)
        assert live.state(made) == "claimed"
        return made

    def test_claimed(self, ctl: Ctl, live: Bench) -> None:
        made = self.hold(live, slots=1)
        assert self.why(ctl, made).startswith("claimed by worker ")

    def test_running_and_overdue(self, ctl: Ctl, live: Bench) -> None:
        made = self.hold(live, slots=1)
        live.execute("UPDATE schedd_tasks SET state = 5, started_at = claimed_at, timeout = 600000000")
        assert ctl.json("show", made)["why"] is None
        assert "it is running" in ctl("show", made).stdout
        live.execute("UPDATE schedd_tasks SET started_at = claimed_at - 3600000000")
        why = self.why(ctl, made)
        assert why.startswith("overdue: running on ")
        assert "for 1 h, over its timeout of 10 min; it ends when its handler has ended" in why

    def test_lost_lease(self, ctl: Ctl, live: Bench) -> None:
        made = self.hold(live, slots=1)
        live.execute("UPDATE schedd_workers SET lease_until = lease_until - 3600000000")
        assert "which lost its lease at 20" in self.why(ctl, made)

    def test_suspect(self, ctl: Ctl, live: Bench) -> None:
        live.drain()
        made = int(live.step("s").schedule())
        live.execute("UPDATE schedd_tasks SET lane = '!Step'")
        assert "so it runs alone" in self.why(ctl, made)

    @pytest.mark.parametrize(
        ("end", "reason"),
        [
            ("success", "succeeded at 20"),
            ("cancelled", "cancelled at 20"),
            ("dead", "ended dead at 20"),
            ("skipped", "ended skipped at 20"),
        ],
    )
    def test_ended(self, ctl: Ctl, live: Bench, end: str, reason: str) -> None:
        assert self.why(ctl, live.ended(end)).startswith(reason)

    def test_ended_by_a_parent(self, ctl: Ctl, live: Bench) -> None:
        dead = live.ended("dead")
        child = int(live.jobs.task(Step("child")).depend_on(dead).schedule())
        assert f"not run: task {dead} ended dead; task {dead} (Step): ended dead at " in self.why(ctl, child)


def test_list_since_beside_a_clean_up(live: Bench) -> None:
    """What is removed between two of its looks; on SQLite they see one moment, and nothing is."""
    from scheduler.store.read.tasks import list_tasks

    made = [int(live.step(str(i)).schedule()) for i in range(4)]
    database = live.jobs.database

    def remove(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "max(id)" in statement:
            live.execute(f"DELETE FROM schedd_tasks WHERE id > {made[0]}")

    sa.event.listen(database.open(), "after_cursor_execute", remove)
    with database.read() as tx:
        found = list_tasks(tx, since=database.now() + 3_600_000_000).tasks
    assert found == []


def test_a_list_that_no_index_serves_says_how_far_it_looked(
    ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = int(live.step("rare").queue("rare").schedule())
    made = [int(live.step(f"s{n}").schedule()) for n in range(6)]
    monkeypatch.setattr("scheduler.cli.tasks.WINDOW", 4)
    for output in ("table", "json", "jsonl"):
        part = ctl("list", "--queue", "rare", "-o", output)
        assert part.exit_code == 0
        assert "rare" not in part.stdout
        assert f"looked at 4 tasks, down to {made[2]}, and there are older ones: --cursor {made[2]} " in part.stderr
        assert "--all" in part.stderr
        rest = ctl("list", "--queue", "rare", "--cursor", made[2], "-o", output)
        assert str(rare) in rest.stdout
        assert rest.stderr == ""
        whole = ctl("list", "--queue", "rare", "--all", "-o", output)
        assert str(rare) in whole.stdout
        assert whole.stderr == ""
    monkeypatch.setattr("scheduler.cli.tasks.PAGE", 2)
    assert "looked at 4 tasks" in ctl("list", "--field", "name=rare").stderr
    assert ids(ctl.json("list", "--field", "name=rare", "--all")) == [rare]
    assert ids(ctl.json("list", "--all", "--limit", 5)) == made[:0:-1]
    # an index leads to what is pending in a queue
    pending = ctl("list", "--queue", "rare", "--status", "scheduled", "-o", "json")
    assert (ids(json.loads(pending.stdout)), pending.stderr) == ([rare], "")


@pytest.mark.parametrize("left", [2, 3, 8])
def test_a_long_list_of_lines_is_read_in_pages(
    ctl: Ctl, live: Bench, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more is held than one page."""
    for number in range(7):
        live.step(str(number)).schedule()
    monkeypatch.setattr("scheduler.cli.tasks.PAGE", 3)
    limits: list[int] = []

    def watched(kind: type[Tx]) -> None:
        run = kind.run

        def seen(tx: Tx, sql: str, /, **bound: Any) -> Any:
            if sql.startswith("SELECT t.id FROM schedd_tasks"):
                limits.append(bound["limit"])
            return run(tx, sql, **bound)

        monkeypatch.setattr(kind, "run", seen)

    for kind in (Tx, plain_reader.PlainTx):
        watched(kind)
    result = ctl("list", "--limit", left, "-o", "jsonl")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == list(range(7, 7 - min(7, left), -1))
    assert max(limits) <= 3 + 1
    assert ("--cursor" in result.stderr) is (left < 7)
