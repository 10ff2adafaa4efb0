"""Removal of what ended long ago: tasks, results, outcomes; in batches, and not while a task needs it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import (
    ConfigError,
    Context,
    PermanentError,
    ResultExpiredError,
    Scheduler,
    Task,
    TaskCancelledError,
    TaskFailedError,
    TaskState,
    UnknownTaskError,
    task,
)
from scheduler.store import reaper
from scheduler.store.admin import retention
from scheduler.store.admin.would_remove import would_remove
from scheduler.store.read.explain import why
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, rows, run_claimed, step, write

pytestmark = pytest.mark.case(51)
HOUR, DAY = 3600.0, 86400.0
KEPT = {"success": 10 * DAY, "failed": 20 * DAY, "outcomes": 40 * DAY, "events": 40 * DAY}
LONG = "x" * 3000  # a result of this length has a row of its own


@task
def echo(ctx: Context, text: str = "") -> str:
    return text


@task(result_ttl=HOUR)
def brief(ctx: Context, text: str = "") -> str:
    return text


@task(result_ttl=100 * DAY)
def lasting(ctx: Context, text: str = "") -> str:
    return text


@task
def fails(ctx: Context) -> None:
    raise ValueError("no")


@task
def reads(ctx: Context) -> Any:
    return sorted(ctx.results().values())


KINDS = (echo, brief, lasting, fails, reads)


def make(fleet: Fleet, **options: Any) -> Scheduler:
    return fleet.worker(*KINDS, **({"retention": KEPT} | options))


def sweep(jobs: Scheduler, kept: dict[str, float] = KEPT, batch: int = 500) -> retention.Removed:
    """All that is over, batch by batch."""
    done = retention.Removed(more=True)
    while done.more:
        with jobs.database.write() as tx:
            one = retention.purge_batch(tx, kept, batch)
        done = done.plus(one)
    return done


def pass_days(jobs: Scheduler, clock: FakeClock, days: float) -> None:
    clock.advance(days * DAY)
    step(jobs)
    clock.advance(60)
    step(jobs)


def stored(jobs: Scheduler) -> int:
    """How many results there are, short and long."""
    short = rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE result IS NOT NULL")[0].n
    return int(short + rows(jobs, "SELECT count(*) AS n FROM schedd_task_values WHERE name = 'result'")[0].n)


def test_results_expire_after_a_day_and_the_task_stays(fleet: Fleet, clock: FakeClock) -> None:
    jobs = make(fleet)
    ids = [jobs.task(echo, text).schedule() for text in ("short", LONG)]
    drain(jobs)
    clock.advance(DAY - 1)
    assert [jobs.result(i, timeout=0) for i in ids] == ["short", LONG]
    clock.advance(1)
    for task_id in ids:
        assert jobs.get_task(task_id).result is None
        assert jobs.list_tasks(kind="echo")[0].result is None
    assert stored(jobs) == 2
    pass_days(jobs, clock, 0)
    pass_days(jobs, clock, 0)
    assert stored(jobs) == 0
    for task_id in ids:
        assert jobs.get_task_status(task_id) is TaskState.SUCCESS
        with pytest.raises(ResultExpiredError):
            jobs.result(task_id, timeout=0)
    with jobs.database.read() as tx:
        text = why(tx.at(clock.now()), ids[0])
    assert text == "succeeded at 2026-01-01T00:00:00Z; its result expired at 2026-01-02T00:00:00Z"


@pytest.mark.parametrize("text", ["short", LONG])
def test_reading_an_expired_result_removes_it(fleet: Fleet, clock: FakeClock, text: str) -> None:
    jobs = make(fleet)
    task_id, other = jobs.task(brief, text).schedule(), jobs.task(brief, text).schedule()
    drain(jobs)
    clock.advance(HOUR)
    assert stored(jobs) == 2
    with pytest.raises(ResultExpiredError):
        jobs.result(task_id, timeout=0)
    assert stored(jobs) == 1
    assert jobs.get_task(other).state == "success"


def test_a_result_that_a_child_waits_to_read_stays(fleet: Fleet, clock: FakeClock) -> None:
    jobs = make(fleet)
    parents = [jobs.task(brief, text).schedule() for text in ("a", LONG)]
    child = jobs.task(reads).depend_on(parents).after(100 * DAY).schedule()
    drain(jobs)
    for _ in range(5):
        pass_days(jobs, clock, 15)
        with pytest.raises(ResultExpiredError):
            jobs.result(parents[0], timeout=0)
    assert stored(jobs) == 2
    pass_days(jobs, clock, 25)
    drain(jobs)
    assert jobs.result(child, timeout=0) == ["a", LONG]
    pass_days(jobs, clock, 0)
    for parent in parents:
        with pytest.raises(UnknownTaskError):
            jobs.get_task(parent)


def test_tasks_go_and_their_outcomes_are_remembered_for_a_while(fleet: Fleet, clock: FakeClock) -> None:
    jobs = make(fleet)
    good, bad = jobs.task(echo, LONG).schedule(), jobs.task(fails).schedule()
    gone = jobs.task(echo).after(DAY).schedule()
    jobs.cancel_task(gone)
    drain(jobs)
    pass_days(jobs, clock, 10)
    with pytest.raises(UnknownTaskError):
        jobs.get_task(good)
    with pytest.raises(ResultExpiredError):
        jobs.result(good, timeout=0)
    assert [jobs.get_task_status(i) for i in (bad, gone)] == ["dead", "cancelled"]
    pass_days(jobs, clock, 10)
    for task_id in (bad, gone):
        with pytest.raises(UnknownTaskError):
            jobs.get_task(task_id)
    with pytest.raises(TaskFailedError):
        jobs.result(bad, timeout=0)
    with pytest.raises(TaskCancelledError):
        jobs.result(gone, timeout=0)
    with pytest.raises(UnknownTaskError):
        jobs.result(4711, timeout=0)
    child = jobs.task(echo).depend_on(good).schedule()
    assert jobs.get_task_status(child) == "scheduled"
    assert jobs.get_task_status(jobs.task(echo).depend_on(bad).schedule()) == "failed"
    for table in ("attempts", "task_values", "edges"):
        ids = "child" if table == "edges" else "task_id"
        assert not rows(jobs, f"SELECT 1 FROM schedd_{table} WHERE {ids} IN ({good}, {bad}, {gone})")
    pass_days(jobs, clock, 40)
    remembered = rows(jobs, f"SELECT task_id FROM schedd_outcomes WHERE task_id IN ({good}, {bad}, {gone})")
    assert {row.task_id for row in remembered} == {good}, "what a task depends on is remembered as long as it is there"


def test_what_is_kept_for_long_is_not_walked_again_and_again(fleet: Fleet, clock: FakeClock) -> None:
    jobs = make(fleet)
    with jobs.batch() as batch:
        for _ in range(30):
            batch.task(lasting, "long")
    drain(jobs)
    short = jobs.task(echo, "short").schedule()
    drain(jobs)
    clock.advance(11 * DAY)
    assert sweep(jobs, batch=7) == retention.Removed(tasks=1)
    with pytest.raises(UnknownTaskError):
        jobs.get_task(short)
    seen: list[str] = []

    def saw(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(jobs.database.open(), "before_cursor_execute", saw)
    for _ in range(20):
        clock.advance(DAY)
        assert sweep(jobs) == retention.Removed()
    assert not [s for s in seen if s.lstrip().startswith(("UPDATE", "INSERT"))], "looked at again before its time"
    (row,) = rows(jobs, "SELECT min(kept_until) AS first, max(kept_until) AS last FROM schedd_tasks WHERE state = 6")
    assert row.first == row.last == (100 * DAY - 31 * DAY) * 1_000_000 + clock.now()
    clock.advance(69 * DAY)
    assert sweep(jobs, batch=7).tasks == 30


def test_a_long_retention_with_short_results(fleet: Fleet, clock: FakeClock) -> None:
    """Looked at for the result, then for the row."""
    jobs = make(fleet)
    jobs.task(echo, "a").schedule()
    jobs.task(echo).key("k", retention=timedelta(days=30)).schedule()
    drain(jobs)
    clock.advance(2 * DAY)
    assert sweep(jobs) == retention.Removed(results=1)
    clock.advance(9 * DAY)
    assert sweep(jobs) == retention.Removed(tasks=1)
    clock.advance(20 * DAY)
    assert sweep(jobs) == retention.Removed(tasks=1)


def test_a_shorter_retention_reaches_what_was_put_off(fleet: Fleet, clock: FakeClock) -> None:
    jobs = make(fleet)
    ids = [jobs.task(echo, str(n)).schedule() for n in range(3)]
    drain(jobs)
    clock.advance(2 * DAY)
    assert sweep(jobs).results == 3
    late = jobs.task(echo, "late").schedule()
    drain(jobs)
    engine_of(jobs).step()
    other = make(fleet, retention=KEPT | {"success": HOUR})  # as after a restart with another configuration
    step(other)
    for _ in range(4):
        clock.advance(60)
        step(other)
    for task_id in ids:
        with pytest.raises(UnknownTaskError):
            jobs.get_task(task_id)
    assert jobs.get_task_status(late) == "success"


def test_cleaning_up_by_hand_takes_its_own_time(fleet: Fleet, clock: FakeClock) -> None:
    jobs = make(fleet)
    first = jobs.task(echo).schedule()
    drain(jobs)
    clock.advance(2 * DAY)
    sweep(jobs)
    second = jobs.task(echo).schedule()
    drain(jobs)
    clock.advance(30 * HOUR)
    assert jobs.cleanup_completed_tasks(older_than_hours=72) == 1
    assert jobs.cleanup_completed_tasks(older_than_hours=29) == 1
    for task_id in (first, second):
        with pytest.raises(UnknownTaskError):
            jobs.get_task(task_id)
    assert jobs.cleanup_completed_tasks(older_than_hours=0) == 0


def test_batches_leave_room_for_work(fleet: Fleet, clock: FakeClock) -> None:
    """A thousand and more to be removed: one batch between two cycles."""
    jobs = make(fleet)
    with jobs.batch() as batch:
        for _ in range(1200):
            batch.task(echo)
    drain(jobs)
    clock.advance(11 * DAY)
    left, ran = [], []
    for _ in range(4):
        ran.append(jobs.task(echo).schedule())
        clock.advance(0.25)
        step(jobs)
        assert run_claimed(jobs) == 1
        left.append(rows(jobs, "SELECT count(*) AS n FROM schedd_tasks")[0].n - len(ran))
    assert left == [700, 200, 0, 0]


def test_what_would_go_is_what_goes(fleet: Fleet, clock: FakeClock) -> None:
    jobs = make(fleet)
    for kind in (echo, brief, lasting):
        for text in ("a", LONG):
            jobs.task(kind, text).schedule()
    jobs.task(fails).schedule()
    parent = jobs.task(echo, "needed").schedule()
    jobs.task(reads).depend_on(parent).after(1000 * DAY).schedule()
    drain(jobs)
    write(jobs, "INSERT INTO schedd_outcomes (task_id, state, removed_at) VALUES (900000, 6, 0)")
    jobs.emit_event("one")
    seen = []
    for days in (0, 2, 9, 15, 90):
        clock.advance(days * DAY)
        with jobs.database.read() as tx:
            planned = would_remove(tx.at(clock.now()), KEPT)
        done = sweep(jobs)
        assert done == planned
        seen.append((done.tasks, done.results, done.outcomes, done.events))
    assert seen == [(0, 0, 1, 0), (0, 4, 0, 0), (4, 0, 0, 0), (1, 0, 0, 0), (2, 0, 5, 1)]
    assert jobs.get_task_status(parent) == "success"


def test_a_dead_worker_stays_in_the_list_while_it_holds_something(fleet: Fleet, clock: FakeClock) -> None:
    """Its claims are found by its row: without that no worker would ever reclaim them."""
    jobs, other = make(fleet, queues=["default"]), make(fleet)
    task_id = jobs.task(echo, "a").schedule()
    step(jobs)
    write(other, "UPDATE schedd_workers SET state = 3")
    clock.advance(30 * DAY)
    assert sweep(other).workers == 0
    with other.database.write() as tx:
        (found,) = reaper.reap(tx.at(clock.now()))
    assert found.tasks == 1
    assert sweep(other).workers == 1
    drain(other)
    assert other.result(task_id, timeout=0) == "a"


@task(failed_ttl=2 * DAY)
def briefly_failed(ctx: Context) -> None:
    raise ValueError("no")


@task(failed_ttl=100 * DAY, dead_letter=False)
def long_failed(ctx: Context) -> None:
    raise ValueError("no")


class FailsForLong(Task, failed_ttl=timedelta(days=100)):
    def run(self, ctx: Context) -> None:
        raise ValueError("no")


def test_a_failed_record_has_an_expiry_of_its_own(fleet: Fleet, clock: FakeClock) -> None:
    """Shorter or longer than the retention says, and shown; others go by the retention, and each success."""
    jobs = fleet.worker(briefly_failed, long_failed, FailsForLong, fails, retention={"failed": 20 * DAY})
    kinds = (briefly_failed, long_failed, FailsForLong(), fails)
    short, long, dead, usual = (int(jobs.task(kind).schedule()) for kind in kinds)
    assert jobs.get_task(short).expires_at is None, "it has not failed yet"
    drain(jobs)
    for task_id, days in ((short, 2), (long, 100), (dead, 100)):
        found = jobs.get_task(task_id)
        assert found.finished_at is not None
        assert found.expires_at == found.finished_at + timedelta(days=days)
    assert jobs.get_task(usual).expires_at is None

    def left(days: float) -> set[int]:
        clock.advance(days * DAY)
        sweep(jobs)
        return {one.id for one in jobs.list_tasks()}

    assert left(1.99) == {short, long, dead, usual}
    assert left(0.02) == {long, dead, usual}
    assert left(19) == {long, dead}
    jobs.dead_letters.replay(dead)
    assert jobs.get_task(dead).expires_at is None
    drain(jobs)
    assert left(79) == {dead}, "it counts from its last end"
    assert left(22) == set()


@pytest.mark.case(71)
def test_a_key_is_remembered_while_its_dead_letter_is_there(fleet: Fleet, clock: FakeClock) -> None:
    @task(kind="keyed", failed_ttl=50 * DAY)
    def keyed(ctx: Context, bad: bool) -> None:
        if bad:
            raise PermanentError("no")

    jobs = fleet.worker(keyed, retention={"failed": 5 * DAY, "success": 5 * DAY, "keys": 3600})
    dead = int(jobs.task(keyed, True).key("k").schedule())
    drain(jobs)
    done = int(jobs.task(keyed, False).key("k").schedule())
    drain(jobs)
    clock.advance(10 * DAY)
    sweep(jobs)
    assert {one.id for one in jobs.list_tasks()} == {dead, done}
    clock.advance(41 * DAY)
    sweep(jobs)
    clock.advance(2 * DAY)
    sweep(jobs)
    assert jobs.list_tasks() == []


@task(kind="gives", result_ttl=7200)
def gives(ctx: Context) -> str:
    return "x" * ctx.state


@task(kind="silent", key_retention=7200)
def silent(ctx: Context) -> None:
    if ctx.headers.get("fails"):
        raise PermanentError("no")


@pytest.mark.case(51, 71)
@pytest.mark.parametrize("size", [1, 3000])
def test_a_retention_of_an_hour_removes_what_has_nothing_to_keep(fleet: Fleet, clock: FakeClock, size: int) -> None:
    jobs = fleet.worker(gives, silent, state=size, retention={"success": 3600})
    nothing, something = jobs.task(silent).schedule(), jobs.task(gives).schedule()
    keyed = jobs.task(silent).key("k").schedule()
    drain(jobs)
    for hour in range(1, 3):
        clock.advance(3601)
        drain(jobs)
        assert [t.id for t in jobs.list_tasks()] == ([keyed, something] if hour == 1 else [])
        with pytest.raises(UnknownTaskError):
            jobs.get_task(nothing)


@pytest.mark.case(51, 71)
def test_results_and_keys_are_kept_as_long_as_the_configuration_says(fleet: Fleet, clock: FakeClock) -> None:
    @task(kind="plain")
    def plain(ctx: Context) -> int:
        return 5

    @task(kind="atomic")
    def atomic(ctx: Context) -> int:
        with ctx.transaction() as transaction:
            transaction.result = 6
        return 6

    jobs = fleet.worker(plain, atomic, retention={"results": 60, "keys": 120})
    made = [jobs.task(kind).schedule() for kind in (plain, atomic)]
    keyed = jobs.task(plain).key("k").schedule()
    drain(jobs)
    clock.advance(59)
    assert [jobs.result(i, 0) for i in (*made, keyed)] == [5, 6, 5]
    clock.advance(1)
    for task_id in made:
        with pytest.raises(ResultExpiredError):
            jobs.result(task_id, 0)
    assert jobs.task(plain).key("k").schedule() == keyed
    clock.advance(60)
    assert jobs.task(plain).key("k").schedule() != keyed


@pytest.mark.case(51)
def test_on_demand_cleanup_by_age_for_every_ended_state(fleet: Fleet, clock: FakeClock) -> None:
    jobs = fleet.worker(silent, state=1)
    done = jobs.task(silent).schedule()
    dead = jobs.task(silent).headers({"fails": 1}).schedule()
    below = jobs.task(silent).depend_on(dead).schedule()
    waits = jobs.task(silent).depend_on(dead, otherwise="wait").schedule()
    skipped = jobs.task(silent).depend_on(done, when="failure").schedule()
    cancelled = jobs.task(silent).schedule()
    jobs.cancel_task(cancelled)
    drain(jobs)
    clock.advance(3600)
    drain(jobs)
    assert jobs.cleanup_tasks(["cancelled", "skipped"], timedelta(hours=1)) == 0
    clock.advance(1)
    assert jobs.cleanup_tasks(["cancelled", "skipped"], timedelta(hours=1)) == 2
    with pytest.raises(UnknownTaskError):
        jobs.get_task(skipped)
    assert jobs.cleanup_completed_tasks(1) == 1
    assert jobs.cleanup_tasks("Failed", 3600) == 1  # the dead one is waited for
    assert [t.id for t in jobs.list_tasks()] == [waits, dead]
    assert below not in (waits, dead)
    with pytest.raises(ConfigError, match="running ones have not"):
        jobs.cleanup_tasks("running", 3600)
