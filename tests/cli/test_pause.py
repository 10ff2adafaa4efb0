"""``schedctl pause`` and ``resume``, and where a pause is shown."""

from __future__ import annotations

from scheduler.testing import engine_of
from support.bench import Bench, Step

from .conftest import Ctl


def test_a_queue_that_nothing_knows_is_said_and_the_close_one_named(ctl: Ctl, live: Bench) -> None:
    live.step("a").queue("mail").schedule()
    for command in (
        ("pause", "--queue", "mial"), ("resume", "--queue", "mial"), ("set", "queue", "mial", "--max-concurrency", "2"),
        ("list", "--queue", "mial"),
    ):  # fmt: skip
        said = ctl(*command)
        assert said.exit_code == 0
        assert "names the queue 'mial', and no task waits in it; did you mean 'mail'?" in said.stderr, command
        assert "names the queue" not in ctl(*[word.replace("mial", "mail") for word in command]).stderr
    assert "known are default, mail" in ctl("pause", "--queue", "zzz").stderr


def test_pause_is_shown_and_ended(ctl: Ctl, live: Bench) -> None:
    live.drain()
    (row,) = ctl.json("pause", "--queue", "mail", "--by", "alice", "--reason", "provider down")
    assert (row["scope"], row["name"], row["by"], row["reason"], row["changed"]) == (
        *("queue", "mail", "alice", "provider down"),
        True,
    )
    task = live.jobs.task(Step("mail")).queue("mail").schedule()
    text = "queue mail is paused since"
    assert text in ctl("status").stdout
    assert ctl.json("status")["paused"][0]["due"] == 1
    assert text in ctl.json("show", task)["why"]
    (found,) = [f for f in ctl.json("doctor") if f["check"] == "pauses"]
    assert found["level"] == "note"
    assert "by alice: provider down" in found["text"]
    result = ctl("pause", "--queue", "mail", "--kind", "Step")
    assert "queue mail was paused already" in result.stderr
    assert len(result.stdout.splitlines()) == 3
    engine_of(live.jobs).look_soon()
    assert live.drain() == []
    ctl("resume", "--queue", "mail")
    result = ctl("resume", "--kind", "Step")
    assert "nothing is paused" in result.stderr
    engine_of(live.jobs).look_soon()
    assert live.drain() == ["mail"]
    assert [e["action"] for e in ctl.json("audit", "--subject", "queue mail")] == ["resume", "pause"]


def test_pause_everything(ctl: Ctl, live: Bench) -> None:
    live.drain()
    ctl("pause", "--all", "--reason", "maintenance")
    live.step("x").schedule()
    engine_of(live.jobs).look_soon()
    assert live.drain() == []
    assert "everything is paused since" in ctl("status").stdout
    assert "kind Step was not paused" in ctl("resume", "--kind", "Step").stderr
    ctl("resume", "--all")
    engine_of(live.jobs).look_soon()
    assert live.drain() == ["x"]


def test_bad_input(ctl: Ctl, live: Bench) -> None:
    assert "say which: --queue, --kind or --all" in ctl.fails(2, "pause")
    assert "is not a name" in ctl.fails(2, "resume", "--queue", "no name")
    assert "no worker has registered a kind" in ctl("pause", "--kind", "Unknwon").stderr
