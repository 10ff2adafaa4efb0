"""The part of the Scheduler that looks ahead and back: timelines, estimates, forecasts, past states, comparisons."""

from __future__ import annotations

from datetime import datetime

from scheduler.client.threads import in_thread
from scheduler.errors import ConfigError
from scheduler.model.critical_path import Estimate
from scheduler.model.spec import check_id
from scheduler.model.times import instant_us
from scheduler.store.db.database import Database
from scheduler.store.read import compare as store_compare
from scheduler.store.read.compare import Comparison
from scheduler.store.read.estimate import graph_estimate
from scheduler.store.read.forecast import Forecast, forecast
from scheduler.store.read.graph import graph
from scheduler.store.read.lives import (
    PastGraph,
    PastStatus,
    PastTask,
    TaskTimeline,
    graph_at,
    status_at,
    task_at,
    timeline,
)

MAX_GRAPH = 10_000


class AnalysisOperations:
    """Needs ``database`` and ``threads`` of the Scheduler. Instants in what it returns are microseconds, UTC."""

    database: Database

    def timeline(self, task_id: int) -> TaskTimeline:
        """The history of a task: waits, pauses and attempts, its steps, who changed it. Raises UnknownTaskError.

        A time without a record is ``unknown``.
        """
        with self.database.read() as tx:
            return timeline(tx, check_id(task_id))

    def estimate(self, task_id: int, *, limit: int = MAX_GRAPH) -> Estimate:
        """When the graph of a task may have ended, its longest way, and what blocks most.

        By how long its kinds took in the last day, or else the last seven, and the slots of the live workers.
        ``limit``: tasks at most, the nearest first. Raises UnknownTaskError, ConfigError.
        """
        with self.database.read() as tx:
            return graph_estimate(tx, graph(tx, check_id(task_id), _limit(limit)))

    def forecast(self, hours: float = 24.0) -> Forecast:
        """The coming runs of all schedules in ``hours`` (168 at most), their length, and when slots are too few.

        Raises ConfigError.
        """
        with self.database.read() as tx:
            return forecast(tx, hours)

    def task_at(self, task_id: int, at: datetime) -> PastTask:
        """How a task stood at a past instant (aware). Raises UnknownTaskError, ConfigError, InvalidScheduleError."""
        with self.database.read() as tx:
            return task_at(tx, check_id(task_id), instant_us(at, "at"))

    def graph_at(self, task_id: int, at: datetime, *, limit: int = MAX_GRAPH) -> PastGraph:
        """How the tasks of a task's graph stood at a past instant. Raises as :meth:`task_at`."""
        with self.database.read() as tx:
            return graph_at(tx, graph(tx, check_id(task_id), _limit(limit)), instant_us(at, "at"))

    def status_at(self, at: datetime, *, limit: int = 2_000) -> PastStatus:
        """How things stood at a past instant, from the newest ``limit`` tasks made before. Raises ConfigError."""
        with self.database.read() as tx:
            return status_at(tx, instant_us(at, "at"), limit=_limit(limit))

    def compare(self, task_id: int, other: int | None = None) -> Comparison | None:
        """A task and its graph beside ``other``, by default the last good run of its kind; None: there is none.

        Raises UnknownTaskError.
        """
        with self.database.read() as tx:
            return store_compare.compare(tx, check_id(task_id), None if other is None else check_id(other))

    timeline_async = in_thread(timeline)
    estimate_async = in_thread(estimate)
    forecast_async = in_thread(forecast)
    task_at_async = in_thread(task_at)
    graph_at_async = in_thread(graph_at)
    status_at_async = in_thread(status_at)
    compare_async = in_thread(compare)


def _limit(limit: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_GRAPH:
        raise ConfigError(f"limit must be a whole number from 1 to {MAX_GRAPH}, not {limit!r:.80}")
    return limit
