"""``schedctl audit``, ``--by`` and ``--reason``, and what ``show`` says of who changed a task."""

from __future__ import annotations

import getpass
import json

from support.bench import Bench

from .conftest import Ctl

WHO = ("--by", "alice", "--reason", "wrong customer")


def test_audit_lists_what_was_changed(ctl: Ctl, live: Bench) -> None:
    task = int(live.step("x").after(60).schedule())
    ctl("cancel", task, *WHO)
    ctl("retry", task)
    ctl("event", "emit", "paid", *WHO)
    emitted, retried, cancelled = ctl.json("audit")
    assert (cancelled["actor"], cancelled["reason"], cancelled["via"]) == ("alice", "wrong customer", "cli")
    assert (cancelled["action"], cancelled["about"], cancelled["before"]) == ("cancel", f"task {task}", "scheduled")
    assert (retried["action"], retried["actor"], retried["reason"]) == ("retry", getpass.getuser(), None)
    assert (emitted["action"], emitted["subject"]) == ("event emitted", "event paid")
    assert [e["action"] for e in ctl.json("audit", task)] == ["retry", "cancel"]
    assert [e["action"] for e in ctl.json("audit", "--by", "alice", "--action", "cancel")] == ["cancel"]
    assert [e["action"] for e in ctl.json("audit", "--subject", "event")] == ["event emitted"]
    head, *_ = ctl("audit").stdout.splitlines()
    assert head.split() == ["AT", "ACTOR", "ACTION", "ABOUT", "VIA", "REASON"]
    result = ctl("audit", "--limit", 1)
    assert f"--cursor {emitted['id']}" in result.stderr
    assert len(ctl.json("audit", "--cursor", emitted["id"])) == 2


def test_show_says_who_and_why(ctl: Ctl, live: Bench) -> None:
    task = int(live.step("x").after(60).schedule())
    ctl("cancel", task, *WHO)
    assert ctl.json("show", task)["why"].endswith(" by alice: wrong customer")
    text = ctl("show", task).stdout
    assert "audit:" in text
    assert "wrong customer" in text


def test_every_changing_command_takes_by_and_reason(ctl: Ctl, live: Bench) -> None:
    """As the help says; one that is added without them fails here."""
    for command in (
        *("cancel", "retry", "submit", "run", "event emit", "worker drain", "worker resume", "worker restart"),
        *("cron pause", "cron resume", "cron trigger", "cron delete"),
        *("set task", "rerun", "copy", "pause", "resume", "gc", "doctor", "db upgrade", "cron backfill"),
        *("set pool", "set kind", "set key", "set task", "cron cancel", "show", "list", "logs"),
        *("dlq replay", "dlq replay-all", "dlq purge"),
    ):
        text = ctl(*command.split(), "--help").stdout
        assert "--by" in text, command
        assert "--reason" in text, command


def test_schedules_workers_and_submits_by_hand(ctl: Ctl, live: Bench) -> None:
    live.drain()  # publishes the kinds
    made = ctl.json("submit", "Step", "-P", "name=x", *WHO)["id"]
    ctl("submit", "Step", "-P", "name=n", "--cron", "0 3 * * *", "--key", "nightly", *WHO)
    ctl("cron", "pause", "nightly", *WHO)
    ctl("cron", "delete", "nightly", *WHO)
    with live.jobs.database.read() as tx:
        worker = tx.connection.exec_driver_sql("SELECT id FROM schedd_workers").scalar_one()
    ctl("worker", "drain", worker, *WHO)
    found = ctl.json("audit", "--by", "alice")
    assert [(e["action"], e["about"]) for e in reversed(found)] == [
        ("submit", f"task {made}"),
        ("schedule registered", "schedule nightly"),
        ("schedule paused", "schedule nightly"),
        ("schedule deleted", "schedule nightly"),
        ("drain", f"worker {worker}"),
    ]
    assert json.loads(found[1]["before"]["payload"] or "null") == {"name": "n"}


def test_bad_input(ctl: Ctl, live: Bench) -> None:
    task = int(live.step("x").after(60).schedule())
    assert "--by is a text of 1 to 255" in ctl.fails(2, "cancel", task, "--by", "")
    assert "--reason is a text of 1 to 1000" in ctl.fails(2, "cancel", task, "--reason", "x" * 1001)
    assert ctl.json("audit") == []
    ctl.fails(2, "audit", "--limit", 0)
    ctl.fails(2, "audit", "nonsense")


def test_a_dry_run_records_nothing(ctl: Ctl, live: Bench) -> None:
    task = int(live.step("x").after(60).schedule())
    ctl("cancel", task, "--dry-run", *WHO)
    assert ctl.json("audit") == []


def test_what_the_audit_shows_has_no_secrets(ctl: Ctl, live: Bench) -> None:
    task = int(live.step("x").after(60).schedule())
    ctl("cancel", task, "--by", "alice", "--reason", "as https://bob:hunter2@host/ says")
    for output in ("json", "table"):
        shown = ctl("audit", "-o", output).stdout
        assert "hunter2" not in shown
        assert "https://bob:***@host/" in shown or output == "table"
