"""``max_duration`` and ``max_delay``: tasks that have lived, or waited, too long are cancelled, and say why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler import Context, RetryPolicy, Scheduler, TaskState, task
from scheduler.model import state as st
from scheduler.model.policy import TaskLifetime, check_deadlines
from scheduler.ports import FOREVER
from scheduler.store.read.explain import why
from scheduler.store.tasks import deadlines as policies
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, ends, rows, run_claimed, step, write

AGAIN = RetryPolicy(min_wait=40, max_wait=40, max_attempts=None, jitter=0)


class Ran(list[str]):
    """``ctx.state``: the names that ran, and what their handlers do."""

    body: Any = None


@task(retry=AGAIN)
def play(ctx: Context, name: str = "") -> str:
    ctx.state.append(name)
    if ctx.state.body is not None:
        ctx.state.body(ctx)
    return name


@pytest.fixture
def ran() -> Ran:
    return Ran()


@pytest.fixture
def jobs(fleet: Fleet, ran: Ran) -> Scheduler:
    made = fleet.worker(play, state=ran)
    step(made)
    return made


@pytest.fixture
def idle(fleet: Fleet) -> Scheduler:
    """Another worker, which serves no kind."""
    return fleet.worker()


def fail(ctx: Context) -> None:
    raise OSError("away")


def reason_of(jobs: Scheduler, task_id: int) -> str:
    with jobs.database.read() as tx:
        return why(tx, task_id) or ""


@pytest.mark.case(50)
def test_a_life_that_ends_before_the_retry(jobs: Scheduler, ran: Ran, clock: FakeClock) -> None:
    ran.body = fail
    task_id = jobs.task(play, "it").max_duration(60).schedule()
    child = jobs.task(play, "child").depend_on(task_id, when="finished").schedule()
    drain(jobs)
    clock.advance(40)
    assert drain(jobs) == 1
    clock.advance(19)
    drain(jobs)
    assert jobs.get_task_status(task_id) is TaskState.RETRY
    clock.advance(1)
    ran.body = None
    drain(jobs)
    found = jobs.get_task(task_id)
    assert (found.state, found.attempt, found.error_class) == (TaskState.CANCELLED, 2, "MaxDurationExceeded")
    assert reason_of(jobs, task_id).endswith(": it lived longer than its max_duration of 1 min")
    assert ends(jobs, task_id) == ["retried", "retried"]
    assert ran == ["it", "it", "child"]
    assert jobs.get_task_status(child) is TaskState.SUCCESS
    clock.advance(100)
    assert drain(jobs) == 0


@pytest.mark.case(50)
def test_no_attempt_begins_after_the_end_of_its_life(jobs: Scheduler, ran: Ran, clock: FakeClock) -> None:
    """It is claimed in time, and its slot gets round to it too late."""
    task_id = jobs.task(play, "it").max_duration(10).schedule()
    step(jobs)
    clock.advance(10)
    run_claimed(jobs)
    step(jobs)
    found = jobs.get_task(task_id)
    assert (found.state, found.attempt, found.attempts_used) == (TaskState.CANCELLED, 0, 0)
    assert found.error == "lived longer than its max_duration of 10 s"
    assert (ran, ends(jobs, task_id)) == ([], [])


@pytest.mark.case(50)
def test_a_running_handler_is_asked_to_end(jobs: Scheduler, idle: Scheduler, ran: Ran, clock: FakeClock) -> None:
    seen: list[str] = []

    def body(ctx: Context) -> None:
        step(jobs)
        clock.advance(21)
        seen.append(reason_of(jobs, ctx.id))
        step(idle)
        seen.append(reason_of(jobs, ctx.id))
        step(jobs)
        ctx.heartbeat()
        seen.append("not told")

    ran.body = body
    task_id = jobs.task(play, "it").max_duration(20).schedule()
    step(jobs)
    run_claimed(jobs)
    assert "cancel requested" not in seen[0]
    assert ": it lived longer than its max_duration of 20 s; it ends when its handler" in seen[1]
    assert len(seen) == 2
    step(jobs)
    found = jobs.get_task(task_id)
    assert (found.state, found.error_class) == (TaskState.CANCELLED, "MaxDurationExceeded")
    assert ends(jobs, task_id) == ["cancelled"]


@pytest.mark.case(50)
def test_the_reason_outlives_what_the_handler_raises(
    jobs: Scheduler, idle: Scheduler, ran: Ran, clock: FakeClock
) -> None:
    def body(ctx: Context) -> None:
        clock.advance(61)
        step(idle)
        raise OSError("away")

    ran.body = body
    task_id = jobs.task(play, "it").max_duration(60).schedule()
    drain(jobs)
    found = jobs.get_task(task_id)
    assert (found.state, found.error) == (TaskState.CANCELLED, "lived longer than its max_duration of 1 min")


@pytest.mark.case(50)
def test_one_that_does_not_start_in_time(fleet: Fleet, ran: Ran, clock: FakeClock) -> None:
    jobs = fleet.worker(play, state=ran)
    task_id = jobs.task(play, "it").max_delay(60).schedule()
    child = jobs.task(play, "child").depend_on(task_id).schedule()
    clock.advance(60)
    assert drain(jobs) == 0
    assert jobs.get_task(task_id).error == "did not start within its max_delay of 1 min"
    assert [jobs.get_task_status(i) for i in (task_id, child)] == ["cancelled", "failed"]


@pytest.mark.case(50)
def test_waiting_for_its_time_or_its_parents_is_no_delay(
    jobs: Scheduler, idle: Scheduler, ran: Ran, clock: FakeClock
) -> None:
    later = jobs.task(play, "later").after(500).max_delay(60).schedule()
    parent = jobs.task(play, "parent").after(300).schedule()
    child = jobs.task(play, "child").depend_on(parent).max_delay(60).schedule()
    for _ in range(299):
        clock.advance(1)
        step(idle)
    assert [jobs.get_task_status(i) for i in (later, child)] == ["scheduled", "waiting"]
    clock.advance(1)
    drain(jobs)
    assert jobs.get_task_status(child) == "success"
    clock.advance(200)
    drain(jobs)
    assert jobs.get_task_status(later) == "success"


@pytest.mark.case(50)
def test_a_child_is_given_its_time_from_the_end_of_its_parent(jobs: Scheduler, ran: Ran, clock: FakeClock) -> None:
    parent = jobs.task(play, "parent").after(100).schedule()
    child = jobs.task(play, "child").depend_on(parent).max_delay(60).schedule()
    clock.advance(100)
    step(jobs)
    run_claimed(jobs)
    engine_of(jobs).draining = True  # it records the parent's end and claims nothing
    for second in range(60):
        step(jobs)
        assert jobs.get_task_status(child) == "scheduled", second
        clock.advance(1)
    step(jobs)
    assert jobs.get_task(child).error == "did not start within its max_delay of 1 min"


@pytest.mark.case(50)
@pytest.mark.parametrize("signs", [True, False])
def test_a_handler_that_gets_no_further(
    jobs: Scheduler, idle: Scheduler, ran: Ran, clock: FakeClock, signs: bool
) -> None:
    def body(ctx: Context) -> None:
        for _ in range(8):
            clock.advance(10)
            step(idle)
            step(jobs)
            if signs:
                ctx.report_progress(1)
            ctx.check_cancelled()

    ran.body = body
    task_id = jobs.task(play, "it").max_delay(60).schedule()
    drain(jobs)
    found = jobs.get_task(task_id)
    assert found.state == ("success" if signs else "cancelled")
    if not signs:
        assert found.error == "got no further within its max_delay of 1 min"
        assert found.finished_at is not None
        assert found.started_at is not None
        assert (found.finished_at - found.started_at).total_seconds() == 60


@pytest.mark.case(50)
def test_sleeping_is_excluded(jobs: Scheduler, idle: Scheduler, ran: Ran, clock: FakeClock) -> None:
    """As durable execution suspends a task: until a time, or until an event."""
    ids = [jobs.task(play, name).max_delay(60).after(10).schedule() for name in ("sleeps", "awaits")]
    sql = "UPDATE schedd_tasks SET state = 3, attempt = 1, run_at = :until WHERE id = :id"
    write(jobs, sql, id=ids[0], until=clock.now() + 1_000_000_000)
    write(jobs, sql, id=ids[1], until=FOREVER)
    for _ in range(20):
        clock.advance(49)
        assert drain(jobs) == 0
    assert [jobs.get_task_status(i) for i in ids] == ["suspended"] * 2
    clock.advance(20)  # the first is awake
    step(idle)
    clock.advance(59)
    step(idle)
    assert jobs.get_task_status(ids[0]) == "suspended"
    clock.advance(2)
    step(idle)
    assert [jobs.get_task_status(i) for i in ids] == ["cancelled", "suspended"]


@pytest.mark.case(50)
@pytest.mark.parametrize("how", ["event", "retry"])
def test_what_is_woken_early_has_its_time_from_then_on(
    jobs: Scheduler, idle: Scheduler, ran: Ran, clock: FakeClock, how: str
) -> None:
    """Not from when it would have been due, which may be days later."""
    ran.body = fail if how == "retry" else lambda ctx: ctx.await_event("go", timeout=1e6)
    late = RetryPolicy(min_wait=1e6, max_wait=1e6, jitter=0)
    task_id = jobs.task(play, "it").with_retry(late).max_delay(60).schedule()
    drain(jobs)
    clock.advance(100)
    step(idle)  # judged, and put off
    if how == "retry":
        idle.retry_task(task_id)
    else:
        idle.emit_event("go")
    for _ in range(2):
        step(idle)
        clock.advance(31)
    assert jobs.get_task_status(task_id) == ("retry" if how == "retry" else "suspended")
    step(idle)
    assert jobs.get_task_status(task_id) == "cancelled"


@pytest.mark.case(50)
def test_retrying_by_hand_gives_a_new_life(jobs: Scheduler, ran: Ran, clock: FakeClock) -> None:
    task_id = jobs.task(play, "it").max_duration(60).max_delay(30).after(45).schedule()
    clock.advance(80)
    drain(jobs)
    assert jobs.get_task_status(task_id) == "cancelled"
    for _ in range(2):
        clock.advance(500)
        ran.body = fail
        jobs.retry_task(task_id)
        drain(jobs)
        assert jobs.get_task_status(task_id) == "retry"
        clock.advance(61)
        drain(jobs)
        assert jobs.get_task_status(task_id) == "cancelled"
    ran.body = None
    jobs.retry_task(task_id)
    assert drain(jobs) == 1
    assert jobs.get_task_status(task_id) == "success"


def test_what_has_ended_is_looked_at_once(jobs: Scheduler, ran: Ran, clock: FakeClock) -> None:
    for _ in range(3):
        jobs.task(play, "it").max_duration(60).schedule()
    drain(jobs)
    left = "SELECT count(*) AS n FROM schedd_tasks WHERE check_at IS NOT NULL"
    assert rows(jobs, left)[0].n == 3
    clock.advance(60)
    drain(jobs)
    assert rows(jobs, left)[0].n == 0
    assert {row.state for row in rows(jobs, "SELECT state FROM schedd_tasks")} == {st.SUCCESS}


def test_more_than_one_batch(jobs: Scheduler, ran: Ran, clock: FakeClock) -> None:
    with jobs.batch() as batch:
        for _ in range(1100):
            batch.task(play, "it").max_delay(5)
    clock.advance(5)
    assert drain(jobs) == 0
    assert {r.state for r in rows(jobs, "SELECT DISTINCT state FROM schedd_tasks")} == {st.CANCELLED}


def test_between_two_batches_the_lease_is_renewed_and_a_cycle_taken(
    jobs: Scheduler, ran: Ran, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200,000 whose lives ended together all were cancelled in one step of the loop, for longer than a lease."""
    engine, happened = engine_of(jobs), list[str]()

    def note(owner: Any, name: str, seconds: float = 0.0) -> None:
        real = getattr(owner, name)

        def noting(*given: Any, **named: Any) -> Any:
            happened.append(name)
            clock.advance(seconds)
            return real(*given, **named)

        monkeypatch.setattr(owner, name, noting)

    with jobs.batch() as batch:
        for _ in range(3 * policies.BATCH):
            batch.task(play, "it").max_duration(60).after(3600)
        batch.task(play, "other").after(61 + engine.options.lease / 3)
    drain(jobs)
    clock.advance(61)
    note(policies, "apply", seconds=engine.options.lease / 3)  # that long a batch takes
    note(engine.registration, "renew")
    note(engine.dispatch, "run")
    pauses = [engine.step() for _ in range(4)]
    assert happened.count("apply") == 3
    assert pauses[:2] == [0.0, 0.0]
    first = happened.index("apply")
    assert happened[first : first + 7] == ["apply", "run", "renew", "apply", "run", "renew", "apply"]
    run_claimed(jobs)
    assert ran == ["other"]
    states = rows(jobs, "SELECT state, count(*) AS n FROM schedd_tasks WHERE max_duration IS NOT NULL GROUP BY state")
    assert [tuple(row) for row in states] == [(st.CANCELLED, 3 * policies.BATCH)]


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_batch_reads_its_own_tasks_only(jobs: Scheduler) -> None:
    """Not all that are due at the same moment."""
    with jobs.batch() as batch:
        for _ in range(3 * policies.BATCH):
            batch.task(play, "it").max_duration(60).after(3600)
    now = jobs.database.now() + 61_000_000
    look = policies._LOOK.replace(":now", str(now)).replace(":batch", str(policies.BATCH))
    write(jobs, "ANALYZE schedd_tasks")
    steps = [row[0] for row in rows(jobs, f"EXPLAIN {look} FOR UPDATE OF t SKIP LOCKED")]
    assert not [one for one in steps if "Sort" in one], "\n".join(steps)


TIMES = some.integers(1, 100)
LIVES = some.builds(
    TaskLifetime,
    state=some.integers(0, 10),
    run_at=TIMES | some.just(FOREVER),
    ready_at=some.none() | TIMES,
    claimed_at=TIMES,
    started_at=some.none() | TIMES,
    last_sign=some.none() | TIMES,
    expires_at=some.none() | TIMES,
    max_duration=some.just(7),
    max_delay=some.none() | TIMES,
)


@given(LIVES, TIMES)
def test_a_judgement_is_made_again_in_time(life: TaskLifetime, now: int) -> None:
    """If nothing happens to a task, it is cancelled at the first moment that its policies say, not later."""
    verdict = check_deadlines(life, now)
    if verdict.reason is not None or verdict.check_at is None:
        assert verdict.check_at is None
        return
    assert verdict.check_at > now
    for moment in range(now, min(verdict.check_at, 300)):
        assert check_deadlines(life, moment).reason is None, moment
    unclear = life.state == st.WAITING or life.run_at >= FOREVER or (life.last_sign or 0) > now
    assert unclear or check_deadlines(life, verdict.check_at).reason is not None
