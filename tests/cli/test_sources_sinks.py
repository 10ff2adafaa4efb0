"""``schedctl sources``, ``sinks``, ``inbox`` and ``outbox``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.config.messages import SourceSection
from scheduler.messages.intake import Intake
from scheduler.model.problem import TransportProblem
from scheduler.transports import types
from scheduler.transports.ports import Delivery, Limits
from support.bench import Bench
from support.fleet import write
from support.spool import SpoolRig

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
    section = SourceSection(type="cloudevents", kind="Step")
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


@pytest.mark.case(91)
def test_what_is_held_is_seen_and_released_by_hand(ctl: Ctl, live: Bench, config: str) -> None:
    section = SourceSection(type="cloudevents", kind="Step", ordered_by="subject")
    intake = Intake("orders", section, Limits(has_dlq=True), live.jobs.submitter)
    for number in (3, 4):
        body = {"idempotency_key": f"k{number}", "subject": "s", "sequence": number, "payload_inline": {"name": "x"}}
        intake.take([Delivery(message_id=f"{number}", body=json.dumps(body).encode(), receipt="r")])
    (row,) = json.loads(ctl("-o", "json", "sources", "list", SCHEDD_CONFIG=config).stdout)
    assert (row["held"], row["held_since"] is None) == (2, False)
    (held,) = ctl.json("status")["held_messages"]
    assert (held["source"], held["messages"], held["subjects"]) == ("orders", 2, 1)
    assert "2 messages of source orders (1 subject) held for" in ctl("status").output
    finding = {row["check"]: row for row in ctl.json("doctor")}["messages"]
    assert finding["level"] == "note"
    assert "`schedctl inbox release orders` runs them" in finding["text"]
    assert (
        "no message of source orders of subject t is held" in ctl("inbox", "release", "orders", "--subject", "t").stderr
    )
    (done,) = ctl.json("inbox", "release", "orders", "--by", "ann", "--reason", "2 is lost")
    assert (done["source"], done["released"], len(done["tasks"])) == ("orders", 2, 2)
    assert [row["state"] for row in ctl.json("inbox", "list")] == ["done", "done"]
    (entry,) = ctl.json("audit", "--subject", "source orders")
    assert (entry["action"], entry["by"] if "by" in entry else entry["actor"], entry["reason"]) == (
        "release", "ann", "2 is lost",
    )  # fmt: skip
    assert "[sources] has no other" in ctl("inbox", "release", "other").stderr


@pytest.mark.case(92)
def test_the_list_shows_why_the_last_dead_message_is_dead(ctl: Ctl, live: Bench, config: str) -> None:
    receive(live, "bad")
    (row,) = json.loads(ctl("-o", "json", "sources", "list", SCHEDD_CONFIG=config).stdout)
    assert (row["last_error"], row["trouble"]) == ("the message is no JSON object, but list", None)
    assert "the message is no JSON object" in {r["check"]: r for r in ctl.json("doctor")}["messages"]["text"]
    (told,) = ctl.json("status")["dead_messages"]
    assert (told["source"], told["messages"], told["last_error"]) == (
        "orders", 1, "the message is no JSON object, but list",
    )  # fmt: skip
    assert "1 message of source orders could become no task within a day" in ctl("status").output
    write(live.jobs, "UPDATE schedd_inbox SET last_at = last_at - 90000000000")
    assert ctl.json("status")["dead_messages"] == []


def test_a_configuration_that_leaves_kinds_to_strangers_is_said(ctl: Ctl, live: Bench, config: str) -> None:
    said = ctl("config", "check", SCHEDD_CONFIG=config)
    assert (said.exit_code, "chooses its kind" in said.stderr) == (0, False)
    Path(config).write_text(DOOR + 'token = "t"\n' + SOURCES.replace('kind = "Step"\n', ""))
    said = ctl("config", "check", SCHEDD_CONFIG=config)
    assert said.exit_code == 0
    assert "sources.orders.kind: not set: whoever sends a message there chooses its kind" in said.stderr
    assert "door.kinds: not set: the bearer of the token may submit any kind but schedd's own" in said.stderr


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


def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> tuple[SpoolRig, str]:
    """A source whose transport is a file, and its configuration."""
    monkeypatch.setitem(types.OWN[types.SOURCES], "spool", SpoolRig.factory)  # type: ignore[arg-type]
    rig = SpoolRig(tmp_path)
    lines = "".join(f'{name} = "{value}"\n' for name, value in more.items())
    file = tmp_path / "spool.toml"
    file.write_text(f'[sources.orders]\ntype = "spool"\nkind = "Step"\n{rig.table}{lines}')
    return rig, str(file)


def test_dead_messages_are_sent_to_their_source_again(
    ctl: Ctl, live: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, config = spool(tmp_path, monkeypatch)
    with rig.spool.open() as connection:
        for number in range(3):
            connection.execute("INSERT INTO dead VALUES (?, 'no')", (b"%d" % number,))
    said = ctl("-o", "json", "sources", "redrive", "orders", "--limit", "2", "--by", "ann", SCHEDD_CONFIG=config)
    assert json.loads(said.stdout) == [{"name": "orders", "moved": 2}]
    assert "there may be more" in said.stderr
    assert (rig.left(), len(rig.dead())) == (2, 1)
    again = ctl("-o", "json", "sources", "redrive", "orders", SCHEDD_CONFIG=config)
    assert (json.loads(again.stdout), again.stderr) == ([{"name": "orders", "moved": 1}], "")
    ctl("sources", "redrive", "orders", SCHEDD_CONFIG=config)
    entries = ctl.json("audit", "--subject", "source orders")
    assert [(one["action"], one["detail"]["messages"]) for one in entries] == [("redrive", 1), ("redrive", 2)]
    assert "ann" in json.dumps(entries)
    rig.stop_server()
    assert "the spool is away" in ctl.fails(1, "sources", "redrive", "orders", SCHEDD_CONFIG=config)


def test_a_source_without_a_dead_letter_queue_of_its_own_redrives_nothing(ctl: Ctl, live: Bench, config: str) -> None:
    said = ctl.fails(2, "sources", "redrive", "orders", SCHEDD_CONFIG=config)
    assert "source orders has no dead-letter queue that can be read from here" in said
    assert "there is no source 'x'" in ctl.fails(2, "sources", "redrive", "x", SCHEDD_CONFIG=config)


def test_doctor_connects_to_sources_and_sinks(
    ctl: Ctl, live: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, config = spool(tmp_path, monkeypatch)

    def found(status: int = 0) -> dict[str, tuple[str, str]]:
        result = ctl("-o", "json", "doctor", SCHEDD_CONFIG=config)
        assert result.exit_code == status, result.output
        return {row["check"]: (row["level"], row["text"]) for row in json.loads(result.stdout)}

    assert found()["source orders"] == ("ok", "there")
    assert found()["messages"][0] == "ok"
    rig.stop_server()
    assert found()["source orders"] == ("note", "it cannot be reached from here: the spool is away")
    Path(config).write_text(SOURCES + SINKS)  # without a door
    wrong = found(1)
    assert wrong["source orders"][0] == "problem"
    assert "set listen in [door]" in wrong["source orders"][1]
    assert "sink shop" in wrong
    receive(live, "bad")
    Path(config).write_text("")
    level, text = found()["messages"]
    assert (level, text.startswith("1 message could become no task")) == ("note", True)
    live.jobs.traffic.tell(TransportProblem("sink", "shop", live.jobs.database.now(), "refused"), 3600.0)
    live.drain()
    level, text = found(1)["messages"]
    assert (level, text.startswith("sink shop cannot be used since")) == ("problem", True)


def test_doctor_finds_messages_that_nothing_settles(ctl: Ctl, live: Bench) -> None:
    section = SourceSection(type="spool", kind="Step", ack="end")
    intake = Intake("orders", section, Limits(has_dlq=True), live.jobs.submitter, "gone")
    body = json.dumps({"idempotency_key": "a", "payload_inline": {"name": "a"}}).encode()
    intake.take([Delivery(message_id="1", body=body, receipt="r")])
    live.drain()
    found = {row["check"]: row for row in ctl.json("doctor")}
    assert found["messages"]["level"] == "ok", "its receiver has an hour"
    write(live.jobs, "UPDATE schedd_inbox SET last_at = last_at - 7200000000")
    write(live.jobs, "UPDATE schedd_tasks SET finished_at = finished_at - 7200000000")
    found = {row["check"]: row for row in ctl.json("doctor")}
    assert found["messages"]["level"] == "note"
    assert found["messages"]["text"].startswith("1 message of orders not settled, though their tasks have ended")


@pytest.mark.parametrize(
    ("command", "what"), [(("inbox", "list", "--source"), "source"), (("outbox", "list", "--sink"), "sink")]
)
def test_an_empty_list_of_something_that_nobody_has_says_so(
    ctl: Ctl, live: Bench, command: tuple[str, ...], what: str
) -> None:
    assert f"there is no {what} 'shpo'; known are " in ctl(*command, "shpo").stderr
