"""How much a turn takes on: as much as fits into its own time on this machine, with this database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, TaskState, task
from scheduler.engine import turn
from scheduler.engine.planner import BATCH
from scheduler.store import claim as claims
from scheduler.store.finish import Finished
from scheduler.store.gate import Gate
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, ends, run_claimed, step


@task
def plain(ctx: Context) -> None: ...


def largest(jobs: Scheduler) -> int:
    """How much the planner lets a turn take on after some turns with a lot to do."""
    for _ in range(4):
        with jobs.batch() as batch:
            for _ in range(100):
                batch.task(plain)
        step(jobs)
        while run_claimed(jobs):
            step(jobs)
    return engine_of(jobs).turner.planner.batch


def test_a_slow_database_makes_turns_smaller(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = fleet.worker(plain, pools={"medium": (250, 0)})
    claim = claims.claim

    def slowly(*args: object) -> list[claims.Claimed]:
        clock.advance(0.1)
        return claim(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(claims, "claim", slowly)
    assert largest(jobs) < BATCH[1]


def test_waiting_for_other_writers_does_not(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two daemons on one SQLite file, which take turns, commit half as much each time."""
    jobs = fleet.worker(plain, pools={"medium": (250, 0)})
    passed = Gate.pass_through

    @contextmanager
    def after_a_while(gate: Gate) -> Iterator[None]:
        clock.advance(0.1)
        with passed(gate):
            yield

    monkeypatch.setattr(Gate, "pass_through", after_a_while)
    assert largest(jobs) == BATCH[1]


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.case(6)
def test_what_a_caller_holds_is_put_off_and_nobody_else_waits(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn writes without locking first. If that meets a row that somebody holds, it is done over, with locks."""
    asked: list[bool] = []

    def finish(*args: Any, quick: bool = False) -> Finished:
        asked.append(quick)
        return real(*args, quick=quick)

    real = turn.finish
    monkeypatch.setattr(turn, "finish", finish)
    jobs = fleet.worker(plain)
    held, free = jobs.task(plain).schedule(), jobs.task(plain).schedule()
    step(jobs)
    assert run_claimed(jobs) == 2
    with jobs.database.write() as caller:
        caller.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": held})
        step(jobs)
        assert jobs.get_task_status(free) is TaskState.SUCCESS
        assert jobs.get_task_status(held) is TaskState.CLAIMED
        assert asked == [True, False]
    step(jobs)
    assert jobs.get_task_status(held) is TaskState.SUCCESS
    assert asked == [True, False, False]
    clock.advance(turn.LOCKING)
    later = jobs.task(plain).schedule()
    step(jobs)
    run_claimed(jobs)
    step(jobs)
    assert jobs.get_task_status(later) is TaskState.SUCCESS
    assert asked[-1]
    assert [ends(jobs, i) for i in (held, free, later)] == [["succeeded"]] * 3
