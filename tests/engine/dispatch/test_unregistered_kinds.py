"""Kinds that no worker knows: their tasks are left exactly as they are, and delay no other task."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Priority, Scheduler, TaskState, task
from scheduler.store.read import explain as why
from scheduler.store.read import status as read_status
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, rows, step


@task
def known(ctx: Context, n: int = 0) -> int:
    return n


@task
def strange(ctx: Context, n: int = 0) -> int:
    return -n


def strangers(jobs: Scheduler, count: int, **options: Any) -> list[int]:
    with jobs.batch() as batch:
        for n in range(count):
            builder = batch.task(strange, n)
            for name, value in options.items():
                getattr(builder, name)(value)
    return list(batch.ids)


def everything(jobs: Scheduler) -> list[Any]:
    return rows(jobs, "SELECT * FROM schedd_tasks WHERE kind = 'strange' ORDER BY id")


@pytest.mark.case(24)
def test_it_is_not_claimed_not_touched_and_delays_no_other_task(fleet: Fleet, clock: FakeClock) -> None:
    caller, worker = fleet.worker(known, strange), fleet.worker(known)
    strangers(caller, 1500, priority=Priority.HIGH)
    ids = [caller.task(known, n).schedule() for n in range(5)]
    strangers(caller, 500)
    before = everything(caller)
    steps = 0
    while not all(caller.get_task_status(i).terminal for i in ids):
        step(worker)
        for slots in engine_of(worker).inline_slots():
            while slots.run_one():
                pass
        steps += 1
        assert steps < 10, "held up by the tasks of a kind that it does not know"
    clock.advance(timedelta(days=1))
    assert drain(worker) == 0
    assert everything(caller) == before
    assert len(before) == 2000


@pytest.mark.case(24)
def test_a_worker_that_learns_the_kind_later_runs_them(fleet: Fleet) -> None:
    caller, worker = fleet.worker(known, strange), fleet.worker(known)
    ids = strangers(caller, 3)
    assert drain(worker) == 0
    worker.register(strange)
    assert drain(worker) == 3
    assert [caller.result(i, timeout=0) for i in ids] == [0, -1, -2]


@pytest.mark.case(24)
def test_a_dependant_of_such_a_task_waits(fleet: Fleet) -> None:
    caller, worker = fleet.worker(known, strange), fleet.worker(known)
    (parent,) = strangers(caller, 1)
    child = caller.task(known).depend_on(parent).schedule()
    assert drain(worker) == 0
    assert caller.get_task_status(child) is TaskState.WAITING


@pytest.mark.case(24)
def test_show_and_status_say_that_no_live_worker_serves_it(fleet: Fleet, clock: FakeClock) -> None:
    caller, worker = fleet.worker(known, strange), fleet.worker(known)
    (task_id,) = strangers(caller, 1)
    elsewhere = caller.task(known).queue("elsewhere").schedule()
    only = fleet.worker(known, queues=["default"])
    step(only)
    fleet.kill(worker)

    def reports() -> tuple[str | None, str | None, str]:
        with caller.database.read() as tx:
            status = read_status.status(tx.at(clock.now()))
            one, two = (why.why(tx.at(clock.now()), i) for i in (task_id, elsewhere))
        return one, two, repr(status)

    of_kind, of_queue, status = reports()
    assert "no live worker serves kind 'strange'" in (of_kind or "")
    assert "no live worker serves queue 'elsewhere'" in (of_queue or "")
    assert "no live worker serves kind 'strange'" in status
    assert "no live worker serves queue 'elsewhere'" in status
    knowing = fleet.worker(strange)
    step(knowing)
    of_kind, _, status = reports()
    assert "no live worker" not in (of_kind or "")
    assert "kind 'strange'" not in status
