"""``rate_limit``: never more attempt starts, retries included, in any such period, over all workers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from scheduler import Context, Retry, RetryPolicy, Scheduler, task
from scheduler.model.rate import Rate, parse_rate
from scheduler.model.texts import rfc3339
from scheduler.ports import SECOND
from scheduler.store.db.dialect import dialect_named, prepared
from scheduler.store.read.explain import why
from scheduler.store.tasks import limits as caps
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database
from support.fleet import Fleet, ends, rows, run_claimed, step, write

MINUTE = 60.0


class Starts:
    """``ctx.state``: when handlers started, in microseconds."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.at: list[int] = []

    def most_in(self, period: int) -> int:
        return max((sum(1 for other in self.at if at <= other < at + period) for at in self.at), default=0)


@task(rate_limit="100/min")
def paced(ctx: Context, n: int = 0) -> None:
    ctx.state.at.append(ctx.state.clock.now())


@task(rate_limit="3/min", retry=RetryPolicy(min_wait=1, max_wait=1, max_attempts=None, jitter=0))
def again(ctx: Context) -> None:
    ctx.state.at.append(ctx.state.clock.now())
    raise Retry(after=0)


@task
def free(ctx: Context, n: int = 0) -> None: ...


@pytest.fixture
def starts(clock: FakeClock) -> Starts:
    return Starts(clock)


def why_of(jobs: Scheduler, task_id: int) -> str:
    with jobs.database.read() as tx:
        return why(tx, task_id) or ""


