"""``jobs.queues``: what waits in each queue, who serves it, what holds it back, how fast tasks come and go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from scheduler.client.info import instant
from scheduler.client.threads import in_thread
from scheduler.operations.pauses import PauseInfo, pause_info
from scheduler.store.db.database import Database
from scheduler.store.read.queues import QueueRecord, queues


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue. ``ready``: its tasks that are due, of whatever state; of the others ``later`` (scheduled), ``retry`` and
    ``suspended``; ``held`` (claimed or running), ``running``, ``waiting`` (for other tasks).

    ``at_least``: which of these numbers may be higher, as no more tasks were counted. ``oldest_ready``: since when a
    task only wants a worker. ``arriving``, ``leaving``: tasks a second over up to ten minutes. ``workers``: live ones
    that claim from it, ``host:pid``, and executors. ``unserved``: why none of them would run the task that has waited
    for longest, ``last_served``: which worker did, ``remedy``: what to do. ``pause``: of the queue or of everything.
    ``max_concurrency``, ``rate_limit``: what is set of it.
    """

    name: str
    ready: int
    later: int
    held: int
    running: int
    retry: int
    suspended: int
    waiting: int
    at_least: frozenset[str]
    oldest_ready: datetime | None
    arriving: float
    leaving: float
    workers: tuple[str, ...]
    unserved: str | None
    last_served: str | None
    remedy: str | None
    pause: PauseInfo | None
    max_concurrency: int | None
    rate_limit: str | None


class QueueOperations:
    """The part of the Scheduler that looks at queues. Needs ``database`` and ``threads``."""

    database: Database

    def queues(self) -> Sequence[QueueInfo]:
        """The queues of tasks that have not ended, of live workers, of pauses and limits, and those that tasks left in
        the last ten minutes; by name, 1,000 at most. Raises StoreUnavailableError.
        """
        with self.database.read() as tx:
            return [_info(record) for record in queues(tx).rows]

    queues_async = in_thread(queues)


def _info(record: QueueRecord) -> QueueInfo:
    counts = record.counts
    return QueueInfo(
        name=record.name,
        ready=counts["ready"],
        later=counts["later"],
        held=counts["held"],
        running=counts["running"],
        retry=counts["retry"],
        suspended=counts["suspended"],
        waiting=counts["waiting"],
        at_least=record.at_least,
        oldest_ready=instant(record.oldest),
        arriving=record.arriving,
        leaving=record.leaving,
        workers=record.workers,
        unserved=record.unserved,
        last_served=record.last,
        remedy=record.remedy,
        pause=None if record.pause is None else pause_info(record.pause),
        max_concurrency=record.max_concurrency,
        rate_limit=record.rate_limit,
    )
