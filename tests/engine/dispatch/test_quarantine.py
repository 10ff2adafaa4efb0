"""Quarantine: a task whose workers die runs alone, and holds up no other."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.engine.execution.run import execute
from scheduler.errors import StoreUnavailableError
from scheduler.testing import drain, engine_of
from support.bench import Bench, notify_and_step
from support.fleet import rows


@pytest.mark.case(60)
def test_a_poison_task_for_a_pool_that_this_worker_lacks_delays_no_other_task(bench: Bench) -> None:
    suspect = bench.step("suspect").priority("low").schedule()
    bench.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2")
    other = bench.step("other").schedule()
    worker = bench.worker(pools={"low": (0, 0)})
    drain(worker)
    assert bench.states(suspect, other) == ["scheduled", "success"]
    bench.drain()
    assert bench.state(suspect) == "success"


@pytest.mark.case(60)
def test_a_poison_task_whose_pool_is_taken_for_long_delays_no_other_task(bench: Bench) -> None:
    bench.jobs._options = bench.jobs._options._replace(pools={"high": (1, 0), "medium": (2, 0), "low": (1, 0)})
    engine = engine_of(bench.jobs)
    bench.step("long").priority("low").schedule()
    notify_and_step(bench.jobs)
    (low,) = [s for key, s in engine.slots.items() if key == (2, False)]
    attempt = low.waiting.popleft()  # its handler is under way
    attempt.started_at, attempt.started_mono = bench.clock.now(), bench.clock.monotonic()
    bench.clock.advance(11)
    suspect = bench.step("suspect").priority("low").schedule()
    bench.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2 WHERE id = :id", id=suspect)
    other = bench.step("other").schedule()
    for _ in range(3):
        bench.clock.advance(1.5)
        notify_and_step(bench.jobs)
        while engine.slots[1, False].run_one():
            pass
    notify_and_step(bench.jobs)
    assert bench.states(suspect, other) == ["scheduled", "success"]
    engine.engine_state.report(attempt, execute(attempt, engine.engine_state))
    bench.drain()
    assert bench.states(suspect) == ["success"]


def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailableError("away")


@pytest.mark.case(9, 60)
def test_a_suspect_that_has_run_for_long_is_none_although_a_cycle_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.step("suspect").schedule()
    bench.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2")
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (medium,) = [slots for slots in engine.slots.values() if slots.waiting]
    attempt = medium.waiting.popleft()  # its handler is under way
    assert attempt is engine.dispatch.planner.alone
    attempt.started_at, attempt.started_mono = bench.clock.now(), bench.clock.monotonic()
    bench.clock.advance(11)
    with monkeypatch.context() as broken:
        broken.setattr(engine.dispatch, "_claim", away)
        with pytest.raises(StoreUnavailableError):
            notify_and_step(bench.jobs)
    notify_and_step(bench.jobs)
    assert [row.lane for row in rows(bench.jobs, "SELECT lane FROM schedd_tasks")] == ["Step"]
    assert engine.dispatch.planner.alone is None
