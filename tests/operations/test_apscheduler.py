"""Jobs of APScheduler 3 move in: from a live scheduler and from its SQL job store, whose pickles run no code."""

from __future__ import annotations

import itertools
import json
import pickle
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from scheduler import Context, task
from scheduler.apscheduler import ApschedulerLine, move
from scheduler.errors import ConfigError
from scheduler.model.times import to_datetime
from scheduler.operations import apscheduler as operations
from support.bench import Bench
from support.databases import one_database

START = datetime(2026, 1, 1, tzinfo=UTC)
WHERE = f"{__name__}:report"


def report(table: str, limit: int = 1, *others: int) -> None:
    """As it was for APScheduler."""


@task(kind="report")
def our_report(ctx: Context, table: str, limit: int = 1) -> None: ...


@task
def other(ctx: Context, table: str) -> None: ...


class Thing:
    """An argument that is no JSON."""


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.sqlite'}"


@pytest.fixture
def theirs(file: str) -> Iterator[BackgroundScheduler]:
    """Started, and paused: a job store keeps what is added."""
    made = BackgroundScheduler(jobstores={"default": SQLAlchemyJobStore(url=file)}, timezone="Europe/Berlin")
    made.start(paused=True)
    made.add_job(WHERE, "cron", hour=2, minute=30, day_of_week="mon-fri", args=["sales"], kwargs={"limit": 3},
                 id="nightly", misfire_grace_time=None)  # fmt: skip
    made.add_job(WHERE, "cron", day="last", hour=1, args=["a"], id="last", jitter=30, max_instances=3)
    made.add_job(WHERE, "interval", hours=1, args=["a"], id="hourly", misfire_grace_time=None, coalesce=False)
    made.add_job(WHERE, "cron", day="2nd mon", hour=1, args=["a"], id="paused")
    made.add_job(WHERE, "date", run_date=datetime(2090, 1, 1, tzinfo=UTC), args=["a"], id="once")
    made.add_job(WHERE, OrTrigger([CronTrigger(hour=1), CronTrigger(hour=5)]), args=["a"], id="or")
    made.add_job(WHERE, "cron", second="*/10", args=["a"], id="seconds")
    made.add_job(WHERE, "cron", day="1-7", day_of_week="mon", args=["a"], id="both days")
    made.add_job(WHERE, "interval", hours=1, args=[Thing()], id="thing")
    made.add_job(WHERE, "interval", hours=1, args=["a", 1, 2], id="arguments")
    made.add_job(f"{__name__}:unknown", "interval", hours=1, id="unknown")
    made.pause_job("paused")
    yield made
    made.remove_all_jobs()
    made.shutdown()


def unknown() -> None: ...


@pytest.fixture
def published(bench: Bench) -> Bench:
    bench.jobs.register(our_report)
    bench.jobs.register(other)
    bench.drain()
    return bench


def by_job(lines: list[ApschedulerLine]) -> dict[str, ApschedulerLine]:
    return {line.job: line for line in lines}


@pytest.mark.both_databases
@pytest.mark.parametrize("live", [True, False], ids=["live", "store"])
def test_jobs_become_schedules(theirs: BackgroundScheduler, file: str, published: Bench, live: bool) -> None:
    jobs = published.jobs
    source: Any = theirs if live else file
    planned = by_job(move(jobs, source, dry_run=True))
    assert (jobs.schedules.list(), jobs.list_tasks()) == ([], [])
    moved = by_job(move(jobs, source))
    assert planned == moved
    there = {one.name: one for one in jobs.schedules.list()}
    assert set(there) == {"nightly", "last", "hourly", "paused"}
    nightly, hourly = there["nightly"], there["hourly"]
    assert nightly.recurrence.describe() == "30 2 * * 1,2,3,4,5 Europe/Berlin"
    assert (nightly.catchup, nightly.overlap) == ("skip", "skip")
    assert json.loads(nightly.payload) == {"table": "sales", "limit": 3}
    assert (hourly.catchup, hourly.paused, there["paused"].paused) == ("all", False, True)
    assert (there["last"].overlap, there["last"].catchup) == ("allow", "none")
    assert there["last"].jitter == timedelta(seconds=30)
    (once,) = jobs.list_tasks()
    assert (once.key, once.run_at) == ("apscheduler/once", datetime(2090, 1, 1, tzinfo=UTC))

    left = {line.job: line.left_out for line in moved.values() if line.action == "left out"}
    assert "no recurrence like OrTrigger" in str(left.pop("or"))
    assert "at other seconds than 0" in str(left.pop("seconds"))
    assert "both have to match" in str(left.pop("both days"))
    assert ("is not JSON" if live else "Thing, which is not read") in str(left["thing"])
    assert "3 positional arguments, and report has 2 fields" in str(left.pop("arguments"))
    assert "no worker has published a kind unknown" in str(left.pop("unknown"))
    assert set(left) == {"thing"}
    assert any("max_concurrency=3" in one for one in moved["last"].notes)
    assert "missed after [schedules] misfire_grace, not 1 s" in str(moved["last"])

    with jobs.database.write() as tx:  # a dry run waits for no writer
        tx.run("UPDATE schedd_schedules SET jitter = jitter")
        again = by_job(move(jobs, source, dry_run=True))
    assert again == by_job(move(jobs, source))
    assert {line.action for line in again.values()} == {"unchanged", "left out"}


