"""Estimates, forecasts, past states, comparisons and timelines as JSON objects, for commands and pages alike."""

from __future__ import annotations

from typing import Any

from scheduler.client.json_views import seconds, time
from scheduler.model.critical_path import Estimate
from scheduler.model.demand import Collision
from scheduler.store.read.compare import Comparison, RolePair, Side
from scheduler.store.read.forecast import Forecast, ScheduleForecast, group_text
from scheduler.store.read.graph import Graph
from scheduler.store.read.lives import PastTask


def estimate_view(found: Estimate) -> dict[str, Any]:
    """``low``, ``high``: seconds until it has ended, None: nothing is known; see :class:`Estimate`."""
    return {
        "low": seconds(found.low),
        "high": seconds(found.high),
        "path": found.path,
        "path_low": seconds(found.path_low),
        "work_low": seconds(found.work_low),
        "remaining": found.remaining,
        "stuck": found.stuck,
        "unknown": found.unknown,
        "blockers": [{"id": one.id, "below": one.below} for one in found.blockers],
    }


def graph_view(found: Graph) -> dict[str, Any]:
    """Tasks and the edges between them; ``truncated``: there are others."""
    return {
        "nodes": [{"id": n.id, "kind": n.kind, "state": n.state.value} for n in found.nodes],
        "edges": [
            {"parent": e.parent, "child": e.child, "when": e.when.value, "otherwise": e.otherwise.value}
            for e in found.edges
        ],
        "truncated": found.truncated,
    }


def forecast_view(found: Forecast) -> dict[str, Any]:
    """What the schedules will run; durations in seconds."""
    return {
        "since": time(found.since),
        "until": time(found.until),
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
    """What one schedule will run."""
    return {
        "name": one.name,
        "kind": one.kind,
        "recurrence": one.recurrence,
        "tz": one.tz,
        "paused": one.paused,
        "next_at": time(one.fires[0]) if one.fires else None,
        "count": one.fire_count,
        "fires": [time(at) for at in one.fires],
        "every": seconds(one.every),
        "tasks": one.tasks,
        "pools": list(one.pools),
        "p50": seconds(one.p50),
        "p90": seconds(one.p90),
        "approximate": one.approximate,
        "trouble": one.trouble,
        "unserved": one.unserved,
    }


def collision_view(one: Collision) -> dict[str, Any]:
    """When more slots are wanted than there are."""
    return {
        "from": time(one.start),
        "to": time(one.end),
        "slots_of": group_text(one.group),
        "wants": one.wants,
        "slots": one.slots,
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
    """What has one role in both runs."""
    ours, theirs = _side_view(pair.ours), _side_view(pair.theirs)
    return {"kind": pair.kind, **ours, **{f"other_{name}": value for name, value in theirs.items()}}


def _side_view(side: Side) -> dict[str, Any]:
    return {
        "tasks": list(side.tasks),
        "run_time": seconds(side.run_time),
        "attempts": side.attempts,
        "states": {state.value: count for state, count in side.ends.items()},
    }
