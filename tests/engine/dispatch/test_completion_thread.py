"""Ends that are recorded beside the claim: nothing that they bring about is overlooked, nothing is lost on an error."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import AsyncContext, Context, RetryPolicy, Scheduler, TaskState, task
from scheduler.engine.attempt.outcomes import released
from scheduler.engine.dispatch import completion as ledger
from scheduler.engine.dispatch.completion_thread import CompletionThread, Write
from scheduler.engine.slots import AsyncSlots, ThreadSlots
from scheduler.errors import StoreUnavailableError
from scheduler.model.capacity import ASYNC, THREAD
from scheduler.ports import SECOND, spawn_thread
from scheduler.store.db.dialect import PostgreSQL
from scheduler.store.durable import waits
from scheduler.store.tasks import claim as claims
from scheduler.store.tasks.complete import Completion, RowLocked
from scheduler.testing import FakeClock, engine_of
from support.databases import Database
from support.fleet import Fleet, ends, rows, run_claimed, step
from support.lost_answers import fail_at

pytestmark = pytest.mark.case(6)
postgresql = pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)

FLOOD = 30
LAST = 7


@task
def plain(ctx: Context) -> None: ...


@task
async def coroutine(ctx: AsyncContext) -> None: ...


@task
def fails_once(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise RuntimeError("once")


@task
def last_fails_once(ctx: Context, n: int) -> None:
    if n == LAST and ctx.attempt == 1:
        raise RuntimeError("once")


@task
def named(ctx: Context, text: str) -> None: ...


class _Late(Future[Completion]):
    """A recording that is as slow as can be: it begins when the cycle, having claimed, waits for it."""

    def __init__(self, work: Any) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Completion:
        if not self.done():
            self._work(self)
        return super().result()


class LateRecorder(CompletionThread):
    """``recorded``: how many recordings there were; ``fails_with``: instead of the next one."""

    recorded = 0
    fails_with: BaseException | None = None

    def begin(self, write: Write) -> Future[Completion] | None:
        connection = self._ready()
        if connection is None:
            return None
        self.recorded += 1

        def work(done: Future[Completion]) -> None:
            error, self.fails_with = self.fails_with, None
            if error is not None:
                done.set_exception(error)
            else:
                self._do(connection, write, done)

        return _Late(work)


@pytest.fixture(autouse=True)
def _few_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "BACKGROUND_MIN_OUTCOMES", 2)


def in_fours(fleet: Fleet, *types: Any) -> tuple[Scheduler, LateRecorder]:
    """A worker whose cycles claim four tasks, and what records their ends."""
    jobs = fleet.worker(*types, pools={"medium": (4, 0)})
    dispatch = engine_of(jobs).dispatch
    dispatch.planner.batch = 4
    completion_thread = LateRecorder(jobs.database, 30.0, None)
    if jobs.database.dialect.name == "postgresql":
        dispatch.completer.completion_thread = completion_thread
    return jobs, completion_thread


def flood(jobs: Scheduler) -> list[int]:
    return [jobs.task(plain).schedule() for _ in range(FLOOD)]


def goes_on(jobs: Scheduler) -> int:
    """Run the claimed handlers, then one more cycle, without a notification."""
    ran = run_claimed(jobs)
    engine_of(jobs).step()
    return ran


def drain(jobs: Scheduler) -> None:
    """Until nothing is held any more."""
    for _ in range(2 * FLOOD):
        if not goes_on(jobs) and not engine_of(jobs).engine_state.held:
            return
    raise AssertionError("it does not come to an end")


def each_ran_once(jobs: Scheduler, ids: list[int]) -> None:
    assert [ends(jobs, i) for i in ids] == [["succeeded"]] * len(ids)
    assert all(jobs.get_task_status(i) is TaskState.SUCCESS for i in ids)
    assert not engine_of(jobs).engine_state.held


@postgresql
def test_with_a_backlog_and_only_then(fleet: Fleet) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert completion_thread.recorded == 0
    assert goes_on(jobs) == 4
    assert completion_thread.recorded == 1
    drain(jobs)
    each_ran_once(jobs, ids)
    before = completion_thread.recorded
    few = [jobs.task(plain).schedule() for _ in range(3)]
    step(jobs)
    drain(jobs)
    each_ran_once(jobs, few)
    assert completion_thread.recorded == before  # what is claimed next may wait for what is recorded


@postgresql
def test_what_a_recorded_end_releases_is_found_without_a_notification(fleet: Fleet) -> None:
    jobs, completion_thread = in_fours(fleet, plain, fails_once)
    parent = jobs.task(plain).schedule()
    child = jobs.task(fails_once).with_retry(RetryPolicy(0, max_attempts=2)).depend_on(parent).schedule()
    flood(jobs)
    step(jobs)
    assert goes_on(jobs) == 4
    assert completion_thread.recorded == 1
    assert jobs.get_task_status(child) is TaskState.SCHEDULED
    assert engine_of(jobs)._pause() == 0
    goes_on(jobs)
    assert jobs.get_task_status(child) is TaskState.CLAIMED


@postgresql
def test_not_right_after_something_was_released(fleet: Fleet) -> None:
    """What a graph's end releases is claimed with it: there may be little else."""
    jobs, completion_thread = in_fours(fleet, plain)
    parents = [jobs.task(plain).schedule() for _ in range(4)]
    children = [jobs.task(plain).depend_on(parent).schedule() for parent in parents]
    ids = flood(jobs)
    step(jobs)
    assert goes_on(jobs) == 4
    assert completion_thread.recorded == 1
    assert goes_on(jobs) == 4
    assert completion_thread.recorded == 1
    drain(jobs)
    assert completion_thread.recorded > 1
    each_ran_once(jobs, parents + children + ids)


