"""Cycles that fail: what they were to write, to answer or to claim is done by a later one."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler.engine.engine import Engine
from scheduler.engine.execution.run import execute
from scheduler.errors import StoreUnavailableError
from scheduler.store.read.explain import why
from scheduler.store.tasks import claim as claims
from scheduler.testing import drain, engine_of
from support.bench import Bench, notify_and_step, run_claimed


@pytest.mark.case(2)
def test_a_lost_worker_that_cannot_join_again_at_once_claims_nothing_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(bench.jobs)
    notify_and_step(bench.jobs)
    bench.execute("UPDATE schedd_workers SET state = 3")
    task = bench.step("task").schedule()

    def away(*_: Any) -> Any:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as m:
        m.setattr("scheduler.store.workers.register", away)
        bench.clock.advance(11)
        for _ in range(2):
            with contextlib.suppress(StoreUnavailableError):
                notify_and_step(bench.jobs)
    assert bench.state(task) == "scheduled"
    bench.drain()
    assert bench.script.ran == ["task"]
    assert engine.worker


@pytest.mark.case(2)
def test_what_waited_for_a_slot_when_the_lease_was_lost_takes_no_room_any_more(bench: Bench) -> None:
    jobs = bench.worker(pools={"high": (0, 0), "medium": (2, 0), "low": (0, 0)})
    first = [bench.step(f"first {n}").schedule() for n in range(2)]
    notify_and_step(jobs)
    engine = engine_of(jobs)
    assert len(engine.engine_state.held) == 2
    bench.execute("UPDATE schedd_workers SET state = 3")
    engine.periodic.timers.bring_forward("renew")
    notify_and_step(jobs)
    bench.execute("UPDATE schedd_tasks SET state = 1, worker = NULL, claimed_at = NULL WHERE state IN (1, 4)")
    later = [bench.step(f"later {n}").schedule() for n in range(2)]
    drain(jobs)
    assert bench.states(*first, *later) == ["success"] * 4
    assert sorted(bench.script.ran) == ["first 0", "first 1", "later 0", "later 1"]
    assert not engine.engine_state.held


def test_a_request_that_its_handler_stopped_waiting_for_stops_no_cycle(bench: Bench) -> None:
    first = bench.step("first").schedule()
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (attempt,) = engine.engine_state.held.values()
    engine.engine_state.inline = None
    assert engine.engine_state.request(
        attempt, "beat", {"percent": 5.0}
    ).cancel()  # what asyncio does when it cancels who awaits it
    run_claimed(bench.jobs)
    second = bench.step("second").schedule()
    notify_and_step(bench.jobs)
    bench.drain()
    assert bench.states(first, second) == ["success", "success"]
    assert not engine.engine_state.held


@pytest.mark.both_databases
@pytest.mark.case(18)
def test_an_outcome_that_cannot_be_recorded_keeps_no_other_from_it(bench: Bench) -> None:
    ids = [bench.step(name).schedule() for name in ("one", "bad", "two")]
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)
    engine = engine_of(bench.jobs)
    reported = list(engine.engine_state.outcomes)
    engine.engine_state.outcomes.clear()
    for attempt, outcome in reported:
        bad: Any = object()
        engine.engine_state.outcomes.append(
            (attempt, outcome._replace(claimed_at=bad) if outcome.task_id == ids[1] else outcome)
        )
    later = bench.step("later").schedule()
    with pytest.raises(sa.exc.DBAPIError):
        notify_and_step(bench.jobs)
    engine._needs_scan = True  # as the loop does
    bench.drain()
    assert bench.states(*ids, later) == ["success", "dead", "success", "success"]
    assert "could not be recorded" in str(bench.jobs.get_task(ids[1]).error)
    assert not engine.engine_state.held


def quiet(bench: Bench) -> Engine:
    """An engine that has nothing to do and knows it."""
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    engine.step()
    return engine


def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailableError("away")


@pytest.mark.case(9)
def test_what_a_failed_round_was_for_is_done_by_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed round has used up the notification."""
    engine = quiet(bench)
    task = bench.step("task").schedule()
    engine.wake()
    with monkeypatch.context() as broken:
        broken.setattr(engine.dispatch, "run", away)
        broken.setattr(engine._stop, "wait", lambda _: False)
        assert engine._round() == 0.0
    assert bench.state(task) == "scheduled"
    engine.step()
    assert bench.state(task) == "claimed"


