"""Leases where workers meet: a dead one that claims, one whose row is locked, and when the next one runs out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, Task
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.outcomes import outcome_of_external_end
from scheduler.engine.durable.calls import Durable
from scheduler.engine.execution.run import execute
from scheduler.engine.maintenance.lease import CHECKS_PER_LEASE, MAX_PAUSE_S, WorkerLease
from scheduler.errors import LeaseLost, StoreUnavailableError
from scheduler.model.outcome import AttemptEnd
from scheduler.ports import SECOND
from scheduler.store import reaper, workers
from scheduler.store.db.statements import run
from scheduler.store.db.tx import Tx
from scheduler.testing import FakeClock, engine_of
from support.bench import Bench, notify_and_step
from support.fleet import Fleet, let_notifier_work, let_pass, rows


class Once(Task):
    def run(self, ctx: Context) -> None: ...


@pytest.mark.case(2, 4)
def test_a_worker_that_was_declared_dead_meanwhile_claims_nothing(bench: Bench) -> None:
    """It stood still between its last renewal and its cycle: what it claimed now would be taken back at once."""
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    with bench.jobs.database.write() as tx:
        tx.connection.execute(sa.text("UPDATE schedd_workers SET state = 3 WHERE id = :id"), {"id": engine.worker})
    task = bench.step("task").schedule()
    connection = engine._conn()
    assert engine.dispatch.run(connection, claiming=True).claimed == 0
    assert bench.state(task) == "scheduled"
    dead = engine.worker
    bench.clock.advance(15)  # its renewal is due
    assert bench.drain() == ["task"]
    assert engine.worker != dead


@pytest.mark.case(10)
def test_the_next_reap_is_when_the_next_lease_runs_out(bench: Bench) -> None:
    """So that what a dead worker held runs again as soon as its lease has run out."""
    notify_and_step(bench.jobs)
    other = bench.worker()
    notify_and_step(other)
    bench.clock.advance(13)  # so that it reaps, which a worker that has just begun does not
    notify_and_step(other)
    task = bench.step("task").schedule()
    notify_and_step(other)
    notify_and_step(bench.jobs)
    engine, dead = engine_of(bench.jobs), engine_of(other).worker
    held = sa.text("SELECT worker FROM schedd_tasks WHERE id = :id")
    lease = sa.text("SELECT lease_until FROM schedd_workers WHERE id = :id")
    for _ in range(500):  # by the worker's own timetable, without a notification
        wait = max(0.001, engine.step())
        with bench.jobs.database.read() as tx:
            if tx.connection.execute(held, {"id": task}).scalar_one() != dead:
                break
            until = tx.connection.execute(lease, {"id": dead}).scalar_one()
        bench.clock.advance(wait)
    else:
        raise AssertionError("never taken back")
    assert 0 < (bench.jobs.database.now() - until) / SECOND < 0.1


@pytest.mark.case(9, 10)
def test_after_an_outage_the_others_have_time_to_renew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One had renewed right before it and is back in time for its own lease, the other's has run out meanwhile."""
    notify_and_step(bench.jobs)
    other = bench.worker()
    notify_and_step(other)
    bench.clock.advance(13)  # neither has just begun
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    bench.step("task").schedule()
    notify_and_step(other)  # it renews, and claims
    (held,) = engine_of(other).engine_state.held
    bench.clock.advance(5)
    engine.periodic.timers.bring_forward("renew")
    notify_and_step(bench.jobs)

    def away() -> float:
        raise StoreUnavailableError("away")

    bench.clock.advance(18)
    with monkeypatch.context() as patched:
        patched.setattr(engine, "step", away)
        engine._round()
    assert engine.worker
    for seconds, state in ((0, "claimed"), (8, "claimed"), (3, "claimed"), (2, "scheduled")):
        bench.clock.advance(seconds)
        engine.periodic.timers.bring_forward("reap")
        engine.drain()
        notify_and_step(bench.jobs)
        assert bench.state(held[0]) == state, f"after another {seconds} s"


@pytest.mark.case(4, 9)
def test_the_guard_looks_when_the_lease_runs_out(bench: Bench) -> None:
    """Not at its next look only: by then others may have begun what runs here."""
    engine = engine_of(bench.jobs)
    guard, every = engine.guard, engine.options.lease / CHECKS_PER_LEASE
    assert guard.pause() == min(every, MAX_PAUSE_S), "it has no lease yet"
    for left, pause in (
        (100.0, min(every, MAX_PAUSE_S)),
        (0.25, 0.25),
        (0.0, min(every, MAX_PAUSE_S)),
        (-5.0, min(every, MAX_PAUSE_S)),
    ):
        engine.engine_state.lease_expires_at = bench.clock.monotonic() + left
        assert guard.pause() == pytest.approx(pause)


