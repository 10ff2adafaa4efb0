"""``schedctl alerts``: what fires, silences, messages, and a test of each sink."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.alerts.evaluator import Evaluator
from scheduler.alerts.observer import Retained
from scheduler.config.alerts import Alerts, AlertSink
from scheduler.ports import SECOND
from support.bench import Bench
from support.databases import one_database

from .conftest import Ctl

DAY = 86_400 * SECOND


def fire(live: Bench, error: str = "a") -> Evaluator:
    live.die(error)
    rules = Alerts().rules
    quick = type(rules)(dead_letters=type(rules.dead_letters)(after=0.0, clear_after=0.0))
    sinks = {"ops": AlertSink(type="command", command=("true",))}
    made = Evaluator(live.jobs.database, Alerts(rules=quick, sinks=sinks), Retained(30 * DAY, 90 * DAY), "me")
    assert made.look().leading
    return made


def test_what_fires_is_listed_and_silenced(ctl: Ctl, live: Bench) -> None:
    assert "no daemon evaluates alerts now" in ctl("alerts", "list").stderr
    evaluator = fire(live)
    (row,) = ctl.json("alerts", "list")
    assert (row["rule"], row["about"], row["state"], row["number"]) == ("dead_letters", "Step", "firing", 1)
    assert row["text"].startswith("1 dead letter of Step: PermanentError")
    assert row["notified_at"] is not None
    assert row["silenced_until"] is None
    (made,) = ctl.json("alerts", "silence", "dead_letters", "--kind", "Step", "--for", "2h", "--reason", "known")
    assert (made["about"], made["reason"]) == ("Step", "known")
    (row,) = ctl.json("alerts", "list")
    assert row["silenced_until"] == made["until"]
    shown = ctl("alerts", "list")
    assert f"silence {made['id']}: alerts of dead_letters, kind Step, until" in shown.stderr
    assert "no daemon" not in shown.stderr
    (ended,) = ctl.json("alerts", "unsilence", made["id"])
    assert ended["id"] == made["id"]
    assert "there is no silence" in ctl.fails(3, "alerts", "unsilence", made["id"])
    assert [e["action"] for e in ctl.json("audit", "--subject", "alerts")] == ["unsilence", "silence"]
    live.jobs.dead_letters.purge(0)
    evaluator.look()
    sent = ctl.json("alerts", "history")
    assert [(one["sink"], one["event"]) for one in sent] == [("ops", "recovered"), ("ops", "fired")]
    assert sent[0]["delivered_at"] is None
    assert ctl.json("alerts", "list") == []


@one_database
def test_no_secret_of_an_error_is_shown(ctl: Ctl, live: Bench) -> None:
    error = "cannot reach postgresql://shop:hunter2@db/shop, token=hunter2"
    fire(live, error)
    live.jobs.database.change(lambda tx: tx.run("UPDATE schedd_alert_messages SET error = :error", error=error))
    ctl("alerts", "silence", "dead_letters", "--kind", "Step", "--for", "2h", "--reason", "password=hunter2 is old")
    for name in ("list", "history"):
        for output in ("table", "json"):
            shown = ctl("alerts", name, "-o", output)
            assert "cannot reach postgresql://shop:***@db/shop" in shown.stdout
            assert "hunter2" not in shown.stdout + shown.stderr


@one_database
def test_mistakes_are_named(ctl: Ctl, live: Bench) -> None:
    assert "did you mean dead_letters?" in ctl.fails(2, "alerts", "silence", "dead_leters", "--for", "1h")
    assert "there are dead_letters" in ctl.fails(2, "alerts", "silence", "xyz", "--for", "1h")
    assert "--for" in ctl.fails(2, "alerts", "silence", "*", "--for", "0")
    assert "there is no sink: write one" in ctl.fails(2, "alerts", "test")


@one_database
def test_each_sink_is_tried(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.json"
    config = tmp_path / "with sinks.toml"
    config.write_text(
        f'[alerts]\nlabel = "test"\n[alerts.sinks.good]\ntype = "command"\ncommand = ["cp", "/dev/stdin", "{out}"]\n'
        '[alerts.sinks.bad]\ntype = "command"\ncommand = ["sh", "-c", "echo no way >&2; exit 3"]\n'
    )
    result = ctl("alerts", "test", "good", SCHEDD_CONFIG=str(config))
    assert result.exit_code == 0, result.output
    body = json.loads(out.read_text())
    assert (body["event"], body["title"]) == ("test", "[test] test of an alert")
    result = ctl("-o", "json", "alerts", "test", SCHEDD_CONFIG=str(config))
    assert result.exit_code == 1
    assert {row["sink"]: row["error"] for row in json.loads(result.stdout)} == {
        "good": None,
        "bad": "sh ended with status 3: no way",
    }
    assert "there is no sink 'other'; [alerts.sinks] has good, bad" in ctl.fails(
        2, "alerts", "test", "other", SCHEDD_CONFIG=str(config)
    )
