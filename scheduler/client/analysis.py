"""Timelines, estimates, forecasts, past states and comparisons: for programs, and as JSON for commands and pages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from scheduler.client.json_views import fields, seconds, time
from scheduler.client.threads import in_thread
from scheduler.model.critical_path import Estimate
from scheduler.model.demand import Collision
from scheduler.model.names import check_whole
from scheduler.model.spec import check_id
from scheduler.model.times import instant_us
from scheduler.store.db.database import Database
from scheduler.store.read.compare import Comparison, RolePair, Side, compare
from scheduler.store.read.estimate import graph_estimate
from scheduler.store.read.forecast import Forecast, ScheduleForecast, forecast, group_text
from scheduler.store.read.graph import StoredGraph, graph
from scheduler.store.read.past import (
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
    """The part of the Scheduler that looks ahead and back. Needs ``database`` and ``threads``.

    Instants in what it returns are microseconds, UTC.
    """

    database: Database

    def timeline(self, task_id: int) -> TaskTimeline:
        """The history of a task: waits, pauses and attempts, its steps, who changed it. Raises UnknownTaskError.

        A time without a record is ``unknown``.
        """
        with self.database.read() as tx:
            return timeline(tx, check_id(task_id))

    def estimate(self, task_id: int, *, limit: int = MAX_GRAPH) -> Estimate:
        """When the graph of a task may have ended, its longest path, and what blocks most.

        By how long its kinds took in the last day, or else the last seven, and the slots of the live workers.
        ``limit``: tasks at most, the nearest first. Raises UnknownTaskError, ConfigError.
        """
        with self.database.read() as tx:
            return graph_estimate(tx, graph(tx, check_id(task_id), check_whole(limit, "limit", 1, MAX_GRAPH)))

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
            return graph_at(
                tx, graph(tx, check_id(task_id), check_whole(limit, "limit", 1, MAX_GRAPH)), instant_us(at, "at")
            )

    def status_at(self, at: datetime, *, limit: int = 2_000) -> PastStatus:
        """How things stood at a past instant, from the newest ``limit`` tasks made before. Raises ConfigError."""
        with self.database.read() as tx:
            return status_at(tx, instant_us(at, "at"), limit=check_whole(limit, "limit", 1, MAX_GRAPH))

    def compare(self, task_id: int, other: int | None = None) -> Comparison | None:
        """A task and its graph beside ``other``, by default the last good run of its kind; None: there is none.

        Raises UnknownTaskError.
        """
        with self.database.read() as tx:
            return compare(tx, check_id(task_id), None if other is None else check_id(other))

    timeline_async = in_thread(timeline)
    estimate_async = in_thread(estimate)
    forecast_async = in_thread(forecast)
    task_at_async = in_thread(task_at)
    graph_at_async = in_thread(graph_at)
    status_at_async = in_thread(status_at)
    compare_async = in_thread(compare)


def estimate_view(found: Estimate) -> dict[str, Any]:
    """``low``, ``high``: seconds until it has ended, None: nothing is known; see :class:`Estimate`."""
    return {
        "low": seconds(found.low),
        "high": seconds(found.high),
        "path": found.path,
        "path_low": seconds(found.path_low),
        "work_low": seconds(found.work_low),
        **fields(found, "remaining", "stuck", "unknown"),
        "blockers": [fields(one, "id", "below") for one in found.blockers],
    }


def graph_view(found: StoredGraph) -> dict[str, Any]:
    """Tasks and the edges between them; ``truncated``: there are others."""
    return {
        "nodes": [fields(one, "id", "kind", "state") for one in found.nodes],
        "edges": [fields(one, "parent", "child", "when", "otherwise") for one in found.edges],
        "truncated": found.truncated,
    }


def forecast_view(found: Forecast) -> dict[str, Any]:
    """The runs that schedules will make; durations in seconds."""
    return {
        **fields(found, "since", "until"),
        "schedules": [schedule_forecast_view(one) for one in found.schedules],
        "collisions": [collision_view(one) for one in found.collisions],
        "clock_changes": [
            {
                "tz": one.tz,
                "at": time(one.at),
                "before": seconds(one.before),
                "after": seconds(one.after),
                "schedules": list(one.names),
            }
            for one in found.clock_changes
        ],
        "slots": {group_text(group): count for group, count in found.slots.items()},
        "load": {group_text(group): [round(v, 3) for v in values] for group, values in found.load.items()},
        "truncated": found.truncated,
    }


def schedule_forecast_view(one: ScheduleForecast) -> dict[str, Any]:
    """The runs that one schedule will make."""
    return {
        **fields(one, "name", "kind", "recurrence", "tz", "paused"),
        "next_at": time(one.fires[0]) if one.fires else None,
        "count": one.fire_count,
        "fires": [time(at) for at in one.fires],
        "every": seconds(one.every),
        **fields(one, "tasks", "pools"),
        "p50": seconds(one.p50),
        "p90": seconds(one.p90),
        **fields(one, "approximate", "trouble", "unserved"),
    }


def collision_view(one: Collision) -> dict[str, Any]:
    """When more slots are wanted than there are."""
    return {
        "from": time(one.start),
        "to": time(one.end),
        "slots_of": group_text(one.group),
        **fields(one, "wants", "slots"),
        "schedules": list(one.names),
    }


def past_task_view(found: PastTask, kind: str) -> dict[str, Any]:
    """How a task stood. ``state``: "unknown" where nothing says so, "not made yet" before its creation."""
    state = "not made yet" if not found.existed else "unknown" if found.state is None else found.state.value
    return {
        "id": found.id,
        "kind": kind,
        "at": time(found.at),
        "state": state,
        "phase": None if found.span is None else found.span.phase.value,
        "since": None if found.span is None else time(found.span.start),
        "attempt": found.attempt,
    }


def comparison_view(found: Comparison) -> dict[str, Any]:
    """Two runs beside one another; times in seconds."""
    return {
        "task": found.task.id,
        "other": found.other.id,
        "time": seconds(found.whole[0]),
        "other_time": seconds(found.whole[1]),
        "roles": [role_view(pair) for pair in found.roles],
        "truncated": found.truncated,
    }


def role_view(pair: RolePair) -> dict[str, Any]:
    """The tasks of one role in both runs."""
    ours, theirs = _side_view(pair.ours), _side_view(pair.theirs)
    return {"kind": pair.kind, **ours, **{f"other_{name}": value for name, value in theirs.items()}}


def _side_view(side: Side) -> dict[str, Any]:
    return {
        "tasks": list(side.tasks),
        "run_time": seconds(side.run_time),
        "attempts": side.attempts,
        "states": {state.value: count for state, count in side.ends.items()},
    }
