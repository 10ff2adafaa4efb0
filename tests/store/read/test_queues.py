"""What is said of each queue, and that it costs no more than a few looks at an index."""

from __future__ import annotations

import asyncio

import pytest

from scheduler import AsyncContext, Context, QueueInfo, RetryPolicy, Scheduler, task
from scheduler.model.outcome import AttemptEnd
from scheduler.model.rollup import MINUTE, Cell, Measure
from scheduler.store import rollups
from scheduler.store.read.queues import Queues, queues
from scheduler.testing import drain
from support.fleet import Fleet, step, write
from support.plans import work_of


@task
def mail(ctx: Context, n: int = 0) -> None: ...


@task(retry=RetryPolicy(min_wait=60, max_attempts=5))
def fails(ctx: Context) -> None:
    raise ValueError


@task
async def sleeps(ctx: AsyncContext) -> None:
    await ctx.sleep_for(600)


def looked(jobs: Scheduler, **bounds: int) -> Queues:
    with jobs.database.read() as tx:
        return queues(tx, **bounds)


def named(jobs: Scheduler) -> dict[str, QueueInfo]:
    return {one.name: one for one in jobs.queues()}


def test_an_empty_store_has_none(fleet: Fleet) -> None:
    assert list(fleet.worker(mail).queues()) == []


def test_what_waits_is_counted_by_how_it_waits(fleet: Fleet) -> None:
    jobs = fleet.worker(mail, fails, sleeps, queues=["a"])
    jobs.task(fails).queue("a").schedule()
    jobs.task(sleeps).queue("a").schedule()
    drain(jobs)
    first = jobs.task(mail).queue("a").schedule()
    write(jobs, "UPDATE schedd_tasks SET state = 4, worker = 1 WHERE id = :id", id=int(first))
    fleet.clock.advance(1)
    for seconds in (0, 0, 600):
        jobs.task(mail).queue("a").after(seconds).schedule()
    jobs.task(mail).queue("a").depend_on([first]).schedule()
    jobs.task(mail).queue("b").schedule()
    fleet.clock.advance(5)
    found = named(jobs)
    assert sorted(found) == ["a", "b"]
    a = found["a"]
    assert (a.ready, a.later, a.held, a.running, a.retry, a.suspended, a.waiting) == (2, 1, 1, 0, 1, 1, 1)
    assert a.at_least == frozenset()
    assert a.oldest_ready is not None
    assert (fleet.clock.now() - a.oldest_ready.timestamp() * 1e6) / 1e6 == pytest.approx(5, abs=0.01)
    assert [len(one.workers) for one in found.values()] == [1, 0]
    assert asyncio.run(jobs.queues_async()) == jobs.queues()


def test_pauses_limits_and_workers_make_queues_known(fleet: Fleet) -> None:
    jobs = fleet.worker(mail, queues=["served"])
    step(jobs)
    with jobs.acting("alice", reason="provider down"):
        jobs.pause(queue="paused")
    jobs.live_settings.queue("limited", max_concurrency=3, rate_limit="100/min")
    found = named(jobs)
    assert sorted(found) == ["limited", "paused", "served"]
    assert (found["limited"].max_concurrency, found["limited"].rate_limit) == (3, "100/min")
    pause = found["paused"].pause
    assert pause is not None
    assert (pause.scope, pause.by, pause.reason) == ("queue", "alice", "provider down")
    assert found["served"].pause is None
    jobs.pause(all=True)
    assert {one.pause.scope for one in jobs.queues() if one.pause} == {"all"}
    cut = looked(jobs, limit=2)
    assert ([one.name for one in cut.rows], cut.more) == (["limited", "paused"], True)


