"""``run`` and ``submit``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest

from scheduler import RetryPolicy, Task
from support.bench import Bench, Step
from support.fleet import rows

from .conftest import Ctl


class Mail(
    Task,
    queue="mail",
    priority="high",
    retry=RetryPolicy(min_wait=1, max_attempts=4),
    timeout=90,
    dead_letter=False,
    result_ttl=60,
    schema_version=3,
    concurrency_key="{account}",
):
    to: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    tags: list[str] = []  # noqa: RUF012  # msgspec copies it
    account: str = "main"

    def run(self, ctx: Any) -> Any:
        return {"sent": [self.to, self.count, self.tags]}


@pytest.fixture
def mail(live: Bench) -> Bench:
    """A bench whose worker has registered Mail."""
    live.jobs.register(Mail)
    live.drain()
    return live


def submitted(ctl: Ctl, *arguments: object) -> Any:
    """Submit, and what show says of it."""
    result = ctl("submit", *arguments)
    assert result.exit_code == 0, result.output
    return ctl.json("show", result.stdout.strip())


def test_submit_runs_with_the_options_of_its_kind(ctl: Ctl, mail: Bench) -> None:
    task = submitted(ctl, "Mail", "-P", "to=a@b=c", "-P", "count:=3", "-P", 'tags:=["x", "y"]')
    assert task["payload"] == {"to": "a@b=c", "count": 3, "tags": ["x", "y"]}
    assert (task["queue"], task["priority"], task["timeout"]) == ("mail", "high", 90.0)
    assert (task["max_attempts"], task["retry"]["min_wait"]) == (4, 1.0)
    assert (task["dead_letter"], task["schema_version"]) == (False, 3)
    mail.drain()
    assert ctl.json("show", task["id"])["result"] == {"sent": ["a@b=c", 3, ["x", "y"]]}
    with mail.jobs.database.read() as tx:
        lanes = tx.connection.exec_driver_sql("SELECT lane, result_ttl FROM schedd_tasks").fetchall()
    assert [tuple(row) for row in lanes] == [("Mail\x1fmain", 60_000_000)]


def test_options_given_win(ctl: Ctl, mail: Bench) -> None:
    parent = mail.ended("success")
    other = int(mail.step("other").schedule())
    task = submitted(
        ctl,
        *("Mail", "-P", "to=x", "--queue", "default", "--priority", "LOW", "--retry", 2, "--timeout", "2m"),
        *("--key", "k", "--correlation", "c", "--subject", "s", "--in", "1h30m"),
        *("--depend-on", parent, "--depend-on", f"{other}:finished:skip"),
    )
    assert (task["queue"], task["priority"], task["timeout"], task["max_attempts"]) == ("default", "low", 120.0, 3)
    assert (task["key"], task["correlation"], task["subject"]) == ("k", "c", "s")
    due = datetime.fromisoformat(task["run_at"]) - datetime.fromisoformat(task["created_at"])
    assert due == timedelta(minutes=90)
    edges = [(e["id"], e["when"], e["otherwise"], e["satisfied"]) for e in task["depends_on"]]
    assert edges == [(parent, "success", "fail", True), (other, "finished", "skip", False)]


def test_a_result_of_a_parent_becomes_a_field(ctl: Ctl, mail: Bench) -> None:
    parent = int(ctl("submit", "Mail", "-P", "to=first").stdout)
    task = submitted(ctl, "Mail", "--depend-on", f"to={parent}:finished", "--depend-on", f"other={parent}:finished")
    assert task["payload"] == {}
    assert task["headers"] == {"schedd-parents": {"other": parent, "to": parent}}
    mail.drain()
    ended = ctl.json("show", task["id"])
    assert "does not fit: Expected `str`, got `object` - at `$.to`" in ended["error"]


def test_every_and_the_other_options_of_a_builder(ctl: Ctl, mail: Bench) -> None:
    made = ctl.json(
        *("submit", "Mail", "-P", "to=x", "--every", "10m", "--fixed-delay", "--run-on-startup", "--key", "often"),
        *("--overlap", "skip", "--retry", 3, "--retry-wait", "2m", "--retry-max-wait", "5m", "--key-retention", "7d"),
    )
    assert made == {"schedule": "often", "created": True}
    (listed,) = ctl.json("list", "--limit", 5)
    assert (listed["schedule"], listed["state"]) == ("often", "scheduled")
    assert (listed["retry"]["min_wait"], listed["retry"]["max_wait"]) == (120.0, 300.0)
    growing = ("--retry-strategy", "linear", "--retry-factor", 3, "--retry-jitter", 0)
    retry = submitted(ctl, "Mail", "-P", "to=x", "--retry", 2, *growing)["retry"]
    assert (retry["strategy"], retry["factor"], retry["jitter"]) == ("linear", 3.0, 0.0)
    assert "often" in ctl("list", "--columns", "id,schedule").stdout
    (schedule,) = ctl.json("cron", "list")
    assert "10" in schedule["recurrence"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--depend-on", "to=1", "--depend-on", "to=2"], "--depend-on names two tasks 'to': 1 and 2"),
        (["--depend-on", "=1"], "has no name before the ="),
        (["-P", "to=x", "--depend-on", "to=1"], "-P and --depend-on both give to"),
        (["-P", "to=x", "--retry-wait", "5"], "--retry-wait belongs to --retry"),
        (["-P", "to=x", "--fixed-delay"], "--fixed-delay belongs to --every"),
        (["-P", "to=x", "--every", "1m", "--cron", "* * * * *"], "--cron and --every exclude each other"),
        (["-P", "to=x", "--rank", "3"], "kind Mail has no ranks"),
        (["-P", "to=x", "--key-retention", "3"], "--key-retention belongs to --key"),
        (["-P", "to=x", "--executor-options", "{}"], "--executor-options belongs to --executor"),
    ],
)
def test_options_that_do_not_go_together(ctl: Ctl, mail: Bench, options: list[str], expected: str) -> None:
    result = ctl("submit", "Mail", *options)
    assert result.exit_code != 0
    assert expected in result.stderr


def test_at(ctl: Ctl, mail: Bench) -> None:
    task = submitted(ctl, "Mail", "-P", "to=x", "--at", "2030-01-31T02:30:00+01:00", "--retry", 0)
    assert task["run_at"] == "2030-01-31T01:30:00Z"
    assert task["max_attempts"] == 1


def test_a_key_is_one_task(ctl: Ctl, mail: Bench) -> None:
    first = ctl.json("submit", "Mail", "-P", "to=x", "--key", "k")
    assert first["created"] is True
    again = ctl("submit", "Mail", "-P", "to=y", "--key", "k")
    assert (again.exit_code, again.stdout.strip()) == (0, str(first["id"]))
    assert "holds the key 'k' already" in again.stderr


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ([], "payload of Mail does not fit: Object missing required field `to`"),
        (["to:=3"], "payload of Mail does not fit: Expected `str`, got `int` - at `$.to`"),
        (["to=x", "count:=1.0"], "payload of Mail does not fit: Expected `int`, got `float` - at `$.count`"),
        (["to=x", "count=2"], "Expected `int`, got `str` - at `$.count` (-P count:=2 gives it as JSON)"),
        (["to=x", "count:=0"], "payload of Mail does not fit: Expected `int` >= 1 - at `$.count`"),
        (["to=x", 'tags:=["a", 1]'], "payload of Mail does not fit: Expected `str`, got `int` - at `$.tags[1]`"),
        (["to=x", "nope=1"], "does not fit: Object contains unknown field `nope`; there are "),
        (["to=x", "count:={"], "-P count:={: not JSON"),
        (["to=x", r'tags:=["\ud800"]'], "not JSON: a text has half a surrogate pair"),
        (["to=\udcff"], "payload of Mail has a text with half a surrogate pair, or with a byte that is not UTF-8"),
        (["to"], "-P 'to' is neither NAME=TEXT nor NAME:=JSON"),
        (["to=x", "to=y"], "-P gives to twice"),
    ],
)
def test_a_payload_that_does_not_fit(ctl: Ctl, mail: Bench, params: list[str], expected: str) -> None:
    message = ctl.fails(2, "submit", "Mail", *[part for p in params for part in ("-P", p)])
    assert expected in message
    assert ctl.json("list", "--kind", "Mail") == []


class Colour(Enum):
    RED = "red"


class Paint(Task, max_concurrency=1, concurrency_key="{colour}"):
    colour: Colour

    def run(self, ctx: Any) -> None: ...


@pytest.mark.case(58)
def test_a_concurrency_key_that_only_a_program_can_make(ctl: Ctl, live: Bench) -> None:
    """Its lane would be another one than that of tasks from Python, and its cap hold for each by itself."""
    live.jobs.register(Paint)
    live.drain()
    message = ctl.fails(2, "submit", "Paint", "-P", "colour=red")
    assert message == (
        "schedctl: the concurrency key of Paint is made by its program (field 'colour' is of a type whose text only "
        "the program knows: Enum): schedule it from Python\n"
    )


class Share(Task, max_concurrency=1, concurrency_key="{of}-{rate}-{path}"):
    of: UUID
    rate: float = 1
    path: list[str] = []  # noqa: RUF012  # msgspec copies it

    def run(self, ctx: Any) -> None: ...


@pytest.mark.case(58)
def test_a_concurrency_key_of_a_uuid_a_float_and_a_list(ctl: Ctl, live: Bench) -> None:
    live.jobs.register(Share)
    live.drain()
    of = UUID(int=10)
    live.jobs.task(Share(of, 2, ["a"])).schedule()
    params = [f"of={of.hex.upper()}", "rate:=2", 'path:=["a"]']
    submitted(ctl, "Share", *[part for p in params for part in ("-P", p)])
    lanes = rows(live.jobs, "SELECT DISTINCT lane FROM schedd_tasks")
    assert lanes == [(f"Share\x1f{of}-2.0-['a']",)]


def test_an_unknown_kind_lists_what_there_is(ctl: Ctl, mail: Bench) -> None:
    message = ctl.fails(3, "submit", "Mial")
    assert message == "schedctl: no worker has registered a kind 'Mial'; known are Mail, Soft, Step\n"


def test_submit_says_when_no_worker_would_run_it(ctl: Ctl, mail: Bench) -> None:
    assert ctl("submit", "Mail", "-P", "to=x").stderr == ""
    mail.execute("UPDATE schedd_workers SET queues = '[\"default\"]'")
    assert "no live worker serves queue 'mail'" in ctl("submit", "Mail", "-P", "to=x").stderr
    mail.execute("UPDATE schedd_workers SET state = 2")
    assert "no worker is live" in ctl("submit", "Mail", "-P", "to=x").stderr


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--depend-on", 4711], 3, "cannot depend on 4711: no such task"),
        (["--depend-on", "x"], 2, "'x' is not a task id"),
        (["--depend-on", "1:sometimes"], 2, "when is success, failure, finished"),
        (["--in", "soon"], 2, "is not a duration"),
        (["--in", "5m", "--at", "2030-01-01T00:00:00Z"], 2, "--in and --at exclude each other"),
        (["--at", "2030-01-01T00:00:00"], 2, "has no time zone"),
        (["--at", "noon"], 2, "is not a time such as"),
        (["--priority", "urgent"], 2, "'urgent' is not one of"),
        (["--queue", "a b"], 2, "queue 'a b' is not a name"),
        (["--retry", -1], 2, "-1 is not in the range"),
        (["--key", ""], 2, "a key is a text of 1 to 255 characters"),
        (["--cron", "0 25 * * *"], 2, "25"),
        (["--cron", "0 5 * * *", "--tz", "Mars/Olympus"], 2, "Mars/Olympus"),
        (["--cron", "0 5 * * *", "--in", "5m"], 2, "--cron goes with neither"),
        (["--tz", "UTC"], 2, "--tz belongs to --cron"),
    ],
)
def test_options_that_cannot_be(ctl: Ctl, live: Bench, options: list[object], status: int, expected: str) -> None:
    assert expected in ctl.fails(status, "run", *options, "--", "true")
    assert ctl.json("list") == []


def test_run_needs_no_worker_before_it(ctl: Ctl) -> None:
    result = ctl("run", "--retry", 1, "--env", "A=b=c", "--", "ls", "-l", "--", "-o")
    assert result.exit_code == 0
    assert "no worker is live" in result.stderr
    task = ctl.json("show", result.stdout.strip())
    assert task["kind"] == "CommandTask"
    assert task["payload"] == {"argv": ["ls", "-l", "--", "-o"], "env": {"A": "b=c"}}
    assert task["max_attempts"] == 2


def test_run_without_the_dashes_and_with_a_shell(ctl: Ctl, tmp_path: Path) -> None:
    plain = ctl("run", "ls", "-l", "--columns").stdout.strip()
    assert ctl.json("show", plain)["payload"] == {"argv": ["ls", "-l", "--columns"]}
    shell = ctl("run", "--shell", "--cwd", tmp_path, "--", "ls | wc -l").stdout.strip()
    assert ctl.json("show", shell)["payload"] == {"argv": ["ls | wc -l"], "shell": True, "cwd": str(tmp_path)}
    assert "quote it" in ctl.fails(2, "run", "--shell", "--", "ls", "-l")
    assert "Missing argument" in ctl.fails(2, "run", "--")
    assert "is not NAME=VALUE" in ctl.fails(2, "run", "--env", "nope", "--", "ls")


def test_a_command_runs(ctl: Ctl, live: Bench) -> None:
    from scheduler.tasks.command.task import CommandTask

    live.jobs.settings["command"] = {"enabled": True, "roots": []}
    live.jobs.register(CommandTask)
    live.drain()
    made = ctl("run", "--", "echo", "hello from a command").stdout.strip()
    live.drain()
    assert ctl("wait", made).exit_code == 0
    assert ctl("logs", made).stdout == "hello from a command\n"
    assert ctl.json("show", made)["result"]["exit_code"] == 0


class TestCron:
    def test_a_schedule_lives(self, ctl: Ctl, live: Bench) -> None:
        live.drain()
        assert ctl.json("run", "--cron", "30 2 * * *", "--tz", "Europe/Berlin", "--key", "nightly", "--", "true") == {
            "schedule": "nightly",
            "created": True,
        }
        (row,) = ctl.json("cron", "list")
        assert (row["name"], row["kind"], row["paused"], row["orphan"]) == ("nightly", "CommandTask", False, False)
        assert row["recurrence"] == "30 2 * * * Europe/Berlin"
        slots = ctl.json("cron", "next", "nightly", "-n", 3)
        assert len(slots) == 3
        assert slots[0]["slot"] == row["next_at"]
        assert all("T02:30:00" in s["local"] for s in slots)
        assert ctl("cron", "pause", "nightly").stdout == "nightly is paused\n"
        assert ctl.json("cron", "list")[0]["paused"] is True
        assert "is paused" in ctl("cron", "next", "nightly").stderr
        assert ctl("cron", "resume", "nightly").stdout.startswith("nightly goes on; next at 20")
        made = ctl("cron", "trigger", "nightly").stdout.strip()
        task = ctl.json("show", made)
        assert (task["kind"], task["schedule"], task["payload"]) == ("CommandTask", "nightly", {"argv": ["true"]})
        assert ctl("cron", "delete", "nightly").exit_code == 0
        assert ctl.json("cron", "list") == []

    def test_columns_are_looked_at_before_anything_is_made(self, ctl: Ctl) -> None:
        ctl("run", "--cron", "30 2 * * *", "--key", "nightly", "--", "true")
        assert "there is no column 'no'; there are id" in ctl.fails(2, "cron", "trigger", "nightly", "--columns", "no")
        assert "there is no column 'no'; there are id, created" in ctl.fails(2, "run", "--columns", "no", "--", "true")
        assert ctl.json("list") == []

    def test_the_same_name_updates(self, ctl: Ctl) -> None:
        first = ctl("run", "--cron", "0 5 * * *", "--", "true")
        again = ctl("run", "--cron", "0 6 * * *", "--", "true")
        assert first.stdout == again.stdout
        assert "it is updated" in again.stderr
        assert [r["recurrence"] for r in ctl.json("cron", "list")] == ["0 6 * * * UTC"]

    @pytest.mark.parametrize("command", ["next", "pause", "resume", "trigger", "delete"])
    def test_an_unknown_name(self, ctl: Ctl, command: str) -> None:
        assert "there is no schedule named 'nope'" in ctl.fails(3, "cron", command, "nope")

    def test_an_orphan_is_marked(self, ctl: Ctl, live: Bench) -> None:
        for name in ("old payload", "new payload"):
            live.jobs.task(Step(name)).cron("0 5 * * *").schedule()
        live.execute("UPDATE schedd_schedules SET seen_at = seen_at - 86400000000 WHERE payload LIKE '%old%'")
        ctl("run", "--cron", "0 5 * * *", "--", "true")
        marked = {str(r["payload"]): r["orphan"] for r in ctl.json("cron", "list")}
        assert marked == {
            "{'name': 'old payload'}": True,
            "{'name': 'new payload'}": False,
            "{'argv': ['true']}": False,
        }


def test_times_are_utc(ctl: Ctl, mail: Bench) -> None:
    task = submitted(ctl, "Mail", "-P", "to=x")
    assert datetime.fromisoformat(task["created_at"]).utcoffset() == timedelta(0)
    assert abs(datetime.fromisoformat(task["created_at"]) - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.case(72)
def test_a_schedule_of_another_kind_has_the_name(ctl: Ctl, live: Bench) -> None:
    live.step("tick").key("tick").hourly_at(0).schedule()
    live.drain()
    submit = ("submit", "Soft", "-P", "name=tick", "--key", "tick", "--cron", "0 6 * * *")
    assert "schedule 'tick' makes tasks of kind Step" in ctl.fails(4, *submit)
    assert ctl(*submit, "--conflict", "replace").exit_code == 0
    assert live.jobs.schedules.get("tick").kind == "Soft"
