"""Results of parents: kept for what may still read them, told of as gone where they are."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import AsyncContext, Context, ResultExpiredError, Scheduler, Task, UnknownTaskError, task
from scheduler.model.state import TaskState
from scheduler.store.admin import retention
from scheduler.store.admin.would_remove import would_remove
from scheduler.testing import FakeClock, drain
from support.fleet import Fleet, rows, write

HOUR, DAY = 3600.0, 86400.0
KEPT = {"success": DAY, "failed": 30 * DAY, "outcomes": 90 * DAY, "events": DAY}
LONG = "x" * 3000  # a result of this length has a row of its own


@task
def echo(ctx: Context, value: Any = None) -> Any:
    return value


class Reads(Task):
    """Reads what its parents returned, once it is allowed to."""

    name: str = "reads"

    def run(self, ctx: Context) -> Any:
        if self.name in ctx.state:
            raise RuntimeError("not yet")
        return sorted(ctx.results().values(), key=repr)


class AsyncReads(Task):
    async def run(self, ctx: AsyncContext) -> Any:
        return sorted((await ctx.results()).values(), key=repr)


class Awaits(Task):
    other: int

    def run(self, ctx: Context) -> Any:
        return [ctx.await_task(self.other)]


@pytest.fixture
def failing() -> set[str]:
    return {"reads"}


@pytest.fixture
def jobs(fleet: Fleet, failing: set[str]) -> Scheduler:
    return fleet.worker(echo, Reads, AsyncReads, Awaits, state=failing, retention=KEPT)


def sweep(jobs: Scheduler, kept: dict[str, float] = KEPT) -> retention.Removed:
    """All that is over, batch by batch."""
    done = retention.Removed(more=True)
    while done.more:
        with jobs.database.write() as tx:
            one = retention.purge_batch(tx, kept, 3)
        done = done.plus(one)
    return done


def pass_days(jobs: Scheduler, clock: FakeClock, days: int) -> None:
    for _ in range(days):
        clock.advance(DAY)
        sweep(jobs)


def again(jobs: Scheduler, way: str, task_id: int) -> int:
    """Let what is dead run again. Returns the id of what does."""
    if way == "retry":
        jobs.retry_task(task_id)
        return task_id
    return jobs.dead_letters.replay(task_id, copy=way == "copy")


@pytest.mark.case(19, 51)
@pytest.mark.parametrize("way", ["retry", "replay", "copy"])
def test_a_dead_task_that_runs_again_reads_what_it_read_before(
    jobs: Scheduler, clock: FakeClock, failing: set[str], way: str
) -> None:
    parents = [jobs.task(echo, value).schedule() for value in (1, LONG, None)]
    child = jobs.task(Reads()).depend_on(parents).schedule()
    drain(jobs)
    assert jobs.get_task_status(child) is TaskState.DEAD
    pass_days(jobs, clock, 20)
    with pytest.raises(ResultExpiredError):  # which does not take it away from the child
        jobs.result(parents[0], timeout=0)
    failing.clear()
    made = again(jobs, way, child)
    drain(jobs)
    assert jobs.result(made, timeout=0) == sorted([1, LONG, None], key=repr)


@pytest.mark.case(36, 48, 51)
@pytest.mark.parametrize("end", ["cancelled", "failed", "skipped"])
def test_and_so_does_one_that_ended_before_it_began(
    jobs: Scheduler, clock: FakeClock, failing: set[str], end: str
) -> None:
    parent = jobs.task(echo, 7).schedule()
    other = jobs.task(Reads()).schedule()
    child = jobs.task(Reads("child")).depend_on(parent)
    if end != "cancelled":
        child = child.depend_on(other, otherwise="fail" if end == "failed" else "skip")
    task_id = child.after(0 if end != "cancelled" else HOUR).schedule()
    drain(jobs)
    if end == "cancelled":
        jobs.cancel_task(task_id)
    assert jobs.get_task_status(task_id) == end
    pass_days(jobs, clock, 20)
    failing.clear()
    jobs.retry_task(task_id if end == "cancelled" else other)
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == ([7] if end == "cancelled" else [7, []])


@pytest.mark.case(51)
def test_a_child_that_is_due_after_its_parents_results_have_expired(jobs: Scheduler, clock: FakeClock) -> None:
    parents = [jobs.task(echo, value).schedule() for value in (1, LONG, None)]
    child = jobs.task(AsyncReads()).depend_on(parents).after(3 * DAY).schedule()
    drain(jobs)
    pass_days(jobs, clock, 4)
    drain(jobs)
    assert jobs.result(child, timeout=0) == sorted([1, LONG, None], key=repr)


@pytest.mark.case(51)
@pytest.mark.parametrize("end", ["succeeds", "is purged", "runs out"])
def test_nothing_is_kept_for_longer_than_it_is_needed(
    jobs: Scheduler, clock: FakeClock, failing: set[str], end: str
) -> None:
    parent = jobs.task(echo, 1).schedule()
    child = jobs.task(Reads()).depend_on(parent).schedule()
    drain(jobs)
    pass_days(jobs, clock, 5)
    assert jobs.get_task(parent).state == "success"
    if end == "succeeds":
        failing.clear()
        jobs.retry_task(child)
        drain(jobs)
    elif end == "is purged":
        jobs.dead_letters.purge(0)
    else:
        pass_days(jobs, clock, 26)
    pass_days(jobs, clock, 2)
    for task_id in (parent, child):
        with pytest.raises(UnknownTaskError):
            jobs.get_task(task_id)


@pytest.mark.case(51)
def test_a_task_that_a_success_has_skipped_keeps_nothing(jobs: Scheduler, clock: FakeClock) -> None:
    """It was for that one's failure, and reads no result of it."""
    parent = jobs.task(echo, 1).schedule()
    child = jobs.task(Reads()).depend_on(parent, when="failure").schedule()
    drain(jobs)
    assert jobs.get_task_status(child) is TaskState.SKIPPED
    pass_days(jobs, clock, 3)
    with pytest.raises(UnknownTaskError):
        jobs.get_task(parent)


