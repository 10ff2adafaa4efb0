"""Claims and leases: who may run a task, for how long, and who may say how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import AsyncContext, Context, LeaseLost, Scheduler, Snooze, TaskState, task
from scheduler.testing import FakeClock, drain, engine_of
from support.fleet import Fleet, ends, let_pass, rows, run_claimed, step

pytestmark = pytest.mark.both_databases
LEASE = 30.0


@task
def add(ctx: Context, a: int, b: int) -> int:
    return a + b


@task
def note(ctx: Context, what: str = "") -> str:
    """Does what the test put into the worker's state, then names the worker."""
    if callable(ctx.state.get("body")):
        ctx.state["body"](ctx)
    return str(ctx.state["name"])


def named(fleet: Fleet, name: str, **options: Any) -> Scheduler:
    return fleet.worker(note, state={"name": name}, lease=LEASE, **options)


def lease_until(jobs: Scheduler) -> int:
    (row,) = rows(jobs, "SELECT lease_until FROM schedd_workers WHERE id = :id", id=engine_of(jobs).worker)
    return int(row.lease_until)


@pytest.mark.case(2)
def test_another_worker_takes_over_once_the_lease_has_run_out(fleet: Fleet, clock: FakeClock) -> None:
    first, second = named(fleet, "first"), named(fleet, "second")
    task_id = first.task(note).schedule()
    step(first)
    label = engine_of(first).registration.incarnation
    lost_worker = engine_of(first).worker
    fleet.kill(first)
    step(second)
    let_pass(clock, LEASE, second)  # the last instant at which it holds
    assert second.get_task(task_id).worker == lost_worker
    clock.advance(2)  # dead workers are looked for every two seconds
    assert drain(second) == 1
    assert second.result(task_id, timeout=0) == "second"
    lost, done = second.get_attempts(task_id)
    assert (lost.number, lost.outcome.value, lost.worker_id) == (1, "lost", lost_worker)
    assert label in (lost.error or "")
    assert (done.number, done.outcome.value, done.worker_id) == (2, "succeeded", engine_of(second).worker)


@pytest.mark.case(2)
def test_a_worker_that_keeps_stepping_keeps_its_claims(fleet: Fleet, clock: FakeClock) -> None:
    first, second = named(fleet, "first"), named(fleet, "second")
    task_id = first.task(note).schedule()
    step(first)
    for _ in range(30):
        clock.advance(LEASE / 3)
        step(first)
        assert drain(second) == 0
    run_claimed(first)
    step(first)
    assert first.result(task_id, timeout=0) == "first"
    assert ends(first, task_id) == ["succeeded"]


@pytest.mark.case(2)
def test_a_handler_that_had_started_is_lost_with_its_start(fleet: Fleet, clock: FakeClock) -> None:
    first, second = named(fleet, "first"), named(fleet, "second")
    seen: list[Any] = []

    def body(ctx: Context) -> None:
        clock.advance(1)
        ctx.heartbeat()
        seen.append(second.get_task(ctx.id))
        let_pass(clock, LEASE + 2, second)

    first.state["body"] = body
    task_id = first.task(note).schedule()
    started = clock.datetime
    step(first)
    run_claimed(first)
    (running,) = seen
    assert (running.state, running.started_at) == (TaskState.RUNNING, started)
    drain(second)
    lost, done = second.get_attempts(task_id)
    assert (lost.number, lost.started_at, lost.outcome.value) == (1, started, "lost")
    assert (done.number, second.result(task_id, timeout=0)) == (2, "second")


@pytest.mark.case(3)
@pytest.mark.parametrize("call", ["heartbeat", "report_progress"])
def test_heartbeat_and_progress_stamp_and_renew_at_once(fleet: Fleet, clock: FakeClock, call: str) -> None:
    first, second = named(fleet, "first"), named(fleet, "second")
    stamps: list[Any] = []

    def body(ctx: Context) -> None:
        for _ in range(4):
            let_pass(clock, LEASE - 1, second)
            ctx.heartbeat() if call == "heartbeat" else ctx.report_progress(140, "nearly")
            stamps.append((second.get_task(ctx.id).last_heartbeat_at, clock.datetime))
            assert lease_until(first) == clock.now() + LEASE * 1_000_000

    first.state["body"] = body
    step(second)
    task_id = first.task(note).schedule()
    step(first)
    run_claimed(first)
    step(first)
    assert first.result(task_id, timeout=0) == "first"
    assert len(stamps) == 4
    assert all(stamp == now for stamp, now in stamps)
    assert first.progress(task_id) == ((None, None) if call == "heartbeat" else (100.0, "nearly"))


