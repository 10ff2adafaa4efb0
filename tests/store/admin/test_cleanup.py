"""Retention means what it says: by state, and on demand by age, kind, queue and state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler import ConfigError, ResultExpiredError, Scheduler, Task
from scheduler.store.admin import retention
from scheduler.store.admin.would_remove import would_remove
from scheduler.testing import drain
from support.bench import Bench, Soft, Step

HOUR = 3600


class Quiet(Task):
    """Returns nothing."""

    def run(self, ctx: Any) -> None: ...


def there(jobs: Scheduler, *ids: int) -> list[int]:
    """Which of these tasks have not been removed."""
    known = {task.id for task in jobs.list_tasks(limit=1000)}
    return [i for i in ids if i in known]


def sweep(jobs: Scheduler, **kept: float) -> None:
    given = {"success": 1e9, "failed": 1e9, "outcomes": 1e9, "events": 1e9, **kept}
    for _ in range(3):
        with jobs.database.write() as tx:
            retention.purge_batch(tx, given)


def test_an_hour_is_an_hour_for_what_has_no_result(bench: Bench) -> None:
    jobs = bench.jobs
    jobs.register(Quiet)
    quiet, result = jobs.task(Quiet()).schedule(), bench.step("x").schedule()
    bench.drain()
    bench.clock.advance(HOUR - 1)
    sweep(jobs, success=HOUR)
    assert there(jobs, quiet, result) == [quiet, result]
    bench.clock.advance(2)
    sweep(jobs, success=HOUR)
    assert there(jobs, quiet, result) == [result]
    bench.clock.advance(23 * HOUR)
    sweep(jobs, success=HOUR)
    assert there(jobs, result) == []


def test_results_is_a_setting(bench: Bench) -> None:
    jobs = bench.worker(retention={"success": HOUR, "results": 2 * HOUR})
    task = jobs.task(Step("x")).schedule()
    drain(jobs)
    for passed, left in ((HOUR + 1, [task]), (HOUR, [])):
        bench.clock.advance(passed)
        drain(jobs)
        sweep(jobs, success=HOUR, results=2 * HOUR)
        assert there(jobs, task) == left


def test_cleanup_by_hours_takes_results_along_and_leaves_held_keys(bench: Bench) -> None:
    jobs = bench.jobs
    result, keyed = bench.step("x").schedule(), bench.step("k").key("k", retention=timedelta(hours=3)).schedule()
    bench.drain()
    bench.clock.advance(HOUR + 1)
    assert jobs.cleanup_completed_tasks(2) == 0
    assert jobs.cleanup_completed_tasks(1) == 1
    with pytest.raises(ResultExpiredError):
        jobs.result(result, 0)
    assert jobs.result(keyed, 0) == "k"
    bench.clock.advance(2 * HOUR)
    assert jobs.cleanup_completed_tasks(1) == 1


def test_what_others_need_stays(bench: Bench) -> None:
    parent = bench.step("parent").schedule()
    child = bench.step("child", parent).after(10 * HOUR).schedule()
    bench.drain()
    bench.clock.advance(2 * HOUR)
    assert bench.jobs.cleanup_completed_tasks(1) == 0
    assert bench.advance(8 * HOUR) == ["child"]
    bench.clock.advance(2 * HOUR)
    assert bench.jobs.cleanup_completed_tasks(1) == 2
    assert there(bench.jobs, parent, child) == []


def test_by_kind_queue_and_state(bench: Bench) -> None:
    jobs = bench.jobs
    step, soft = bench.ended("success"), bench.ended("success", Soft)
    mail = jobs.task(Step("mail")).queue("mail").schedule()
    dead, failed = bench.ended("dead"), bench.ended("failed", Soft)
    cancelled = bench.ended("cancelled")
    bench.drain()
    bench.clock.advance(HOUR + 1)
    assert jobs.cleanup_completed_tasks(1, kind="Soft") == 1
    assert there(jobs, step, soft, mail, failed) == [step, mail, failed]
    assert jobs.cleanup_completed_tasks(1, queue="mail") == 1
    assert jobs.cleanup_tasks("Failed", HOUR, kind="Soft") == 1
    assert there(jobs, dead, failed, cancelled) == [dead, cancelled]
    assert jobs.cleanup_tasks(["dead", "cancelled"], HOUR, queue="mail") == 0
    assert jobs.cleanup_tasks(["dead", "cancelled", "success"], HOUR) == 3
    with pytest.raises(ConfigError, match="kind must be a text"):
        jobs.cleanup_completed_tasks(1, kind=3)  # type: ignore[arg-type]


def test_each_state_may_have_a_retention_of_its_own(bench: Bench) -> None:
    dead, failed = bench.ended("dead"), bench.ended("failed", Soft)
    cancelled, skipped = bench.ended("cancelled"), bench.ended("skipped")
    bench.clock.advance(HOUR + 1)
    kept = {"failed": 2.0 * HOUR, "cancelled": float(HOUR), "dead": 3.0 * HOUR}
    with bench.jobs.database.read() as tx:
        given = {"success": 1e9, "outcomes": 1e9, "events": 1e9, **kept}
        assert would_remove(tx, given).tasks == 1
    sweep(bench.jobs, **kept)
    assert there(bench.jobs, dead, failed, cancelled, skipped) == [dead, failed, skipped]
    bench.clock.advance(HOUR)
    sweep(bench.jobs, **kept)
    assert there(bench.jobs, dead, failed, skipped) == [dead]
    bench.clock.advance(HOUR)
    sweep(bench.jobs, **kept)
    assert there(bench.jobs, dead) == []
    made = bench.worker(retention={"dead": 60.0})
    assert made is not None
    with pytest.raises(ConfigError, match="there is no retention of 'died'"):
        bench.worker(retention={"died": 60.0})


@pytest.mark.both_databases
def test_a_cleanup_is_audited(bench: Bench) -> None:
    ids = [bench.ended("success") for _ in range(3)] + [bench.ended("cancelled")]
    bench.clock.advance(HOUR + 1)
    with bench.jobs.acting("alice", reason="disk full"):
        assert bench.jobs.cleanup_tasks(["success", "cancelled"], HOUR, kind="Step") == 4
    found = bench.jobs.audit(action="cleanup")
    assert {(e.actor, e.reason, e.subject, e.bulk) for e in found} == {("alice", "disk full", "tasks", found[0].bulk)}
    assert found[0].filter == {"status": ["cancelled", "success"], "older_than": HOUR, "kind": "Step"}
    assert [(e.detail["removed"], e.detail["ids"]) for e in reversed(found)] == [
        (3, f"{ids[0]}-{ids[2]}"),
        (1, f"{ids[3]}"),
    ]
    assert bench.jobs.cleanup_tasks("cancelled", 0) == 0
    assert len(bench.jobs.audit(action="cleanup")) == len(found)