@postgresql
@pytest.mark.parametrize("delay", [0, 0.5])
def test_what_the_last_recorded_end_makes_due_is_known(fleet: Fleet, clock: FakeClock, delay: float) -> None:
    """The claim beside it found nothing, and no handler is left whose end would bring another cycle."""
    jobs, completion_thread = in_fours(fleet, last_fails_once)
    ids = [
        jobs.task(last_fails_once, n).with_retry(RetryPolicy(delay, max_attempts=2)).schedule() for n in range(LAST + 1)
    ]
    step(jobs)
    assert [goes_on(jobs), goes_on(jobs)] == [4, 4]
    assert completion_thread.recorded == 2
    assert not engine_of(jobs).engine_state.held
    assert jobs.get_task_status(ids[-1]) is TaskState.RETRY
    ((due,),) = rows(jobs, "SELECT run_at FROM schedd_tasks WHERE id = :id", id=ids[-1])
    assert engine_of(jobs)._pause() == 0
    engine_of(jobs).step()
    if delay:
        assert engine_of(jobs)._next_due == due
        clock.advance((due - clock.now()) / SECOND)
        engine_of(jobs).step()
    drain(jobs)
    assert ends(jobs, ids[-1]) == ["retried", "succeeded"]
    each_ran_once(jobs, ids[:-1])


