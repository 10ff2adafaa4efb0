"""``jobs.queues``, ``pause``, ``resume``: what waits in each queue, who serves it, and what holds it back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from scheduler.client.info import info, instant
from scheduler.client.json_views import QUEUE_COUNTS
from scheduler.client.threads import in_thread
from scheduler.errors import ConfigError
from scheduler.model.actor import acting_as
from scheduler.operations import pauses
from scheduler.operations.desk import Desk
from scheduler.operations.pauses import PauseInfo, PauseScope, pause_info, scopes
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
    pause = None if record.pause is None else pause_info(record.pause)
    return info(
        QueueInfo,
        record,
        **{name: record.counts[name] for name in QUEUE_COUNTS},
        oldest_ready=instant(record.oldest),
        last_served=record.last,
        pause=pause,
    )


class PauseOperations:
    """The part of the Scheduler that pauses and resumes. Needs ``desk`` and ``threads``."""

    desk: Desk

    def pause(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        source: str | None = None,
        all: bool = False,  # the name is part of the interface
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """Let no worker of the fleet claim tasks of a queue, of a kind, or any task, until :meth:`resume`.

        ``source``: nothing is received from this one. Takes effect within a second. Running tasks go on, schedules go
        on making tasks, and what was claimed and has not begun goes back without using an attempt. ``reason`` and
        ``by`` are shown by ``schedctl status``, ``show`` and the audit. Returns False if it was paused already. Raises
        ConfigError unless exactly one of ``queue``, ``kind``, ``source`` and ``all`` is given; StoreUnavailableError.
        """
        chosen = _scopes(queue, kind, source, all)
        with acting_as(by, reason=reason):
            return pauses.pause(self.desk, chosen).changed[chosen[0]]

    def resume(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        source: str | None = None,
        all: bool = False,  # the name is part of the interface
        reason: str | None = None,
        by: str | None = None,
    ) -> bool:
        """End the pause of a queue, of a kind, or of all; ``all`` leaves pauses of single queues and kinds as they are.

        Returns False if there was none. Raises as :meth:`pause`.
        """
        chosen = _scopes(queue, kind, source, all)
        with acting_as(by, reason=reason):
            return pauses.resume(self.desk, chosen).changed[chosen[0]]

    def pauses(self) -> Sequence[PauseInfo]:
        """All pauses, the oldest first. Raises StoreUnavailableError."""
        return pauses.in_effect(self.desk)

    pause_async = in_thread(pause)
    resume_async = in_thread(resume)
    pauses_async = in_thread(pauses)


def _scopes(queue: str | None, kind: str | None, source: str | None, everything: bool) -> list[PauseScope]:
    """The scope that is to be paused or resumed. Raises ConfigError unless it is exactly one."""
    given: list[list[str]] = [[] if name is None else [name] for name in (queue, kind, source)]
    if sum(map(len, given)) + bool(everything) != 1:
        raise ConfigError("say exactly one of queue, kind, source and all")
    return scopes(queues=given[0], kinds=given[1], sources=given[2], everything=everything)