@pytest.mark.case(9)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_long_cycle_that_gets_answers_is_not_cut(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what takes longer than a lease would be begun again and again, and nothing else be done."""
    notify_and_step(bench.jobs)
    engine, clock = engine_of(bench.jobs), bench.clock
    cut: list[int] = []
    monkeypatch.setattr(bench.jobs.database, "cut", lambda thread: cut.append(thread) or 1)
    monkeypatch.setattr(engine.guard, "_loop_thread", lambda: 7)
    completion_thread = engine.dispatch.completer.completion_thread
    assert completion_thread is not None
    recording = completion_thread._ready()
    assert recording is not None

    def pass_by(work: Callable[[], object]) -> list[int]:
        """Most of a lease, with this now and then; what was cut."""
        cut.clear()
        engine.engine_state.lease_expires_at = clock.monotonic() + engine.options.lease
        for _ in range(14):
            clock.advance(2)
            work()
            engine.guard.check(2.0)
        return cut

    assert pass_by(lambda: run(engine._conn(), "SELECT 1", {})) == []
    assert pass_by(lambda: engine._conn().exec_driver_sql("SELECT 1")) == []
    assert pass_by(lambda: run(recording, "SELECT 1", {})) == []
    assert pass_by(bench.jobs.list_tasks) == [7], "another one's answers are no sign of the loop's life"


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_no_worker_waits_for_one_that_stands_still_while_it_renews(bench: Bench) -> None:
    """Its row is locked by its own transaction, and nothing comes from it any more."""
    notify_and_step(bench.jobs)
    other = bench.worker()
    notify_and_step(other)
    stuck = engine_of(other).worker
    with bench.jobs.database.connect() as holder:
        workers.renew(Tx(holder, 0), stuck, 0)  # begun, not committed; its lease has long run out
        engine = engine_of(bench.jobs)
        engine.lease.no_reaping_until = 0.0
        done: list[object] = []

        def reap() -> None:
            done.append(engine.lease.reap(engine._conn(), engine.worker, list))

        thread = threading.Thread(target=reap)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "the reaper waits for a row that may never be unlocked"
        holder.rollback()
    assert done == [[]]


def begun(bench: Bench, name: str = "task") -> Attempt:
    """An attempt whose handler is under way."""
    bench.step(name).schedule()
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (slots,) = [slots for slots in engine.inline_slots() if slots.waiting]
    attempt = slots.waiting.popleft()
    attempt.started_at, attempt.started_mono = bench.clock.now(), bench.clock.monotonic()
    return attempt


def lapse(bench: Bench) -> None:
    """The lease runs out, as far as this worker can tell."""
    engine = engine_of(bench.jobs)
    engine.engine_state.lease_expires_at = bench.clock.monotonic()
    engine.guard.check(0.0)
    engine.engine_state.lease_expires_at = float("inf")


def renew(bench: Bench) -> None:
    engine_of(bench.jobs).periodic.timers.bring_forward("renew")
    notify_and_step(bench.jobs)


def end(bench: Bench, attempt: Attempt) -> None:
    engine_state = engine_of(bench.jobs).engine_state
    engine_state.report(attempt, execute(attempt, engine_state))
    bench.drain()


@pytest.mark.case(4, 9)
def test_a_late_renewal_lets_those_handlers_go_on_that_were_not_notified(bench: Bench) -> None:
    attempt, notified = begun(bench), begun(bench, "notified")
    lapse(bench)
    assert attempt.lost
    assert notified.lost
    with pytest.raises(LeaseLost):
        notified.check(bench.clock.monotonic())
    renew(bench)
    assert not attempt.lost
    assert notified.lost, "it is ending, and goes back"
    end(bench, attempt)
    assert [a.outcome.value for a in bench.jobs.get_attempts(attempt.claimed.id)] == ["succeeded"]


@pytest.mark.case(4)
def test_no_renewal_gives_back_what_was_taken_from_a_handler(bench: Bench) -> None:
    """It had stalled before the lease ran out: its task is run again, here too once it has ended."""
    attempt = begun(bench)
    engine = engine_of(bench.jobs)
    bench.execute("UPDATE schedd_tasks SET state = 1, worker = NULL, claimed_at = NULL")
    engine.engine_state.mark_lost(attempt)
    lapse(bench)
    renew(bench)
    assert attempt.lost
    end(bench, attempt)
    assert not engine.engine_state.losing
    assert bench.advance(1) == ["task"]
    assert bench.state(attempt.claimed.id) == "success"


@pytest.mark.case(4)
def test_after_a_lease_that_was_lost_for_good_the_next_one_gives_nothing_back(bench: Bench) -> None:
    attempt = begun(bench)
    engine = engine_of(bench.jobs)
    lapse(bench)
    bench.execute("UPDATE schedd_workers SET state = 3")
    dead = engine.worker
    renew(bench)
    assert engine.worker != dead
    renew(bench)
    assert attempt.lost


@pytest.mark.case(4, 9)
def test_a_renewal_at_the_last_moment_is_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard has seen that the lease is over, and waits only for the loop, which renews it."""
    attempt = begun(bench)
    engine = engine_of(bench.jobs)

    class Renewed:
        def __enter__(self) -> None:
            engine.engine_state.lease_expires_at += 30

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(engine.guard, "_mutex", Renewed())
    engine.engine_state.lease_expires_at = bench.clock.monotonic()
    engine.guard.check(0.0)
    assert not attempt.lost


@pytest.mark.case(4, 9)
def test_who_was_refused_an_answer_goes_back_though_the_lease_is_renewed(bench: Bench) -> None:
    """What it raises on its way out is no failure of its own."""
    attempt = begun(bench)
    engine_state = engine_of(bench.jobs).engine_state
    durable = Durable(attempt, engine_state)
    lapse(bench)
    with pytest.raises(LeaseLost) as raised:
        durable.apply_reply({"held": False})
    renew(bench)
    outcome, _ = outcome_of_external_end(attempt, engine_state, raised.value)
    engine_state.report(attempt, outcome)
    assert bench.drain() == ["task"]
    assert bench.jobs.get_task(attempt.claimed.id).attempt == 1
    assert [a.outcome.value for a in bench.jobs.get_attempts(attempt.claimed.id)][-1] == "succeeded"


@pytest.mark.case(4, 9)
def test_a_handler_that_waits_for_an_answer_learns_that_the_lease_has_run_out(bench: Bench) -> None:
    """The loop may wait for a server that never answers, and no other thread answers requests."""
    attempt = begun(bench)
    engine_state = engine_of(bench.jobs).engine_state
    engine_state.inline = None
    asked = engine_state.request(attempt, "beat", {"percent": 5.0})
    lapse(bench)
    assert asked.done()
    assert asked.result() == {"held": False}


@pytest.mark.case(4)
def test_a_lease_counts_from_before_it_was_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's answer may be late: the others count from when it wrote the row."""
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    lease = WorkerLease(engine.engine_state, lapses=True)
    real = workers.renew

    def late(*given: Any) -> bool:
        held = real(*given)
        bench.clock.advance(7)
        return held

    monkeypatch.setattr(workers, "renew", late)
    begun = bench.clock.monotonic()
    assert lease.renew(engine._conn(), engine.worker, False)
    assert engine.engine_state.lease_expires_at == begun + engine.options.lease


@pytest.mark.case(9, 47)
def test_patience_after_an_outage_shortens_none_that_there_is(bench: Bench) -> None:
    """The clock has jumped: every lease only looks as if it had run out."""
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    engine.lease.detect_clock_jump()
    bench.clock.jump(3600)
    assert engine.lease.detect_clock_jump()
    until = bench.clock.monotonic() + engine.options.lease
    assert engine.lease.no_reaping_until == until
    engine.lease.postpone_reaping()
    assert engine.lease.no_reaping_until == until


@pytest.mark.case(9, 47)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("days", [-1, 1])
def test_a_dead_workers_tasks_are_reclaimed_soon_though_the_clock_was_set(
    fleet: Fleet, clock: FakeClock, days: int
) -> None:
    dead, living, other = (fleet.worker(Once, lease=lease) for lease in (30.0, 30.0, 300.0))
    for jobs in (dead, living, other):
        notify_and_step(jobs)
    task_id, gone = dead.task(Once()).schedule(), engine_of(dead).worker
    notify_and_step(dead)
    fleet.kill(dead)
    clock.jump(timedelta(days=days))
    let_pass(clock, 90, living, other)
    (row,) = rows(living, "SELECT worker FROM schedd_tasks WHERE id = :id", id=task_id)
    assert row.worker != gone
    found = {one.id: one.state for one in living.workers.list(every=True)}
    assert [found[engine_of(one).worker] for one in (living, other)] == ["live", "live"]


@pytest.mark.case(10)
@pytest.mark.parametrize(("lease", "most"), [(30.0, 7), (1.0, 25)])
def test_a_busy_engine_looks_for_the_dead_no_more_often(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, lease: float, most: int
) -> None:
    """Than every two seconds, and when another's lease may have run out: each look is a question to the database."""
    busy, other = fleet.worker(), fleet.worker(lease=lease)
    for jobs in (busy, other):
        notify_and_step(jobs)
    engine, looked = engine_of(busy), 0
    let_notifier_work(busy)
    look = reaper.find_expired

    def counting(connection: sa.Connection, worker: int | None) -> tuple[int, bool]:
        nonlocal looked
        looked += worker == engine.worker
        return look(connection, worker)

    monkeypatch.setattr(reaper, "find_expired", counting)
    for n in range(460):
        if n == 260:  # who has just joined is patient, and looks at another time
            looked = 0
        clock.advance(0.05)
        notify_and_step(busy)
        engine_of(other).step()
    assert 4 <= looked <= most


def _taken_by_a_slot(bench: Bench) -> Attempt:
    """What the last step claimed, as if a slot had taken it."""
    (attempt,) = [slots.waiting.popleft() for slots in engine_of(bench.jobs).inline_slots() if slots.waiting]
    return attempt


def _stand_still(bench: Bench, other: Scheduler) -> None:
    """The bench's own worker stands still for longer than its lease; the other one takes back what it holds, has no
    room for it, and the first one goes on."""
    for _ in range(6):
        bench.clock.advance(8)
        engine_of(other).periodic.timers.bring_forward("reap")
        notify_and_step(other)
    dead = engine_of(bench.jobs).worker
    notify_and_step(bench.jobs)
    assert engine_of(bench.jobs).worker != dead


@pytest.mark.case(2, 4)
def test_after_a_lost_lease_nothing_runs_here_beside_its_first_handler(bench: Bench) -> None:
    task = bench.step("task").schedule()
    other = bench.worker()
    notify_and_step(bench.jobs)
    attempt = _taken_by_a_slot(bench)
    attempt.started_at, attempt.started_mono = bench.clock.now(), bench.clock.monotonic()
    notify_and_step(other)
    engine_of(other).drain()
    _stand_still(bench, other)
    bench.clock.advance(1)
    notify_and_step(bench.jobs)
    assert not any(slots.waiting for slots in engine_of(bench.jobs).inline_slots()), "its handler has not ended"
    engine = engine_of(bench.jobs)
    engine.engine_state.report(attempt, execute(attempt, engine.engine_state))
    bench.clock.advance(1)
    assert bench.drain() == ["task"]
    assert bench.state(task) == "success"


@pytest.mark.case(2, 4)
def test_what_was_lost_before_its_handler_began_does_not_begin(bench: Bench) -> None:
    bench.step("task").schedule()
    other = bench.worker()
    notify_and_step(bench.jobs)
    attempt = _taken_by_a_slot(bench)
    notify_and_step(other)
    engine_of(other).drain()
    _stand_still(bench, other)
    assert execute(attempt, engine_of(bench.jobs).engine_state).end is AttemptEnd.HANDED_BACK
    assert bench.script.ran == []


@pytest.mark.case(4)
def test_a_handler_that_learns_of_a_lost_lease_as_it_is_renewed_goes_back(bench: Bench) -> None:
    """A handler that learns of the loss during a late renewal has not failed its task."""
    task = bench.step("task").schedule()
    notify_and_step(bench.jobs)
    attempt = _taken_by_a_slot(bench)
    attempt.started_at = bench.clock.now()
    attempt.lost = True
    with pytest.raises(LeaseLost) as raised:
        attempt.check(0.0)
    attempt.lost = False  # by the guard, which had looked before
    outcome, _ = outcome_of_external_end(attempt, engine_of(bench.jobs).engine_state, raised.value)
    assert (outcome.task_id, outcome.end) == (task, AttemptEnd.HANDED_BACK)


@pytest.mark.case(8)
@pytest.mark.parametrize("drains", [True, False])
def test_a_worker_that_stood_still_does_what_it_was_asked_meanwhile(bench: Bench, drains: bool) -> None:
    """To drain, or to claim again: under the row that was reclaimed since."""
    bench.step("held").schedule()
    engine, other = engine_of(bench.jobs), bench.worker()
    for jobs in (bench.jobs, other):
        notify_and_step(jobs)
    if not drains:
        _ask(bench, drain=True)
        bench.clock.advance(1)
        notify_and_step(bench.jobs)
        assert not engine.claims
    _ask(bench, drain=drains)
    engine_of(other).drain()
    _stand_still(bench, other)
    task = bench.step("task").schedule()
    bench.clock.advance(1)
    bench.drain()
    assert bench.state(task) == ("scheduled" if drains else "success")


def _ask(bench: Bench, *, drain: bool) -> None:
    with bench.jobs.database.write() as tx:
        workers.request_drain(tx.at(bench.clock.now()), engine_of(bench.jobs).worker, drain=drain)
