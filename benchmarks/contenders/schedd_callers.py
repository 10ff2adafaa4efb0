"""Ours with several callers: one by one, in their own transactions, in batches, with limits, and beside daemons."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from contenders.callers import BATCH, Call, Way, by_count, calling, on_slow_disk, prepared, together
from contenders.schedd import noop, scheduler
from contenders.schedd_daemons import running
from scheduler import Context, Scheduler, task

MANY = 8
KEYS = 50
ORDERS = "CREATE TABLE orders (id {type} PRIMARY KEY, text text)"
TYPES = {"sqlite": "integer", "postgresql": "bigserial"}
INSERT = "INSERT INTO orders (text) VALUES (:text)"


@task(concurrency_key="n", max_concurrency=1)
def keyed(ctx: Context, n: int, text: str = "") -> None:
    """Runs once at a time for each n."""


@task(max_concurrency=2)
def capped(ctx: Context, n: int, text: str = "") -> None:
    """Runs twice at a time."""


@task(rate_limit="1000/s")
def rated(ctx: Context, n: int, text: str = "") -> None:
    """Runs 1,000 times a second."""


def _jobs(url: str) -> Scheduler:
    jobs = scheduler(url)
    for kind in (keyed, capped, rated):
        jobs.register(kind)
    return jobs


def prepare(url: str) -> None:
    jobs = scheduler(url)
    jobs.task(noop, 0, "hello world").schedule()
    orders(url)
    jobs.close()


def orders(url: str) -> sa.Engine:
    """A caller's engine on the same database, with a table of the caller's own."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    if not sa.inspect(engine).has_table("orders"):
        with engine.begin() as connection:
            connection.exec_driver_sql(ORDERS.format(type=TYPES[engine.dialect.name]))
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _durably)
    return engine


def _durably(raw: Any, _: Any) -> None:
    """As the store does it."""
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("PRAGMA busy_timeout = 30000")


def one_by_one(kind: Any) -> Way:
    def way(url: str) -> Call:
        jobs, numbers = _jobs(url), itertools.count()

        def call() -> int:
            jobs.task(kind, next(numbers) % KEYS, "hello world").schedule()
            return 1

        return call

    return way


def with_keys(url: str) -> Call:
    jobs, numbers = _jobs(url), itertools.count()

    def call() -> int:
        jobs.task(noop, 0, "hello world").key(f"{os.getpid()}-{next(numbers)}").schedule()
        return 1

    return call


def in_own_transactions(url: str) -> Call:
    jobs, engine, text = _jobs(url), orders(url), sa.text(INSERT)

    def call() -> int:
        with engine.begin() as connection:
            connection.execute(text, {"text": "hello world"})
            jobs.task(noop, 1, "hello world").schedule(connection=connection)
        return 1

    return call


def in_batches(url: str) -> Call:
    jobs = _jobs(url)

    def call() -> int:
        with jobs.batch() as batch:
            for n in range(BATCH):
                batch.task(noop, n, "hello world")
        return BATCH

    return call


def beside(daemons: int) -> Callable[[str, int], dict[str, float]]:
    """Stored and ended a second, with so many daemons that run what the callers store."""

    def run(url: str, size: int) -> dict[str, float]:
        prepared(prepare, url)
        with running(url, daemons), calling(one_by_one(noop), url, MANY, size) as go:
            stored = sum(go())
            jobs = scheduler(url)
            ended = sa.text("SELECT count(*) FROM schedd_attempts WHERE finished_at > :since")
            with jobs.database.read() as tx:
                done = tx.connection.execute(ended, {"since": (time.time_ns() // 1000) - size * 1_000_000}).scalar_one()
            jobs.close()
        return {"stored": stored, "ended": done / size}

    return run


_LIMITS: dict[str, Way] = {
    "plain": one_by_one(noop),
    "keys": with_keys,
    "concurrency keys": one_by_one(keyed),
    "cap": one_by_one(capped),
    "rate": one_by_one(rated),
}
_ALL: dict[str, dict[str, Any]] = {
    "callers": by_count(prepare, one_by_one(noop)),
    "callers' transactions": by_count(prepare, in_own_transactions),
    "callers' batches": by_count(prepare, in_batches),
    "callers with limits": {name: together(prepare, way, MANY) for name, way in _LIMITS.items()},
    "callers beside daemons": {f"{n} daemon{'s' if n > 1 else ''}": beside(n) for n in (1, 2)},
}
_SLOW = {
    ("callers", "postgresql"): on_slow_disk(prepare, one_by_one(noop)),
    ("callers' transactions", "postgresql"): on_slow_disk(prepare, in_own_transactions),
}
WORKS = {(work, dialect): of | _SLOW.get((work, dialect), {}) for work, of in _ALL.items() for dialect in TYPES}
