"""What the planner leaves behind has a reason: the oracle is the planner itself, over stores made at random.

Workers claim until they claim nothing more. Whatever is due then was passed over, so no worker claims it at its next
cycle, and ``why`` must name what keeps it. That it names the right cause is shown by mending what it names: then tasks
of that cause go on, until all have been claimed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import AsyncContext, Context, Debounce, Scheduler, Task
from scheduler.store.read.explain import why
from scheduler.store.read.ready import cause_of, first_of_each
from scheduler.store.read.workers import fleet_of
from scheduler.store.read.workers import workers as all_workers
from scheduler.store.tasks.claim import LaneHead
from scheduler.testing import FakeClock, engine_of
from support.databases import Database
from support.fleet import Fleet, let_pass, rows, run_claimed, step, write

PRIORITIES = ("high", "medium", "low")


class Plain(Task):
    def run(self, ctx: Context) -> None: ...


class Waits(Task):
    async def run(self, ctx: AsyncContext) -> None: ...


class Apart(Task, isolation="process"):
    def run(self, ctx: Context) -> None: ...


class Capped(Task, max_concurrency=2):
    def run(self, ctx: Context) -> None: ...


class Keyed(Task, max_concurrency=1, concurrency_key="{key}"):
    key: str = "a"

    def run(self, ctx: Context) -> None: ...


class Rated(Task, rate_limit="2/min"):
    def run(self, ctx: Context) -> None: ...


class Fair(Task, fairness_key="{key}"):
    key: str = "a"

    def run(self, ctx: Context) -> None: ...


class Calm(Task, debounce=Debounce(1, 2, by=("key",))):
    key: str = "a"

    def run(self, ctx: Context) -> None: ...


class Each(Task):
    """At most one on each worker."""

    def run(self, ctx: Context) -> None: ...


class Old(Task, kind="Changed"):
    def run(self, ctx: Context) -> None: ...


class New(Task, kind="Changed", schema_version=2):
    def run(self, ctx: Context) -> None: ...


class Unknown(Task):
    def run(self, ctx: Context) -> None: ...


SERVED = (Plain, Waits, Apart, Capped, Keyed, Rated, Fair, Calm, Each, Old)


def workers(fleet: Fleet, rng: random.Random) -> list[Scheduler]:
    """One to three, each with a few slots, of some queues, perhaps with a bound on all that it holds."""
    made = []
    for _ in range(rng.randint(1, 3)):
        pools = {name: (rng.randint(0, 2), rng.randint(0, 1)) for name in PRIORITIES}
        pools["low"] = (max(1, pools["low"][0]), pools["low"][1])
        queues = rng.choice([["*"], ["default"], ["default", "side"]])
        most = rng.choice([0, 0, 2])
        processes = rng.choice([1, 2])
        graphs = rng.choice(["in-turn", "short-first"])
        one = fleet.worker(
            *SERVED, pools=pools, queues=queues, max_concurrent_tasks=most, processes=processes, graphs=graphs
        )
        step(one)
        made.append(one)
    return made


def settings(jobs: Scheduler, rng: random.Random) -> None:
    jobs.live_settings.kind("Each", max_per_worker=1)
    if rng.random() < 0.3:
        jobs.pause(kind=rng.choice(["Plain", "Capped", "Changed"]))
    if rng.random() < 0.2:
        jobs.pause(queue="side")
    if rng.random() < 0.4:
        jobs.live_settings.queue(rng.choice(["default", "side"]), max_concurrency=rng.randint(1, 3))
    if rng.random() < 0.2:
        jobs.live_settings.queue("default", rate_limit="3/min")
    if rng.random() < 0.2:
        jobs.live_settings.pool(rng.choice(PRIORITIES), slots=rng.randint(0, 2))


def drain_some(made: list[Scheduler], rng: random.Random) -> None:
    for one in made:
        if rng.random() < 0.15:
            one.workers.drain(engine_of(one).worker)
    for _ in range(3):  # and release what they had claimed
        step(one)


def store(jobs: Scheduler, newer: Scheduler, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 14)):
        kind: Any = rng.choice([*SERVED, *SERVED, New, Unknown])
        value = kind(rng.choice("ab")) if kind in (Keyed, Fair, Calm) else kind()
        by = newer if kind in (New, Unknown) else jobs
        queue = rng.choice(["default", "default", "side", "nobodys"])
        made = by.task(value).queue(queue).priority(rng.choice(PRIORITIES)).schedule()  # type: ignore[arg-type]
        if rng.random() < 0.1:
            write(jobs, "UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2 WHERE id = :id", id=made)
    if rng.random() < 0.5:
        with jobs.batch() as batch:
            first = batch.task(Plain())
            for _ in range(rng.randint(1, 5)):
                batch.task(rng.choice([Plain, Waits, Capped])()).depend_on(first)


DUE = "SELECT id, lane, queue, priority FROM schedd_tasks WHERE state BETWEEN 1 AND 3 AND run_at <= :now ORDER BY id"
HELD = "SELECT id, worker FROM schedd_tasks WHERE state IN (4, 5) ORDER BY id"

GONE_ON = "SELECT id, claim FROM schedd_tasks WHERE state > 3 ORDER BY id"


def claim_all(made: list[Scheduler]) -> None:
    """Until no worker claims anything more; nothing runs, and the clock stands."""
    before = None
    while (held := rows(made[0], HELD)) != before:
        before = held
        for _ in range(3):
            for one in made:
                step(one)


def random_store(fleet: Fleet, clock: FakeClock, rng: random.Random) -> list[Scheduler]:
    """Workers that have been set up, and tasks that are due; nothing has been claimed."""
    newer = fleet.worker(New, Unknown)
    made = workers(fleet, rng)
    settings(made[0], rng)
    clock.advance(2)
    for one in made:
        step(one)
    store(made[0], newer, rng)
    drain_some(made, rng)
    let_pass(clock, 12, *made)  # until all have renewed their leases, and learned anew which rates have room
    return made


def due(jobs: Scheduler) -> list[sa.Row[Any]]:
    return rows(jobs, DUE, now=jobs.database.now())


@pytest.mark.parametrize("seed", range(6))
def test_no_task_that_is_passed_over_is_promised_a_claim(fleet: Fleet, clock: FakeClock, seed: int) -> None:
    made = random_store(fleet, clock, random.Random(seed))
    jobs = made[0]
    claim_all(made)
    passed_over = due(jobs)
    with jobs.database.read() as tx:
        reasons = {tuple(row): why(tx, row.id) or "" for row in passed_over}
    unnamed = {task: text for task, text in reasons.items() if not text or "next cycle" in text}
    assert not unnamed, [engine_of(one).options.pools for one in made]


@pytest.fixture
def session(database: Database) -> Iterator[sa.Connection | None]:
    """Another program's, which locks rows; None on SQLite, where it would lock them all."""
    if database.is_sqlite:
        yield None
        return
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def causes(jobs: Scheduler) -> dict[int, tuple[str, str]]:
    """(name, words) of the cause of each task that is due; of a suspect that no slot fits, that it is unserved."""
    with jobs.database.read() as tx:
        fleet = fleet_of(tx, all_workers(tx))
        heads = [LaneHead("", "", 0, 0, row.id) for row in due(jobs)]
        found = {row.id: cause_of(tx, row, fleet)[:2] for row in first_of_each(tx, heads)}
    return {
        task: ("unserved" if name == "alone" and "no live worker" in words else name, words)
        for task, (name, words) in found.items()
    }


