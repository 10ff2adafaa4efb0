"""A notified idle worker claims from the lane that gave the last task, before it looks at all lanes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from scheduler import Context, Scheduler, TaskState, task
from scheduler.engine.dispatch import cycle as turn
from scheduler.errors import StoreUnavailableError
from scheduler.model.capacity import THREAD
from scheduler.store.tasks import claim as claims
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, ends, rows, run_claimed, step, write

MEDIUM = 1


@task
def plain(ctx: Context, text: str = "") -> int:
    return len(text)


@task(max_concurrency=5)
def capped(ctx: Context) -> None: ...


@task(isolation="process")
def apart(ctx: Context) -> int:
    return os.getpid()


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks each guess brought."""
    found: list[int] = []
    claim_one = turn.claim.claim_one

    def counting(*args: Any) -> list[claims.Claimed]:
        claimed = claim_one(*args)
        found.append(len(claimed))
        return claimed

    monkeypatch.setattr(turn.claim, "claim_one", counting)
    return found


def ran_one(fleet: Fleet, *types: Any, **options: Any) -> Scheduler:
    """A worker that has run a task of the first of these types, and has nothing to do."""
    jobs = fleet.worker(*types, **options)
    jobs.task(types[0]).schedule()
    work(jobs)
    assert not engine_of(jobs).engine_state.held
    return jobs


def work(jobs: Scheduler) -> None:
    """Notify the worker, run what it claims, and take the cycle that records that."""
    step(jobs)
    run_claimed(jobs)
    step(jobs)


def state(jobs: Scheduler, task_id: int) -> TaskState:
    return jobs.get_task_status(task_id)


def test_what_it_is_notified_of_is_claimed_without_a_look(fleet: Fleet, guessed: list[int], clock: FakeClock) -> None:
    jobs = ran_one(fleet, plain)
    guessed.clear()
    ids = [jobs.task(plain).schedule() for _ in range(2)]
    clock.advance(0.5)
    at = jobs.database.now()
    step(jobs)
    assert guessed == [1]
    held = {a.claimed.id: a for a in engine_of(jobs).engine_state.held.values()}
    assert set(held) == set(ids), "the cycle that follows finds the rest"
    assert {(a.claimed.claim, a.claimed.attempt, a.claimed.kind, a.claimed.claimed_at) for a in held.values()} == {
        (1, 1, "plain", at)
    }
    stored = rows(
        jobs, "SELECT state, worker, claim, attempt, claimed_at, started_at FROM schedd_tasks WHERE state = 4"
    )
    assert {tuple(row) for row in stored} == {(4, engine_of(jobs).worker, 1, 1, at, None)}
    run_claimed(jobs)
    step(jobs)
    assert [ends(jobs, i) for i in ids] == [["succeeded"]] * 2


