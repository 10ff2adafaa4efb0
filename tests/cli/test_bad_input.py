"""What a hurried operator types, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler import Task
from scheduler.cli import output
from support.bench import Bench

from .conftest import Ctl

one_database = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)


@one_database
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["wrokers"], "No such command 'wrokers'; did you mean 'workers'? (see `schedctl --help`)"),
        (["trigger", "nightly"], "No such command 'trigger'; did you mean 'cron trigger'? (see `schedctl --help`)"),
        (["resume", "x"], "say --queue x or --kind x; `schedctl cron resume x` is for a schedule"),
        (["schedules"], "did you mean 'cron list'?"),
        (["xyzzy"], "No such command 'xyzzy' (see `schedctl --help`)"),
        (["status", "--json"], "; `-o json` prints that (see `schedctl status --help`)"),
        (["list", "-queue:etl"], "; a filter that begins with - follows `--` (see `schedctl list --help`)"),
        (["cancel", "-customer=4"], "; a filter that begins with - follows `--`"),
        (["status", "-x"], "No such option '-x' (see `schedctl status --help`)"),
        (["list", "--limit", "ten"], "'ten' is not a valid whole number"),
        (["worker", "drain", "x"], "'x' is not a valid whole number"),
        (["graph", "1", "--format", "dot", "-o", "json"], "--format dot goes with neither -o json nor --columns"),
        (["graph", "1", "--format", "mermaid", "--columns", "nodes"], "--format mermaid goes with neither"),
    ],
)
def test_mistakes(ctl: Ctl, given: list[str], message: str) -> None:
    assert message in ctl.fails(2, *given)


@one_database
def test_a_database_that_is_not_there_is_named_whole(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = ctl.fails(5, "status", SCHEDD_STORE__URL="sqlite:///jobs.db")
    assert f"there is no database {tmp_path / 'jobs.db'} yet" in message


@one_database
def test_a_backup_that_cannot_be_made_says_why(ctl: Ctl, live: Bench, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "x"
    live.drain()
    assert ctl.fails(1, "db", "backup", target) == f"schedctl: cannot back up to {target}: No such file or directory\n"


class Mail(Task):
    to: str
    count: int = 1

    def run(self, ctx: Any) -> None: ...


@one_database
def test_a_field_that_is_not_there_gets_those_that_are(ctl: Ctl, live: Bench) -> None:
    live.jobs.register(Mail)
    live.drain()
    message = ctl.fails(2, "submit", "Mail", "-P", "to=x", "-P", "cuont:=2")
    assert message.endswith(": Object contains unknown field `cuont`; there are to, count\n")


@one_database
def test_nothing_found_of_an_unknown_kind(ctl: Ctl, live: Bench) -> None:
    live.drain()
    for command in (["list"], ["dlq", "list"], ["dlq", "replay-all"], ["retry"]):
        result = ctl(*command, "--kind", "Stpe")
        assert result.exit_code == 0
        assert result.stderr == "schedctl: no worker has registered a kind 'Stpe'; known are Soft, Step\n"
        assert ctl(*command, "--kind", "Step").stderr == ""


@one_database
def test_doctor_without_a_worker(ctl: Ctl) -> None:
    assert ctl("run", "--cron", "0 5 * * *", "--key", "nightly", "--", "true").exit_code == 0
    (found,) = [row for row in ctl.json("doctor") if row["check"] == "schedules' tasks"]
    assert found["level"] == "note"
    assert found["text"].startswith("1 schedule makes tasks that no worker runs, since no worker is live: nightly (")


@pytest.mark.parametrize("room", range(8, 40))
def test_columns_that_find_no_room_leave_a_sign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], room: int
) -> None:
    """They were left out at some widths as if there were none."""
    monkeypatch.setattr(output, "terminal_width", lambda: room)
    row = {"id": 12, "kind": "Step", "state": "running", "error": "none"}
    output.print_table([row], tuple(row))
    head, line = capsys.readouterr().out.splitlines()
    assert len(head) <= room
    assert len(line) <= room
    assert head.endswith("…") or head.split() == ["ID", "KIND", "STATE", "ERROR"]
    output.print_table([row], tuple(row), whole=True)
    assert capsys.readouterr().out.splitlines() == ["ID  KIND  STATE    ERROR", "12  Step  running  none"]