def test_a_queue_without_a_worker_names_the_last_one_and_the_command(fleet: Fleet) -> None:
    before = fleet.worker(mail, queues=["old"])
    step(before)
    before.task(mail).queue("old").schedule()
    assert named(before)["old"].unserved is None
    fleet.clock.advance(120)
    nobody = named(before)["old"]
    assert nobody.unserved == "no worker is live"
    after = fleet.worker(mail, queues=["new"])
    step(after)
    old = named(after)["old"]
    assert (old.workers, old.unserved) == ((), "no live worker serves queue 'old'")
    for one in (nobody, old):
        assert one.last_served is not None
        assert "served it last, until " in one.last_served
    assert "`schedctl set task --queue old --to-queue QUEUE`" in str(nobody.remedy)
    assert "`schedctl set task --queue old --to-queue new`" in str(old.remedy)
    assert named(after)["new"].unserved is None


def test_a_worker_without_the_kind_does_not_serve(fleet: Fleet) -> None:
    store, other = fleet.worker(mail), fleet.worker(fails, queues=["a"])
    store.task(mail).queue("a").schedule()
    step(other)
    (a,) = store.queues()
    assert (len(a.workers), a.unserved) == (1, "no live worker serves kind 'mail'")


def test_tasks_that_are_due_much_later_hide_none(fleet: Fleet) -> None:
    """Nor do ready ones hide those that wait otherwise."""
    jobs = fleet.worker(mail, fails)
    jobs.task(fails).queue("a").schedule()
    drain(jobs)
    with jobs.batch() as batch:
        for n in range(30):
            batch.task(mail, n).queue("a").priority("high").after(86_400)
    for _ in range(3):
        jobs.task(mail).queue("a").priority("low").schedule()
    (a,) = looked(jobs, most=10).rows
    assert {name: a.counts[name] for name in ("ready", "later", "retry")} == {"ready": 3, "later": 29, "retry": 1}
    assert a.at_least == {"later"}
    assert a.oldest is not None
    with jobs.batch() as batch:
        for n in range(30):
            batch.task(mail, n).queue("b")
    _, b = looked(jobs, most=10).rows
    assert (b.counts["ready"], b.at_least) == (10, frozenset({"ready"}))


def test_rates_are_those_of_the_last_minutes(fleet: Fleet) -> None:
    jobs = fleet.worker(mail)
    with jobs.batch() as batch:
        for _ in range(100):
            batch.task(mail)
    for _ in range(12):  # 24 a minute come, 18 leave the backlog
        at = rollups.floor(jobs.database.now(), MINUTE)
        with jobs.database.write() as tx:
            code = AttemptEnd.SUCCEEDED.code
            cells = [Cell(MINUTE, at, "mail", queue, code, Measure.RUN, 0, 18, 18) for queue in ("default", "fast")]
            rollups.add(tx, cells)
        fleet.clock.advance(MINUTE)
        with jobs.batch() as batch:
            for _ in range(24):
                batch.task(mail)
    found = named(jobs)
    assert found["default"].arriving * 60 == pytest.approx(24, rel=0.15)
    assert found["default"].leaving * 60 == pytest.approx(18, rel=0.15)
    assert found["fast"].arriving == found["fast"].leaving  # nothing of it waits
    assert found["fast"].leaving * 60 == pytest.approx(18, rel=0.15)


@task(concurrency_key="{n}")
def keyed(ctx: Context, n: int = 0) -> None: ...


def test_costs_hang_neither_on_tasks_nor_on_keys(fleet: Fleet) -> None:
    jobs = fleet.worker(mail, keyed)

    def work() -> int:
        with work_of(jobs) as done:
            looked(jobs, most=200)
        return int(done.done)

    def store(count: int) -> None:
        with jobs.batch() as batch:
            for n in range(count):
                batch.task(keyed, n).queue("a")
                batch.task(mail, n).queue("b").after(60 * (n % 2))
                batch.task(mail, n).queue("ended")
        write(jobs, "UPDATE schedd_tasks SET state = 6, finished_at = 1 WHERE queue = 'ended'")

    store(500)
    write(jobs, "ANALYZE")
    few = work()
    store(2_000)
    write(jobs, "ANALYZE")
    assert work() < 2 * few
