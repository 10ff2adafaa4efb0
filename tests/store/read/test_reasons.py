"""What the planner leaves behind has a reason: the oracle is the planner itself, over stores made at random.

Workers claim until they claim nothing more. Whatever is due then was passed over, so no worker claims it at its next
cycle, and ``why`` must name what keeps it.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from scheduler import AsyncContext, Context, Scheduler, Task
from scheduler.store.read.explain import why
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, rows, step, write

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


class Each(Task):
    """At most one on each worker."""

    def run(self, ctx: Context) -> None: ...


class Old(Task, kind="Changed"):
    def run(self, ctx: Context) -> None: ...


class New(Task, kind="Changed", schema_version=2):
    def run(self, ctx: Context) -> None: ...


class Unknown(Task):
    def run(self, ctx: Context) -> None: ...


SERVED = (Plain, Waits, Apart, Capped, Keyed, Rated, Fair, Each, Old)


def workers(fleet: Fleet, rng: random.Random) -> list[Scheduler]:
    """One to three, each with a few slots, of some queues, perhaps with a bound on all that it holds."""
    made = []
    for _ in range(rng.randint(1, 3)):
        pools = {name: (rng.randint(0, 2), rng.randint(0, 1)) for name in PRIORITIES}
        pools["low"] = (max(1, pools["low"][0]), pools["low"][1])
        queues = rng.choice([["*"], ["default"], ["default", "side"]])
        most = rng.choice([0, 0, 2])
        processes = rng.choice([1, 2])
        one = fleet.worker(*SERVED, pools=pools, queues=queues, max_concurrent_tasks=most, processes=processes)
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


def store(jobs: Scheduler, newer: Scheduler, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 14)):
        kind: Any = rng.choice([*SERVED, *SERVED, New, Unknown])
        value = kind(rng.choice("ab")) if kind in (Keyed, Fair) else kind()
        by = newer if kind in (New, Unknown) else jobs
        queue = rng.choice(["default", "default", "side", "nobodys"])
        made = by.task(value).queue(queue).priority(rng.choice(PRIORITIES)).schedule()  # type: ignore[arg-type]
        if rng.random() < 0.1:
            write(jobs, "UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2 WHERE id = :id", id=made)


DUE = "SELECT id, lane, queue, priority FROM schedd_tasks WHERE state BETWEEN 1 AND 3 AND run_at <= :now ORDER BY id"
HELD = "SELECT count(*) AS n FROM schedd_tasks WHERE state IN (4, 5)"


def claim_all(made: list[Scheduler]) -> None:
    """Until no worker claims anything more; nothing runs, and the clock stands."""
    before = -1
    while (held := rows(made[0], HELD)[0].n) != before:
        before = held
        for _ in range(3):
            for one in made:
                step(one)


@pytest.mark.parametrize("seed", range(6))
def test_no_task_that_is_passed_over_is_promised_a_claim(fleet: Fleet, clock: FakeClock, seed: int) -> None:
    rng = random.Random(seed)
    newer = fleet.worker(New, Unknown)
    made = workers(fleet, rng)
    jobs = made[0]
    settings(jobs, rng)
    clock.advance(2)
    for one in made:
        step(one)
    store(jobs, newer, rng)
    claim_all(made)
    due = rows(jobs, DUE, now=jobs.database.now())
    with jobs.database.read() as tx:
        reasons = {tuple(row): why(tx, row.id) or "" for row in due}
    unnamed = {task: text for task, text in reasons.items() if not text or "next cycle" in text}
    assert not unnamed, [engine_of(one).options.pools for one in made]
