"""``jobs.workers``: the workers of the fleet; drain one, let it claim again, or restart it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scheduler.client.threads import CallThreads, in_thread
from scheduler.errors import ConfigError, UnknownWorkerError
from scheduler.store import workers as store
from scheduler.store.db.database import Database
from scheduler.store.read.workers import WorkerRecord, workers

if TYPE_CHECKING:
    from scheduler.client.tasks import TaskOperations


class Workers:
    """``jobs.workers``. Everything raises StoreUnavailableError."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner

    @property
    def threads(self) -> CallThreads:
        """What the awaited forms wait in."""
        return self._owner.threads

    @property
    def _database(self) -> Database:
        return self._owner.database

    def drain(self, worker: int) -> None:
        """Let the worker with this id claim nothing more: what it runs ends, what it has not begun goes back.

        It shows as draining and keeps its lease until :meth:`resume`. Raises UnknownWorkerError; InvalidTransitionError
        if it has stopped.
        """
        self._ask(worker, lambda: self._database.change(lambda tx: store.request_drain(tx, worker, drain=True)))

    def resume(self, worker: int) -> None:
        """Let a draining worker claim again. Raises as :meth:`drain`."""
        self._ask(worker, lambda: self._database.change(lambda tx: store.request_drain(tx, worker, drain=False)))

    def restart(self, worker: int) -> None:
        """Let a daemon end and start anew, which frees the slots of handlers that hang.

        A program that runs a Scheduler of its own only says so in its log. Raises as :meth:`drain`.
        """
        self._ask(worker, lambda: self._database.change(lambda tx: store.request_restart(tx, worker)))

    def _ask(self, worker: int, change: Callable[[], None]) -> None:
        if not isinstance(worker, int) or isinstance(worker, bool):
            raise ConfigError(f"a worker's id is a number, not {worker!r:.80}")
        if not 0 < worker < 2**63:
            raise UnknownWorkerError(worker)
        change()
        self._owner._notify()

    def list(self, *, every: bool = False) -> Sequence[WorkerRecord]:
        """The live workers; ``every``: the latest that stopped or died, too. Times in it are microseconds."""
        with self._database.read() as tx:
            return workers(tx, every=every)

    drain_async = in_thread(drain)
    resume_async = in_thread(resume)
    restart_async = in_thread(restart)
    list_async = in_thread(list)
