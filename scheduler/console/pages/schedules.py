"""``/schedules``, the runs of one, and what may be done with them; ``/forecast``: what they will run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, timedelta, tzinfo
from typing import Any, NamedTuple

from scheduler.client.analysis import forecast_view
from scheduler.client.json_views import fields, time
from scheduler.console.masks import masked_json, masked_text
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.model.times import SECOND, to_datetime
from scheduler.model.zoned import zone_of
from scheduler.operations import schedules as operations
from scheduler.operations.schedules import Forecast, RunRecord, ScheduleForecast, ScheduleRecord, forecast, group_text
from scheduler.ports import FOREVER

RUNS = 30
NEXT = 10
SHOWN = 500  # schedules on one page


HOURS = (6, 12, 24, 48, 168)
WIDTH, ROW = 960, 24  # pixels of the drawing
LABEL = 190
LOAD_H = 70
DRAWN = 60  # schedules in the drawing; the table has all


@page("/schedules", nav=Nav("Schedules", "s", 40))
def schedules(visit: Visit) -> RenderedPage:
    """All schedules, those that need a look first."""
    word = visit.asked("q").lower()
    with visit.read() as tx:
        found = operations.seen(tx)
    unserved = found.unserved if found.fleet.claiming else {}
    fitting = [one for one in found.found if word in one.name.lower() or word in one.kind.lower()]
    fitting.sort(key=lambda one: (one.trouble is None and one.name not in unserved, one.name))
    context: dict[str, Any] = {
        "found": fitting[:SHOWN],
        "total": len(found.found),
        "left": max(0, len(fitting) - SHOWN),
        "q": visit.asked("q"),
        "unserved": unserved,
        "at": found.at,
        "forever": FOREVER,
        "graph_kind": operations.GRAPH,
        "local": operations.local_time,
    }
    return RenderedPage("schedules.html", [_view(one, unserved) for one in fitting], context, "schedctl cron list")


def _is_known(visit: Visit) -> bool:
    with visit.read() as tx:
        return operations.exists(tx, visit.params["name"])


@page("/schedules/{name:path}", known=_is_known)
def one_schedule(visit: Visit) -> RenderedPage:
    """One schedule: its next fire times, its runs."""
    name = visit.params["name"]
    cursor = visit.number("cursor", least=1)
    with visit.read() as tx:
        found = operations.ahead(tx, name, NEXT, even_broken=True)
        runs = operations.runs(tx, name, RUNS + 1, cursor)
    one, kind = found.one, found.kind
    payload = None if one.graph is not None else masked_json(one.payload, None if kind is None else kind.schema)
    context: dict[str, Any] = {
        "one": one,
        "runs": runs[:RUNS],
        "more": runs[RUNS - 1].first if len(runs) > RUNS else None,
        "cursor": cursor,
        "payload": payload,
        "tasks": [] if one.graph is None else operations.decode_graph(one.graph),
        "next": found.marks,
        "nothing": "it cannot be read" if found.one.trouble is not None else found.nothing or "",
        "notes": found.unserved,
        "forever": FOREVER,
        "masked_text": masked_text,
    }
    data = _view(one, {}) | {
        "payload": payload,
        "next": [{"at": time(mark.instant_us), "local": mark.local} for _, mark in context["next"]],
        "runs": [_run_view(run) for run in runs[:RUNS]],
        "cursor": context["more"],
    }
    return RenderedPage("schedule.html", data, context, f"schedctl cron runs {name}")


def _view(one: ScheduleRecord, unserved: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": "graph" if one.kind == operations.GRAPH else one.kind,
        "recurrence": one.recurrence.describe(),
        "next_at": time(one.next_at),
        "next_local": operations.local_time(one),
        "last_slot": time(one.last_slot),
        **fields(one, "last_task", "paused", "catchup", "overlap", "owner", "trouble"),
        "unserved": unserved.get(one.name),
    }


def _run_view(run: RunRecord) -> dict[str, Any]:
    return {
        **fields(run, "run", "first"),
        "slot": time(run.slot),
        **fields(run, "origin", "state"),
        "states": {state.value: count for state, count in run.states.items()},
        **fields(run, "started_at", "finished_at"),
        "error": masked_text(run.error),
    }


@action("/schedules/pause/{name:path}", Verb.SCHEDULE_PAUSE)
def pause(visit: Visit) -> ActionDone:
    """Fire nothing until resumed."""
    name = visit.params["name"]
    operations.pause(visit.jobs.desk, name)
    return ActionDone(f"Schedule {name} is paused.", undo=("Undo: resume it", f"/schedules/resume/{name}", {}))


@action("/schedules/resume/{name:path}", Verb.SCHEDULE_PAUSE)
def resume(visit: Visit) -> ActionDone:
    """Go on with the next fire time."""
    name = visit.params["name"]
    operations.resume(visit.jobs.desk, name)
    return ActionDone(f"Schedule {name} goes on.", undo=("Undo: pause it", f"/schedules/pause/{name}", {}))


@action("/schedules/trigger/{name:path}", Verb.SCHEDULE_TRIGGER)
def trigger(visit: Visit) -> ActionDone:
    """Run it once now."""
    name = visit.params["name"]
    done = operations.trigger(visit.jobs.desk, name)
    made, beside = int(done.made), done.beside
    message = f"Schedule {name} runs once now: task {made}."
    if beside is not None:
        message += f" It runs beside task {beside}: overlap skip holds between fire times only."
    return ActionDone(message, undo=("Undo: cancel it", f"/tasks/{made}/cancel", {}), data={"id": made})


@action("/schedules/delete/{name:path}", Verb.SCHEDULE_DELETE)
def delete(visit: Visit) -> ActionDone:
    """Forget it; its tasks stay."""
    name = visit.params["name"]
    visit.jobs.schedules.delete(name)
    return ActionDone(f"Schedule {name} is deleted. A program that registers it brings it back.", to="/schedules")


class RunBar(NamedTuple):
    """One run: from ``x`` on, ``width`` wide; ``title``: in words."""

    x: float
    width: float
    at: int


class DrawnSchedule(NamedTuple):
    """One schedule of the drawing. ``steady``: it fires too often for bars of its own."""

    one: ScheduleForecast
    y: int
    bars: list[RunBar]
    steady: bool


class SlotLoad(NamedTuple):
    """How many slots of one kind are wanted. ``path``: of an SVG path; ``limit``: the height of all slots."""

    name: str
    slots: int | None
    peak: float
    path: str
    limit: float | None
    y: int


@page("/forecast", nav=Nav("Forecast", "f", 45))
def the_forecast(visit: Visit) -> RenderedPage:
    """The next hours of all schedules."""
    hours = visit.number("hours", 24, least=1, most=168) or 24
    if hours not in HOURS:
        raise BadInputError(f"hours is one of {', '.join(map(str, HOURS))}, not {hours}")
    with visit.read() as tx:
        found = forecast(tx, float(hours))
    schedules = sorted(found.schedules, key=lambda one: (one.fires[0] if one.fires else found.until + 1, one.name))
    going = [one for one in schedules if one.fire_count and not one.paused]
    rows = [_row(one, i, found) for i, one in enumerate(going[:DRAWN])]
    top = len(rows) * ROW + 26
    loads = _loads(found, top + 14)
    unserved: dict[str, list[str]] = {}
    for one in schedules:
        if one.unserved is not None:
            unserved.setdefault(one.unserved, []).append(one.name)
    context: dict[str, Any] = {
        "found": found,
        "unserved": list(unserved.items()),
        "schedules": schedules,
        "rows": rows,
        "loads": loads,
        "hours": hours,
        "all_hours": HOURS,
        "ticks": _ticks(found, hours, zone_of(visit.preferences.zone)),
        "label_w": LABEL,
        "width": WIDTH,
        "height": top + 14 + len(loads) * (LOAD_H + 22),
        "row": ROW,
        "load_h": LOAD_H,
        "top": top,
        "not_drawn": max(0, len(going) - DRAWN),
        "group_text": group_text,
        "x": lambda at: _x(at, found),
        "unknown": [one.name for one in going if one.p50 is None],
    }
    return RenderedPage(
        "forecast.html", forecast_view(found), context, f"schedctl cron forecast --hours {hours}", live=False
    )


def _x(at: int, found: Forecast) -> float:
    share = (at - found.since) / (found.until - found.since)
    return round(LABEL + (WIDTH - LABEL) * min(max(share, 0.0), 1.0), 1)


def _row(one: ScheduleForecast, number: int, found: Forecast) -> DrawnSchedule:
    bars = []
    for at in () if one.every else one.fires:
        x = _x(at, found)
        bars.append(RunBar(x, max(2.5, _x(at + (one.p50 or 0), found) - x), at))
    return DrawnSchedule(one, number * ROW + 24, bars, one.every is not None)


def _ticks(found: Forecast, hours: int, zone: tzinfo) -> list[tuple[float, str]]:
    """Full hours of the visitor's clock, eight of them at most."""
    step = next(size for size in (1, 2, 3, 6, 12, 24) if hours / size <= 8)
    start = to_datetime(found.since).astimezone(zone).replace(minute=0, second=0, microsecond=0)
    ticks = []
    instant = start.astimezone(UTC) + timedelta(hours=1)
    while (at := round(instant.timestamp() * SECOND)) < found.until:
        local = instant.astimezone(zone)
        if local.hour % step == 0:
            ticks.append((_x(at, found), f"{local:%a %H:%M}" if local.hour == 0 or hours > 24 else f"{local:%H:%M}"))
        instant += timedelta(hours=1)
    return ticks


def _loads(found: Forecast, top: int) -> list[SlotLoad]:
    loads = []
    for number, (group, values) in enumerate(sorted(found.load.items(), key=lambda item: group_text(item[0]))):
        slots = found.slots.get(group) or None
        highest = max([*values, slots or 0, 1e-9])
        y = top + number * (LOAD_H + 22) + 16
        step = (WIDTH - LABEL) / len(values)
        points = []
        for i, value in enumerate(values):
            level = round(y + LOAD_H - LOAD_H * value / highest, 1)
            points.append(f"L{LABEL + i * step:.1f} {level}L{LABEL + (i + 1) * step:.1f} {level}")
        path = f"M{LABEL} {y + LOAD_H}{''.join(points)}L{WIDTH} {y + LOAD_H}Z"
        limit = None if slots is None else round(y + LOAD_H - LOAD_H * slots / highest, 1)
        loads.append(SlotLoad(group_text(group), slots, max(values), path, limit, y))
    return loads
