"""SQLite: a worker whose clock is ahead keeps to that of the others, and says so."""

from __future__ import annotations

import pytest

from scheduler import Context, Scheduler, task
from scheduler.alerts.service import AlertService
from scheduler.config.alerts import Alerts, AlertSink
from scheduler.config.model import Config, StoreSection
from scheduler.daemon.companions import AlertCompanion
from scheduler.ports import SystemClock
from support.databases import Database, one_database
from support.fleet import until

HOUR = 3600


class Ahead(SystemClock):
    def now(self) -> int:
        return super().now() + HOUR * 1_000_000


@task
def quick(ctx: Context) -> int:
    return 7


@one_database
def test_a_worker_whose_clock_is_ahead_claims_what_is_due_by_the_others(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    right = Scheduler(database.url, lease=3.0, queues=["none"])
    ahead = Scheduler(database.url, lease=3.0, clock=Ahead())
    right.register(quick)
    ahead.register(quick)
    right.start()
    ahead.start()
    try:
        until(lambda: "ahead of the other workers" in caplog.text)
        later = right.task(quick).after(1800).schedule()
        assert right.result(right.task(quick).schedule(), timeout=30) == 7
        assert right.get_task(later).state == "scheduled"
        assert ahead.database.offset < -(HOUR - 60) * 1_000_000
        assert "clocks" in " ".join(one.check for one in right.doctor() if one.level != "ok")
        assert "died or lost its lease" not in caplog.text
    finally:
        ahead.close()
        right.close()


@one_database
def test_a_lone_worker_ahead_is_named_by_the_doctor(database: Database) -> None:
    ahead = Scheduler(database.url, clock=Ahead())
    ahead.start()
    ahead.engine.wait_ready(20)
    jobs = Scheduler(database.url)
    found = [one.text for one in jobs.doctor() if one.check == "workers' clocks"]
    assert "so it begins tasks too early" in " ".join(found)
    jobs.close()
    ahead.close()


@one_database
def test_alerts_of_a_daemon_ahead_take_no_other_worker_for_lost(database: Database) -> None:
    """They keep to the time of the daemon's engine, also those that a reload has started."""
    jobs = Scheduler(database.url)
    jobs.database.server_clock.offset = -HOUR * 1_000_000
    sinks = {"ops": AlertSink(type="command", command=("true",))}
    config = Config(store=StoreSection(url=database.url), alerts=Alerts(sinks=sinks))
    companion = AlertCompanion(config)
    companion.keep_to(jobs.database)
    changed = Config(store=config.store, alerts=Alerts(sinks=sinks, label="other"))
    change = companion.prepare(changed)
    assert change is not None
    for service in (companion._service, companion._make(config)):
        companion._set_clock(service)
        assert isinstance(service, AlertService)
        assert abs(service._database.now() - jobs.database.now()) < 1_000_000
    jobs.close()