@pytest.mark.case(59)
def test_a_hundred_a_minute_over_two_workers(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    workers = [fleet.worker(paced, free, state=starts) for _ in range(2)]
    with workers[0].batch() as batch:
        for n in range(250):
            batch.task(paced, n)
    began = clock.now()
    for _ in range(140):
        for one in workers:
            drain(one)
        clock.advance(1)
    assert len(starts.at) == 250
    assert starts.most_in(60 * SECOND) == 100
    assert sum(1 for at in starts.at if at < began + 60 * SECOND) == 100
    late = (starts.at[100] - began) / SECOND - MINUTE
    assert 0 <= late <= 3, "counting in sub-windows costs a little, no more"


@pytest.mark.case(59)
def test_retries_count_too(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    jobs = fleet.worker(again, state=starts)
    task_id = jobs.task(again).schedule()
    for _ in range(130):
        drain(jobs)
        clock.advance(1)
    assert starts.most_in(60 * SECOND) == 3
    assert len(starts.at) == 9
    assert len(ends(jobs, task_id)) == 9


def test_others_go_on_and_the_engine_sleeps_until_the_next_start(
    fleet: Fleet, clock: FakeClock, starts: Starts
) -> None:
    jobs = fleet.worker(paced, free, state=starts)
    ids = [jobs.task(paced, n).schedule() for n in range(101)]
    assert drain(jobs) == 100
    other = jobs.task(free).schedule()
    assert drain(jobs) == 1
    assert jobs.get_task_status(other) == "success"
    engine = engine_of(jobs)
    assert clock.now() + 60 * SECOND <= engine._next_due <= clock.now() + 63 * SECOND
    before = engine.cycles
    for _ in range(5):
        assert engine.step() > 0
    assert engine.cycles == before
    at = rfc3339(engine._next_due, exact=False)
    assert why_of(jobs, ids[-1]).endswith(f"; rate limit 100/min, next start at {at}")
    clock.advance((engine._next_due - clock.now()) / SECOND)
    assert drain(jobs) == 1


def test_what_never_began_gives_its_start_back(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    jobs, other = fleet.worker(again, state=starts), fleet.worker(again, state=starts)
    for _ in range(3):
        jobs.task(again).schedule()
    step(jobs)
    counted = "SELECT sum(starts) AS n FROM schedd_starts"
    assert rows(jobs, counted)[0].n == 3
    engine_of(jobs).drain()
    engine_of(jobs).step()
    assert rows(jobs, counted)[0].n == 0
    assert drain(other) == 3
    assert rows(jobs, counted)[0].n == 3
    clock.advance(1)
    assert drain(other) == 0


def test_a_start_that_comes_too_late_goes_back(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    """Between claim and start the machine stood still: the start would be in a period that it is not counted in."""
    jobs = fleet.worker(again, state=starts)
    task_id = jobs.task(again).schedule()
    step(jobs)
    clock.advance(20)
    run_claimed(jobs)
    step(jobs)
    assert starts.at == []
    assert ends(jobs, task_id) == []
    (row,) = rows(jobs, "SELECT attempt, claim, state FROM schedd_tasks")
    assert (row.attempt, row.claim) == (1, 2), "claimed again at once"
    limits = engine_of(jobs).dispatch.limits
    rate = limits.known.kinds["again"].rate
    assert rate is not None
    assert limits.patience("again", rate) == 2 * rate.start_window, "the next one gets more time"
    run_claimed(jobs)
    assert len(starts.at) == 1


def test_a_worker_that_died_gives_nothing_back(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    """No other worker knows whether the tasks that it held had begun."""
    first, second = (fleet.worker(again, state=starts, lease=3) for _ in range(2))
    for _ in range(4):
        first.task(again).schedule()
    began = clock.now()
    step(first)
    run_claimed(first)
    fleet.kill(first)
    for _ in range(58):
        clock.advance(1)
        assert drain(second) == 0
    assert [r.state for r in rows(second, "SELECT DISTINCT state FROM schedd_tasks")] == [1], "reclaimed long ago"
    for _ in range(6):
        clock.advance(1)
        drain(second)
    assert sum(1 for at in starts.at if at > began) == 3


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_jump_of_the_clock_stops_it_for_a_period_at_most(
    fleet: Fleet, clock: FakeClock, starts: Starts, hours: int
) -> None:
    jobs = fleet.worker(again, state=starts)
    jobs.task(again).schedule()
    for _ in range(10):
        drain(jobs)
        clock.advance(1)
    assert len(starts.at) == 3
    clock.jump(3600 * hours)
    write(jobs, "UPDATE schedd_tasks SET run_at = :now", now=clock.now())
    for _ in range(100):
        drain(jobs)
        clock.advance(1)
    assert len(starts.at) >= 6


def test_a_rate_and_a_cap_hold_together(fleet: Fleet, clock: FakeClock, starts: Starts) -> None:
    @task(rate_limit="3/min", max_concurrency=2)
    def both(ctx: Context, n: int) -> None: ...

    jobs = fleet.worker(both, state=starts)
    for n in range(9):
        jobs.task(both, n).schedule()
    step(jobs)
    assert len(engine_of(jobs).engine_state.held) == 2
    assert drain(jobs) == 3
    clock.advance(70)
    assert drain(jobs) == 3


def test_rates_are_shown_as_they_are_written() -> None:
    for text in ("100/min", "1/s", "5/2h", "7/day", "3/90s", "2/30min"):
        assert str(parse_rate(text)) == text


MOVES = some.lists(
    some.tuples(
        some.sampled_from([0, 1_000, 90_000, 400_000, 1_000_000, 2_500_000, 9_900_000]),  # time that goes by before
        some.integers(0, 7),  # how many are wanted
        some.sampled_from([0, 20_000, 160_000, 900_000]),  # how long after its claim each starts, if it may
        some.booleans(),  # whether the first of them goes back unstarted
        some.sampled_from([0, 700_000]),  # this worker's patience
    ),
    max_size=40,
)


@pytest.mark.case(59)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rate=some.builds(Rate, some.integers(1, 5), some.sampled_from([SECOND, 10 * SECOND, 60 * SECOND])), moves=MOVES)
def test_no_period_ever_holds_more(database: Database, rate: Rate, moves: list[Any]) -> None:
    jobs = Scheduler.for_testing(url=database.url)
    dialect = dialect_named(database.dialect)
    assert dialect is not None
    started: list[int] = []
    at = 0
    with jobs.database.write() as tx:
        tx.connection.execute(prepared("DELETE FROM schedd_starts"))
        for wait, wanted, lag, back, patience in moves:
            at += wait
            free, again = caps.remaining(tx.at(at), "k", rate)
            assert (again == at) == (free > 0)
            assert caps.remaining(tx.at(again), "k", rate)[0] > 0
            taken = min(wanted, free)
            if not taken:
                continue
            until = rate.until(at, max(patience, rate.start_window))
            caps.count(tx.at(at), "k", rate, until, taken)
            begin = at + lag
            if begin > until or back:
                unstarted = taken if begin > until else 1
                caps.refund(tx, "k", until, unstarted)
                taken -= unstarted
            started += [begin] * taken
    jobs.close()
    for first in started:
        assert sum(1 for s in started if first <= s < first + rate.period) <= rate.count
