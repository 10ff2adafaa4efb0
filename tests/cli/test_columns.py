"""``--columns`` that a command does not print are refused before it does anything."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from scheduler.cli import tasks
from scheduler.cli.root import root
from support.bench import Bench

from .conftest import Ctl

GIVEN = {
    "list": ["--limit", "1"],
    "show": ["1"],
    "copy": ["1"],
    "rerun": ["1"],
    "set task": ["1"],
    "set pool": ["high", "--slots", "1"],
    "set kind": ["a", "--max-concurrency", "1"],
    "set key": ["a", "b", "--max-concurrency", "1"],
    "set queue": ("a", "--max-concurrency", "1"),
    "why": ["1"],
    "run": ["--", "true"],
    "submit": ["Nothing"],
    "cancel": ["1"],
    "uncancel": ["1"],
    "retry": ["1"],
    "wait": ["1"],
    "logs": ["1"],
    "graph": ["1"],
    "compare": ["1"],
    "bulk plan": ["cancel", "--kind", "a"],
    "bulk run": ["a"],
    "bulk stop": ["a"],
    "bulk undo": ["a"],
    "bulk show": ["a"],
    "dlq show": ["1"],
    "dlq replay": ["1"],
    "dlq purge": ["--older-than", "0", "--yes"],
    "cron add": ["a", "* * * * *", "true"],
    "cron from-apscheduler": ["sqlite:////dev/null"],
    "cron import": ["/dev/null"],
    "cron sync": ["/dev/null"],
    "cron next": ["a"],
    "cron runs": ["a"],
    "cron cancel": ["a"],
    "cron backfill": ["a", "--from", "2026-01-01T00:00:00Z"],
    "cron pause": ["a"],
    "cron resume": ["a"],
    "cron trigger": ["a"],
    "cron delete": ["a"],
    "event emit": ["a"],
    "worker drain": ["1"],
    "worker resume": ["1"],
    "worker restart": ["1"],
    "db export": ["f"],
    "db import": ["/dev/null"],
    "alerts silence": ["a", "--for", "1h"],
    "alerts unsilence": ["1"],
    "sources pause": ["a"],
    "sources resume": ["a"],
    "sources redrive": ["a"],
    "inbox release": ["a"],
    "sinks pause": ["a"],
    "sinks resume": ["a"],
}


def commands() -> Iterator[list[str]]:
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ([name, below] for below in command.list_commands(context))
        elif name != "completion":
            yield [name]


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_each_command_refuses_them_first(empty_ctl: Ctl) -> None:
    """Before the database is missed."""
    said = {
        " ".join(command): empty_ctl("--columns", "nonsense", *command, *GIVEN.get(" ".join(command), ()))
        for command in commands()
    }
    refused = "schedctl: there is no column 'nonsense'; there are "
    assert len(said) > 60
    assert {
        name: (one.exit_code, one.output)
        for name, one in said.items()
        if one.exit_code != 2 or not one.stderr.startswith(refused)
    } == {}


def test_nothing_is_changed(ctl: Ctl, live: Bench) -> None:
    waiting = int(live.step("a").after(60).schedule())
    failed = live.ended("dead")
    for command in (["cancel", waiting], ["retry", failed], ["dlq", "replay", failed], ["event", "emit", "approved"]):
        ctl.fails(2, "--columns", "nonsense", *command)
        ctl.fails(2, *command, "-o", "json", "--columns", "nonsense")
    assert live.states(waiting, failed) == ["scheduled", "dead"]
    assert ctl.json("event", "list") == []


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_columns_are_those_that_the_table_shows(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("a").schedule())
    assert ctl("list", "--columns", "ID,created at,State").stdout.split()[:4] == ["ID", "CREATED", "AT", "STATE"]
    assert list(ctl.json("list", "--columns", "ID,CREATED AT")[0]) == ["id", "created_at"]
    assert "--columns names none; there are id, kind" in ctl.fails(2, "list", "--columns", ", ")
    assert ctl("show", made, "--columns", "WHY").stdout.startswith("why: ")


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_they_depend_on_what_is_asked_for(ctl: Ctl, live: Bench) -> None:
    assert "there are schedule, created" in ctl.fails(2, "run", "--cron", "* * * * *", "--columns", "id", "--", "true")
    assert ctl.json("cron", "list") == []
    assert "there are id, kind, state" in ctl.fails(2, "dlq", "list", "--each", "--columns", "count")
    assert ctl.json("dlq", "list", "--columns", "count") == []


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_a_run_names_its_schedule(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    live.step("a").key("nightly").every(3600).run_on_startup().schedule()
    live.drain()
    (row,) = ctl.json("list")
    assert row["schedule"] == "nightly"
    assert ctl.json("show", row["id"])["schedule"] == "nightly"
    assert "nightly" in ctl("show", row["id"]).stdout
    assert "SCHEDULE" not in ctl("list").stdout, "scripts may count columns"
    assert "SCHEDULE" in ctl("list", "schedule:nightly").stdout
    monkeypatch.setattr(tasks, "terminal_width", lambda: 200)
    assert "SCHEDULE" in ctl("list").stdout
    assert ctl("list", "--columns", "id,schedule").stdout.split() == ["ID", "SCHEDULE", str(row["id"]), "nightly"]
