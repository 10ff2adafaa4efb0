"""What ``schedctl cron`` says of zones, of kinds that nobody serves, and of runs beside others."""

from __future__ import annotations

from scheduler.store import schedules
from support.bench import Bench

from .conftest import Ctl


def test_the_next_slot_is_shown_on_the_clock_of_its_zone(ctl: Ctl, live: Bench) -> None:
    live.step("x").key("tokyo").cron("0 9 * * *", tz="Asia/Tokyo").schedule()
    live.step("y").key("rate").every(3600).schedule()
    shown = {row["name"]: (row["next_at"], row["next_local"]) for row in ctl.json("cron", "list")}
    assert shown["tokyo"][0].endswith("T00:00:00Z")
    assert shown["tokyo"][1] == "09:00 Asia/Tokyo"
    assert shown["rate"][1] is None
    assert "09:00 Asia/Tokyo" in ctl("cron", "list").stdout


def test_a_forecast_says_that_no_worker_would_run_it(ctl: Ctl, live: Bench) -> None:
    live.step("x").key("s").cron("0 9 * * *").schedule()
    said = ctl("cron", "forecast")
    assert "no worker is live, so nothing runs s" in said.stderr
    (one,) = ctl.json("cron", "forecast")["schedules"]
    assert one["unserved"] == "no worker is live"
    live.drain()
    (one,) = ctl.json("cron", "forecast")["schedules"]
    assert one["unserved"] is None


def test_a_run_by_hand_beside_another_is_told(ctl: Ctl, live: Bench) -> None:
    live.step("x").key("s").cron("0 9 * * *").overlap("skip").schedule()
    assert "beside" not in ctl("cron", "trigger", "s").stderr
    live.execute("UPDATE schedd_schedules SET next_at = 1700000000000000")
    with live.jobs.database.write() as tx:
        (fired,) = schedules.tick(tx, 60_000_000)
    said = ctl("cron", "trigger", "s")
    assert f"it runs beside task {int(fired.ids[0])}, which has not ended" in said.stderr
    live.drain()
    assert "beside" not in ctl("cron", "trigger", "s").stderr
