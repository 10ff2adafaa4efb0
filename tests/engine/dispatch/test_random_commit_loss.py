"""Random work, while the answers to an engine's and its attempts' commits get lost again and again.

The commit came through, but its caller gets the error that the database is away. Nothing may be lost or done twice.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import AsyncContext, Context, InvalidTransitionError, RetryPolicy, Scheduler, Task, TaskState, task
from scheduler.backoff import Backoff
from scheduler.engine.dispatch import completion as ledger
from scheduler.errors import StoreUnavailableError
from scheduler.ports import FAILPOINTS
from scheduler.store.admin import doctor as checks
from support.databases import Database
from support.fleet import rows, until, write

TASKS = 60
ENGINE = ("schedd-engine", "schedd-recorder")  # threads
OFTEN = RetryPolicy(min_wait=0.01, max_wait=0.02, max_attempts=10, jitter=0)
ADD = sa.text("INSERT INTO bookings (entry) VALUES (:entry)")


class Watched:
    """Which handlers ran, and how many at once."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.steps: Counter[int] = Counter()
        self.letters: Counter[int] = Counter()
        self.wrong: list[str] = []
        self._now: Counter[Any] = Counter()
        self._mutex = threading.Lock()

    @contextmanager
    def body(self, ctx: Any, most: int | None = None) -> Iterator[None]:
        with self._mutex:
            self.runs[ctx.id] += 1
            self._now.update((ctx.id, ctx.kind))
            if self._now[ctx.id] > 1:
                self.wrong.append(f"task {ctx.id} ran beside itself")
            if most is not None and self._now[ctx.kind] > most:
                self.wrong.append(f"{self._now[ctx.kind]} of {ctx.kind} at once")
        try:
            yield
        finally:
            with self._mutex:
                self._now.subtract((ctx.id, ctx.kind))


@task
def once(ctx: Context, n: int) -> int:
    with ctx.state.body(ctx):
        return n


@task
async def once_async(ctx: AsyncContext, n: int) -> int:
    with ctx.state.body(ctx):
        return n


@task(max_concurrency=2)
def capped(ctx: Context, n: int) -> None:
    with ctx.state.body(ctx, most=2):
        time.sleep(0.002)


@task(rate_limit="500/s")
def rated(ctx: Context, n: int) -> None:
    with ctx.state.body(ctx):
        pass


class Fails(Task, kind="fails", retry=RetryPolicy(min_wait=0.01, max_wait=0.02, max_attempts=3, jitter=0)):
    n: int

    def run(self, ctx: Context) -> None:
        with ctx.state.body(ctx):
            if ctx.attempt < 2 or self.n % 3 == 0:
                raise ValueError("no")


class Durable(Task, kind="durable"):
    n: int

    def run(self, ctx: Context) -> Any:
        with ctx.state.body(ctx):
            ctx.step("step", lambda: ctx.state.steps.update([ctx.id]))
            children = [ctx.spawn(once, i) for i in range(3)]
            first = ctx.emit_event(f"event {ctx.id}")
            ctx.sleep_for(0.005)
            ctx.await_event(f"event {ctx.id}", timeout=60)
            return [first, [ctx.await_task(child) for child in children], ctx.map(once, [5, 6])]


class Books(Task, kind="books", retry=OFTEN):
    """Its commits' answers get lost, too; then it fails, and is tried again if it has not succeeded by that."""

    n: int

    def run(self, ctx: Context) -> None:
        def book() -> None:
            with ctx.transaction() as tx:
                tx.execute(ADD, {"entry": f"step of {ctx.id}"})

        with ctx.state.body(ctx):
            ctx.step("step", book)
            with ctx.transaction() as tx:
                tx.execute(ADD, {"entry": f"end of {ctx.id}"})


KINDS = (once, once_async, capped, rated, Fails, Durable, Books)


