"""Handlers that lost their claims and run on: they fill their slots, and ``why`` names them for tasks that wait."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler import Context, Scheduler, task
from scheduler.store import workers as store_workers
from scheduler.store.admin.surroundings import check_surroundings
from scheduler.store.read.explain import why
from scheduler.store.read.status import status
from scheduler.store.read.workers import WorkerRecord, workers
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, let_pass, run_claimed, step

pytestmark = pytest.mark.case(3)
SMALL = {"pools": {"high": (0, 0), "medium": (1, 0), "low": (0, 0)}, "processes": 1}


class Room:
    """``ctx.state``: what handlers do, and how often one was under way beside another."""

    def __init__(self) -> None:
        self.body: Callable[[Context], None] | None = None
        self.inside = self.most = self.ran = 0

    def play(self, ctx: Context) -> None:
        self.ran += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if self.body is not None and ctx.attempt == 1:
                self.body(ctx)
        finally:
            self.inside -= 1


@task(stall_after=60, on_stall="reclaim")
def taken(ctx: Context) -> None:
    ctx.state.play(ctx)


@task
def other(ctx: Context) -> None: ...


@task(isolation="process")
def apart(ctx: Context) -> None: ...


def worker(fleet: Fleet, room: Room, **options: Any) -> Scheduler:
    return fleet.worker(taken, other, apart, state=room, **{**SMALL, **options})


def why_of(jobs: Scheduler, task_id: int) -> str:
    """What follows the time in why this task does not run."""
    with jobs.database.read() as tx:
        text = str(why(tx, task_id))
    return text[text.index("Z") + 1 :]


def record(jobs: Scheduler) -> WorkerRecord:
    with jobs.database.read() as tx:
        (found,) = [w for w in workers(tx) if w.id == engine_of(jobs).worker]
    return found


def stuck(jobs: Scheduler) -> list[tuple[str, tuple[int, ...]]]:
    with jobs.database.read() as tx:
        found = status(tx)
    return [(one.text, one.tasks) for one in found.stuck if one.name == "orphans"]


def body_of(room: Room, jobs: Scheduler, body: Callable[[Context], None]) -> int:
    """Run a task with this handler, and all that is due afterwards."""
    room.body = body
    task_id = int(jobs.task(taken).schedule())
    drain(jobs)
    return task_id


def test_the_handler_of_a_stalled_task_fills_its_slot_and_keeps_the_task_waiting(
    fleet: Fleet, clock: FakeClock
) -> None:
    room = Room()
    jobs = worker(fleet, room)
    label = record_label(jobs)
    seen: list[Any] = []
    findings: list[Any] = []

    def body(ctx: Context) -> None:
        let_pass(clock, 60, jobs)
        step(jobs)
        seen.append(why_of(jobs, ctx.id))
        seen.append(why_of(jobs, int(jobs.task(other).schedule())))
        seen.append(stuck(jobs))
        with jobs.database.read() as tx:
            seen_by_doctor = check_surroundings(jobs.database, tx, "")
        findings.append([(one.text, one.tasks) for one in seen_by_doctor if one.check == "attempts"])
        clock.advance(1)
        seen.append(why_of(jobs, ctx.id))
        assert (record(jobs).holds, record(jobs).orphaned_tasks) == (0, (ctx.id,))

    task_id = body_of(room, jobs, body)
    beside = (
        f"its previous handler, which lost its claim, still runs on worker {label}, which does not run it beside that"
    )
    assert seen[0].endswith(f"; {beside}; no other live worker would take it")
    assert seen[1] == (
        "; waits for a free thread slot of pool medium (1 busy of 1), "
        f"where 1 attempt that lost its claim (task {task_id}) runs until it ends"
    )
    text = f"worker {label} runs 1 attempt that lost its claim (task {task_id}); it fills its slot until it ends: "
    text += f"`schedctl worker restart {engine_of(jobs).worker}` ends it"
    assert seen[2] == [(text, (task_id,))] == findings[0]
    assert seen[3] == f"; {beside}; no other live worker would take it"
    clock.advance(1)
    drain(jobs)
    step(jobs)
    assert (room.ran, room.most) == (2, 1)
    assert record(jobs).capacity.orphans == ()
    assert stuck(jobs) == []


def record_label(jobs: Scheduler) -> str:
    step(jobs)
    return record(jobs).label


def test_another_worker_that_has_room_takes_it(fleet: Fleet, clock: FakeClock) -> None:
    room, helpers = Room(), Room()
    jobs, helper = worker(fleet, room), worker(fleet, helpers)
    step(helper)
    seen: list[str] = []

    def body(ctx: Context) -> None:
        let_pass(clock, 55, jobs, helper)
        let_pass(clock, 5, jobs)
        step(jobs)
        clock.advance(1)
        seen.append(why_of(jobs, ctx.id))
        step(helper)
        run_claimed(helper)

    room.body = body
    jobs.task(taken).schedule()
    step(jobs)
    run_claimed(jobs)
    assert seen[0].endswith("which does not run it beside that; another worker claims it at its next cycle")
    assert helpers.ran == 1


def test_it_counts_for_all_that_a_worker_may_hold(fleet: Fleet, clock: FakeClock) -> None:
    room = Room()
    jobs = worker(fleet, room, pools={"high": (0, 0), "medium": (4, 0), "low": (0, 0)}, max_concurrent_tasks=1)
    seen: list[str] = []

    def body(ctx: Context) -> None:
        let_pass(clock, 60, jobs)
        step(jobs)
        seen.append(why_of(jobs, int(jobs.task(other).schedule())))

    task_id = body_of(room, jobs, body)
    assert seen == [
        "; waits for room under max_concurrent_tasks (1 held of 1), "
        f"where 1 attempt that lost its claim (task {task_id}) runs until it ends"
    ]


def test_the_handler_of_a_lost_lease_fills_its_slot(fleet: Fleet, clock: FakeClock) -> None:
    """The same process joins anew, as another worker; its slots are those that it had."""
    room = Room()
    jobs, reaper = worker(fleet, room), fleet.worker(state=Room())
    step(reaper)
    seen: list[Any] = []

    def body(ctx: Context) -> None:
        before = engine_of(jobs).worker
        let_pass(clock, 45, reaper)
        step(jobs)
        assert engine_of(jobs).worker != before
        clock.advance(1)
        step(jobs)
        seen.append(why_of(jobs, int(jobs.task(other).schedule())))
        seen.append(why_of(jobs, ctx.id))
        seen.append((record(jobs).holds, record(jobs).orphaned_tasks))

    task_id = body_of(room, jobs, body)
    waits = (
        "; waits for a free thread slot of pool medium (1 busy of 1), "
        f"where 1 attempt that lost its claim (task {task_id}) runs until it ends"
    )
    beside = "; its previous handler, which lost its claim, still runs on worker "
    assert seen[0] == waits
    assert seen[1].startswith(beside)
    assert seen[2] == (0, (task_id,))
    step(jobs)
    assert record(jobs).capacity.orphans == ()


def test_it_is_published_when_that_changes_and_only_then(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room()
    jobs = worker(fleet, room)
    step(jobs)
    published: list[int] = []
    publish = store_workers.publish_capacity

    def counting(connection: Any, worker: int, capacity: Any) -> None:
        published.append(sum(one.count for one in capacity.orphans))
        publish(connection, worker, capacity)

    monkeypatch.setattr(store_workers, "publish_capacity", counting)

    def body(ctx: Context) -> None:
        let_pass(clock, 60, jobs)
        for _ in range(20):
            step(jobs)
        let_pass(clock, 30, jobs)
        assert published == [1]

    body_of(room, jobs, body)
    let_pass(clock, 60, jobs)
    drain(jobs)
    assert published == [1, 0]


def test_that_no_child_process_can_be_started_is_reported(fleet: Fleet) -> None:
    """Nothing is claimed for them then."""
    jobs = worker(fleet, Room())
    step(jobs)
    engine_state = engine_of(jobs).engine_state
    engine_state.processes = SimpleNamespace(backing_off=True)  # type: ignore[assignment]
    step(jobs)
    text = why_of(jobs, int(jobs.task(apart).schedule()))
    assert text == "; waits for a child process: none can be started at present, its worker's log says why"
    engine_state.processes = None
    step(jobs)
    assert not record(jobs).capacity.childless
