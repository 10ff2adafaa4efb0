"""``jobs.workers``: the workers of the fleet; drain one, let it claim again, or restart it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.client.threads import CallThreads, in_thread
from scheduler.operations import workers
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