def lose_answers(jobs: Scheduler, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of three in ten commits. Returns the list in which each is noted."""
    lost: list[str] = []

    def perhaps(where: str) -> None:
        if rng.random() < 0.3:
            lost.append(where)
            raise StoreUnavailableError("the answer got lost")

    def losing(commit: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def committing(*args: Any) -> Iterator[Any]:
            with commit(*args) as connection:
                yield connection
            name = threading.current_thread().name
            if name in ENGINE:
                perhaps(name)

        return committing

    monkeypatch.setattr(jobs.engine, "_backoff", Backoff(0.001, 0.01))
    monkeypatch.setattr(ledger, "BACKGROUND_MIN_OUTCOMES", rng.choice((1, 3, 50)))
    monkeypatch.setattr(jobs.database, "write", losing(jobs.database.write))
    monkeypatch.setattr(jobs.database, "single", losing(jobs.database.single))
    monkeypatch.setattr(FAILPOINTS, "hit", lambda name: perhaps(name) if name == "after transaction commit" else None)
    return lost


def schedule(jobs: Scheduler, rng: random.Random) -> None:
    with jobs.batch() as batch:
        made: list[Any] = []
        for n in range(TASKS):
            kind = rng.choice(KINDS)
            one = batch.task(kind(n)) if isinstance(kind, type) else batch.task(kind, n)
            parents = rng.sample(made, min(len(made), rng.choice((0, 1, 3))))
            one.depend_on(parents, when=rng.choice(("success", "finished")), otherwise=rng.choice((None, "skip")))
            made.append(one.priority(rng.choice(("high", "medium", "low"))).after(rng.choice((0, 0, 0.05))))
    for _ in range(10):
        jobs.task(once, 1).schedule()
    for task_id in rng.sample(batch.ids, 3):
        try:
            jobs.cancel_task(task_id)
        except InvalidTransitionError:
            pass  # it has ended


@pytest.mark.case(9, 52, 56, 58, 63)
@pytest.mark.parametrize("runs", [2, pytest.param(60, marks=pytest.mark.soak)], ids=["short", "long"])
def test_nothing_is_lost_or_done_twice(
    database: Database, runs: int, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    seed = int(os.environ.get("SCHEDD_SEED", random.randrange(10**6)))
    tell(f"seed {seed} (SCHEDD_SEED={seed} runs it again, but for the threads' order)")
    rng = random.Random(seed)
    watched = Watched()
    jobs = Scheduler(database.url, state=watched, on_dead_letter=lambda letter: watched.letters.update([letter.id]))
    for kind in KINDS:
        jobs.register(kind)
    write(jobs, "CREATE TABLE bookings (entry varchar(50))")
    with jobs, monkeypatch.context() as patch:
        lost = lose_answers(jobs, rng, patch)
        for _ in range(runs):
            schedule(jobs, rng)
            until(lambda: not rows(jobs, "SELECT 1 FROM schedd_tasks WHERE state < 6 LIMIT 1"), 60)
    check(jobs)
    assert set(lost) >= {"schedd-engine", "after transaction commit"}
    jobs.close()


def check(jobs: Scheduler) -> None:
    watched: Watched = jobs.state
    with jobs.database.read() as tx:
        found = checks.check(tx)
    assert not watched.wrong
    assert not [str(finding) for finding in found if finding.level == checks.PROBLEM]
    assert max(watched.steps.values(), default=1) == 1
    children = Counter(r.spawned_by for r in rows(jobs, "SELECT spawned_by FROM schedd_tasks"))
    booked = Counter(r.entry for r in rows(jobs, "SELECT entry FROM bookings"))
    began = Counter(r.task_id for r in rows(jobs, "SELECT task_id FROM schedd_attempts WHERE started_at IS NOT NULL"))
    assert max(booked.values(), default=1) == 1
    for row in rows(jobs, "SELECT id, kind, state FROM schedd_tasks"):
        state, ran = TaskState.from_code(row.state), watched.runs[row.id]
        what = f"{row.kind} {row.id}, {state}"
        if row.kind in ("durable", "books"):
            assert state is TaskState.SUCCESS or not ran or state is TaskState.CANCELLED, what
        elif state is not TaskState.CANCELLED:
            assert ran == began[row.id], what
        assert watched.letters[row.id] == (state is TaskState.DEAD), what
        if state is not TaskState.SUCCESS:
            continue
        if row.kind == "durable":
            assert children[row.id] == 5, what
            assert jobs.result(row.id, 0) == [True, [0, 1, 2], [5, 6]], what
        elif row.kind == "books":
            assert booked[f"step of {row.id}"] == booked[f"end of {row.id}"] == 1, what
        elif row.kind != "fails":
            assert ran == 1, what