@pytest.mark.case(3)
def test_progress_is_clamped_and_its_message_stays(fleet: Fleet) -> None:
    jobs = named(fleet, "only")
    seen: list[tuple[float | None, str | None]] = []

    def body(ctx: Context) -> None:
        for percent in (-3, float("nan"), 33.5, 1e9):
            ctx.report_progress(percent)
            seen.append(jobs.progress(ctx.id))
        ctx.report_progress(7, "a \x00 in \ud800 it")
        seen.append(jobs.progress(ctx.id))

    jobs.state["body"] = body
    task_id = jobs.task(note).schedule()
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == "only"
    assert [percent for percent, _ in seen] == [0.0, 0.0, 33.5, 100.0, 7.0]
    assert (seen[-1][1] or "").startswith("a ")


@pytest.mark.case(3, 4)
@pytest.mark.parametrize("call", ["heartbeat", "report_progress"])
def test_a_lost_lease_cannot_be_extended(fleet: Fleet, clock: FakeClock, call: str) -> None:
    first, second = named(fleet, "first"), named(fleet, "second")
    errors: list[BaseException] = []

    def body(ctx: Context) -> None:
        let_pass(clock, LEASE + 2, second)
        held = lease_until(first)
        for _ in range(2):
            with pytest.raises(LeaseLost) as lost:
                ctx.heartbeat() if call == "heartbeat" else ctx.report_progress(50)
            errors.append(lost.value)
        assert lease_until(first) == held
        with pytest.raises(LeaseLost):
            ctx.check_cancelled()

    first.state["body"] = body
    step(second)
    task_id = first.task(note).schedule()
    step(first)
    run_claimed(first)
    assert len(errors) == 2
    before = second.get_task(task_id)
    assert (before.worker, before.progress, before.last_heartbeat_at) == (
        engine_of(second).worker,
        None,
        None,
    )
    step(first)
    assert drain(second) == 1
    assert second.result(task_id, timeout=0) == "second"


@pytest.mark.case(3)
def test_an_async_handler_reports_too(fleet: Fleet, clock: FakeClock) -> None:
    @task
    async def slow(ctx: AsyncContext) -> str:
        clock.advance(LEASE - 1)
        await ctx.report_progress(50, "half")
        clock.advance(LEASE - 1)
        await ctx.heartbeat()
        await ctx.check_cancelled()
        return "done"

    jobs = fleet.worker(slow, lease=LEASE)
    task_id = jobs.task(slow).schedule()
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == "done"
    done = jobs.get_task(task_id)
    assert (done.progress, done.progress_message, done.last_heartbeat_at) == (50.0, "half", clock.datetime)


