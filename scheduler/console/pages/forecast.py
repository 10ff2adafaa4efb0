"""``/forecast``: what the schedules will run, when, for how long, and where the slots are too few."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from scheduler.client.analysis import forecast_view
from scheduler.console.render import Page
from scheduler.console.routes import Nav, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.model.times import SECOND, to_datetime
from scheduler.operations.schedules import Forecast, ScheduleForecast, forecast, group_text

HOURS = (6, 12, 24, 48, 168)
WIDTH, ROW = 960, 24  # pixels of the drawing
LABEL = 190
LOAD_H = 70
DRAWN = 60  # schedules in the drawing; the table has all


class Bar(NamedTuple):
    """One run: from ``x`` on, ``width`` wide; ``title``: in words."""

    x: float
    width: float
    at: int


class Row(NamedTuple):
    """One schedule of the drawing. ``steady``: it fires too often for bars of its own."""

    one: ScheduleForecast
    y: int
    bars: list[Bar]
    steady: bool


class Load(NamedTuple):
    """How many slots of one kind are wanted. ``path``: of an SVG path; ``limit``: the height of all slots."""

    name: str
    slots: int | None
    peak: float
    path: str
    limit: float | None
    y: int


@page("/forecast", nav=Nav("Forecast", "f", 45))
def the_forecast(visit: Visit) -> Page:
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
        "ticks": _ticks(found, hours, ZoneInfo(visit.preferences.zone)),
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
    return Page("forecast.html", forecast_view(found), context, f"schedctl cron forecast --hours {hours}", live=False)


def _x(at: int, found: Forecast) -> float:
    share = (at - found.since) / (found.until - found.since)
    return round(LABEL + (WIDTH - LABEL) * min(max(share, 0.0), 1.0), 1)


def _row(one: ScheduleForecast, number: int, found: Forecast) -> Row:
    bars = []
    for at in () if one.every else one.fires:
        x = _x(at, found)
        bars.append(Bar(x, max(2.5, _x(at + (one.p50 or 0), found) - x), at))
    return Row(one, number * ROW + 24, bars, one.every is not None)


def _ticks(found: Forecast, hours: int, zone: ZoneInfo) -> list[tuple[float, str]]:
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


def _loads(found: Forecast, top: int) -> list[Load]:
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
        loads.append(Load(group_text(group), slots, max(values), path, limit, y))
    return loads
