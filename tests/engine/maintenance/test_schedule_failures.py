"""Schedules in trouble: rows that cannot be read, several engines at once, changes while a run is under way."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scheduler.ports import FOREVER
from scheduler.store import schedules
from scheduler.testing import engine_of
from support.bench import Bench, Side, Step, notify_and_step, run_claimed


def tick(bench: Bench, name: str = "tick") -> Any:
    return bench.jobs.task(Step(name)).key(name)


def next_at(bench: Bench) -> int:
    with bench.jobs.database.read() as tx:
        return int(tx.connection.exec_driver_sql("SELECT next_at FROM schedd_schedules").scalar_one())


@pytest.mark.parametrize(
    "broken",
    [
        "recurrence = 'nonsense'",
        'recurrence = \'{"kind":"cron","expression":"* * * * *","tz":"Mars/Base"}\'',
        "options = '[]'",
        "next_at = 4611686018427387904, recurrence = 'x'",
    ],
)
def test_a_schedule_that_cannot_be_read_stops_nothing_else(bench: Bench, broken: str) -> None:
    tick(bench, "bad").every(10).schedule()
    tick(bench, "good").every(10).schedule()
    bench.execute(f"UPDATE schedd_schedules SET {broken} WHERE name = 'bad'")
    bench.step("task").schedule()
    assert bench.drain() == ["task"]
    for _ in range(3):
        assert bench.advance(10) == ["good"]
    tick(bench, "bad").every(5).schedule()  # registered again, as at every boot
    bench.clock.advance(60)
    assert "bad" in bench.drain()


def test_a_hundred_of_them_do_not_either(bench: Bench) -> None:
    for i in range(120):
        tick(bench, f"bad{i}").every(9).schedule()
    tick(bench, "good").every(10).schedule()
    bench.execute("UPDATE schedd_schedules SET recurrence = 'x' WHERE name <> 'good'")
    bench.clock.advance(10)
    assert bench.drain() == ["good"]


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_schedule_whose_task_cannot_be_stored_stops_nothing_else(bench: Bench) -> None:
    tick(bench, "bad").every(10).schedule()
    tick(bench, "good").every(10).schedule()
    bench.execute(
        "UPDATE schedd_schedules SET options = replace(options, :was, :huge) WHERE name = 'bad'",
        was='"priority":1',
        huge='"priority":99999999',
    )
    assert bench.advance(10) == ["good"]


def test_other_duties_that_fail_stop_no_task(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    notify_and_step(bench.jobs)

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("unforeseen")

    for name in ("schedules.tick", "admin.retention.purge_batch", "reaper.reap", "tasks.control.cancel_requests"):
        monkeypatch.setattr(f"scheduler.store.{name}", fails)
    for name in ("one", "two", "three"):
        bench.clock.advance(61)
        bench.step(name).schedule()
        notify_and_step(bench.jobs)  # it holds something, so it looks for cancels, too
        assert bench.drain() == [name]


@pytest.mark.case(46)
def test_a_changed_fixed_delay_never_runs_beside_itself(bench: Bench) -> None:
    tick(bench).every(60, mode="fixed_delay").schedule()
    bench.clock.advance(60)
    notify_and_step(bench.jobs)  # claimed, still going
    tick(bench).every(1, mode="fixed_delay").schedule()
    bench.clock.advance(1)
    notify_and_step(bench.jobs)
    assert next_at(bench) == FOREVER
    assert bench.drain() == ["tick"]
    assert bench.advance(1) == ["tick"]


@pytest.mark.case(43, 46)
@pytest.mark.parametrize("mode", ["fixed_delay", "fixed_rate"])
def test_one_that_is_deleted_and_brought_back_never_runs_beside_itself(bench: Bench, mode: Any) -> None:
    tick(bench).every(60, mode=mode).overlap("skip").schedule()
    bench.clock.advance(60)
    notify_and_step(bench.jobs)  # claimed, still going
    bench.jobs.schedules.delete("tick")
    tick(bench).every(60, mode=mode).overlap("skip").run_on_startup().schedule()
    bench.clock.advance(60)
    notify_and_step(bench.jobs)
    assert [t.state.value for t in bench.jobs.list_tasks()] == ["claimed"]
    assert bench.drain() == ["tick"]
    assert bench.advance(60) == ["tick"]


@pytest.mark.case(46, 51)
def test_a_fixed_delay_goes_on_though_its_run_has_been_removed(bench: Bench) -> None:
    tick(bench).every(60, mode="fixed_delay").schedule()
    bench.clock.advance(60)
    notify_and_step(bench.jobs)
    assert next_at(bench) == FOREVER
    bench.execute("DELETE FROM schedd_tasks")  # long after its end, before any worker looked
    notify_and_step(bench.jobs)
    bench.script.ran.clear()
    assert bench.advance(60) == ["tick"]


@pytest.mark.case(43, 46)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_pausing_while_another_engine_fires_takes_no_slot_back(bench: Bench) -> None:
    tick(bench).every(60, mode="fixed_delay").schedule()
    bench.clock.advance(60)
    other = bench.worker()
    now = bench.clock.now()
    with bench.jobs.database.write() as tx:
        schedules.tick(tx.at(now), 60)
        side = Side(lambda: other.schedules.pause("tick"))
        threading.Event().wait(0.3)
    side.result()
    assert next_at(bench) == FOREVER


@pytest.mark.case(46)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_two_engines_that_see_the_same_end_start_one_run(bench: Bench) -> None:
    tick(bench).every(10, mode="fixed_delay").schedule()
    assert bench.advance(10) == ["tick"]
    bench.execute("DELETE FROM schedd_tasks")  # its end is not known any more: it counts from now
    bench.execute(f"UPDATE schedd_schedules SET next_at = {FOREVER}")
    other = bench.worker()
    with bench.jobs.database.write() as tx:
        schedules.end_delays(tx.at(bench.clock.now()))
        bench.clock.advance(20)
        later = bench.clock.now() + 1

        def from_there() -> None:
            with other.database.write() as tx:
                schedules.tick(tx.at(later), 60)

        side = Side(from_there)
        threading.Event().wait(0.3)
        schedules.tick(tx.at(bench.clock.now()), 60)
    side.result()
    bench.clock.advance(100)
    with bench.jobs.database.write() as tx:
        schedules.tick(tx.at(bench.clock.now()), 60)
    assert len(bench.jobs.list_tasks()) == 1


@pytest.mark.case(46, 65)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_an_engine_does_not_wait_for_a_locked_schedule(bench: Bench) -> None:
    tick(bench).every(10, mode="fixed_delay").schedule()
    bench.clock.advance(10)
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)
    engine_of(bench.jobs).dispatch.run(engine_of(bench.jobs)._conn(), claiming=False)  # its end is recorded, not more
    bench.step("task").schedule()
    with bench.worker().database.write() as tx:
        tx.connection.exec_driver_sql("UPDATE schedd_schedules SET updated_at = updated_at")
        side = Side(bench.drain)
        side.join(5)
        assert not side.is_alive()
    assert side.result() == ["task"]
    assert next_at(bench) == FOREVER
    assert bench.advance(10) == ["tick"]


@pytest.mark.case(44)
def test_one_tick_makes_about_a_thousand_tasks_over_all_schedules(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        tick(bench, name).every(1).catchup("all").schedule()
    bench.clock.advance(900)
    engine = engine_of(bench.jobs)
    assert engine.periodic.schedules.tick(engine._conn()) <= 2000
    assert engine.periodic.schedules.due()
    while engine.periodic.schedules.due():
        engine.periodic.schedules.tick(engine._conn())
    assert len(bench.jobs.list_tasks(limit=10_000)) == 2700