@pytest.mark.case(4)
@pytest.mark.parametrize("when", ["while the other runs", "after the other ended"])
def test_a_late_completion_changes_nothing_and_is_logged(
    fleet: Fleet, clock: FakeClock, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    first, second = named(fleet, "first"), named(fleet, "second")

    def body(ctx: Context) -> None:
        let_pass(clock, LEASE + 2, second)
        if when == "after the other ended":
            drain(second)

    first.state["body"] = body
    step(second)
    task_id = first.task(note).schedule()
    step(first)
    run_claimed(first)
    before = second.get_task(task_id)
    first.state["body"] = None
    caplog.clear()
    step(first)
    assert second.get_task(task_id) == before
    assert "outcome dropped" in caplog.text
    drain(second)
    assert second.result(task_id, timeout=0) == "second"
    assert ends(second, task_id) == ["lost", "succeeded"]


@pytest.mark.case(4)
def test_the_same_process_cannot_mix_up_two_claims_of_one_task(fleet: Fleet, clock: FakeClock) -> None:
    """Its lease is lost, it starts over as a new worker and claims the task again, once the stale handler has ended."""
    first, second = named(fleet, "first", queues=["default"]), named(fleet, "second", queues=["elsewhere"])
    claims: list[int] = []

    def body(ctx: Context) -> None:
        claims.append(ctx._attempt.claimed.claim)
        if len(claims) == 1:
            let_pass(clock, LEASE + 2, second)  # reclaims, but serves another queue
            for _ in range(3):
                step(first)  # notices, becomes a new worker and may not begin it again
                clock.advance(2)

    first.state["body"] = body
    task_id = first.task(note).schedule()
    step(second)
    step(first)
    assert run_claimed(first) == 1
    step(first)  # the stale outcome is dropped
    assert not first.get_task_status(task_id).terminal
    clock.advance(2)
    drain(first)
    assert len(claims) == 2
    assert first.get_task_status(task_id) is TaskState.SUCCESS
    assert [(a.claim, a.outcome.value) for a in first.get_attempts(task_id)] == [
        (claims[0], "lost"),
        (claims[1], "succeeded"),
    ]


@pytest.mark.case(4)
def test_claims_of_a_snoozed_task_are_distinct(fleet: Fleet, clock: FakeClock) -> None:
    jobs = named(fleet, "only")
    contexts: list[Context] = []

    def body(ctx: Context) -> None:
        contexts.append(ctx)
        if len(contexts) == 1:
            raise Snooze(5)
        with pytest.raises(LeaseLost):
            contexts[0].report_progress(99, "from the first claim")

    jobs.state["body"] = body
    task_id = jobs.task(note).schedule()
    drain(jobs)
    clock.advance(5)
    drain(jobs)
    assert jobs.result(task_id, timeout=0) == "only"
    assert jobs.progress(task_id) == (None, None)
    assert ends(jobs, task_id) == ["snoozed", "succeeded"]


@pytest.mark.case(10)
@pytest.mark.parametrize("serves", ["another queue", "no such kind"])
def test_expired_claims_are_reclaimed_although_no_worker_polls_their_queue(
    fleet: Fleet, clock: FakeClock, serves: str
) -> None:
    owner = named(fleet, "owner", queues=["mail"])
    other = named(fleet, "other", queues=["other"]) if serves == "another queue" else fleet.worker(add, lease=LEASE)
    task_id = owner.task(note).queue("mail").schedule()
    step(owner)
    fleet.kill(owner)
    step(other)
    let_pass(clock, LEASE + 2, other)
    back = other.get_task(task_id)
    assert (back.state, back.worker) == (TaskState.SCHEDULED, None)
    assert ends(other, task_id) == ["lost"]
    again = named(fleet, "again", queues=["mail"])
    assert drain(again) == 1
    assert again.result(task_id, timeout=0) == "again"


@pytest.mark.case(2)
def test_only_whose_lease_has_run_out_loses_what_it_holds(fleet: Fleet, clock: FakeClock) -> None:
    dying, living, other = (named(fleet, name, queues=[name]) for name in ("dying", "living", "other"))
    lost, kept = (dying.task(note).queue(name).schedule() for name in ("dying", "living"))
    for worker in (dying, living, other):
        step(worker)
    fleet.kill(dying)
    let_pass(clock, LEASE + 2, other, living)  # the one that has nothing to lose is the first to look
    assert (other.get_task_status(lost), other.get_task_status(kept)) == ("scheduled", "claimed")
    assert (ends(other, lost), ends(other, kept)) == (["lost"], [])


@pytest.mark.case(2, 10)
def test_a_claim_that_never_started_gets_its_attempt_back(fleet: Fleet, clock: FakeClock) -> None:
    """The number grows, the budget does not shrink: workers that die use up no task's attempts."""
    for n in range(2):
        dying = named(fleet, f"dying {n}")
        if n == 0:
            task_id = dying.task(note).schedule()
        clock.advance(LEASE + 2)
        step(dying)
        clock.advance(LEASE / 2)  # who has just joined gives the living time to renew before it reaps
        step(dying)
        assert dying.get_task(task_id).attempt == n + 1
        fleet.kill(dying)
    clock.advance(LEASE + 2)
    last = named(fleet, "last")
    drain(last)
    clock.advance(LEASE / 2)
    drain(last)
    done = last.get_task(task_id)
    assert (done.attempt, done.attempts_used, last.result(task_id, timeout=0)) == (3, 1, "last")


@pytest.mark.case(2)
def test_a_worker_that_joins_after_a_jump_of_the_clock_reaps_no_live_one(fleet: Fleet, clock: FakeClock) -> None:
    """A newcomer has no earlier look at the clock to compare with, so it waits until the living have renewed."""
    living = named(fleet, "living")
    task_id = living.task(note).schedule()
    step(living)
    clock.jump(10 * LEASE)
    newcomer = named(fleet, "newcomer")
    step(newcomer)
    assert newcomer.get_task(task_id).state is TaskState.CLAIMED
    for _ in range(4):
        clock.advance(LEASE / 3)
        step(living)
        step(newcomer)
    assert newcomer.get_task(task_id).attempt == 1
    drain(living)
    assert living.get_task(task_id).state is TaskState.SUCCESS
    assert [a.number for a in living.get_attempts(task_id)] == [1]
