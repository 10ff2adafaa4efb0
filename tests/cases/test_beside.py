"""Ends that are recorded beside the claim: nothing that they bring about is overlooked, nothing is lost on an error."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, RetryPolicy, Scheduler, TaskState, task
from scheduler.engine import turn
from scheduler.engine.recorder import Recorder, Write
from scheduler.errors import StoreUnavailableError
from scheduler.ports import SECOND
from scheduler.store import claim as claims
from scheduler.store import waits
from scheduler.store.finish import Finished
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, ends, rows, run_claimed, step

pytestmark = [pytest.mark.parametrize("dialect", ["postgresql"], indirect=True), pytest.mark.case(6)]

FLOOD = 30
LAST = 7


@task
def plain(ctx: Context) -> None: ...


@task
def fails_once(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise RuntimeError("once")


@task
def last_fails_once(ctx: Context, n: int) -> None:
    if n == LAST and ctx.attempt == 1:
        raise RuntimeError("once")


@task
def named(ctx: Context, text: str) -> None: ...


class _Late(Future[Finished]):
    """A recording that is as slow as can be: it begins when the turn, having claimed, waits for it."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Finished:
        if not self.done():
            self._work(self)
        return super().result()


class LateRecorder(Recorder):
    """``recorded``: how many recordings there were; ``fails_with``: instead of the next one."""

    recorded = 0
    fails_with: BaseException | None = None

    def begin(self, write: Write) -> Future[Finished]:
        self.recorded += 1

        def work(done: Future[Finished]) -> None:
            error, self.fails_with = self.fails_with, None
            if error is not None:
                done.set_exception(error)
                return
            one: Future[Finished] = super(LateRecorder, self).begin(write)
            try:
                done.set_result(one.result())
            except BaseException as caught:
                done.set_exception(caught)

        return _Late(work)


@pytest.fixture(autouse=True)
def _few_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "MANY", 2)


def in_fours(fleet: Fleet, *types: Any) -> tuple[Scheduler, LateRecorder]:
    """A worker whose turns claim four tasks, and what records their ends."""
    jobs = fleet.worker(*types, pools={"medium": (4, 0)})
    turner = engine_of(jobs).turner
    turner.planner.batch = 4
    turner.recorder = recorder = LateRecorder(jobs.database, 30.0, None)
    return jobs, recorder


def flood(jobs: Scheduler) -> list[int]:
    return [jobs.task(plain).schedule() for _ in range(FLOOD)]


def goes_on(jobs: Scheduler) -> int:
    """Bodies run, and the engine takes another turn by itself: nobody has rung."""
    ran = run_claimed(jobs)
    engine_of(jobs).step()
    return ran


def drain(jobs: Scheduler) -> None:
    """Until nothing is held any more."""
    for _ in range(2 * FLOOD):
        if not goes_on(jobs) and not engine_of(jobs).desk.held:
            return
    raise AssertionError("it does not come to an end")


def each_ran_once(jobs: Scheduler, ids: list[int]) -> None:
    assert [ends(jobs, i) for i in ids] == [["succeeded"]] * len(ids)
    assert all(jobs.get_task_status(i) is TaskState.SUCCESS for i in ids)
    assert not engine_of(jobs).desk.in_flight or not any(engine_of(jobs).desk.in_flight.values())


def test_with_a_backlog_and_only_then(fleet: Fleet) -> None:
    jobs, recorder = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert recorder.recorded == 0
    assert goes_on(jobs) == 4
    assert recorder.recorded == 1
    drain(jobs)
    each_ran_once(jobs, ids)
    before = recorder.recorded
    few = [jobs.task(plain).schedule() for _ in range(3)]
    step(jobs)
    drain(jobs)
    each_ran_once(jobs, few)
    assert recorder.recorded == before  # what is claimed next may wait for what is recorded


def test_what_a_recorded_end_releases_is_found_without_a_ring(fleet: Fleet) -> None:
    jobs, recorder = in_fours(fleet, plain, fails_once)
    parent = jobs.task(plain).schedule()
    child = jobs.task(fails_once).with_retry(RetryPolicy(0, max_attempts=2)).depend_on(parent).schedule()
    flood(jobs)
    step(jobs)
    assert goes_on(jobs) == 4
    assert recorder.recorded == 1
    assert jobs.get_task_status(child) is TaskState.SCHEDULED
    assert engine_of(jobs)._pause() == 0
    goes_on(jobs)
    assert jobs.get_task_status(child) is TaskState.CLAIMED


def test_not_right_after_something_was_released(fleet: Fleet) -> None:
    """What a graph's end releases is claimed with it: there may be little else."""
    jobs, recorder = in_fours(fleet, plain)
    parents = [jobs.task(plain).schedule() for _ in range(4)]
    children = [jobs.task(plain).depend_on(parent).schedule() for parent in parents]
    ids = flood(jobs)
    step(jobs)
    assert goes_on(jobs) == 4
    assert recorder.recorded == 1
    assert goes_on(jobs) == 4
    assert recorder.recorded == 1
    drain(jobs)
    assert recorder.recorded > 1
    each_ran_once(jobs, parents + children + ids)


