"""Caps and rates of a queue over all kinds in it, the rate of one concurrency key, and a kind's cap on each worker."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from scheduler import Context, Retry, RetryPolicy, Scheduler, task
from scheduler.engine.dispatch import cycle as dispatch_cycle
from scheduler.ports import SECOND
from scheduler.store.read.explain import why
from scheduler.store.tasks import limits as caps
from scheduler.testing import FakeClock, drain, engine_of
from support.bench import Side
from support.databases import Database
from support.fleet import Fleet, let_pass, rows, run_claimed, step

LEASE = 30.0
HELD = "SELECT count(*) AS n FROM schedd_tasks WHERE queue = :queue AND state >= 4 AND state <= 5"
STARTS = "SELECT coalesce(sum(starts), 0) AS n FROM schedd_starts"


class Starts:
    """``ctx.state``: when handlers started, in microseconds, and the kind of each."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.at: list[int] = []
        self.kinds: list[str] = []

    def most_in(self, period: int) -> int:
        return max((sum(1 for other in self.at if at <= other < at + period) for at in self.at), default=0)


def note(ctx: Context, kind: str) -> None:
    if ctx.state is not None:
        ctx.state.at.append(ctx.state.clock.now())
        ctx.state.kinds.append(kind)


@task(queue="etl")
def load(ctx: Context, n: int = 0) -> None:
    note(ctx, "load")


@task(queue="etl")
def clean(ctx: Context, n: int = 0) -> None:
    note(ctx, "clean")


@task(queue="etl", max_concurrency=1)
def single(ctx: Context, n: int = 0) -> None: ...


@task(concurrency_key="{customer}")
def each(ctx: Context, customer: str, n: int = 0) -> None:
    note(ctx, customer)


@task
def other(ctx: Context, n: int = 0) -> None: ...


@task(queue="etl", retry=RetryPolicy(min_wait=1, max_wait=1, max_attempts=None, jitter=0))
def again(ctx: Context) -> None:
    note(ctx, "again")
    raise Retry(after=0)


@pytest.fixture
def starts(clock: FakeClock) -> Starts:
    return Starts(clock)


def held(jobs: Scheduler, queue: str = "etl") -> int:
    return int(rows(jobs, HELD, queue=queue)[0].n)


def here(jobs: Scheduler) -> Counter[str]:
    return Counter(attempt.kind.name for attempt in engine_of(jobs).engine_state.held.values())


def why_of(jobs: Scheduler, task_id: int) -> str:
    with jobs.database.read() as tx:
        return why(tx, task_id) or ""


def ended(jobs: Scheduler) -> int:
    return int(rows(jobs, "SELECT count(*) AS n FROM schedd_tasks WHERE state = 6")[0].n)


def look(fleet: Fleet, *workers: Scheduler) -> None:
    """A second later each worker has read what is set, and claimed by it."""
    fleet.clock.advance(1)
    for jobs in workers:
        step(jobs)
        step(jobs)


def test_two_of_six_at_once_over_two_kinds_and_two_workers(fleet: Fleet) -> None:
    workers = [fleet.worker(load, clean, other) for _ in range(2)]
    workers[0].live_settings.queue("etl", max_concurrency=2)
    look(fleet, *workers)
    ids = [workers[0].task(kind, n).schedule() for n in range(3) for kind in (load, clean)]
    for n in range(12):
        workers[0].task(other, n).schedule()
    most = []
    for turn in range(12):
        one = workers[turn % 2]
        step(one)
        most.append(held(one))
        if turn == 1:
            assert held(one, "default") == 12, "the full queue took slots from the other"
            assert why_of(one, ids[-1]).endswith(f"queue etl is at its cap of 2: tasks {ids[0]}, {ids[1]} hold it")
        if turn % 3 == 2:
            run_claimed(one)
    for one in workers:
        drain(one)
        most.append(held(one))
    assert max(most) == 2
    assert ended(workers[0]) == 18


def test_the_kinds_of_a_queue_take_turns(fleet: Fleet, starts: Starts) -> None:
    jobs = fleet.worker(load, clean, state=starts)
    jobs.live_settings.queue("etl", max_concurrency=1)
    look(fleet, jobs)
    for kind in (load, clean):
        for n in range(8):
            jobs.task(kind, n).schedule()
    drain(jobs)
    assert len(starts.kinds) == 16
    assert all(set(starts.kinds[n : n + 2]) == {"load", "clean"} for n in range(0, 16, 2))


