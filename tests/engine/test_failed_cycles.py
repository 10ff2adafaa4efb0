"""An engine that meets trouble in the middle of a turn, at its start or at its end: nothing stays stuck."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, Task, task
from scheduler.engine.engine import Engine
from scheduler.engine.execution.executor import execute
from scheduler.errors import StoreUnavailableError
from scheduler.model.spec import TaskId
from scheduler.ports import FAILPOINTS
from scheduler.store import workers
from scheduler.store.tasks import claim as claims
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import Bench, Step, ring_and_step, run_claimed
from support.databases import Database
from support.fleet import Fleet, rows, step, until


@pytest.fixture
def commit_unknown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Breaks the connection of a scheduler after its next commits, before the answer: they succeed, it seems not."""

    def arrange(jobs: Scheduler, times: int = 1) -> None:
        real = jobs.database.write
        left = [times]

        @contextlib.contextmanager
        def write(connection: sa.Connection | None = None) -> Iterator[sa.Connection]:
            with real(connection) as c:
                yield c
            if left[0]:
                left[0] -= 1
                raise StoreUnavailableError("the connection broke")

        monkeypatch.setattr(jobs.database, "write", write)

    return arrange


@pytest.mark.case(9)
def test_a_claim_whose_commit_was_not_answered_is_given_back(bench: Bench, commit_unknown: Any) -> None:
    first = bench.step("first").schedule()
    ring_and_step(bench.jobs)
    run_claimed(bench.jobs)
    second = bench.step("second").schedule()
    commit_unknown(bench.jobs)
    with pytest.raises(StoreUnavailableError):
        engine_of(bench.jobs).dispatch.run(engine_of(bench.jobs)._conn(), claiming=True)
    assert bench.states(first, second) == ["success", "claimed"]
    bench.drain()
    assert bench.states(first, second) == ["success", "success"]
    assert bench.script.ran == ["first", "second"]
    assert bench.jobs.get_task(second).attempt == 1
    assert not engine_of(bench.jobs).engine_state.held


@pytest.mark.case(2)
def test_a_lost_worker_that_cannot_join_again_at_once_claims_nothing_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(bench.jobs)
    ring_and_step(bench.jobs)
    bench.execute("UPDATE schedd_workers SET state = 3")
    task = bench.step("task").schedule()

    def away(*_: Any) -> Any:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as m:
        m.setattr("scheduler.store.workers.register", away)
        bench.clock.advance(11)
        for _ in range(2):
            with contextlib.suppress(StoreUnavailableError):
                ring_and_step(bench.jobs)
    assert bench.state(task) == "scheduled"
    bench.drain()
    assert bench.script.ran == ["task"]
    assert engine.worker


@pytest.mark.case(2)
def test_what_waited_for_a_slot_when_the_lease_was_lost_takes_no_room_any_more(bench: Bench) -> None:
    jobs = bench.worker(pools={"high": (0, 0), "medium": (2, 0), "low": (0, 0)})
    first = [bench.step(f"first {n}").schedule() for n in range(2)]
    ring_and_step(jobs)
    engine = engine_of(jobs)
    assert len(engine.engine_state.held) == 2
    bench.execute("UPDATE schedd_workers SET state = 3")
    engine.periodic.timers.bring_forward("renew")
    ring_and_step(jobs)
    bench.execute("UPDATE schedd_tasks SET state = 1, worker = NULL, claimed_at = NULL WHERE state IN (1, 4)")
    later = [bench.step(f"later {n}").schedule() for n in range(2)]
    drain(jobs)
    assert bench.states(*first, *later) == ["success"] * 4
    assert sorted(bench.script.ran) == ["first 0", "first 1", "later 0", "later 1"]
    assert not engine.engine_state.held