@pytest.mark.parametrize("delay", [0, 0.5])
def test_what_the_last_recorded_end_makes_due_is_known(fleet: Fleet, clock: FakeClock, delay: float) -> None:
    """The claim beside it found nothing, and no body is left whose end would bring another turn."""
    jobs, recorder = in_fours(fleet, last_fails_once)
    ids = [
        jobs.task(last_fails_once, n).with_retry(RetryPolicy(delay, max_attempts=2)).schedule() for n in range(LAST + 1)
    ]
    step(jobs)
    assert [goes_on(jobs), goes_on(jobs)] == [4, 4]
    assert recorder.recorded == 2
    assert not engine_of(jobs).desk.held
    assert jobs.get_task_status(ids[-1]) is TaskState.RETRY
    ((due,),) = rows(jobs, "SELECT run_at FROM schedd_tasks WHERE id = :id", id=ids[-1])
    assert engine_of(jobs)._pause() == 0
    engine_of(jobs).step()
    if delay:
        assert engine_of(jobs)._next_due == due
        clock.advance((due - clock.now()) / SECOND)
        engine_of(jobs).step()
    drain(jobs)
    assert ends(jobs, ids[-1]) == ["retried", "succeeded"]
    each_ran_once(jobs, ids[:-1])


def test_a_claim_that_fails_does_not_undo_what_is_recorded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, recorder = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    with monkeypatch.context() as broken:
        broken.setattr(claims, "claim", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine_of(jobs).step()
    assert recorder.recorded == 1
    each_ran_once(jobs, ids[:4])
    assert not engine_of(jobs).turner.deferred
    step(jobs)
    drain(jobs)
    each_ran_once(jobs, ids)


@pytest.mark.parametrize("claiming", ["too", "succeeds"])
def test_what_could_not_be_recorded_is_recorded_later(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, claiming: str
) -> None:
    jobs, recorder = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    recorder.fails_with = StoreUnavailableError("gone")
    with monkeypatch.context() as broken:
        if claiming == "too":
            broken.setattr(claims, "claim", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError if claiming == "too" else StoreUnavailableError):
            engine_of(jobs).step()
    assert recorder.recorded == 1
    assert len(engine_of(jobs).turner.deferred) == 4
    assert len(rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state = 4")) == (4 if claiming == "too" else 8)
    step(jobs)
    drain(jobs)
    each_ran_once(jobs, ids)


def test_an_outcome_that_cannot_be_recorded_beside_others_is_set_aside(fleet: Fleet) -> None:
    jobs, recorder = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    outcomes = engine_of(jobs).desk.outcomes
    attempt, bad = outcomes[1]
    outcomes[1] = (attempt, bad._replace(result='"\0"'))  # no text of PostgreSQL's
    with pytest.raises(Exception, match="NUL"):
        engine_of(jobs).step()
    assert recorder.recorded == 1
    step(jobs)
    drain(jobs)
    assert jobs.get_task_status(ids[1]) is TaskState.DEAD
    each_ran_once(jobs, ids[:1] + ids[2:])


def test_what_a_caller_holds_is_put_off(fleet: Fleet) -> None:
    jobs, recorder = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    with jobs.database.write() as caller:
        caller.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": ids[0]})
        engine_of(jobs).step()
        assert recorder.recorded == 1
        assert len(engine_of(jobs).turner.deferred) == 4
        assert engine_of(jobs)._pause() == 0
        engine_of(jobs).step()
        assert [jobs.get_task_status(i) for i in ids[:4]] == [TaskState.CLAIMED] + [TaskState.SUCCESS] * 3
    drain(jobs)
    each_ran_once(jobs, ids)


def test_a_wait_that_was_overlooked_is_looked_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of it is on the connection that the end was recorded through."""
    jobs, recorder = in_fours(fleet, plain)
    flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    monkeypatch.setattr(recorder, "flagged", lambda name: name == waits.OVERLOOKED)
    looked: list[bool] = []
    look = engine_of(jobs).duties.look

    def watched(connection: sa.Connection) -> None:
        looked.append(bool(connection.info.get(waits.OVERLOOKED)))
        look(connection)

    monkeypatch.setattr(engine_of(jobs).duties, "look", watched)
    engine_of(jobs).step()
    assert engine_of(jobs)._pause() == 0
    engine_of(jobs).step()
    assert looked == [False, True]


def test_a_replaced_task_is_claimed_again(fleet: Fleet) -> None:
    jobs, recorder = in_fours(fleet, plain, named)
    first = jobs.task(named, "a").key("k", conflict="replace").schedule()
    flood(jobs)
    step(jobs)
    assert jobs.task(named, "b").key("k", conflict="replace").schedule() == first
    assert goes_on(jobs)
    assert recorder.recorded == 1
    assert jobs.get_task_status(first) is TaskState.SCHEDULED
    goes_on(jobs)
    assert jobs.get_task_status(first) is TaskState.CLAIMED
    drain(jobs)
    assert ends(jobs, first) == ["succeeded", "succeeded"]
