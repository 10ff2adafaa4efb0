"""Stopping and draining: what runs is recorded or released, and every late call gets an answer."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, Task
from scheduler.engine.engine import Engine
from scheduler.errors import StoreUnavailableError
from scheduler.model.spec import TaskId
from scheduler.ports import FAILPOINTS
from scheduler.store import workers
from scheduler.testing import engine_of
from support.bench import Bench, Side, Step, notify_and_step, run_claimed
from support.databases import Database


def test_the_last_write_records_what_an_earlier_cycle_could_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    task = bench.step("task").schedule()
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)
    engine = engine_of(bench.jobs)

    def away(_: str) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as m:
        m.setattr(FAILPOINTS, "hit", away)
        with pytest.raises(StoreUnavailableError):
            engine.dispatch.run(engine._conn(), claiming=True)
    assert engine.running_ids() == []
    assert engine.stop(hand_back_running=True) is None
    assert bench.state(task) == "success"
    assert [a.outcome for a in bench.jobs.get_attempts(task)] == ["succeeded"]


class Fine(Task, kind="fine"):
    async def run(self, ctx: Any) -> str:
        return "fine"


@pytest.mark.case(8)
def test_stop_while_a_cycle_claims_leaves_nothing_behind(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    go, stopping = threading.Event(), threading.Event()
    ran: list[int] = []

    def hit(name: str) -> None:
        if name == "after claim":
            go.set()
            stopping.wait(0.5)

    class Slow(Task, kind="slow"):
        def run(self, ctx: Context) -> None:
            ran.append(ctx.id)
            threading.Event().wait(0.3)

    jobs = Scheduler(database.url)
    jobs.register(Slow)
    jobs.start()
    assert jobs.engine.wait_ready(10)
    monkeypatch.setattr(FAILPOINTS, "hit", hit)
    task = jobs.task(Slow()).key("for a cycle").schedule()
    assert go.wait(10)
    left = jobs.stop()
    record = jobs.get_task(task)
    assert left == []
    assert record.state == ("success" if ran else "scheduled")
    jobs.close()


def test_an_engine_that_drains_sleeps(database: Database) -> None:
    over = threading.Event()

    class Slow(Task, kind="slow"):
        def run(self, ctx: Context) -> None:
            over.wait(20)

    jobs = Scheduler(database.url)
    jobs.register(Slow)
    jobs.start()
    task = jobs.task(Slow()).schedule()
    while jobs.get_task(task).state != "running":
        over.wait(0.01)
    engine = jobs.engine
    steps: list[int] = []
    real = engine.step

    def step() -> float:
        steps.append(1)
        return real()

    engine.step = step  # type: ignore[method-assign]
    assert jobs.stop(drain=1.0) == [task]
    over.set()
    while jobs.is_running():
        threading.Event().wait(0.01)
    jobs.close()
    assert len(steps) < 200


def test_a_call_after_the_engine_has_stopped_gets_an_error(bench: Bench) -> None:
    bench.step("task").schedule()
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (attempt,) = engine.engine_state.held.values()
    engine.engine_state.inline = None
    engine.stop(hand_back_running=True)
    with pytest.raises(StoreUnavailableError):
        engine.engine_state.request(attempt, "beat", {"percent": 1.0}).result(5)


def test_scheduling_while_the_scheduler_stops_is_no_error(database: Database) -> None:
    jobs = Scheduler(database.url)
    jobs.register(Fine)
    jobs.start()
    engine = jobs.engine
    assert engine.wait_ready(10)
    jobs.stop()
    jobs._engine = engine  # as seen by a thread that schedules at that moment
    assert isinstance(jobs.task(Fine()).schedule(), TaskId)
    jobs._engine = None
    jobs.close()


def test_a_closed_scheduler_leaves_no_file_open(database: Database) -> None:
    others = set(threading.enumerate())  # of tests before this one

    def run_one() -> int:
        with Scheduler(database.url, pools={"medium": (1, 1)}) as jobs:
            jobs.register(Fine)
            assert jobs.result(jobs.task(Fine()).schedule(), 10) == "fine"
            threads = [t for t in threading.enumerate() if t.name.startswith("schedd-") and t not in others]
        jobs.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        return len(os.listdir("/proc/self/fd"))

    run_one()
    before = run_one()
    for _ in range(3):
        assert run_one() <= before


@pytest.mark.case(8)
def test_a_drain_that_was_asked_for_outlives_a_cycle_that_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed cycle has used up its notification."""
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    bench.clock.advance(1)
    with bench.jobs.database.write() as tx:
        workers.request_drain(tx.at(bench.clock.now()), engine.worker, drain=True)

    def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as broken:
        broken.setattr(engine.dispatch, "run", fail)
        with pytest.raises(StoreUnavailableError):
            notify_and_step(bench.jobs)
    engine.step()
    assert engine.registration.drain_requested