@postgresql
def test_what_is_handed_back_beside_a_claim_is_notified_to_others(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slot here began it in time: another worker may, at once."""
    jobs, completion_thread = in_fours(fleet, plain)
    engine = engine_of(jobs)
    flood(jobs)
    step(jobs)
    (slots,) = [slots for slots in engine.inline_slots() if slots.waiting]
    attempt = slots.waiting.pop()
    assert run_claimed(jobs) == 3
    engine.engine_state.report(attempt, released(attempt, jobs.database.now()))
    notified: list[str] = []
    monkeypatch.setattr(engine.notifier, "notify", lambda: notified.append("others"))
    engine.step()
    assert completion_thread.recorded == 1
    assert notified == ["others"]


@postgresql
def test_whatever_a_recording_raises_its_cycle_hears_of_it(fleet: Fleet) -> None:
    """It waits for an answer, without any limit."""
    jobs, _ = in_fours(fleet, plain)

    def write(_: sa.Connection) -> Completion:
        raise SystemExit(3)

    recording = CompletionThread(jobs.database, 30.0, None).begin(write)
    assert recording is not None
    assert isinstance(recording.exception(0), SystemExit)


@postgresql
def test_a_claim_that_fails_does_not_undo_what_is_recorded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    with monkeypatch.context() as broken:
        broken.setattr(claims, "claim", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine_of(jobs).step()
    assert completion_thread.recorded == 1
    each_ran_once(jobs, ids[:4])
    assert not engine_of(jobs).dispatch.completer.deferred
    step(jobs)
    drain(jobs)
    each_ran_once(jobs, ids)


@postgresql
@pytest.mark.parametrize("claiming", ["too", "succeeds"])
def test_what_could_not_be_recorded_is_recorded_later(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, claiming: str
) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    completion_thread.fails_with = StoreUnavailableError("gone")
    with monkeypatch.context() as broken:
        if claiming == "too":
            broken.setattr(claims, "claim", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError if claiming == "too" else StoreUnavailableError):
            engine_of(jobs).step()
    assert completion_thread.recorded == 1
    assert len(engine_of(jobs).dispatch.completer.deferred) == 4
    assert len(rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state = 4")) == (4 if claiming == "too" else 8)
    step(jobs)
    drain(jobs)
    each_ran_once(jobs, ids)
    assert completion_thread.recorded == 1  # not tried again at once


@postgresql
def test_an_outcome_that_cannot_be_recorded_beside_others_is_set_aside(fleet: Fleet) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    outcomes = engine_of(jobs).engine_state.outcomes
    attempt, bad = outcomes[1]
    outcomes[1] = (attempt, bad._replace(result='"\0"'))  # no text of PostgreSQL's
    with pytest.raises(Exception, match="NUL"):
        engine_of(jobs).step()
    assert completion_thread.recorded == 1
    step(jobs)
    drain(jobs)
    assert jobs.get_task_status(ids[1]) is TaskState.DEAD
    each_ran_once(jobs, ids[:1] + ids[2:])


@postgresql
def test_what_a_caller_holds_is_put_off(fleet: Fleet) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    with jobs.database.write() as tx:
        tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), {"id": ids[0]})
        engine_of(jobs).step()
        assert completion_thread.recorded == 1
        assert len(engine_of(jobs).dispatch.completer.deferred) == 4
        assert engine_of(jobs)._pause() == 0
        engine_of(jobs).step()
        assert [jobs.get_task_status(i) for i in ids[:4]] == [TaskState.CLAIMED] + [TaskState.SUCCESS] * 3
    drain(jobs)
    each_ran_once(jobs, ids)


@postgresql
@pytest.mark.parametrize("claim", ["succeeds", "fails"])
def test_what_a_recorded_end_left_to_be_done_is_passed_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    """Other workers are notified, a missed wait is looked for, a schedule may fire again. If the claim beside it fails,
    the next cycle does it."""
    jobs, completion_thread = in_fours(fleet, plain, fails_once)
    engine = engine_of(jobs)
    parent = jobs.task(plain).schedule()
    child = jobs.task(fails_once).queue("other").depend_on(parent).schedule()
    flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    notified: list[str] = []
    monkeypatch.setattr(engine.notifier, "notify", lambda: notified.append("others"))
    monkeypatch.setattr(engine.periodic.schedules, "check_again", lambda: notified.append("schedules"))
    for attempt, _ in engine.engine_state.outcomes:
        attempt.claimed = attempt.claimed._replace(schedule="nightly")
    do, look = completion_thread._do, engine.periodic.poll
    looked: list[bool] = []

    def leaving_a_flag(connection: sa.Connection, write: Write, done: Future[Completion]) -> None:
        connection.info[waits.OVERLOOKED] = True  # as if it had collided with the end of another task awaited, too
        do(connection, write, done)

    def watched(connection: sa.Connection, *, polls: bool) -> bool:
        looked.append(bool(connection.info.get(waits.OVERLOOKED)))
        return look(connection, polls=polls)

    monkeypatch.setattr(completion_thread, "_do", leaving_a_flag)
    monkeypatch.setattr(engine.periodic, "poll", watched)
    if claim == "fails":
        with monkeypatch.context() as broken:
            broken.setattr(claims, "claim", lambda *_: 1 / 0)
            assert engine._round() == 0
        assert completion_thread.recorded == 1
        assert not notified
        monkeypatch.setattr(completion_thread, "_do", do)
    engine.step()
    monkeypatch.setattr(completion_thread, "_do", do)
    assert jobs.get_task_status(child) is TaskState.SCHEDULED
    assert sorted(notified) == ["others", "schedules"]
    assert engine._pause() == 0
    engine.step()
    assert looked[-2:] == [False, True]
    assert not completion_thread.flagged(waits.OVERLOOKED)


@postgresql
def test_claims_that_cannot_be_handed_out_go_back_and_the_rest_is_recorded(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    engine = engine_of(jobs)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    with monkeypatch.context() as broken:
        broken.setattr(engine.dispatch.feeder, "submit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    assert completion_thread.recorded == 1
    assert not engine.engine_state.held
    each_ran_once(jobs, ids[:4])
    assert len(rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state = 4")) == 4
    step(jobs)
    drain(jobs)
    assert all(jobs.get_task_status(i) is TaskState.SUCCESS for i in ids)
    assert {tuple(ends(jobs, i)) for i in ids[8:]} == {("succeeded",)}
    assert {rows(jobs, "SELECT attempt FROM schedd_tasks WHERE id = :id", id=i)[0].attempt for i in ids} == {1}


@postgresql
@pytest.mark.parametrize("recording", ["succeeds", "is contended", "fails"])
def test_a_suspect_starts_once_the_ends_beside_it_are_recorded(fleet: Fleet, recording: str) -> None:
    """It may kill the process, and then what is held by the database is blamed as well."""
    jobs, completion_thread = in_fours(fleet, plain)
    engine = engine_of(jobs)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    with jobs.database.write() as tx:
        tx.connection.execute(
            sa.text("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2 WHERE state = 1 AND id = :i"),
            {"i": ids[4]},
        )
        tx.connection.execute(
            sa.text("UPDATE schedd_tasks SET run_at = run_at + 60000000 WHERE state = 1 AND id > :i"), {"i": ids[4]}
        )
    completion_thread.fails_with = {"is contended": RowLocked(), "fails": StoreUnavailableError("gone")}.get(recording)
    seen: list[int] = []
    give = engine.dispatch.feeder.submit

    def watched(claimed: list[claims.Claimed], *rest: Any) -> None:
        if claimed:
            seen.append(len(rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state = 4")))
        give(claimed, *rest)

    engine.dispatch.feeder.submit = watched  # type: ignore[method-assign]
    engine.dispatch.lanes.reset()
    if recording == "fails":
        with pytest.raises(StoreUnavailableError):
            step(jobs)
    else:
        step(jobs)
    assert completion_thread.recorded == 1
    if recording != "succeeds":
        assert not seen
        assert len(rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state = 4")) == 5
        step(jobs)
        step(jobs)
    assert seen == [1]
    assert run_claimed(jobs) == 1
    step(jobs)
    each_ran_once(jobs, ids[:4])
    assert jobs.get_task_status(ids[4]) is TaskState.SUCCESS


@postgresql
def test_a_lost_handler_that_has_ended_keeps_its_task_from_no_worker(fleet: Fleet) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    engine = engine_of(jobs)
    ids = flood(jobs)
    step(jobs)
    (attempt, *_) = engine.engine_state.held.values()
    task_id = attempt.claimed.id
    with jobs.database.write() as tx:
        tx.connection.execute(
            sa.text("UPDATE schedd_tasks SET state = 1, worker = NULL, run_at = 0 WHERE id = :i"), {"i": task_id}
        )
    engine.engine_state.mark_lost(attempt)
    assert run_claimed(jobs) == 4
    engine.step()
    assert completion_thread.recorded == 1
    assert any(key[0] == task_id for key in engine.engine_state.held)
    drain(jobs)
    assert all(jobs.get_task_status(i) is TaskState.SUCCESS for i in ids)


@postgresql
@pytest.mark.parametrize("missing", ["connection", "thread"])
def test_without_a_second_connection_or_thread_one_has_to_do(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    """The server's limit, a pooler's, the system's: told once, and tried again after a while."""
    jobs, _ = in_fours(fleet, plain)
    dispatch = engine_of(jobs).dispatch
    asked: list[str] = []

    def refused(*_: Any, **__: Any) -> Any:
        asked.append(missing)
        raise StoreUnavailableError("too many connections") if missing == "connection" else RuntimeError("no thread")

    if missing == "connection":
        dispatch.completer.completion_thread = completion_thread = CompletionThread(jobs.database, 30.0, None)
        monkeypatch.setattr(jobs.database, "connect", refused)
        engine_of(jobs)._conn = lambda: connection  # type: ignore[method-assign]
        connection = jobs.database.open().connect()
    else:
        dispatch.completer.completion_thread = completion_thread = CompletionThread(jobs.database, 30.0, refused)
    ids = flood(jobs)
    step(jobs)
    drain(jobs)
    each_ran_once(jobs, ids)
    assert asked == [missing]
    assert len([r for r in caplog.records if "which is slower" in r.getMessage()]) == 1
    completion_thread._not_before = 0.0
    flood(jobs)
    step(jobs)
    drain(jobs)
    assert asked == [missing] * 2
    assert len([r for r in caplog.records if "which is slower" in r.getMessage()]) == 1


@postgresql
def test_its_statements_are_planned_anew_as_the_lease_is_renewed(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that was made while a table was small reads all of it when it has grown."""
    jobs, completion_thread = in_fours(fleet, plain)
    forgotten: list[bool] = []
    forget = PostgreSQL.forget_plans

    def recording_forget(dialect: Any, connection: sa.Connection) -> None:
        forgotten.append(connection is completion_thread._connection)
        forget(dialect, connection)

    monkeypatch.setattr(PostgreSQL, "forget_plans", recording_forget)
    flood(jobs)
    step(jobs)
    assert goes_on(jobs) == 4
    forgotten.clear()
    assert goes_on(jobs) == 4
    assert forgotten == []
    clock.advance(engine_of(jobs).options.lease / 3)
    assert goes_on(jobs) == 4
    assert forgotten == [False, True]
    assert goes_on(jobs) == 4
    assert forgotten == [False, True]


@postgresql
def test_a_connection_that_died_while_it_was_idle_is_replaced(fleet: Fleet) -> None:
    jobs, completion_thread = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert goes_on(jobs) == 4
    assert completion_thread._connection is not None
    ((pid,),) = completion_thread._connection.exec_driver_sql("SELECT pg_backend_pid()").fetchall()
    completion_thread._connection.rollback()
    rows(jobs, f"SELECT pg_terminate_backend({pid}, 20000)")
    completion_thread._used = float("-inf")
    drain(jobs)
    each_ran_once(jobs, ids)
    assert completion_thread.recorded > 2


@postgresql
def test_its_thread_ends_with_the_engine(database: Database) -> None:
    """With real threads: what is recorded overlaps what is claimed."""
    jobs = Scheduler(database.url)
    jobs.register(plain)
    with jobs.batch() as batch:
        for _ in range(3000):
            batch.task(plain)
    made: list[str] = []
    with jobs:
        completion_thread = jobs.engine.dispatch.completer.completion_thread
        assert completion_thread is not None
        begin = completion_thread.begin

        def counted(write: Write) -> Future[Completion] | None:
            made.append("one")
            return begin(write)

        completion_thread.begin = counted  # type: ignore[method-assign]
        deadline = time.monotonic() + 30
        while rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state < 6 LIMIT 1"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        thread = completion_thread._thread
    assert made
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()
    assert completion_thread.begin(lambda _: None) is None  # type: ignore[arg-type, return-value]
    assert {tuple(ends(jobs, i)) for i in batch.ids[::100]} == {("succeeded",)}
    assert rows(jobs, "SELECT state, count(*) AS n FROM schedd_tasks GROUP BY state")[0].n == 3000
    jobs.close()


@postgresql
def test_a_replaced_task_is_claimed_again(fleet: Fleet) -> None:
    jobs, completion_thread = in_fours(fleet, plain, named)
    first = jobs.task(named, "a").key("k", conflict="replace").schedule()
    flood(jobs)
    step(jobs)
    assert jobs.task(named, "b").key("k", conflict="replace").schedule() == first
    assert goes_on(jobs)
    assert completion_thread.recorded == 1
    assert jobs.get_task_status(first) is TaskState.SCHEDULED
    goes_on(jobs)
    assert jobs.get_task_status(first) is TaskState.CLAIMED
    drain(jobs)
    assert ends(jobs, first) == ["succeeded", "succeeded"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("sort", ["threads", "coroutines"])
def test_what_no_thread_can_be_started_for_goes_back_and_comes_again(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    """The other pools' tasks run, and nothing is held for ever."""
    jobs = fleet.worker(plain, coroutine, pools={"medium": (2, 2), "high": (2, 0)})
    engine = engine_of(jobs)
    kind = plain if sort == "threads" else coroutine
    allowed: list[bool] = []

    def spawn(target: Any, name: str) -> Any:
        if not allowed:
            raise RuntimeError("can't start new thread")
        return spawn_thread(target, name)

    cls = ThreadSlots if sort == "threads" else AsyncSlots
    engine.slots[1, THREAD if sort == "threads" else ASYNC] = cls(
        "medium", 2, engine.engine_state, engine.engine_state.report, spawn
    )
    ids = [jobs.task(kind).schedule() for _ in range(2)]
    other = jobs.task(plain).priority("high").schedule()
    step(jobs)
    assert len(engine.engine_state.outcomes) == 2
    assert run_claimed(jobs) == 1
    step(jobs)
    assert not engine.engine_state.held
    assert jobs.get_task_status(other) is TaskState.SUCCESS
    assert [jobs.get_task_status(i) for i in ids] == [TaskState.SCHEDULED] * 2
    allowed.append(True)
    clock.advance(1)
    deadline = time.monotonic() + 20
    while (
        jobs.get_task_status(ids[0]) is not TaskState.SUCCESS or jobs.get_task_status(ids[1]) is not TaskState.SUCCESS
    ):
        assert time.monotonic() < deadline
        step(jobs)
    assert {tuple(ends(jobs, i)) for i in ids} <= {("handed_back", "succeeded"), ("succeeded",)}
    for slots in engine.slots.values():
        slots.close()


@postgresql
def test_what_is_kept_for_the_next_cycle_is_not_for_an_urgent_one(fleet: Fleet) -> None:
    """The engine drops an urgent cycle's result."""
    jobs, _ = in_fours(fleet, plain)
    dispatch = engine_of(jobs).dispatch
    step(jobs)
    engine_of(jobs).engine_state.freed.append(3)
    dispatch.completer.schedule_ended = dispatch.completer.one_by_one = True
    urgent = dispatch.run(engine_of(jobs)._conn(), claiming=True, urgent=True)
    assert (urgent.ready, urgent.schedule_ended, dispatch.completer.one_by_one) == (0, False, True)
    then = dispatch.run(engine_of(jobs)._conn(), claiming=True)
    assert (then.ready, then.schedule_ended, dispatch.completer.one_by_one) == (3, True, False)


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"], indirect=True)
def test_an_error_while_ends_are_logged_strands_no_claim(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's own logging may raise."""
    jobs, _ = in_fours(fleet, plain)
    ids = flood(jobs)
    step(jobs)
    assert run_claimed(jobs) == 4
    with monkeypatch.context() as broken:
        broken.setattr(ledger, "finalize", lambda *_: 1 / 0)
        broken.setattr(ledger, "BACKGROUND_MIN_OUTCOMES", 100)
        with pytest.raises(ZeroDivisionError):
            engine_of(jobs).step()
    step(jobs)
    assert len(rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state = 4")) <= 8
    assert engine_of(jobs).dispatch.lost_commits.pending is False
    held = {key[0] for key in engine_of(jobs).engine_state.held} - set(ids[:4])
    in_database = {r.id for r in rows(jobs, "SELECT id FROM schedd_tasks WHERE state = 4")}
    assert in_database == held


@task
def books(ctx: Context) -> None:
    with ctx.transaction() as tx:
        tx.result = 5


@postgresql
@pytest.mark.case(4, 9)
def test_a_success_whose_own_commit_was_not_answered_is_one(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, completion_thread = in_fours(fleet, books)
    ids = [jobs.task(books).schedule() for _ in range(FLOOD)]
    step(jobs)
    with monkeypatch.context() as broken:
        fail_at(broken, "after transaction commit")
        assert goes_on(jobs) == 4
    assert completion_thread.recorded == 1
    assert "dropped" not in caplog.text
    drain(jobs)
    each_ran_once(jobs, ids)
