"""Attempts that failed, by their time: also those that were retried since, found by an index."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from scheduler import ConfigError, RetryPolicy
from support.bench import Bench
from support.plans import Seen, plan


def test_failures_of_a_time_are_listed_latest_first(bench: Bench) -> None:
    (dead,) = bench.die("dead")
    bench.clock.advance(3600)
    bench.script.bodies["flaky"] = _refuse
    flaky = int(bench.step("flaky").with_retry(RetryPolicy(min_wait=10, max_attempts=3, jitter=0)).schedule())
    bench.drain()
    del bench.script.bodies["flaky"]
    bench.advance(10)
    assert bench.state(flaky) == "success"
    found = bench.jobs.failures(since=timedelta(hours=2))
    assert [(f.task_id, f.kind, f.number, f.outcome.value, f.error_class) for f in found] == [
        (flaky, "Step", 1, "retried", "ConnectionError"),
        (dead, "Step", 1, "dead", "PermanentError"),
    ]
    assert found[0].finished_at > found[1].finished_at
    assert [f.task_id for f in bench.jobs.failures(since=60)] == [flaky]
    assert [f.task_id for f in bench.jobs.failures(since=7200, until=found[0].finished_at)] == [dead]
    assert bench.jobs.failures("Soft") == []
    assert len(bench.jobs.failures("Step", since=7200, limit=1)) == 1
    assert len(asyncio.run(bench.jobs.failures_async(since=7200))) == 2
    with pytest.raises(ConfigError):
        bench.jobs.failures(limit=0)


def _refuse(_: Any) -> None:
    raise ConnectionError("refused")


def test_they_are_found_by_their_index(bench: Bench) -> None:
    jobs = bench.jobs
    bench.die("dead")
    numbers = (
        "WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < 5000)"
        if bench.database.is_sqlite
        else "WITH g AS (SELECT generate_series(1, 5000) AS i)"
    )
    bench.execute(
        f"{numbers} INSERT INTO schedd_attempts (task_id, claim, number, worker, finished_at, outcome) "
        "SELECT 1000 + i, 1, 1, 1, i, 0 FROM g"
    )
    bench.execute("ANALYZE schedd_attempts")
    seen = Seen()
    with seen.watch(jobs):
        assert len(jobs.failures(since=60)) == 1
    (found,) = [(text, bound) for text, bound in seen.statements.items() if "schedd_attempts" in text]
    assert any("ix_schedd_attempts_failed" in step for step in plan(jobs, *found))
