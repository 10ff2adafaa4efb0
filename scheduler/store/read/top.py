"""What runs now, and how much gets done: for a live view. Bounded reads only."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.state import RUNNING
from scheduler.ports import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import held
from scheduler.store.read.counts import pools
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.stats import Numbers, stats
from scheduler.store.read.workers import WorkerRecord, workers

RATE_OVER = 120 * SECOND  # microseconds that the throughput is of: workers write their numbers every ten seconds
MAX_DUE = 10_000  # counts of what is due end here, by queue and priority
_RUNNING = (
    "SELECT t.id, t.kind, t.queue, t.key, t.attempt, t.started_at, t.progress, t.progress_message, "
    "t.worker AS worker_id, w.host, w.pid FROM schedd_tasks t LEFT JOIN schedd_workers w ON w.id = t.worker "
    f"WHERE {held('t')} AND t.state + 0 = {RUNNING} ORDER BY t.started_at, t.id LIMIT :most"
)


class RunningTask(NamedTuple):
    """A task whose handler runs. ``since``: microseconds; ``progress``: percent; ``worker``: ``host:pid``."""

    id: int
    kind: str
    queue: str
    key: str | None
    attempt: int
    since: int | None
    progress: float | None
    message: str | None
    worker: str


class Top(NamedTuple):
    """What runs, the longest first; how many are due or due later (at least so many if ``capped``).

    ``since``: of ``numbers``, microseconds. ``held``: claimed tasks, begun or not; ``slots``: of live workers.
    """

    running: list[RunningTask]
    workers: list[WorkerRecord]
    held: int
    slots: int
    due: int
    later: int
    capped: bool
    since: int
    numbers: Numbers


def top(tx: Tx, most: int) -> Top:
    """What runs at ``now`` (microseconds), up to ``most`` tasks."""
    rows = tx.run(_RUNNING, most=most)
    running = [
        RunningTask(
            *(r.id, r.kind, r.queue, r.key, r.attempt, r.started_at, r.progress, r.progress_message),
            worker=f"worker {r.worker_id}" if r.host is None else f"{r.host}:{r.pid}",
        )
        for r in rows
    ]
    found = workers(tx)
    waiting = pools(tx, heads_of_queues(tx), MAX_DUE)
    recent = stats(tx, tx.now - RATE_OVER, tx.now)
    return Top(
        running,
        found,
        sum(worker.holds for worker in found),
        sum(sum(map(sum, worker.capacity.pools.values())) for worker in found if worker.claims),
        sum(waiting.due.values()),
        sum(waiting.later.values()),
        waiting.capped,
        recent.since,
        recent.total,
    )
