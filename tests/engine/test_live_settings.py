"""Live settings: slots, caps and rates that change while workers run, over what programs and configurations say."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scheduler import ConfigError, Context, Scheduler, task
from scheduler.model.capacity import THREAD
from scheduler.store.read.explain import why
from scheduler.testing import engine_of
from support.databases import Database
from support.fleet import Fleet, rows, run_claimed, step, until

pytestmark = pytest.mark.one_is_enough

HELD = "SELECT count(*) AS n FROM schedd_tasks WHERE state >= 4 AND state <= 5"
ONE_POOL = {"high": (0, 0), "medium": (1, 0), "low": (0, 0)}


@task
def wide(ctx: Context, n: int = 0) -> None: ...


@task(max_concurrency=1)
def narrow(ctx: Context, n: int = 0) -> None: ...


@task(max_concurrency=1, concurrency_key="{customer}")
def each(ctx: Context, customer: str, n: int = 0) -> None: ...


def held(jobs: Scheduler) -> int:
    return int(rows(jobs, HELD)[0].n)


def look(fleet: Fleet, *workers: Scheduler) -> None:
    """A second later each worker has read what is set, and claimed by it."""
    fleet.clock.advance(1)
    for jobs in workers:
        step(jobs)
        step(jobs)


def test_a_cap_that_was_not_there_holds_over_all_workers_and_goes_again(fleet: Fleet) -> None:
    workers = [fleet.worker(wide) for _ in range(2)]
    for jobs in workers:
        step(jobs)
    assert workers[0].live_settings.kind("wide", max_concurrency=2)
    assert not workers[0].live_settings.kind("wide", max_concurrency=2)
    look(fleet, *workers)
    last = [workers[0].task(wide, n).schedule() for n in range(6)][-1]
    look(fleet, *workers)
    assert held(workers[0]) == 2
    with workers[0].database.read() as tx:
        assert "its kind is at its cap of 2" in (why(tx, last) or "")
    assert workers[0].live_settings.reset(kind="wide")
    look(fleet, *workers)
    assert held(workers[0]) == 6


def test_what_the_type_says_gives_way_and_comes_back(fleet: Fleet) -> None:
    jobs = fleet.worker(narrow)
    for n in range(6):
        jobs.task(narrow, n).schedule()
    step(jobs)
    assert held(jobs) == 1
    jobs.live_settings.kind("narrow", max_concurrency=3)
    look(fleet, jobs)
    assert held(jobs) == 3
    jobs.live_settings.kind("narrow", max_concurrency=None)
    look(fleet, jobs)
    assert held(jobs) == 6


def test_a_rate_is_kept_from_then_on(fleet: Fleet) -> None:
    jobs = fleet.worker(wide)
    step(jobs)
    jobs.live_settings.kind("wide", rate_limit="2/min")
    look(fleet, jobs)
    for n in range(5):
        jobs.task(wide, n).schedule()
    look(fleet, jobs)
    assert held(jobs) == 2
    run_claimed(jobs)
    look(fleet, jobs)
    assert held(jobs) == 0
    fleet.clock.advance(61)
    step(jobs)
    assert held(jobs) == 2


def test_one_key_of_a_kind_has_a_cap_of_its_own(fleet: Fleet) -> None:
    jobs = fleet.worker(each)
    for n in range(4):
        for customer in ("ada", "bob"):
            jobs.task(each, customer, n).schedule()
    jobs.live_settings.key("each", "ada", max_concurrency=3)
    look(fleet, jobs)
    lanes = rows(jobs, "SELECT lane, count(*) AS n FROM schedd_tasks WHERE state = 4 GROUP BY lane ORDER BY lane")
    assert [row.n for row in lanes] == [3, 1]
    jobs.live_settings.reset(kind="each", key="ada")
    run_claimed(jobs)
    look(fleet, jobs)
    lanes = rows(jobs, "SELECT lane, count(*) AS n FROM schedd_tasks WHERE state = 4 GROUP BY lane ORDER BY lane")
    assert [row.n for row in lanes] == [1, 1]


def test_slots_of_a_pool_of_all_workers_and_of_one(fleet: Fleet) -> None:
    workers = [fleet.worker(wide, pools=ONE_POOL) for _ in range(2)]
    for jobs in workers:
        step(jobs)
    for n in range(20):
        workers[0].task(wide, n).schedule()
    for jobs in workers:
        step(jobs)
    assert held(workers[0]) == 2
    workers[0].live_settings.pool("medium", slots=2)
    workers[0].live_settings.pool("medium", slots=5, worker=engine_of(workers[1]).worker)
    look(fleet, *workers)
    assert [len(engine_of(jobs).engine_state.held) for jobs in workers] == [2, 5]
    capacity = [row.pools for row in rows(workers[0], "SELECT pools FROM schedd_workers ORDER BY id")]
    assert ['"medium":[2,0]' in capacity[0], '"medium":[5,0]' in capacity[1]] == [True, True]
    workers[0].live_settings.pool("low", slots=1)  # a pool that had none: it helps medium
    look(fleet, *workers)
    assert [len(engine_of(jobs).engine_state.held) for jobs in workers] == [3, 6]
    workers[0].live_settings.reset(pool="medium")
    workers[0].live_settings.reset(pool="medium", worker=engine_of(workers[1]).worker)
    workers[0].live_settings.pool("low", slots=0)
    look(fleet, *workers)
    sizes = [{slot_type: slots.size for slot_type, slots in engine_of(jobs).slots.items()} for jobs in workers]
    assert [(one[1, THREAD], one[2, THREAD]) for one in sizes] == [(1, 0), (1, 0)]


def test_a_new_configuration_holds_under_what_is_set(fleet: Fleet) -> None:
    jobs = fleet.worker(wide, pools=ONE_POOL)
    step(jobs)
    for n in range(20):
        jobs.task(wide, n).schedule()
    jobs.reconfigure(pools={**ONE_POOL, "medium": (4, 0)})
    step(jobs)
    step(jobs)
    assert held(jobs) == 4
    jobs.reconfigure(pools={**ONE_POOL, "medium": (9, 0)}, max_concurrent_tasks=6)
    step(jobs)
    step(jobs)
    assert held(jobs) == 6
    with pytest.raises(ConfigError):
        jobs.reconfigure(pools={"highest": (1, 1)})


def test_each_change_is_in_the_audit(fleet: Fleet) -> None:
    jobs = fleet.worker(wide)
    with jobs.acting("alice", reason="provider slow"):
        jobs.live_settings.kind("wide", max_concurrency=2, rate_limit="10/min")
        jobs.live_settings.pool("high", slots=3)
    assert [(s.subject, s.value, s.actor, s.reason) for s in jobs.live_settings.list()] == [
        ("kind wide", {"max_concurrency": 2, "rate_limit": "10/min"}, "alice", "provider slow"),
        ("pool high", {"slots": 3}, "alice", "provider slow"),
    ]
    jobs.live_settings.reset(kind="wide")
    found = [(e.action, e.subject, e.before, e.after) for e in jobs.audit()]
    limits = {"max_concurrency": 2, "rate_limit": "10/min"}
    assert ("settings changed", "kind wide", {}, limits) in found
    assert ("settings changed", "kind wide", limits, {}) in found
    assert len(found) == 3


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda live: live.pool("huge", slots=1), "there is no pool 'huge'"),
        (lambda live: live.pool("high", slots=-1), "slots must be a whole number"),
        (lambda live: live.pool("high", slots=True), "slots must be a whole number"),
        (lambda live: live.pool("high"), "say what to change"),
        (lambda live: live.kind("wide"), "say what to change"),
        (lambda live: live.kind("wide", max_concurrency=0), "max_concurrency must be a whole number from 1"),
        (lambda live: live.kind("wide", rate_limit="often"), "rate_limit must look like"),
        (lambda live: live.kind("wide", max_per_worker=0), "max_per_worker must be a whole number from 1"),
        (lambda live: live.queue("etl"), "say what to change"),
        (lambda live: live.queue("etl", max_concurrency=0), "max_concurrency must be a whole number from 1"),
        (lambda live: live.key("wide", "k"), "say what to change"),
        (lambda live: live.reset(), "say what to reset"),
        (lambda live: live.reset(kind="wide", queue="etl"), "say what to reset"),
        (lambda live: live.reset(pool="high", kind="wide"), "say what to reset"),
        (lambda live: live.reset(pool="high", key="k"), "say what to reset"),
    ],
)
def test_wrong_settings_are_refused(fleet: Fleet, call: Any, text: str) -> None:
    jobs = fleet.worker(wide)
    with pytest.raises(ConfigError, match=text):
        call(jobs.live_settings)
    assert jobs.live_settings.list() == []


def test_threads_come_and_go(database: Database) -> None:
    """A barrier of two opens only once there are two threads."""
    together, alone = threading.Barrier(2, timeout=20), []

    @task
    def meet(ctx: Context) -> None:
        together.wait()

    @task
    def pass_by(ctx: Context) -> None:
        alone.append(threading.get_ident())

    def threads() -> int:
        return sum(1 for thread in threading.enumerate() if thread.name.startswith("schedd-medium-"))

    jobs = Scheduler(database.url, pools=ONE_POOL)
    jobs.register(meet)
    jobs.register(pass_by)
    with jobs:
        jobs.start()
        before = threads()
        ids = [jobs.task(meet).schedule() for _ in range(2)]
        until(lambda: threads() == before + 1)
        jobs.live_settings.pool("medium", slots=2)
        jobs.wait(ids, timeout=20)
        assert threads() == before + 2
        jobs.live_settings.pool("medium", slots=1)
        until(lambda: threads() == before + 1)
        jobs.wait([jobs.task(pass_by).schedule() for _ in range(3)], timeout=20)
        assert len(set(alone)) == 1
