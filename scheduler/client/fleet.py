"""``jobs.workers`` and ``jobs.live_settings``: the workers of the fleet, and what is changed while they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from scheduler.client.threads import CallThreads, in_thread
from scheduler.operations import limits, workers
from scheduler.operations.limits import LimitTarget, LiveSetting
from scheduler.operations.workers import WorkerRecord

if TYPE_CHECKING:
    from scheduler.client.tasks import TaskOperations


class Workers:
    """``jobs.workers``. Everything raises StoreUnavailableError."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner

    @property
    def threads(self) -> CallThreads:
        """The threads in which the awaited forms wait."""
        return self._owner.threads

    def drain(self, worker: int) -> None:
        """Let the worker with this id claim nothing more: what it runs ends, what it has not begun goes back.

        It shows as draining and keeps its lease until :meth:`resume`. Raises UnknownWorkerError; InvalidTransitionError
        if it has stopped.
        """
        workers.drain(self._owner.desk, worker)

    def resume(self, worker: int) -> None:
        """Let a draining worker claim again. Raises as :meth:`drain`."""
        workers.resume(self._owner.desk, worker)

    def restart(self, worker: int) -> None:
        """Let a daemon end and start anew, which frees the slots of handlers that hang.

        A program that runs a Scheduler of its own only says so in its log. Raises as :meth:`drain`.
        """
        workers.restart(self._owner.desk, worker)

    def list(self, *, every: bool = False) -> Sequence[WorkerRecord]:
        """The live workers; ``every``: the latest that stopped or died, too. Times in it are microseconds."""
        with self._owner.desk.read() as tx:
            return workers.now(tx, every=every).workers

    drain_async = in_thread(drain)
    resume_async = in_thread(resume)
    restart_async = in_thread(restart)
    list_async = in_thread(list)


class LiveSettings:
    """``jobs.live_settings``. A change is stored, recorded in the audit, and in effect on every worker within about a
    second; what runs goes on. Each method returns whether it changed something, and raises ConfigError."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner

    @property
    def threads(self) -> CallThreads:
        """The threads in which the awaited forms wait."""
        return self._owner.threads

    def pool(
        self, name: str, *, slots: int | None = None, async_slots: int | None = None, worker: int | None = None
    ) -> bool:
        """Change the slots of a pool (high, medium, low), of every worker or of the one with this id, until that ends.

        None: stays. An attempt in a slot that is too many goes on.
        """
        return limits.change(
            self._owner.desk, limits.place(pool=name, worker=worker), limits.slots(slots, async_slots)
        ).changed

    def kind(
        self,
        name: str,
        *,
        max_concurrency: int | UnsetType | None = UNSET,
        rate_limit: str | UnsetType | None = UNSET,
        max_per_worker: int | UnsetType | None = UNSET,
    ) -> bool:
        """Change a kind's cap and rate (``"100/min"``), over what its type says, and how many of its tasks each worker
        holds at a time; None: no limit."""
        return self._set(limits.place(kind=name), max_concurrency, rate_limit, max_per_worker)

    def queue(
        self,
        name: str,
        *,
        max_concurrency: int | UnsetType | None = UNSET,
        rate_limit: str | UnsetType | None = UNSET,
    ) -> bool:
        """Change the cap and the rate (``"100/min"``) of a queue, over all kinds in it and beside their own; None: no
        limit."""
        return self._set(limits.place(queue=name), max_concurrency, rate_limit)

    def key(
        self,
        kind: str | None,
        key: str,
        *,
        max_concurrency: int | UnsetType | None = UNSET,
        rate_limit: str | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
    ) -> bool:
        """Change the limits of one concurrency key of a kind: its cap, over the kind's, and a rate beside the kind's;
        None: no limit. ``weight``: of a fairness key, of all kinds if ``kind`` is None, over what its tasks say."""
        return self._set(limits.place(kind=kind, key=key), max_concurrency, rate_limit, weight=weight)

    def reset(
        self,
        *,
        pool: str | None = None,
        worker: int | None = None,
        kind: str | None = None,
        key: str | None = None,
        queue: str | None = None,
    ) -> bool:
        """Let hold again what the configuration (``pool``, of all workers or one), or the type (``kind``, or one
        ``key`` of it, or a fairness key of all) says. A ``queue`` has no limits then."""
        where = limits.place(pool=pool, worker=worker, kind=kind, key=key, queue=queue)
        return limits.reset(self._owner.desk, where).changed

    def list(self) -> Sequence[LiveSetting]:
        """All live settings."""
        with self._owner.desk.read() as tx:
            return [*limits.records(tx).values()]

    def _set(
        self,
        where: LimitTarget,
        max_concurrency: int | UnsetType | None,
        rate_limit: str | UnsetType | None,
        max_per_worker: int | UnsetType | None = UNSET,
        weight: float | UnsetType | None = UNSET,
    ) -> bool:
        values = limits.caps(max_concurrency, rate_limit, max_per_worker, weight)
        return limits.change(self._owner.desk, where, values).changed

    pool_async = in_thread(pool)
    kind_async = in_thread(kind)
    queue_async = in_thread(queue)
    key_async = in_thread(key)
    reset_async = in_thread(reset)
    list_async = in_thread(list)