@pytest.mark.case(9)
def test_a_database_that_is_back_is_noticed_before_a_lease_runs_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(bench.worker(lease=1.5))
    waited: list[float] = []
    monkeypatch.setattr(engine, "step", away)
    monkeypatch.setattr(engine._stop, "wait", waited.append)
    for _ in range(8):
        engine._round()
    assert waited[0] == 0.1
    assert waited[-1] == max(waited) == 0.5


@pytest.mark.case(6)
def test_ends_that_wait_for_a_cycle_outlive_an_urgent_one_that_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes none of them, and may not lose them either."""
    task = bench.step("task").schedule()
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)
    engine = engine_of(bench.jobs)
    with monkeypatch.context() as broken:
        broken.setattr(claims, "claim", away)
        for urgent in (False, True):
            with pytest.raises(StoreUnavailableError):
                engine.dispatch.run(engine._conn(), claiming=True, urgent=urgent)
    assert len(engine.dispatch.completer.deferred) == 1
    bench.drain()
    assert (bench.state(task), bench.script.ran) == ("success", ["task"])
    assert not engine.engine_state.held


def test_an_end_reported_right_before_the_engine_sleeps_is_not_slept_over(bench: Bench) -> None:
    """The thread that reports it does not wake the engine yet."""
    bench.step("task").schedule()
    notify_and_step(bench.jobs)
    engine_state = engine_of(bench.jobs).engine_state
    engine_state.sleep(0.0)
    assert engine_state._wakeups.empty()
    run_claimed(bench.jobs)
    assert engine_state.outcomes
    assert engine_state._wakeups.empty()

    class Deaf:
        def get(self, timeout: float) -> None:
            raise AssertionError("it sleeps")

    engine_state._wakeups = Deaf()  # type: ignore[assignment]
    engine_state.sleep(60.0)
    assert not engine_state._sleeping


class _Refused(deque[Any]):
    """Requests. The guard answers the last one right before the engine takes it."""

    def popleft(self) -> Any:
        answer = super().popleft().answer
        answer.set_result({"held": False})
        return super().popleft()


@pytest.mark.case(2, 4)
def test_a_request_that_the_guard_answers_as_a_cycle_begins_loses_no_end(bench: Bench) -> None:
    """Else the cycle fails with the ends in its hands: their tasks stay claimed by a worker that is well."""
    ended, asking = bench.step("ended").schedule(), bench.step("asking").schedule()
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    held = {key[0]: attempt for key, attempt in engine.engine_state.held.items()}
    engine.engine_state.inline = None
    engine.engine_state.report(held[ended], execute(held[ended], engine.engine_state))
    engine.engine_state.requests = _Refused()
    refused = engine.engine_state.request(held[asking], "beat", {"percent": 5.0})
    engine.step()
    assert refused.result(0) == {"held": False}
    assert bench.state(ended) == "success"


@pytest.mark.case(9, 82)
@pytest.mark.parametrize("error", [StoreUnavailableError("the disk is full"), ValueError("a bug")], ids=str)
def test_why_names_what_keeps_cycles_from_their_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """On PostgreSQL a full disk refuses new rows, while the lease is still renewed in its place."""

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    def whys() -> str:
        with bench.jobs.database.read() as tx:
            return f"{why(tx, held)} {why(tx, ready)}"

    held = bench.step("held").schedule()
    engine = quiet(bench)
    ready = bench.step("ready").schedule()
    with monkeypatch.context() as broken:
        broken.setattr(engine.dispatch, "run", fails)
        broken.setattr(engine._stop, "wait", lambda _: False)
        engine.periodic.timers.bring_forward("renew")
        engine._round()
        assert str(error) not in whys(), "one cycle may collide with another"
        for _ in range(2):
            engine._round()
        words = f"neither claims nor records what has ended: {error}"
        assert whys().replace("ValueError: ", "").count(words) == 2
    for _ in range(2):
        engine._round()
    assert "neither claims" not in whys()