@pytest.mark.case(60)
def test_a_suspect_for_a_pool_that_this_worker_lacks_holds_up_nobody(bench: Bench) -> None:
    suspect = bench.step("suspect").priority("low").schedule()
    bench.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2")
    other = bench.step("other").schedule()
    worker = bench.worker(pools={"low": (0, 0)})
    drain(worker)
    assert bench.states(suspect, other) == ["scheduled", "success"]
    bench.drain()
    assert bench.state(suspect) == "success"


@pytest.mark.case(60)
def test_a_suspect_whose_pool_is_taken_for_long_holds_up_nobody(bench: Bench) -> None:
    bench.jobs._options = bench.jobs._options._replace(pools={"high": (1, 0), "medium": (2, 0), "low": (1, 0)})
    engine = engine_of(bench.jobs)
    bench.step("long").priority("low").schedule()
    ring_and_step(bench.jobs)
    (low,) = [s for key, s in engine.slots.items() if key == (2, False)]
    attempt = low.waiting.popleft()  # its body is under way
    attempt.started_at, attempt.started_mono = bench.clock.now(), bench.clock.monotonic()
    bench.clock.advance(11)
    suspect = bench.step("suspect").priority("low").schedule()
    bench.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2 WHERE id = :id", id=suspect)
    other = bench.step("other").schedule()
    for _ in range(3):
        bench.clock.advance(1.5)
        ring_and_step(bench.jobs)
        while engine.slots[1, False].run_one():
            pass
    ring_and_step(bench.jobs)
    assert bench.states(suspect, other) == ["scheduled", "success"]
    engine.engine_state.report(attempt, execute(attempt, engine.engine_state))
    bench.drain()
    assert bench.states(suspect) == ["success"]


def test_a_request_that_its_handler_stopped_waiting_for_stops_no_turn(bench: Bench) -> None:
    first = bench.step("first").schedule()
    ring_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (attempt,) = engine.engine_state.held.values()
    engine.engine_state.inline = None
    assert engine.engine_state.request(
        attempt, "beat", {"percent": 5.0}
    ).cancel()  # what asyncio does when it cancels who awaits it
    run_claimed(bench.jobs)
    second = bench.step("second").schedule()
    ring_and_step(bench.jobs)
    bench.drain()
    assert bench.states(first, second) == ["success", "success"]
    assert not engine.engine_state.held