def test_a_killed_worker_leaks_no_room(fleet: Fleet, clock: FakeClock) -> None:
    first, second = (fleet.worker(load, clean, lease=LEASE) for _ in range(2))
    first.live_settings.queue("etl", max_concurrency=2)
    look(fleet, first, second)
    for n in range(2):
        first.task(load, n).schedule()
        first.task(clean, n).schedule()
    step(first)
    fleet.kill(first)
    step(second)
    assert held(second) == 2, "what a dead worker holds counts until it is reclaimed"
    let_pass(clock, LEASE, second)
    drain(second)
    clock.advance(2)
    drain(second)
    assert ended(second) == 4
    assert held(second) == 0


def test_only_one_worker_at_a_time_claims_of_a_capped_queue(
    database: Database, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second worker comes while the first has claimed and not yet committed; each serves a kind of its own."""
    first, second = fleet.worker(load), fleet.worker(clean)
    first.live_settings.queue("etl", max_concurrency=2)
    look(fleet, first, second)
    for n in range(6):
        first.task(load, n).schedule()
        second.task(clean, n).schedule()
    sides: list[Side] = []
    claim = dispatch_cycle.claim.claim

    def claim_and_let_the_other_in(*args: Any) -> Any:
        claimed = claim(*args)
        if not sides and claimed:
            sides.append(Side(lambda: step(second)))
            if not database.is_sqlite:  # whose one writer has to wait
                sides[0].join(20)
        return claimed

    monkeypatch.setattr(dispatch_cycle.claim, "claim", claim_and_let_the_other_in)
    step(first)
    sides[0].result()
    assert [here(first), here(second)] == [{"load": 2}, {}]
    if not database.is_sqlite:
        assert 0 < engine_of(second)._pause() < 1, "it looks again soon"


def test_its_end_wakes_workers_of_other_kinds(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fleet.worker(load), fleet.worker(clean)
    first.live_settings.queue("etl", max_concurrency=1)
    look(fleet, first, second)
    first.task(load).schedule()
    step(first)
    second.task(clean).schedule()
    step(second)
    assert here(second) == {}
    notified: list[int] = []
    monkeypatch.setattr(engine_of(first).notifier, "notify", lambda: notified.append(1))
    run_claimed(first)
    step(first)
    assert notified
    step(second)
    assert here(second) == {"clean": 1}


def test_a_kinds_cap_and_its_queues_hold_at_once(fleet: Fleet) -> None:
    jobs = fleet.worker(single, load)
    jobs.live_settings.queue("etl", max_concurrency=3)
    look(fleet, jobs)
    for n in range(5):
        jobs.task(single, n).schedule()
    look(fleet, jobs)
    assert here(jobs) == {"single": 1}
    for n in range(5):
        jobs.task(load, n).schedule()
    look(fleet, jobs)
    assert here(jobs) == {"single": 1, "load": 2}
    assert drain(jobs) == 10


def test_changed_while_running(fleet: Fleet) -> None:
    workers = [fleet.worker(load, clean) for _ in range(2)]
    look(fleet, *workers)
    live = workers[0].live_settings
    assert live.queue("etl", max_concurrency=1)
    assert not live.queue("etl", max_concurrency=1)
    for n in range(4):
        workers[0].task(load, n).schedule()
        workers[0].task(clean, n).schedule()
    look(fleet, *workers)
    assert held(workers[0]) == 1
    live.queue("etl", max_concurrency=3)
    look(fleet, *workers)
    assert held(workers[0]) == 3
    live.queue("etl", max_concurrency=2)
    look(fleet, *workers)
    assert held(workers[0]) == 2, "what no slot had begun went back"
    for one in workers:
        run_claimed(one)
        step(one)
    assert held(workers[0]) == 2
    assert live.reset(queue="etl")
    look(fleet, *workers)
    assert held(workers[0]) == 8 - ended(workers[0]) > 2
    found = [(e.subject, e.before, e.after) for e in workers[0].audit() if e.action == "settings changed"]
    assert ("queue etl", {"max_concurrency": 3}, {"max_concurrency": 2}) in found
    assert ("queue etl", {"max_concurrency": 2}, {}) in found


def test_a_hundred_a_minute_of_a_queue_over_two_workers(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    workers = [fleet.worker(load, clean, other, state=starts) for _ in range(2)]
    workers[0].live_settings.queue("etl", rate_limit="100/min")
    look(fleet, *workers)
    with workers[0].batch() as batch:
        for n in range(125):
            batch.task(load, n)
            batch.task(clean, n)
    began, waiting = clock.now(), rows(workers[0], "SELECT max(id) AS id FROM schedd_tasks")[0].id
    for turn in range(140):
        for one in workers:
            drain(one)
        if turn == 1:
            assert "rate limit 100/min of queue etl, next start at " in why_of(workers[0], waiting)
            assert 30 <= Counter(starts.kinds)["clean"] <= 70, "both kinds have a part of it"
            workers[0].task(other).schedule()
            assert drain(workers[0]) == 1
        clock.advance(1)
    assert len(starts.at) == 250
    assert starts.most_in(60 * SECOND) == 100
    assert sum(1 for at in starts.at if at < began + 60 * SECOND) == 100


def test_the_rate_of_one_key_beside_its_kinds(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    jobs = fleet.worker(each, state=starts)
    jobs.live_settings.kind("each", rate_limit="6/min")
    jobs.live_settings.key("each", "ada", rate_limit="2/min")
    look(fleet, jobs)
    ids = [jobs.task(each, "ada", n).schedule() for n in range(5)]
    drain(jobs)
    assert Counter(starts.kinds) == {"ada": 2}
    assert "rate limit 2/min for concurrency key 'ada', next start at " in why_of(jobs, ids[-1])
    for n in range(9):
        jobs.task(each, "bob", n).schedule()
    drain(jobs)
    assert Counter(starts.kinds) == {"ada": 2, "bob": 4}, "the kind's rate counts both"
    for _ in range(62):
        clock.advance(1)
        drain(jobs)
    assert len(starts.at) == 12
    assert starts.most_in(60 * SECOND) <= 6
    ada = [at for at, key in zip(starts.at, starts.kinds, strict=True) if key == "ada"]
    assert len(ada) > 2
    assert all(sum(1 for other_at in ada if at <= other_at < at + 60 * SECOND) <= 2 for at in ada)


def test_what_never_began_is_refunded_under_each_rate(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    jobs, second = (fleet.worker(again, state=starts) for _ in range(2))
    jobs.live_settings.queue("etl", rate_limit="3/min")
    jobs.live_settings.kind("again", rate_limit="50/h")
    look(fleet, jobs, second)
    for _ in range(3):
        jobs.task(again).schedule()
    step(jobs)
    assert rows(jobs, STARTS)[0].n == 6
    engine_of(jobs).drain()
    engine_of(jobs).step()
    assert rows(jobs, STARTS)[0].n == 0
    assert drain(second) == 3
    assert rows(jobs, STARTS)[0].n == 6


def test_a_start_that_comes_too_late_for_one_rate_goes_back_under_both(
    fleet: Fleet, clock: FakeClock, starts: Starts
) -> None:
    jobs = fleet.worker(again, state=starts)
    jobs.live_settings.queue("etl", rate_limit="3/min")
    jobs.live_settings.kind("again", rate_limit="50/day")
    look(fleet, jobs)
    jobs.task(again).schedule()
    step(jobs)
    clock.advance(20)
    run_claimed(jobs)
    step(jobs)
    assert starts.at == []
    assert rows(jobs, STARTS)[0].n == 2, "claimed again: counted once under each"
    run_claimed(jobs)
    assert len(starts.at) == 1


def test_a_cap_of_each_worker(fleet: Fleet) -> None:
    workers = [fleet.worker(load, clean) for _ in range(2)]
    workers[0].live_settings.kind("load", max_per_worker=2)
    look(fleet, *workers)
    ids = [workers[0].task(load, n).schedule() for n in range(6)]
    for n in range(5):
        workers[0].task(clean, n).schedule()
    look(fleet, *workers)
    assert [here(one)["load"] for one in workers] == [2, 2]
    assert sum(here(one)["clean"] for one in workers) == 5
    assert why_of(workers[0], ids[-1]).endswith("its kind is at its cap of 2 on each worker that would claim it")
    run_claimed(workers[1])
    look(fleet, *workers)
    assert [here(one)["load"] for one in workers] == [2, 2]
    workers[0].live_settings.kind("load", max_per_worker=None)
    look(fleet, *workers)
    for one in workers:
        drain(one)
    assert ended(workers[0]) == 11


def test_high_tasks_go_first_and_lower_ones_are_not_starved(fleet: Fleet, starts: Starts) -> None:
    jobs = fleet.worker(load, clean, state=starts)
    jobs.live_settings.queue("etl", max_concurrency=1)
    look(fleet, jobs)
    for n in range(12):
        jobs.task(load, n).priority("high").schedule()
        jobs.task(clean, n).priority("low").schedule()
    drain(jobs)
    assert Counter(starts.kinds[:4]) == {"load": 3, "clean": 1}


def test_queues_without_limits_are_not_counted(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = fleet.worker(load, other)
    jobs.live_settings.queue("etl", max_concurrency=1)
    look(fleet, jobs)
    locked: list[Any] = []
    lock = caps.lock

    def saw(tx: Any, places: Any) -> Any:
        locked.extend(places)
        return lock(tx, places)

    monkeypatch.setattr(caps, "lock", saw)
    jobs.task(other).schedule()
    drain(jobs)
    assert locked == []
    jobs.task(load).schedule()
    drain(jobs)
    assert set(locked) == {caps.LimitPlace("queue", "etl")}


def test_many_lanes_wait_for_their_queue(fleet: Fleet) -> None:
    """More lanes than one cycle reads: the end of one lets in the next at once."""
    jobs = fleet.worker(each)
    jobs.live_settings.queue("default", max_concurrency=2)
    look(fleet, jobs)
    with jobs.batch() as batch:
        for n in range(200):
            batch.task(each, f"c{n:03}")
    assert drain(jobs) == 200


MOVES = some.lists(
    some.tuples(
        some.integers(0, 1),  # which worker
        some.sampled_from(["load", "clean", "single", "other"]),
        some.integers(0, 3),  # how many of these are scheduled
        some.booleans(),  # whether what it holds is run
        some.sampled_from([0.0, 0.5, 20.0]),  # time that goes by
    ),
    min_size=5,
    max_size=25,
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES, cap=some.integers(1, 4))
def test_no_order_of_claims_exceeds_a_limit(database: Database, moves: list[Any], cap: int) -> None:
    clock = FakeClock()
    fleet, starts = Fleet(database, clock), Starts(clock)
    kinds = {"load": load, "clean": clean, "single": single, "other": other}
    workers = [fleet.worker(*kinds.values(), state=starts, lease=600.0) for _ in range(2)]
    with workers[0].database.write() as tx:
        for table in ("schedd_starts", "schedd_tasks"):
            tx.run(f"DELETE FROM {table}")
    workers[0].live_settings.queue("etl", max_concurrency=cap)
    workers[0].live_settings.kind("load", rate_limit="4/min", max_per_worker=1)
    look(fleet, *workers)
    for number, kind, scheduled, run, wait in moves:
        for _ in range(scheduled):
            workers[number].task(kinds[kind]).schedule()
        step(workers[number])
        assert held(workers[number]) <= cap
        assert here(workers[number])["load"] <= 1
        assert sum(here(one)["single"] for one in workers) <= 1
        if run:
            run_claimed(workers[number])
        clock.advance(wait)
    loads = [at for at, kind in zip(starts.at, starts.kinds, strict=True) if kind == "load"]
    assert all(sum(1 for other_at in loads if at <= other_at < at + 60 * SECOND) <= 4 for at in loads)
    fleet.close()


def test_what_threads_really_run(database: Database) -> None:
    """On a started engine: eight slots, two handlers of two kinds at a time."""
    now, most = [0], [0]
    lock, go_on = threading.Lock(), threading.Event()

    def body() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        go_on.wait(0.001)
        with lock:
            now[0] -= 1

    @task(queue="etl")
    def one(ctx: Context, n: int) -> None:
        body()

    @task(queue="etl")
    def two(ctx: Context, n: int) -> None:
        body()

    jobs = Scheduler(database.url)
    jobs.register(one)
    jobs.register(two)
    jobs.live_settings.queue("etl", max_concurrency=2)
    ids = [jobs.task(kind, n).schedule() for n in range(20) for kind in (one, two)]
    with jobs:
        jobs.wait(ids, timeout=60)
    jobs.close()
    assert most == [2]
