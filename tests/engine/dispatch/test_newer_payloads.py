"""Tasks that are too new for a worker keep nothing of their kinds from it, as after a deploy was taken back."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import Context, Scheduler, Task
from scheduler.store.read.explain import why
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, let_pass, rows, run_claimed, step, write

POOLS = {"high": (0, 0), "medium": (1, 0), "low": (0, 0)}


class Old(Task, kind="mail", concurrency_key="{box}"):
    box: str = ""

    def run(self, ctx: Context) -> None: ...


class New(Task, kind="mail", schema_version=2, concurrency_key="{box}"):
    box: str = ""

    def run(self, ctx: Context) -> None: ...

    @staticmethod
    def upgrade(payload: dict[str, Any], version: int) -> dict[str, Any]:
        return payload


def both(fleet: Fleet) -> tuple[Scheduler, Scheduler]:
    """A worker of the old program with one slot, and a program that only stores tasks of the newer one."""
    return fleet.worker(Old, pools=POOLS), fleet.worker(New)


def store(jobs: Scheduler, value: Any, number: int) -> list[int]:
    with jobs.batch() as batch:
        for _ in range(number):
            batch.task(value)
    return [int(made) for made in batch.ids]


def work(jobs: Scheduler, clock: FakeClock, steps: int) -> None:
    """So many cycles within a second."""
    for _ in range(steps):
        step(jobs)
        run_claimed(jobs)
        clock.advance(1 / steps)
    step(jobs)


def states(jobs: Scheduler, ids: list[int]) -> set[str]:
    return {jobs.get_task(made).state.value for made in ids}


def test_tasks_behind_many_that_are_too_new_run_at_once(fleet: Fleet, clock: FakeClock) -> None:
    old, new = both(fleet)
    ahead = store(new, New(), 299)
    behind = store(old, Old(), 3)
    more = store(new, New(), 5)
    last = store(old, Old(), 1)
    work(old, clock, 7)
    assert states(old, behind + last) == {"success"}
    claims = rows(old, "SELECT id, claim FROM schedd_tasks WHERE claim > 0 AND schema_version = 2")
    assert len(claims) == 1, "the first one told it"
    assert states(old, ahead + more) == {"scheduled"}
    with old.database.read() as tx:
        assert "no live worker knows schema_version 2 of kind 'mail'" in (why(tx, ahead[0]) or "")
    let_pass(clock, 50, old)  # they are claimed no more, however long it takes until a newer worker comes
    assert rows(old, "SELECT id, claim FROM schedd_tasks WHERE claim > 0 AND schema_version = 2") == claims
    work(new, clock, 50)
    assert states(old, ahead + more) == {"success"}


def test_they_stand_where_they_stood(fleet: Fleet, clock: FakeClock) -> None:
    old, new = both(fleet)
    store(new, New(), 3)
    clock.advance(1)
    stood = rows(old, "SELECT id, run_at FROM schedd_tasks ORDER BY id")
    work(old, clock, 5)
    assert rows(old, "SELECT id, run_at FROM schedd_tasks ORDER BY id") == stood


def test_further_ones_are_read_past_stretch_by_stretch(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.engine.dispatch.newer_payloads.ROWS_READ", 40)
    old, new = both(fleet)
    store(new, New(), 299)
    (behind,) = store(old, Old(), 1)
    work(old, clock, 12)
    assert states(old, [behind]) == {"success"}
    (before,) = store(old, Old(), 1)
    write(old, "UPDATE schedd_tasks SET run_at = run_at - 60000000 WHERE id = :id", id=before)
    let_pass(clock, 10, old)
    run_claimed(old)
    step(old)
    assert states(old, [before]) == {"success"}, "what comes in front of them is found, too"


def test_many_lanes_of_which_some_are_too_new(fleet: Fleet, clock: FakeClock) -> None:
    old, new = both(fleet)
    for n in range(300):
        store(new, New(f"{n:03}"), 2)
    behind = [*store(old, Old("007"), 2), *store(old, Old("299"), 1), *store(old, Old("x"), 1)]
    work(old, clock, 20)
    assert states(old, behind) == {"success"}


def test_a_released_child_that_is_too_new_keeps_no_other_back(fleet: Fleet, clock: FakeClock) -> None:
    old, new = both(fleet)
    parent = old.task(Old()).schedule()
    store(new, New(), 2)
    children = [int(new.task(New()).depend_on(parent).schedule()) for _ in range(3)]
    last = int(old.task(Old()).depend_on(parent).schedule())
    work(old, clock, 8)
    assert states(old, [last]) == {"success"}
    assert states(old, children) == {"scheduled"}


def test_nothing_is_read_for_it_without_such_a_task(fleet: Fleet, clock: FakeClock) -> None:
    old = fleet.worker(Old)
    store(old, Old(), 5)
    work(old, clock, 3)
    assert not engine_of(old).dispatch.planner.newer.kinds
