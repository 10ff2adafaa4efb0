"""On SQLite hundreds of quick handlers begin when the loop's thread is in the database, and has no use for the
interpreter."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scheduler import Context, Scheduler, TaskState, task
from scheduler.engine.dispatch.handoff import HOLD_MIN_TASKS, SlotFeeder
from scheduler.engine.slots import ThreadSlots
from scheduler.model.capacity import THREAD
from scheduler.ports import spawn_thread
from scheduler.store.db import statements as statement
from scheduler.testing import engine_of
from support.fleet import Fleet, step, until

both = pytest.mark.parametrize("dialect", ["sqlite", "postgresql"], indirect=True)
sqlite = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
PATIENCE = 20.0


@task
def quick(ctx: Context) -> None: ...


class Tokens(queue.SimpleQueue[bool]):
    """Counts what was put into it."""

    given = 0

    def put(self, item: bool, block: bool = True, timeout: float | None = None) -> None:
        self.given += 1
        super().put(item, block, timeout)


class Gate(threading.Event):
    """Threads that wait for it wait as long as it takes, unless they are not ``patient``."""

    passed = 0  # calls by threads that were woken, one for each token
    asked = 0  # such calls while it was closed
    patient = True

    def wait(self, timeout: float | None = None) -> bool:
        self.passed += 1
        if not self.is_set():
            self.asked += 1
        return super().wait(PATIENCE if self.patient else timeout)


class Flood:
    """A worker that is stepped, with threads: it takes ``HOLD_MIN_TASKS`` tasks a cycle, and then records as many."""

    def __init__(self, jobs: Scheduler) -> None:
        self.jobs = jobs
        self.engine = engine_of(jobs)
        self.engine_state = self.engine.engine_state
        self.slots = ThreadSlots(
            "medium", 2 * HOLD_MIN_TASKS, self.engine_state, self.engine_state.report, spawn_thread
        )
        self.engine.slots[1, THREAD] = self.slots
        self.tokens = self.slots._tokens = Tokens()
        self.gate = self.slots._may_begin = Gate()
        self.gate.set()
        self.engine_state.means["quick"] = 1e-5  # so one thread is woken for them
        self.ids = [jobs.task(quick).schedule() for _ in range(2 * HOLD_MIN_TASKS)]
        step(jobs)  # they begin at once: nothing else is to be done
        self.ran(2 * HOLD_MIN_TASKS)
        self.ids += [jobs.task(quick).schedule() for _ in range(2 * HOLD_MIN_TASKS)]
        # A thread that has taken its token, but not yet gone idle again, would not be held.
        until(lambda: self.gate.passed == self.tokens.given and self.slots._idle == self.slots._threads)
        self.engine.dispatch.planner.batch = HOLD_MIN_TASKS

    def ran(self, count: int) -> None:
        until(lambda: len(self.engine_state.outcomes) == count)

    def finish(self) -> None:
        until(lambda: step(self.jobs) is None and not self.engine_state.held)
        assert {self.jobs.get_task_status(i) for i in self.ids} == {TaskState.SUCCESS}


@pytest.fixture
def flood(fleet: Fleet) -> Iterator[Flood]:
    made = Flood(fleet.worker(quick, pools={"high": (0, 0), "medium": (2 * HOLD_MIN_TASKS, 0), "low": (0, 0)}))
    yield made
    for slots in made.engine.slots.values():
        slots.close()


@sqlite
def test_they_wait_for_the_next_statement(flood: Flood) -> None:
    step(flood.jobs)
    until(lambda: flood.gate.asked > 0)
    assert len(flood.slots.waiting) == HOLD_MIN_TASKS
    assert len(flood.engine_state.outcomes) == HOLD_MIN_TASKS
    step(flood.jobs)  # records these, and claims the rest
    until(lambda: len(flood.engine_state.outcomes) >= HOLD_MIN_TASKS)
    flood.finish()


@both
def test_they_begin_by_themselves_should_there_be_no_next_statement(flood: Flood) -> None:
    """The loop may fail, be told to stop, or wait for another writer."""
    flood.gate.patient = False
    step(flood.jobs)
    flood.ran(2 * HOLD_MIN_TASKS)
    flood.finish()


@both
def test_only_where_the_loops_own_thread_does_the_databases_work(flood: Flood, fleet: Fleet) -> None:
    held: list[bool] = []
    flood.slots.hold = lambda: held.append(True)  # type: ignore[method-assign]
    step(flood.jobs)
    assert bool(held) == (fleet.database.dialect == "sqlite")
    flood.finish()


@sqlite
def test_nothing_is_held_back_when_the_loop_has_nothing_to_record(flood: Flood) -> None:
    held: list[bool] = []
    flood.slots.hold = lambda: held.append(True)  # type: ignore[method-assign]
    flood.engine.dispatch.planner.batch = 2 * HOLD_MIN_TASKS
    step(flood.jobs)
    assert not held
    flood.finish()


@sqlite
def test_they_begin_right_before_the_statement_that_takes_longest(
    flood: Flood, monkeypatch: pytest.MonkeyPatch
) -> None:
    step(flood.jobs)
    seen: list[str] = []
    raw, release = statement._raw, SlotFeeder.release

    def recorded(connection: Any, text: str, bound: Any) -> Any:
        seen.append(" ".join(text.split()[:2]))
        return raw(connection, text, bound)

    def released(handout: SlotFeeder) -> None:
        if handout._held:
            seen.append("released")
        release(handout)

    monkeypatch.setattr(statement, "_raw", recorded)
    monkeypatch.setattr(SlotFeeder, "release", released)
    step(flood.jobs)
    at = seen.index("released")
    assert seen[at - 1] == "SAVEPOINT schedd_plain"
    assert seen[at + 1].startswith("WITH j(id,")
    assert seen.count("released") == 1
    flood.finish()


@sqlite
def test_a_cycle_that_records_nothing_lets_none_begin(flood: Flood) -> None:
    """One for high tasks only: it has no long statement, and the loop would wait for them."""
    step(flood.jobs)
    until(lambda: flood.gate.asked > 0)
    flood.engine.dispatch.run(flood.engine._conn(), claiming=True, urgent=True)
    assert not flood.gate.is_set()
    flood.finish()


@sqlite
def test_while_a_high_task_is_under_way_the_loop_waits_for_none(flood: Flood, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it is urgent, too."""
    step(flood.jobs)
    until(lambda: flood.gate.asked > 0)
    flood.engine_state.means["quick"] = 1e-5
    waited: list[float] = []
    monkeypatch.setattr(flood.engine_state, "wait_for_outcomes", lambda _, seconds: waited.append(seconds))
    high = next(iter(flood.engine_state.held.values()))
    usual, high.slot_key = high.slot_key, (0, THREAD)
    flood.engine.dispatch.wait_for_short_tasks()
    assert not waited
    high.slot_key = usual
    flood.engine.dispatch.wait_for_short_tasks()
    assert waited
    flood.finish()


@sqlite
def test_what_the_loop_waits_for_begins(flood: Flood) -> None:
    step(flood.jobs)
    until(lambda: flood.gate.asked > 0)
    flood.engine_state.means["quick"] = 1e-5  # however long the first ones took on this machine
    flood.engine.dispatch.wait_for_short_tasks()
    assert flood.gate.is_set()
    flood.finish()


@sqlite
def test_a_token_that_the_idle_thread_takes_at_once_begins_no_second_thread(flood: Flood) -> None:
    spawned: list[str] = []

    def spawn(_: Callable[[], None], name: str) -> threading.Thread:
        spawned.append(name)
        return threading.current_thread()

    slots = ThreadSlots("medium", 8, flood.engine_state, flood.engine_state.report, spawn)

    class TakenAtOnce(Tokens):
        def put(self, item: bool, block: bool = True, timeout: float | None = None) -> None:
            slots._idle -= 1

    slots._threads = slots._idle = 1
    slots._tokens = TakenAtOnce()
    slots._wake(1)
    assert not spawned
    slots._idle = 0
    slots._wake(1)
    assert spawned == ["schedd-medium-2"]
    flood.finish()