def test_it_waits_in_line_with_all_who_write(fleet: Fleet, guessed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = ran_one(fleet, plain)
    dispatch, gate = engine_of(jobs).dispatch, jobs.database._gate
    passed: list[str] = []
    monkeypatch.setattr(gate, "enter", lambda *_: passed.append("in") or True)
    monkeypatch.setattr(gate, "leave", lambda: passed.append("out"))
    for _ in range(2):
        jobs.task(plain).schedule()
        passed.clear()
        assert dispatch.claim_eagerly(engine_of(jobs)._conn())
        assert passed == ["in", "out"]
        assert not dispatch.lost_commits.pending, "the cycle that follows need not ask what it holds"
        run_claimed(jobs)
        dispatch.run(engine_of(jobs)._conn(), claiming=True)
    assert guessed[-2:] == [1, 1]


def test_a_commit_that_a_caller_loses_meanwhile_is_looked_for(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cycle that follows, not by the next renewal of the lease."""
    jobs = ran_one(fleet, plain)
    dispatch, claim_one = engine_of(jobs).dispatch, turn.claim.claim_one

    def beside_a_caller(*args: Any) -> list[claims.Claimed]:
        claimed = claim_one(*args)
        dispatch.lost_commits.on_uncertain_commit()  # as a direct start does, whose answer is lost
        return claimed

    monkeypatch.setattr(turn.claim, "claim_one", beside_a_caller)
    jobs.task(plain).schedule()
    assert dispatch.claim_eagerly(engine_of(jobs)._conn())
    assert dispatch.lost_commits.pending
    run_claimed(jobs)


def test_all_that_a_task_brings_comes_with_it(fleet: Fleet, guessed: list[int]) -> None:
    """Also what is read by a statement of its own."""
    jobs = ran_one(fleet, plain)
    long = "x" * 100_000
    first = jobs.task(plain, long).correlation("order-7").schedule()
    step(jobs)
    assert guessed[-1] == 1
    (attempt,) = engine_of(jobs).engine_state.held.values()
    assert attempt.claimed.correlation == "order-7"
    run_claimed(jobs)
    step(jobs)
    assert jobs.get_task(first).result == len(long)
    second = jobs.task(plain).headers({"a": "b"}).schedule()
    step(jobs)
    (attempt,) = engine_of(jobs).engine_state.held.values()
    assert attempt.claimed.id == second
    assert attempt.claimed.headers is not None
    run_claimed(jobs)
    step(jobs)
    assert guessed[-1] == 1
    assert state(jobs, second) is TaskState.SUCCESS


def test_who_was_too_late_looks_only_once(fleet: Fleet, guessed: list[int]) -> None:
    """Each notification wakes all workers."""
    jobs = ran_one(fleet, plain)
    guessed.clear()
    jobs.task(plain).after(3600).schedule()
    for _ in range(3):
        step(jobs)
    assert guessed == [0]
    jobs.task(plain).schedule()
    work(jobs)
    assert guessed == [0], "a cycle claimed it"
    jobs.task(plain).schedule()
    step(jobs)
    assert guessed == [0, 1]


def hold(jobs: Scheduler) -> None:
    jobs.task(plain).schedule()
    step(jobs)


def drain(jobs: Scheduler) -> None:
    engine_of(jobs).drain()
    step(jobs)  # so that its row says so


def suspect(jobs: Scheduler) -> None:
    """The last one claimed was."""
    jobs.task(plain).schedule()
    write(jobs, "UPDATE schedd_tasks SET lane = '!plain', suspect = 2 WHERE state = 1")
    engine_of(jobs).dispatch._last_lane = None
    work(jobs)


def lost(jobs: Scheduler) -> None:
    """A handler still runs whose task was taken from it."""
    engine_of(jobs).engine_state.losing.add((10**6, 1))


def meet_a_newer_payload(jobs: Scheduler) -> None:
    engine_of(jobs).dispatch.planner.newer.kinds["plain"] = float("inf")


def let_renewal_be_due(jobs: Scheduler) -> None:
    clock: Any = jobs.database.clock
    clock.advance(11)


def look_from_places(jobs: Scheduler) -> None:
    """As behind an old snapshot."""
    engine_of(jobs).dispatch.lanes.offsets.start[("default", "plain", MEDIUM)] = (0, 0)


def limit_concurrency(jobs: Scheduler) -> None:
    engine_state = engine_of(jobs).engine_state
    engine_state.options = engine_state.options._replace(max_concurrent=2)


def take_the_slots_away(jobs: Scheduler) -> None:
    del engine_of(jobs).slots[MEDIUM, THREAD]


@pytest.mark.parametrize(
    "meanwhile",
    [
        hold,
        drain,
        suspect,
        lost,
        meet_a_newer_payload,
        let_renewal_be_due,
        look_from_places,
        limit_concurrency,
        take_the_slots_away,
    ],
)
def test_a_cycle_decides_where_there_is_more_to_it(
    fleet: Fleet, guessed: list[int], meanwhile: Callable[[Scheduler], None]
) -> None:
    jobs = ran_one(fleet, plain)
    meanwhile(jobs)
    guessed.clear()
    jobs.task(plain).schedule()
    step(jobs)
    assert guessed == []


@pytest.mark.parametrize("types", [(plain, capped), (apart,)], ids=["a kind has a cap", "in a process"])
def test_what_a_cycle_has_to_share_out_is_not_guessed(fleet: Fleet, guessed: list[int], types: tuple[Any, ...]) -> None:
    jobs = ran_one(fleet, *types)
    guessed.clear()
    last = jobs.task(types[0]).schedule()
    work(jobs)
    assert guessed == []
    assert state(jobs, last) is TaskState.SUCCESS


def test_it_takes_no_slot_from_another_priority(fleet: Fleet, guessed: list[int]) -> None:
    jobs = fleet.worker(plain, pools={"high": (1, 0), "medium": (1, 0), "low": (1, 0)})
    jobs.task(plain).priority("low").schedule()
    work(jobs)
    engine_of(jobs).engine_state.means["plain"] = 1.0  # seconds, so that nothing is claimed ahead
    ids = {jobs.task(plain).priority(priority).schedule() for priority in ("low", "low", "medium", "high")}
    step(jobs)
    assert guessed[-1] == 1
    held = {attempt.claimed.id: attempt.pool for attempt in engine_of(jobs).engine_state.held.values()}
    assert len(held) == 3
    assert set(held) < ids
    assert sorted(held.values()) == [0, 1, 2]


def test_who_was_declared_dead_claims_nothing(fleet: Fleet, guessed: list[int]) -> None:
    jobs = ran_one(fleet, plain)
    dead = engine_of(jobs).worker
    write(jobs, "UPDATE schedd_workers SET state = 3 WHERE id = :id", id=dead)
    last = jobs.task(plain).schedule()
    guessed.clear()
    step(jobs)
    assert guessed == [0]
    assert rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE worker = :id", id=dead)[0].n == 0
    assert state(jobs, last) is TaskState.SCHEDULED


GIVEN_BACK = "1 tasks were claimed by a commit that was not answered: given back"


def test_a_claim_whose_answer_does_not_come_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = ran_one(fleet, plain)
    claim_one = turn.claim.claim_one

    def unanswered(*args: Any) -> None:
        assert len(claim_one(*args)) == 1
        raise StoreUnavailableError("the answer was lost")

    last = jobs.task(plain).schedule()
    with monkeypatch.context() as broken:
        broken.setattr(turn.claim, "claim_one", unanswered)
        engine_of(jobs).wake()
        with pytest.raises(StoreUnavailableError):
            engine_of(jobs).step()
    assert state(jobs, last) is TaskState.CLAIMED
    assert not engine_of(jobs).engine_state.held
    work(jobs)
    assert caplog.messages.count(GIVEN_BACK) == 1
    assert (ends(jobs, last), rows(jobs, "SELECT max(claim) AS n FROM schedd_tasks")[0].n) == (["succeeded"], 2)


def test_a_claim_that_cannot_be_handed_out_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = ran_one(fleet, plain)
    last = jobs.task(plain).schedule()
    with monkeypatch.context() as broken:
        broken.setattr(engine_of(jobs).dispatch.feeder, "submit", lambda *_: 1 / 0)
        engine_of(jobs).wake()
        with pytest.raises(ZeroDivisionError):
            engine_of(jobs).step()
    work(jobs)
    assert caplog.messages.count(GIVEN_BACK) == 1
    assert ends(jobs, last) == ["succeeded"]


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_it_is_not_early_by_a_clock_that_was_set(fleet: Fleet, guessed: list[int], clock: FakeClock) -> None:
    """Times are the server's, and how far this machine's clock is off is measured anew."""
    clock.steps = False  # as a machine's own
    jobs = ran_one(fleet, plain)
    later = jobs.task(plain).after(60).schedule()
    step(jobs)
    jobs.task(plain).schedule()
    work(jobs)
    guessed.clear()
    engine_of(jobs).lease._seen = None  # which would notice the jump, and have the lease renewed first
    clock.jump(100)
    step(jobs)
    assert guessed == [0]
    assert rows(jobs, "SELECT claim FROM schedd_tasks WHERE id = :id", id=later)[0].claim == 0


def test_it_claims_nothing_under_a_lease_that_ran_out(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine slept: the monotonic clock stood still."""
    jobs = ran_one(fleet, plain)
    jobs.task(plain).schedule()
    engine, live = engine_of(jobs), []
    give = engine.dispatch.feeder.submit

    def looking(claimed: list[claims.Claimed], *rest: Any) -> None:
        if claimed:
            (row,) = rows(jobs, "SELECT lease_until FROM schedd_workers WHERE id = :id", id=engine.worker)
            live.append(row.lease_until > jobs.database.now())
        give(claimed, *rest)

    monkeypatch.setattr(engine.dispatch.feeder, "submit", looking)
    clock.jump(40)
    step(jobs)
    assert live == [True]


def test_a_claim_that_fails_leaves_the_worker_a_connection(
    fleet: Fleet, guessed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = ran_one(fleet, plain)
    task_id = jobs.task(plain).schedule()
    with monkeypatch.context() as failing:
        failing.setattr(claims, "_claim_one", lambda _: "UPDATE nowhere SET id = :worker RETURNING id")
        with pytest.raises(StoreUnavailableError):
            step(jobs)
    work(jobs)
    jobs.task(plain).schedule()
    work(jobs)
    assert guessed[-1] == 1
    assert ends(jobs, task_id) == ["succeeded"]


def test_policies_come_first(fleet: Fleet, clock: FakeClock) -> None:
    jobs = ran_one(fleet, plain)
    late = jobs.task(plain).max_delay(2).schedule()
    clock.advance(5)
    work(jobs)
    assert state(jobs, late) is TaskState.CANCELLED


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_the_gate_that_was_entered_is_left(fleet: Fleet) -> None:
    jobs = ran_one(fleet, plain)
    gate = jobs.database._gate
    with jobs.database.single(engine_of(jobs)._conn()):
        jobs.database.dispose()
    assert gate.enter(0.01)
    gate.leave()