def test_the_last_write_records_what_an_earlier_turn_could_not(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    task = bench.step("task").schedule()
    ring_and_step(bench.jobs)
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


class Old(Task, kind="old", schema_version=2):
    def run(self, ctx: Context) -> None: ...

    @classmethod
    def upgrade(cls, payload: Any, version: int) -> Any:
        raise SystemExit("no")


def test_an_upgrade_that_raises_systemexit_ends_only_its_task(database: Database) -> None:
    with Scheduler(database.url, pools={"medium": (1, 0)}) as jobs:
        jobs.register(Old)
        jobs.register(Step)
        jobs.state = None
        engine = jobs.engine
        spec = jobs.task(Old())._spec
        spec.schema_version = 1
        task = jobs._caller.store([spec])[0]
        assert jobs.wait(task, 10)[task].state == "dead"
        until(lambda: not engine.engine_state.held)  # which follows the commit
        jobs.stop()


class Exits(Task, kind="exits"):
    async def run(self, ctx: Any) -> None:
        import asyncio

        async def inner() -> None:
            raise SystemExit(3)

        await asyncio.gather(inner())


class Fine(Task, kind="fine"):
    async def run(self, ctx: Any) -> str:
        return "fine"


@pytest.mark.case(7)
def test_systemexit_in_a_handlers_own_asyncio_task_leaves_the_loop_alive(database: Database) -> None:
    with Scheduler(database.url) as jobs:
        jobs.register(Exits)
        jobs.register(Fine)
        bad = jobs.task(Exits()).schedule()
        assert jobs.wait(bad, 10)[bad].state == "dead"
        good = jobs.task(Fine()).schedule()
        assert jobs.result(good, 10) == "fine"


@pytest.mark.case(8)
def test_stop_while_a_turn_claims_leaves_nothing_behind(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
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
    task = jobs.task(Slow()).schedule()
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


def test_who_asks_after_the_engine_has_stopped_is_told(bench: Bench) -> None:
    bench.step("task").schedule()
    ring_and_step(bench.jobs)
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


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_without_permission_for_a_socket_an_engine_polls(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("scheduler.store.db.notifier.fcntl.flock", refuse)
    with Scheduler(database.url) as jobs:
        jobs.register(Fine)
        assert jobs.result(jobs.task(Fine()).schedule(), 10) == "fine"


def test_some_of_the_retention_times_may_be_given(database: Database) -> None:
    with Scheduler.for_testing(url=database.url, retention={"success": 3600}) as jobs:
        assert jobs._make_engine().options.retention == {
            "success": 3600.0,
            "failed": 30 * 86400.0,
            "outcomes": 90 * 86400.0,
            "events": 30 * 86400.0,
            "results": 86400.0,
            "keys": 86400.0,
        }


def test_kinds_registered_while_the_database_is_away_are_published_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring_and_step(bench.jobs)

    def away(*_: Any) -> Any:
        raise StoreUnavailableError("away")

    bench.jobs.register(Fine)
    with monkeypatch.context() as m:
        m.setattr("scheduler.store.workers.publish_kinds", away)
        with pytest.raises(StoreUnavailableError):
            ring_and_step(bench.jobs)
    ring_and_step(bench.jobs)
    with bench.jobs.database.read() as connection:
        found = connection.execute(sa.text("SELECT 1 FROM schedd_worker_kinds WHERE kind = 'fine'")).scalar()
    assert found == 1


def test_a_closed_scheduler_leaves_no_file_open(database: Database) -> None:
    def run_one() -> int:
        with Scheduler(database.url, pools={"medium": (1, 1)}) as jobs:
            jobs.register(Fine)
            assert jobs.result(jobs.task(Fine()).schedule(), 10) == "fine"
            threads = [t for t in threading.enumerate() if t.name.startswith("schedd-")]
        jobs.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        return len(os.listdir("/proc/self/fd"))

    run_one()
    before = run_one()
    for _ in range(3):
        assert run_one() <= before


@pytest.mark.case(18)
def test_an_outcome_that_cannot_be_recorded_keeps_no_other_from_it(bench: Bench) -> None:
    ids = [bench.step(name).schedule() for name in ("one", "bad", "two")]
    ring_and_step(bench.jobs)
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
        ring_and_step(bench.jobs)
    engine._needs_scan = True  # as the loop does
    bench.drain()
    assert bench.states(*ids, later) == ["success", "dead", "success", "success"]
    assert "could not be recorded" in str(bench.jobs.get_task(ids[1]).error)
    assert not engine.engine_state.held


@task
def rare(ctx: Context) -> None: ...


@task
def common(ctx: Context) -> None: ...


def test_room_that_a_short_lane_left_goes_to_the_others(fleet: Fleet) -> None:
    """Each lane is given a share without knowing how much is in it."""
    jobs = fleet.worker(rare, common, pools={"high": (0, 0), "medium": (8, 0), "low": (0, 0)})
    jobs.task(rare).schedule()
    with jobs.batch() as batch:
        for _ in range(40):
            batch.task(common)
    step(jobs)
    engine = engine_of(jobs)
    for _ in range(3):
        engine.step()  # by itself: nobody rings
    assert len(engine.engine_state.held) == 8


@pytest.mark.case(64)
def test_what_a_stuck_pool_hands_back_is_left_to_others(fleet: Fleet, clock: FakeClock) -> None:
    """Its kind took no time so far, so more was claimed than there are slots; the next one takes long."""
    seen: list[str] = []

    @task
    def work(ctx: Context, long: bool = False) -> None:
        if long and not seen:
            clock.advance(1.5)
            step(first)  # what waits behind this body goes back
            seen.append(str(first.get_task(waiting).state))
            step(second)
            run_claimed(second)
            step(second)
            seen.append(str(first.get_task(waiting).state))

    first, second = (fleet.worker(work, pools={"high": (0, 0), "medium": (1, 0), "low": (0, 0)}) for _ in range(2))
    first.task(work).schedule()
    drain(first)
    step(second)
    first.task(work, long=True).schedule()
    waiting = first.task(work, long=True).schedule()
    step(first)
    assert str(first.get_task(waiting).state) == "claimed"
    (slots,) = [s for s in engine_of(first).inline_slots() if s.waiting]
    slots.run_one()
    assert seen == ["scheduled", "success"]
    assert first.get_task(waiting).attempt == 1


@pytest.mark.case(8)
def test_a_drain_that_was_asked_for_outlives_a_turn_that_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring that told of it is used up by then."""
    ring_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    bench.clock.advance(1)
    with bench.jobs.database.write() as connection:
        workers.request_drain(connection, engine.worker, bench.clock.now(), drain=True)

    def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("away")

    with monkeypatch.context() as broken:
        broken.setattr(engine.dispatch, "run", fail)
        with pytest.raises(StoreUnavailableError):
            ring_and_step(bench.jobs)
    engine.step()
    assert engine.registration.drain_requested


def quiet(bench: Bench) -> Engine:
    """An engine that has nothing to do and knows it."""
    ring_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    engine.step()
    return engine


def away(*_: Any, **__: Any) -> Any:
    raise StoreUnavailableError("away")


@pytest.mark.case(9)
def test_what_a_failed_round_was_for_is_done_by_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring is used up by then."""
    engine = quiet(bench)
    task = bench.step("task").schedule()
    engine.ring()
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
def test_ends_that_wait_for_a_turn_outlive_an_urgent_one_that_fails(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes none of them, and may not lose them either."""
    task = bench.step("task").schedule()
    ring_and_step(bench.jobs)
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


@pytest.mark.case(9)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("locked", ["unknown", "ends"])
def test_a_claim_that_nobody_knows_of_goes_back_though_somebody_holds_a_row(
    bench: Bench, commit_unknown: Any, locked: str
) -> None:
    """Its own, so that it is left for later; or another's that ends, so that the turn is done over."""
    quiet(bench)
    engine = engine_of(bench.jobs)
    ends = bench.step("ends").schedule()
    ring_and_step(bench.jobs)
    unknown = bench.step("unknown").schedule()
    commit_unknown(bench.jobs)
    with pytest.raises(StoreUnavailableError):
        engine.dispatch.run(engine._conn(), claiming=True)
    assert bench.states(ends, unknown) == ["claimed", "claimed"]
    assert {key[0] for key in engine.engine_state.held} == {ends}
    run_claimed(bench.jobs)
    row = {"id": unknown if locked == "unknown" else ends}
    with bench.jobs.database.write() as caller:
        caller.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), row)
        ring_and_step(bench.jobs)
    bench.drain()
    assert bench.states(ends, unknown) == ["success", "success"]
    assert (bench.script.ran, bench.jobs.get_task(unknown).attempt) == (["ends", "unknown"], 1)
    assert not engine.engine_state.held


@pytest.mark.case(8)
def test_what_a_turn_claims_while_a_drain_begins_goes_back_with_the_next(
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
        ring_and_step(bench.jobs)
    assert not any(slots.waiting for slots in engine.slots.values())
    engine.step()
    assert (bench.state(task), engine.engine_state.held, bench.script.ran) == ("scheduled", {}, [])


def test_a_last_write_is_not_made_beside_a_turn_that_does_not_end(
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
    engine.ring()
    assert stuck.wait(10)
    trouble = engine.stop(hand_back_running=True)
    go.set()
    assert goodbyes == []
    assert "still under way" in str(trouble)
    assert engine._thread is not None
    engine._thread.join(10)
    jobs.close()


def test_an_end_reported_right_before_the_engine_sleeps_is_not_slept_over(bench: Bench) -> None:
    """Whoever reports it wakes nobody yet."""
    bench.step("task").schedule()
    ring_and_step(bench.jobs)
    engine_state = engine_of(bench.jobs).engine_state
    engine_state.sleep(0.0)
    assert engine_state._bell.empty()
    run_claimed(bench.jobs)
    assert engine_state.outcomes
    assert engine_state._bell.empty()

    class Deaf:
        def get(self, timeout: float) -> None:
            raise AssertionError("it sleeps")

    engine_state._bell = Deaf()  # type: ignore[assignment]
    engine_state.sleep(60.0)
    assert not engine_state._sleeping


@pytest.mark.case(8)
def test_what_was_put_off_is_answered_when_the_engine_stops_without_its_database(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.step("task").schedule()
    ring_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (attempt,) = engine.engine_state.held.values()
    engine.engine_state.inline = None
    asked = engine.engine_state.request(attempt, "beat", {"percent": 5.0})
    engine.engine_state.put_off.append(engine.engine_state.requests.popleft())
    monkeypatch.setattr(engine, "_last_write", away)
    assert engine.stop(hand_back_running=True) is not None
    with pytest.raises(StoreUnavailableError):
        asked.result(0)


@pytest.mark.case(9, 60)
def test_a_suspect_that_has_run_for_long_is_none_although_a_turn_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.step("suspect").schedule()
    bench.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2")
    ring_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    (medium,) = [slots for slots in engine.slots.values() if slots.waiting]
    attempt = medium.waiting.popleft()  # its body is under way
    assert attempt is engine.dispatch.planner.alone
    attempt.started_at, attempt.started_mono = bench.clock.now(), bench.clock.monotonic()
    bench.clock.advance(11)
    with monkeypatch.context() as broken:
        broken.setattr(engine.dispatch, "_claim", away)
        with pytest.raises(StoreUnavailableError):
            ring_and_step(bench.jobs)
    ring_and_step(bench.jobs)
    assert [row.lane for row in rows(bench.jobs, "SELECT lane FROM schedd_tasks")] == ["Step"]
    assert engine.dispatch.planner.alone is None


class _Refused(deque[Any]):
    """Requests of which the guard answers the last one right before it is taken."""

    def popleft(self) -> Any:
        answer = super().popleft().answer
        answer.set_result({"held": False})
        return super().popleft()


@pytest.mark.case(2, 4)
def test_a_request_that_the_guard_answers_as_a_turn_begins_loses_no_end(bench: Bench) -> None:
    """Else the turn fails with the ends in its hands: their tasks stay claimed by a worker that is well."""
    ended, asking = bench.step("ended").schedule(), bench.step("asking").schedule()
    ring_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    held = {key[0]: attempt for key, attempt in engine.engine_state.held.items()}
    engine.engine_state.inline = None
    engine.engine_state.report(held[ended], execute(held[ended], engine.engine_state))
    engine.engine_state.requests = _Refused()
    refused = engine.engine_state.request(held[asking], "beat", {"percent": 5.0})
    engine.step()
    assert refused.result(0) == {"held": False}
    assert bench.state(ended) == "success"


@pytest.mark.case(5)
def test_a_clock_that_is_set_back_makes_no_kind_a_quick_one(bench: Bench) -> None:
    """Else tasks of seconds are claimed ahead by the hundred."""
    engine_state = engine_of(bench.jobs).engine_state

    def slow(ctx: Context) -> None:
        bench.clock.advance(5)

    def set_back(ctx: Context) -> None:
        bench.clock.jump(-3600)

    bench.script.bodies |= {"slow": slow, "set back": set_back}
    bench.step("slow").schedule()
    bench.drain()
    assert engine_state.means == {"Step": 5.0}
    bench.step("set back").schedule()
    bench.drain()
    assert engine_state.means == {"Step": 5.0}
