"""Figures of the store for monitoring that no other read has: bounded, and from narrow indexes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from scheduler.model.defaults import POOLS
from scheduler.model.rollup import DAY, HOUR, MINUTE
from scheduler.model.state import DEAD, WAITING
from scheduler.ports import FOREVER, SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, ended_as
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.ready import all_ready_since
from scheduler.store.rollups import MINUTES_KEPT
from scheduler.store.tasks.claim import LaneHead

MAX_COUNTED = 100_000  # tasks of a queue and priority, and waiting tasks that are looked at
MAX_DEAD = 20_000  # dead letters
MAX_QUEUES = 200  # pairs of a queue and a priority, those that have waited longest
MAX_SCHEDULES = 200  # schedules named, the latest
_MAX_HEADS = 20  # lanes of a queue and priority looked at for the oldest ready task
_DEAD = ended_as(DEAD)


class ReadyTasks(NamedTuple):
    """Due tasks of a queue and priority, and since when the oldest only wants a worker (microseconds;
    None: none is due)."""

    queue: str
    priority: int
    number: int
    since: int | None


def ready(tx: Tx, lanes: Sequence[LaneHead] | None = None) -> list[ReadyTasks]:
    """Each queue and priority with claimable tasks, those that have waited longest first; then the queues whose tasks
    ran within a day, at 0: a figure that vanishes is "no data" to a panel, and to an alert that waits for its end.

    ``lanes``: the heads of lanes, where they have been read already."""
    groups: dict[tuple[str, int], list[LaneHead]] = {}
    for head in sorted(heads_of_queues(tx) if lanes is None else lanes, key=lambda head: head.run_at):
        groups.setdefault((head.queue, head.priority), []).append(head)
    first = dict(list(groups.items())[:MAX_QUEUES])
    due = [head for heads in first.values() for head in [head for head in heads if head.run_at <= tx.now][:_MAX_HEADS]]
    since = all_ready_since(tx, due)
    found = [_ready(tx, *key, [since[head.id] for head in heads if head.id in since]) for key, heads in first.items()]
    lately = [(queue, priority) for queue in _lately(tx) for priority in range(len(POOLS))]
    empty = [ReadyTasks(*key, 0, None) for key in lately if key not in groups]
    return [*found, *empty[: MAX_QUEUES - len(found)]]


def _lately(tx: Tx) -> list[str]:
    """The queues whose attempts ended within a day: lately by minutes, before that by hours."""
    rows = tx.rows(
        "SELECT DISTINCT queue FROM schedd_rollups WHERE (span = :hour AND at >= :day_ago) "
        "OR (span = :minute AND at >= :hours_ago) ORDER BY queue",
        hour=HOUR,
        minute=MINUTE,
        day_ago=tx.now - DAY * SECOND,
        hours_ago=tx.now - (MINUTES_KEPT + HOUR) * SECOND,
    )
    return [queue for (queue,) in rows]


def _ready(tx: Tx, queue: str, priority: int, since: Sequence[int]) -> ReadyTasks:
    """``since``: of the first tasks that are due, since when each is ready."""
    if not since:
        return ReadyTasks(queue, priority, 0, None)
    number = tx.run(
        f"SELECT count(*) FROM (SELECT 1 FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue "
        f"AND priority = :priority AND run_at <= :now LIMIT {MAX_COUNTED}) r",
        queue=queue,
        priority=priority,
        now=tx.now,
    ).scalar_one()
    return ReadyTasks(queue, priority, int(number), min(since))


class DeadLettersOfKind(NamedTuple):
    """Dead letters of a kind, and when the oldest died (microseconds)."""

    kind: str
    number: int
    oldest: int


def dead_letters(tx: Tx) -> list[DeadLettersOfKind]:
    """Dead letters by kind, among the oldest ``MAX_DEAD``: each is a look into the table."""
    rows = tx.run(
        "SELECT kind, count(*) AS n, min(finished_at) AS oldest FROM (SELECT kind, finished_at FROM schedd_tasks "
        f"WHERE {_DEAD} ORDER BY state, finished_at LIMIT {MAX_DEAD}) d GROUP BY kind ORDER BY kind"
    )
    return [DeadLettersOfKind(row.kind, row.n, row.oldest) for row in rows]


class ScheduleFigures(NamedTuple):
    """How many schedules are active, and paused; of active ones, by name, since when they are due (microseconds): in
    the future for one that is on time."""

    active: int
    paused: int
    next_at: list[tuple[str, int]]


def schedules(tx: Tx) -> ScheduleFigures:
    """Numbers of schedules, and the ``MAX_SCHEDULES`` of them that are due first."""
    counts = {row.paused: row.n for row in tx.run("SELECT paused, count(*) AS n FROM schedd_schedules GROUP BY paused")}
    rows = tx.run(
        f"SELECT name, next_at FROM schedd_schedules WHERE paused = 0 AND next_at < {FOREVER} "
        f"ORDER BY next_at, name LIMIT {MAX_SCHEDULES}"
    )
    paused = sum(number for key, number in counts.items() if key)
    return ScheduleFigures(counts.get(0, 0), paused, [(row.name, row.next_at) for row in rows])


def undecided_edges(tx: Tx) -> int:
    """How many edges waiting tasks wait for, of ``MAX_COUNTED`` waiting tasks at most."""
    found = tx.run(
        f"SELECT sum(unmet) FROM (SELECT unmet FROM schedd_tasks WHERE state = {WAITING} "
        f"ORDER BY id LIMIT {MAX_COUNTED}) w"
    ).scalar()
    return int(found or 0)


class DatabaseFigures(NamedTuple):
    """Bytes of the database and of its write-ahead log (SQLite only), and the age of the oldest snapshot that keeps the
    server from removing dead rows (PostgreSQL only; seconds, 0: there is none)."""

    size: int
    wal: int | None
    snapshot_age: float | None


_SNAPSHOT_AGE = """
SELECT extract(epoch FROM max(clock_timestamp() - xact_start)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
"""


def database(tx: Tx) -> DatabaseFigures:
    """Sizes, and what holds back the server."""
    if tx.dialect.name == "sqlite":
        pages, size = tx.run("PRAGMA page_count").scalar_one(), tx.run("PRAGMA page_size").scalar_one()
        path = next((row[2] for row in tx.run("PRAGMA database_list") if row[1] == "main"), "")
        wal = 0
        with suppress(OSError):
            wal = os.stat(f"{path}-wal").st_size
        return DatabaseFigures(pages * size, wal, None)
    held = tx.run(_SNAPSHOT_AGE).scalar()
    size = tx.run("SELECT pg_database_size(current_database())").scalar_one()
    return DatabaseFigures(int(size), None, max(0.0, float(held or 0)))
