"""A schedule whose kind has left every program makes tasks that none runs: schedctl names it to the operator."""

from __future__ import annotations

import pytest

from support.bench import Bench

from .conftest import Ctl


@pytest.fixture
def since(ctl: Ctl, live: Bench) -> str:
    """When ``gone``, of a kind that the live worker does not serve, was registered; as schedctl prints it."""
    live.step("x").key("served").cron("0 5 * * *").schedule()
    assert ctl("run", "--cron", "0 5 * * *", "--key", "gone", "--", "true").exit_code == 0
    assert ctl("cron", "list").stderr.startswith("schedctl: no worker is live"), "which says it of all"
    live.drain()
    live.execute("UPDATE schedd_schedules SET seen_at = 1800000000000000")
    return "2027-01-15T08:00:00Z"


def warning(since: str) -> str:
    return (
        "1 schedule makes tasks that no worker runs, since no live worker serves kind 'CommandTask': "
        f"gone (registered last at {since}); one run waits at most; `schedctl cron pause gone` stops it"
    )


def test_every_look_tells_of_it(ctl: Ctl, since: str) -> None:
    assert ctl("cron", "list").stderr == f"schedctl: {warning(since)}\n"
    assert ctl("cron", "next", "gone").stderr == f"schedctl: {warning(since)}\n"
    assert ctl("cron", "next", "served").stderr == ""
    reasons = {row["name"]: row["unserved"] for row in ctl.json("cron", "list")}
    assert reasons == {"gone": "no live worker serves kind 'CommandTask'", "served": None}
    (stuck,) = ctl.json("status")["stuck"]
    assert (stuck["problem"], stuck["text"], stuck["number"]) == ("unserved_schedule", warning(since), 1)
    (found,) = [row for row in ctl.json("doctor") if row["check"] == "schedules' tasks"]
    assert (found["level"], found["text"]) == ("note", warning(since))


def test_a_paused_one_is_not_reported(ctl: Ctl, since: str) -> None:
    assert ctl("cron", "pause", "gone").exit_code == 0
    assert ctl("cron", "list").stderr == ""
    assert ctl.json("status")["stuck"] == []
    (found,) = [row for row in ctl.json("doctor") if row["check"] == "schedules' tasks"]
    assert found["level"] == "ok"


def test_several_are_reported_together(ctl: Ctl, live: Bench, since: str) -> None:
    assert ctl("run", "--cron", "0 6 * * *", "--key", "also", "--", "true").exit_code == 0
    printed = ctl("cron", "list").stderr
    assert printed.startswith("schedctl: 2 schedules make tasks that no worker runs, since no live worker serves kind ")
    assert "also (registered last at " in printed
    assert f"gone (registered last at {since})" in printed
    live.execute("UPDATE schedd_schedules SET options = '?' WHERE name = 'also'")
    assert ctl("cron", "list").stderr == f"schedctl: {warning(since)}\n", "what cannot be read is the doctor's"