@pytest.mark.case(51)
def test_a_long_chain_that_failed_goes_at_once(jobs: Scheduler, clock: FakeClock) -> None:
    """One that failed needs no other that failed."""
    last = jobs.task(Reads()).schedule()
    for _ in range(10):
        last = jobs.task(echo).depend_on(last).schedule()
    drain(jobs)
    clock.advance(31 * DAY)
    assert sweep(jobs).tasks == 11


@pytest.mark.case(51)
def test_what_is_kept_for_dead_letters_is_not_walked_again_and_again(jobs: Scheduler, clock: FakeClock) -> None:
    for value in (1, None):
        jobs.task(Reads()).depend_on(jobs.task(echo, value).schedule()).schedule()
    drain(jobs)
    clock.advance(2 * DAY)
    assert sweep(jobs) == retention.Removed()
    found = rows(jobs, "SELECT kept_until FROM schedd_tasks WHERE state = 6")
    assert all(row.kept_until > clock.now() for row in found)
    with jobs.database.read() as tx:
        assert would_remove(tx.at(clock.now()), KEPT) == retention.Removed()


def gone(jobs: Scheduler, clock: FakeClock, how: str) -> int:
    """A task that succeeded, whose result is there no more."""
    parent = jobs.task(echo, "value").schedule()
    drain(jobs)
    clock.advance(2 * DAY)
    kept = KEPT if how == "removed" else KEPT | {"success": 10 * DAY}
    if how == "read":
        with pytest.raises(ResultExpiredError):
            jobs.result(parent, timeout=0)
    else:
        sweep(jobs, kept)
    if how == "removed":
        with pytest.raises(UnknownTaskError):
            jobs.get_task(parent)
    return parent


@pytest.mark.case(33, 51, 63)
@pytest.mark.parametrize("kind", [Reads("fine"), AsyncReads()])
@pytest.mark.parametrize("how", ["swept", "read", "removed"])
def test_a_result_that_is_gone_is_an_error_and_not_none(
    jobs: Scheduler, clock: FakeClock, how: str, kind: Task
) -> None:
    child = jobs.task(kind).depend_on(gone(jobs, clock, how)).schedule()
    drain(jobs)
    record = jobs.get_task(child)
    assert (record.state, record.error_class) == ("dead", "ResultExpiredError")


@pytest.mark.case(51)
def test_none_stays_none_for_those_that_depend_on_it(jobs: Scheduler, clock: FakeClock) -> None:
    """There is nothing that could be lost; result() keeps to its time all the same."""
    parent = jobs.task(echo).schedule()
    drain(jobs)

    def child() -> int:
        return jobs.task(Reads("fine")).depend_on(parent).schedule()

    assert jobs.result(parent, timeout=0) is None
    for _ in range(3):
        for made in (child(), jobs.task(Awaits(parent)).schedule()):
            drain(jobs)
            assert jobs.result(made, timeout=0) == [None]
        clock.advance(2 * DAY)
        for _ in range(2):
            with pytest.raises(ResultExpiredError):
                jobs.result(parent, timeout=0)
            sweep(jobs, KEPT | {"success": 20 * DAY})


@pytest.mark.case(35, 51)
def test_none_of_a_parent_that_did_not_succeed(jobs: Scheduler, clock: FakeClock) -> None:
    dead = jobs.task(Reads()).schedule()
    drain(jobs)
    clock.advance(31 * DAY)
    sweep(jobs)
    child = jobs.task(Reads("fine")).depend_on(dead, when="finished").schedule()
    drain(jobs)
    assert jobs.result(child, timeout=0) == [None]


@pytest.mark.case(51)
def test_a_result_that_an_earlier_version_removed_is_reported(jobs: Scheduler, clock: FakeClock) -> None:
    """It looked at those that had returned nothing alike: what cannot be known is not guessed."""
    parent = jobs.task(echo, 1).schedule()
    drain(jobs)
    clock.advance(2 * DAY)
    write(jobs, "UPDATE schedd_tasks SET result = NULL, kept_until = result_until + 1 WHERE id = :id", id=parent)
    child = jobs.task(Reads("fine")).depend_on(parent).schedule()
    drain(jobs)
    assert jobs.get_task(child).error_class == "ResultExpiredError"