def quiet(bench: Bench) -> Engine:
    """An engine that has nothing to do and knows it."""
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    engine.step()
    return engine


def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailableError("away")


@pytest.mark.case(8)
def test_what_a_cycle_claims_while_a_drain_begins_goes_back_with_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited was returned before it was handed out."""
    engine = quiet(bench)
    task = bench.step("task").schedule()

    def hit(name: str) -> None:
        if name == "after claim":
            engine.drain()

    with monkeypatch.context() as patched:
        patched.setattr(FAILPOINTS, "hit", hit)
        notify_and_step(bench.jobs)
    assert not any(slots.waiting for slots in engine.slots.values())
    engine.step()
    assert (bench.state(task), engine.engine_state.held, bench.script.ran) == ("scheduled", {}, [])


def test_a_last_write_is_not_made_beside_a_cycle_that_does_not_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would share a connection."""
    jobs = Scheduler(database.url)
    jobs.register(Fine)
    jobs.start()
    engine = jobs.engine
    assert engine.wait_ready(10)
    stuck, go, goodbyes = threading.Event(), threading.Event(), []

    def never_ends() -> float:
        stuck.set()
        go.wait(30)
        return 1.0

    monkeypatch.setattr("scheduler.engine.engine.JOIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(engine, "step", never_ends)
    monkeypatch.setattr(engine, "_last_write", goodbyes.append)
    engine.wake()
    assert stuck.wait(10)
    trouble = engine.stop(hand_back_running=True)
    go.set()
    assert goodbyes == []
    assert "still under way" in str(trouble)
    assert engine._thread is not None
    engine._thread.join(10)
    jobs.close()


@pytest.mark.case(8)
def test_what_was_put_off_is_answered_when_the_engine_stops_without_its_database(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.step("task").schedule()
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (attempt,) = engine.engine_state.held.values()
    engine.engine_state.inline = None
    asked = engine.engine_state.request(attempt, "beat", {"percent": 5.0})
    engine.engine_state.put_off.append(engine.engine_state.requests.popleft())
    monkeypatch.setattr(engine, "_last_write", away)
    assert engine.stop(hand_back_running=True) is not None
    with pytest.raises(StoreUnavailableError):
        asked.result(0)


def test_starting_again_while_old_handlers_end_runs_new_work(database: Database) -> None:
    over = threading.Event()

    class Slow(Task, kind="slow"):
        def run(self, ctx: Context) -> None:
            over.wait(20)

    jobs = Scheduler(database.url)
    jobs.register(Slow)
    jobs.register(Step)

    class Quick(Task, kind="quick"):
        def run(self, ctx: Context) -> str:
            return "done"

    jobs.register(Quick)
    jobs.start()
    slow = jobs.task(Slow()).schedule()
    while jobs.get_task_status(slow) != "running":
        over.wait(0.01)
    assert jobs.stop(drain=0.05) == [slow]
    jobs.start()
    assert jobs.result(jobs.task(Quick()).schedule(), 10) == "done"
    over.set()
    jobs.wait(slow, 10)
    assert jobs.get_task_status(slow) == "success"
    assert jobs.get_task(slow).attempt == 1
    jobs.stop()
    jobs.close()


def test_who_schedules_while_it_stops_holds_nothing_that_the_stop_waits_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop is about to make its last write; until it is over, the notifier cannot be had."""
    jobs = Scheduler(database.url, auto_migrate=True)
    jobs.register(Step)
    came = threading.Event()
    real = jobs._own_notifier

    def notifier() -> Any:
        came.set()
        return real()

    monkeypatch.setattr(jobs, "_own_notifier", notifier)

    def write() -> None:
        with jobs.database.write() as tx:
            tx.connection.execute(sa.text("DELETE FROM schedd_tasks WHERE id = -1"))

    write()
    with jobs._lifecycle:  # as stop_now() does
        caller = Side(lambda: jobs.task(Step("one")).schedule())
        assert came.wait(20)
        stop = Side(write)
        stop.join(5)  # half of what the gate is waited for
        went_on = not stop.is_alive()
    caller.result()
    stop.result()
    assert went_on
    jobs.close()
