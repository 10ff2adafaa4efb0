"""``gc``."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest

from scheduler.store.admin import would_remove
from support.bench import Bench, Step
from support.databases import Database

from .conftest import Ctl

pytestmark = pytest.mark.case(51)
NOTHING_ELSE = "0 expired results, 0 old outcomes, 0 old events, 0 workers gone for a week"


def test_gc_says_what_would_go_and_then_what_went(ctl: Ctl, live: Bench) -> None:
    ids = [live.ended(end) for end in ("success", "dead", "cancelled")]
    kept = live.ended("success")
    live.step("child", kept).after(3600).schedule()
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 864000000000 WHERE state >= 6")
    live.execute("UPDATE schedd_tasks SET result_until = result_until - 864000000000 WHERE state >= 6")
    assert ctl.json("gc", "--dry-run") == {
        "tasks": 1,
        "results": 0,
        "outcomes": 0,
        "workers": 0,
        "events": 0,
        "audit": 0,
        "bytes": 0,
        "at_least": False,
        "dry_run": True,
    }
    assert live.state(ids[0]) == "success"
    shown = ctl("gc", "--dry-run", SCHEDD_RETENTION__FAILED="1h")
    assert shown.stdout == (
        "would remove 3 tasks, 0 expired results, 0 old outcomes, 0 old events, 0 workers gone for a week\n"
    )
    done = ctl("gc", SCHEDD_RETENTION__FAILED="1h")
    assert done.exit_code == 0
    assert done.stdout.startswith(
        "removed 3 tasks, 0 expired results, 0 old outcomes, 0 old events, 0 workers gone for a week\n"
    )
    for task_id in ids:
        assert f"there is no task {task_id}" in ctl.fails(3, "show", task_id)
    assert live.state(kept) == "success"
    assert ctl.json("gc")["tasks"] == 0
    assert ctl.json("doctor")


def test_gc_reaches_what_a_longer_retention_had_put_off(ctl: Ctl, live: Bench) -> None:
    task_id = live.ended("success")
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 864000000000")
    live.execute("UPDATE schedd_tasks SET result_until = result_until - 864000000000")
    assert ctl.json("gc")["tasks"] == 1
    task_id = live.ended("success")
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 864000000000")
    live.execute("UPDATE schedd_tasks SET result_until = result_until - 864000000000")
    longer = ctl("-o", "json", "gc", SCHEDD_RETENTION__SUCCESS="30d")
    assert '"results": 1' in longer.stdout
    assert live.state(task_id) == "success"
    assert ctl.json("gc")["tasks"] == 1


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_gc_gives_space_back(ctl: Ctl, live: Bench, database: Database) -> None:
    with live.jobs.batch() as batch:
        for _ in range(300):
            batch.task(Step("x" * 20_000))
    live.drain()
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 864000000000, result_until = 0")
    before = size(database)
    removed = ctl.json("gc")
    assert removed["tasks"] == 300
    assert removed["bytes"] > 5_000_000
    assert size(database) < before - 5_000_000


def size(database: Database) -> int:
    """Of the file, with all that is written in it."""
    with closing(sqlite3.connect(database.path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return os.stat(database.path).st_size


def test_gc_of_a_state_by_age(ctl: Ctl, live: Bench) -> None:
    dead, cancelled = live.ended("dead"), live.ended("cancelled")
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 7200000000 WHERE state >= 6")
    given = ("gc", "--status", "cancelled,dead", "--older-than", "1h")
    assert ctl.json(*given, "--dry-run")["tasks"] == 2
    assert live.states(dead, cancelled) == ["dead", "cancelled"]
    assert ctl("gc", "--status", "cancelled", "--older-than", "1h").stdout.startswith("removed 1 task, ")
    assert ctl("gc", "--status", "success", "--older-than", "0s").exit_code == 0
    assert live.state(dead) == "dead"
    assert "go together" in ctl.fails(2, "gc", "--status", "dead")
    assert "waiting ones have not" in ctl.fails(2, "gc", "--status", "waiting", "--older-than", "1h")


def test_gc_by_age_of_every_ended_state_of_a_kind_and_of_a_queue(ctl: Ctl, live: Bench) -> None:
    ids = [live.ended(end) for end in ("success", "dead", "cancelled")]
    mail = live.jobs.task(Step("mail")).queue("mail").schedule()
    live.drain()
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 7200000000 WHERE state >= 6")
    assert ctl.json("gc", "--older-than", "1h", "--queue", "mail", "--dry-run")["tasks"] == 1
    assert ctl.json("gc", "--older-than", "1h", "--queue", "mail", "--by", "alice")["tasks"] == 1
    assert "no worker has registered a kind 'Stpe'" in ctl("gc", "--older-than", "1h", "--kind", "Stpe").stderr
    assert ctl.json("gc", "--older-than", "1h", "--kind", "Step", "--dry-run")["tasks"] == 3
    assert ctl.json("gc", "--older-than", "1h")["tasks"] == 3
    for task_id in (*ids, mail):
        ctl.fails(3, "show", task_id)
    assert {e["actor"] for e in ctl.json("audit", "--action", "cleanup", "--subject", "tasks")} >= {"alice"}
    assert "go together" in ctl.fails(2, "gc", "--kind", "Step")


def test_a_dry_run_that_stops_at_its_bound_says_so(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(would_remove, "LOOKED", 2)
    for _ in range(3):
        live.ended("cancelled")
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 7200000000 WHERE state >= 6")
    for given in (("--older-than", "1h"), ()):
        environment = {} if given else {"SCHEDD_RETENTION__FAILED": "1h"}
        told = ctl("gc", *given, "--dry-run", **environment).stdout
        assert told.startswith("would remove at least 2 tasks, ")
        assert "`--all` counts them all" in told
        assert '"at_least": true' in ctl("-o", "json", "gc", *given, "--dry-run", **environment).stdout
        whole = ctl("gc", *given, "--dry-run", "--all", **environment).stdout
        assert whole.startswith("would remove 3 tasks, ")
        assert "--all" not in whole
    assert "goes together with --dry-run" in ctl.fails(2, "gc", "--all")
    assert ctl.json("gc", "--older-than", "1h")["tasks"] == 3