def run_all(made: list[Scheduler]) -> None:
    for one in made:
        run_claimed(one)
        step(one)


def mend(cause: str, fleet: Fleet, clock: FakeClock, made: list[Scheduler], session: sa.Connection | None) -> None:
    """Do what the remedy of this cause says."""
    jobs = made[0]
    if cause == "paused":
        for pause in jobs.pauses():
            jobs.resume(**{pause.scope: pause.name})
    elif cause == "cap":
        for kind in ("Capped", "Keyed"):
            jobs.live_settings.kind(kind, max_concurrency=None)
        jobs.live_settings.kind("Each", max_per_worker=None)
        for queue in ("default", "side"):
            jobs.live_settings.queue(queue, max_concurrency=None)
    elif cause == "rate":
        run_all(made)  # a claim that cannot begin in time goes back, and another one takes its start
        let_pass(clock, 70, *made)
    elif cause == "locked":
        assert session is not None
        session.rollback()
    elif cause == "alone":
        run_all(made)
    else:
        assert cause in ("slots", "unserved")
        kinds = [*SERVED[:-1], New, Unknown]
        for pool in PRIORITIES:
            jobs.live_settings.reset(pool=pool)
        made.append(fleet.worker(*kinds, pools=dict.fromkeys(PRIORITIES, (20, 20)), queues=["*"], processes=20))
        run_all(made)  # what runs alone at first lets none go beside it
    clock.advance(2)
    for one in made:
        step(one)


@pytest.mark.both_databases
@pytest.mark.parametrize("seed", range(4))
def test_what_is_named_is_what_keeps_it(
    fleet: Fleet, clock: FakeClock, session: sa.Connection | None, seed: int
) -> None:
    rng = random.Random(seed)
    made = random_store(fleet, clock, rng)
    jobs = made[0]
    if session is not None:
        for row in due(jobs):
            if rng.random() < 0.15:
                session.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR UPDATE"), {"id": row.id})
        time.sleep(1.1)  # a session that holds rows for a moment is not named
    claim_all(made)
    mended = []
    while found := causes(jobs):
        name = rng.choice(sorted({name for name, _ in found.values()}))
        assert name != "soon", (mended, found)
        mended.append(name)
        before = rows(jobs, GONE_ON)
        mend(name, fleet, clock, made, session)
        claim_all(made)
        names = [{task: name for task, (name, _) in some.items()} for some in (found, causes(jobs))]
        assert names[0] != names[1] or rows(jobs, GONE_ON) != before, (mended, found)
        assert len(mended) < 40


def test_a_worker_whose_pool_has_no_slots_is_none_that_could_claim_it(fleet: Fleet) -> None:
    """Its child processes run other priorities only."""
    without, full = (
        fleet.worker(Apart, pools={"high": (high, 0), "medium": (1, 0), "low": (1, 0)}, processes=1) for high in (0, 1)
    )
    for one in (without, full):
        step(one)
    for _ in range(4):
        last = without.task(Apart()).priority("high").schedule()
    claim_all([without, full])
    with without.database.read() as tx:
        reason = why(tx, last)
    assert reason is not None
    assert reason.endswith("waits for a free child process (1 busy of 1)")