@one_database
def test_another_kind_and_a_scheduler_that_never_started(published: Bench) -> None:
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.add_job(WHERE, "interval", minutes=5, id="five", args=["a"])
    (line,) = move(published.jobs, theirs, kinds={WHERE: "other"})
    assert line.action == "added"
    assert [one.kind for one in published.jobs.schedules.list()] == ["other"]
    theirs.modify_job("five", args=["a", 2])
    (line,) = move(published.jobs, theirs, kinds={"report": "other"})
    assert str(line) == f"five ({WHERE}): left out; 2 positional arguments, and other has 1 field"


TRIGGERS = [
    CronTrigger(hour="*/3", timezone="Europe/Berlin"),
    CronTrigger(day_of_week="0-4/2", hour=7, minute=5, timezone="America/New_York"),
    CronTrigger(day_of_week="*/2", hour=7, timezone="UTC"),
    CronTrigger(day_of_week="sun,wed", timezone="UTC"),
    CronTrigger(day="*/2", day_of_week="fri", timezone="UTC"),
    CronTrigger(day="2nd mon", timezone="UTC"),
    CronTrigger(day="last sun", timezone="UTC"),
    CronTrigger(day="last,15", hour=4, timezone="UTC"),
    CronTrigger(month="jan-mar,7", day=3, timezone="UTC"),
    CronTrigger(minute="5/20", timezone="UTC"),
    CronTrigger(minute="10-40/15", hour="8-18", timezone="UTC"),
    CronTrigger.from_crontab("0 0 * * 0", timezone="UTC"),
    CronTrigger(hour=1, start_date=datetime(2026, 3, 1, tzinfo=UTC), end_date=datetime(2026, 3, 9, tzinfo=UTC)),
    IntervalTrigger(minutes=90, start_date=START, timezone="UTC"),
    IntervalTrigger(days=1, start_date=START, end_date=START + timedelta(days=9), timezone="UTC"),
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=str)
def test_a_trigger_fires_at_the_same_times(trigger: Any) -> None:
    recurrence = operations._TRIGGERS[type(trigger).__name__](trigger)

    def expected() -> Iterator[datetime]:
        previous, now = None, START - timedelta(seconds=1)
        while (at := trigger.get_next_fire_time(previous, now)) is not None:
            yield at.astimezone(UTC)
            previous = now = at

    wanted = list(itertools.islice(expected(), 60))
    after = round((START - timedelta(seconds=1)).timestamp()) * 1_000_000
    found, _ = recurrence.slots_between(after, round(wanted[-1].timestamp()) * 1_000_000, 100)
    assert [to_datetime(at) for at in found] == wanted


class Bad:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('ran')",))


def test_a_pickle_runs_no_code(file: str, theirs: BackgroundScheduler) -> None:
    names = pickle.dumps({"version": 1, "id": "x", "func": "a:b", "trigger": Bad(), "args": (), "kwargs": {}})
    reads = b"cbuiltins\ngetattr\n(cdatetime\ndatetime\nS'now'\ntR."
    with sqlite3.connect(file.removeprefix("sqlite:///")) as raw:
        for job, state in (("bad", names), ("reads", reads), ("cut", names[:20]), ("none", pickle.dumps(7))):
            raw.execute("INSERT INTO apscheduler_jobs VALUES (?, NULL, ?)", (job, state))
    found = {one.id: one.trouble for one in operations.jobs_in(file)}
    assert "builtins.exec, which is not read" in str(found["bad"])
    assert "getattr of now" in str(found["reads"])
    assert "cannot be read" in str(found["cut"])
    assert "cannot be read: TypeError" in str(found["none"])
    assert found["nightly"] is None


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:////nosuch/file.db", "cannot be read: unable to open database file"),
        ("nosuch://x", "is no database that can be read here"),
        ("nothing", "is no database that can be read here"),
    ],
)
def test_a_store_that_cannot_be_read_is_named(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        operations.jobs_in(url)


def test_a_store_without_jobs_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unable to open"):
        operations.jobs_in(f"sqlite:///{tmp_path / 'new.sqlite'}")
    assert list(tmp_path.iterdir()) == []
