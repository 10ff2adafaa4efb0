"""``schedctl cron runs``, ``trigger --slot``, ``cancel``: the runs of one schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cli.conftest import Ctl

from support.bench import Bench, Step


def test_the_runs_of_a_schedule_and_of_a_graph(ctl: Ctl, live: Bench) -> None:
    slot = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    with live.jobs.recurring("etl").hourly_at(0) as dag:
        dag.task(Step("report")).depend_on(dag.task(Step("load")).key("load"))
    stamp = slot.isoformat().replace("+00:00", "Z")
    made = ctl.json("cron", "trigger", "etl", "--slot", stamp)
    assert made["created"]
    assert ctl("cron", "trigger", "etl", "--slot", stamp).stdout.strip() == str(made["id"])
    (run,) = ctl.json("cron", "runs", "etl")
    assert (run["first"], run["slot"], run["origin"], run["tasks"]) == (made["id"], stamp, "trigger", 2)
    assert run["states"] == {"waiting": 1, "scheduled": 1}
    (listed,) = ctl.json("cron", "list")
    assert [(n["name"], n["kind"], n["depends_on"]) for n in listed["tasks"]] == [
        ("load", "Step", []),
        ("Step", "Step", ["load"]),
    ]
    done = ctl.json("cron", "cancel", "etl", "--slot", stamp, "--by", "ops", "--reason", "wrong day")
    assert len(done["cancelled"]) == 2
    assert ctl.json("cron", "runs", "etl")[0]["state"] == "cancelled"
    ctl("cron", "trigger", "etl")
    more = ctl("cron", "runs", "etl", "--limit", "1")
    assert "there are more" in more.stderr
    assert "is no slot of" in ctl.fails(2, "cron", "trigger", "etl", "--slot", stamp.replace(":00:00Z", ":07:00Z"))
    ctl.fails(3, "cron", "runs", "nothing")


def test_bounds_and_jitter_of_a_cron_on_the_command_line(ctl: Ctl, live: Bench) -> None:
    live.drain()  # publishes its kinds
    given = ["--starts", "2090-01-01T00:00:00Z", "--ends", "2090-01-01T01:00:00Z", "--jitter", "5m"]
    ctl("submit", "Step", "-P", "name=x", "--key", "far", "--cron", "0 * * * *", *given)
    (listed,) = ctl.json("cron", "list")
    assert (listed["next_at"], listed["jitter"]) == ("2090-01-01T00:00:00Z", 300.0)
    assert [row["slot"] for row in ctl.json("cron", "next", "far")] == ["2090-01-01T00:00:00Z", "2090-01-01T01:00:00Z"]
    assert "--jitter belongs to --cron" in ctl.fails(2, "submit", "Step", "-P", "name=x", "--jitter", "5m")
    assert "never fires" in ctl.fails(2, "submit", "Step", "-P", "name=x", "--cron", "30 5 * * *", *given[:4])


def test_backfill(ctl: Ctl, live: Bench) -> None:
    live.jobs.task(Step("tick")).key("tick").cron("0 * * * *").schedule()
    given = ("cron", "backfill", "tick", "--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T01:30:00Z")
    slots = ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"]
    for dry, action in ((["--dry-run"], "would run"), ([], "run"), ([], "has run")):
        assert ctl.json(*given, *dry) == [{"slot": slot, "action": action} for slot in slots]
    assert [row["origin"] for row in ctl.json("cron", "runs", "tick")] == ["backfill", "backfill"]
    assert "over the limit of 1" in ctl.fails(2, *given, "--limit", "1")
    ctl.fails(3, "cron", "backfill", "none", "--from", slots[0])
