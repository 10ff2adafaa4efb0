"""ElasticEngine: a worker that an executor started, for many tasks.

Its first transaction registers it and marks its job's row as its own. A second job of the same name, or one that is not
wanted any more, writes nothing and ends.
"""

from __future__ import annotations

from typing import Any

from scheduler.engine.engine import Engine
from scheduler.errors import StoreReplacedError
from scheduler.ports import FAILPOINTS
from scheduler.store import worker_jobs
from scheduler.store.db.tx import Tx


class NotWantedError(StoreReplacedError):
    """The job is not wanted: another one of its name is at work, or it was given up."""


class ElasticEngine(Engine):
    """An engine that attaches to the job ``options.job``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.registration.on_join = self._attach
        self._before = ""  # the incarnation of a first try whose answer was lost

    @property
    def not_wanted(self) -> bool:
        """Whether it ended since it is not wanted."""
        return isinstance(self.replaced, NotWantedError)

    def _attach(self, tx: Tx, worker: int, incarnation: str) -> None:
        begun, job = self._ready.is_set(), self.options.job
        if not worker_jobs.attach(tx, job, self._before, again=begun):
            why = "its lease was lost, and it was given up" if begun else "another one has its name, or it was given up"
            raise NotWantedError(f"job {job} is not wanted: {why}")
        self._before = incarnation
        FAILPOINTS.hit("before attach commit")
