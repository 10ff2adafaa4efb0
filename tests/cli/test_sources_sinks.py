"""``schedctl sources``, ``sinks``, ``inbox`` and ``outbox``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.config.messages import Source
from scheduler.messages.intake import Intake
from scheduler.transports.ports import Delivery, Limits
from support.bench import Bench

from .conftest import Ctl

DOOR = '[door]\nlisten = "127.0.0.1:0"\n'
SOURCES = '[sources.orders]\ntype = "cloudevents"\nkind = "Step"\ntoken = "hush"\n'
SINKS = '[sinks.shop]\ntype = "cloudevents"\nurl = "http://127.0.0.1:9/"\n'


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "messages.toml"
    file.write_text(DOOR + SOURCES + SINKS)
    return str(file)


def receive(live: Bench, *keys: str) -> None:
    section = Source(type="cloudevents", kind="Step")
    intake = Intake("orders", section, Limits(has_dlq=True), live.jobs.submitter)
    for key in keys:
        body = json.dumps({"idempotency_key": key, "payload_inline": {"name": key}} if key != "bad" else [])
        intake.take([Delivery(message_id=f"id-{key}", body=body.encode(), receipt="r")])


def test_sources_are_listed_paused_and_resumed(ctl: Ctl, live: Bench, config: str) -> None:
    receive(live, "a", "a", "bad")

    def listed() -> dict[str, object]:
        (row,) = json.loads(ctl("-o", "json", "sources", "list", SCHEDD_CONFIG=config).stdout)
        return dict(row)

    row = listed()
    assert (row["source"], row["kind"], row["dead"], row["paused"]) == ("orders", "Step", 1, False)
    result = ctl("-o", "json", "sources", "pause", "orders", "--reason", "provider down", SCHEDD_CONFIG=config)
    assert json.loads(result.stdout) == [{"name": "orders", "paused": True, "changed": True}]
    assert listed()["paused"] is True
    assert "was paused already" in ctl("sources", "pause", "orders", SCHEDD_CONFIG=config).stderr
    shown = ctl("status", SCHEDD_CONFIG=config)
    assert "schedctl sources resume orders" in shown.stdout + shown.stderr or "source orders" in shown.output
    ctl("sources", "resume", "orders", SCHEDD_CONFIG=config)
    assert listed()["paused"] is False
    assert [e["action"] for e in ctl.json("audit", "--subject", "source orders")] == ["resume", "pause"]
    assert "there is no source 'x'; [sources] has orders" in ctl.fails(2, "sources", "pause", "x", SCHEDD_CONFIG=config)


def test_the_inbox_shows_messages_and_their_tasks(ctl: Ctl, live: Bench) -> None:
    receive(live, "a", "b", "a", "bad")
    rows = {row["key"]: row for row in ctl.json("inbox", "list")}
    assert {key: (row["state"], row["deliveries"]) for key, row in rows.items()} == {
        "a": ("done", 2),
        "b": ("done", 1),
        "!id-bad": ("dead", 1),
    }
    assert rows["!id-bad"]["error"] == "the message is no JSON object, but list"
    (one,) = ctl.json("inbox", "list", "--task", str(rows["b"]["task"]))
    assert one["key"] == "b"
    assert [row["key"] for row in ctl.json("inbox", "list", "--state", "dead")] == ["!id-bad"]


def test_the_outbox_shows_messages_that_wait(ctl: Ctl, live: Bench, config: str) -> None:
    made = live.jobs.publish("shop", {"n": 1}, key="k", group="g")
    (row,) = ctl.json("outbox", "list")
    assert (row["id"], row["sink"], row["key"], row["group"], row["state"]) == (
        int(made),
        "shop",
        "k",
        "g",
        "scheduled",
    )
    (sink,) = json.loads(ctl("-o", "json", "sinks", "list", SCHEDD_CONFIG=config).stdout)
    assert (sink["waiting"], sink["dead"], sink["paused"]) == (1, 0, False)
    ctl("sinks", "pause", "shop", SCHEDD_CONFIG=config)
    assert json.loads(ctl("-o", "json", "sinks", "list", SCHEDD_CONFIG=config).stdout)[0]["paused"] is True
    assert "paused" in ctl("why", str(int(made))).output
    ctl("sinks", "resume", "shop", SCHEDD_CONFIG=config)
    live.jobs.cancel_task(made)
    assert ctl.json("outbox", "list") == []
    assert len(ctl.json("outbox", "list", "--all", "--sink", "shop")) == 1


def test_a_check_connects_and_says_what_is_wrong(ctl: Ctl, live: Bench, config: str, tmp_path: Path) -> None:
    assert ctl("sources", "check", SCHEDD_CONFIG=config).exit_code == 0
    result = ctl("-o", "json", "sinks", "check", "shop", SCHEDD_CONFIG=config)
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)
    assert (row["ok"], row["name"]) == (False, "shop")
    file = tmp_path / "wrong.toml"
    file.write_text(SINKS.replace("url", "utl"))
    assert "a sink of type cloudevents has no such setting" in ctl.fails(2, "sinks", "check", SCHEDD_CONFIG=str(file))
    file.write_text(SOURCES)
    assert "set listen in [door]" in ctl.fails(2, "sources", "check", SCHEDD_CONFIG=str(file))
    file.write_text(DOOR)
    assert "there is no source: write one" in ctl.fails(2, "sources", "check", SCHEDD_CONFIG=str(file))
