"""``/``: what is wrong, in sentences, each with what mends it; then what goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler.client.json_views import fields, status_view, time
from scheduler.console.masks import masked_text
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit, asked_instant
from scheduler.operations.analysis import status_at
from scheduler.operations.status import (
    BY_NAME,
    ByHand,
    HealthCause,
    Status,
    causes,
    glance,
    verdict_of,
)
from scheduler.operations.top import Minute, minutes

CHART_MINUTES = 60
CAUSES = 5  # of dead letters that are named
_COUNTED = 20_000  # tasks of each state; of so many dead letters the causes are not counted here


class Button(NamedTuple):
    """A verb offered beside a sentence."""

    label: str
    path: str
    verb: str
    fields: Mapping[str, str] = {}


class Shown(NamedTuple):
    """One thing that is wrong, as the page shows it.

    ``level``: bad or warn. ``tasks``: some of the tasks. ``next``: the command to go on with. ``link``: (label, path).
    """

    level: str
    text: str
    problem: str
    tasks: tuple[int, ...] = ()
    remedy: str | None = None
    next: str | None = None
    link: tuple[str, str] | None = None
    button: Button | None = None


class Column(NamedTuple):
    """A minute of the chart: the heights of its parts, 0 to 100, and what its title says."""

    x: float
    succeeded: float
    failed: float
    other: float
    title: str


@page("/", nav=Nav("Now", "n", 0))
def now(visit: Visit) -> RenderedPage:
    """What is wrong, what waits, who works."""
    if visit.asked("at"):
        return _past(visit)
    with visit.read() as tx:
        seen = glance(tx, _COUNTED)
        series = minutes(tx, CHART_MINUTES)
    found, at, wrong = seen.status, seen.at, troubles(seen.status, seen.at)
    context: dict[str, Any] = {
        "status": found,
        "health": (health := verdict_of(seen)),
        "by_hand": [(one, masked_text(one.describe()), *_hand(one, found)) for one in found.by_hand],
        "troubles": wrong,
        "causes": found.causes.causes[:CAUSES],
        "all_causes": found.causes,
        "pools": found.pools,
        "live_workers": [w for w in found.workers if w.alive],
        "chart": chart(series),
        "most": max((m.succeeded + m.failed + m.other for m in series), default=0),
        "ended": sum(m.succeeded + m.failed + m.other for m in series),
        "failed": sum(m.failed for m in series),
        "at": at,
    }
    data = status_view(found, at) | {
        "verdict": health.verdict.value,
        "wrong": [fields(w, "problem", "text", "remedy", "next") for w in wrong],
        "minutes": [fields(m, "at", "succeeded", "failed", "other") for m in series],
    }
    return RenderedPage("now.html", data, context, "schedctl status")


def _past(visit: Visit) -> RenderedPage:
    """How things stood at a past instant, as far as it is recorded."""
    at = asked_instant(visit, visit.jobs.database.now()) or 0
    with visit.read() as tx:
        found = status_at(tx, at)
    counts = {("unknown" if state is None else state.value): number for state, number in found.counts.items()}
    data = {
        "at": time(found.at),
        "states": counts,
        "looked_at": found.looked_at,
        **fields(found, "more", "running"),
        "workers": [worker.label for worker in found.workers],
        "changes": len(found.changes),
    }
    context = {"past": found, "counts": counts, "ended": found.stats.total.attempts, "entries": found.changes}
    return RenderedPage("past.html", data, context, live=False)


def troubles(found: Status, at: int) -> list[Shown]:
    """What is wrong, the worst first."""
    return [_shown(one) for one in causes(found, at)]


def _shown(one: HealthCause) -> Shown:
    button: Button | None = None
    link: tuple[str, str] | None = None
    if one.act is not None:
        verb, task = one.act
        button = Button(f"{verb.capitalize()} {task}", f"/tasks/{task}/{verb}", verb)
    elif one.pause is not None:
        pause = one.pause.pause
        button = Button(
            "Resume", "/resume", "pause", {"all": "1"} if pause.scope == "all" else {pause.scope: pause.name}
        )
    if one.problem in BY_NAME:
        link = BY_NAME[one.problem].page
    elif one.problem == "backlog":
        link = ("Ready tasks", "/tasks?q=state:scheduled")
    return Shown("bad" if one.bad else "warn", one.text, one.problem, one.tasks, one.remedy, one.next, link, button)


def _hand(one: ByHand, found: Status) -> tuple[int | None, Button | None]:
    """How many tasks are due behind what was set by hand, and the button that takes it back."""
    pause = next((p for p in found.paused if p.pause.remedy == one.undo), None)
    if pause is not None:
        fields = {"all": "1"} if pause.pause.scope == "all" else {pause.pause.scope: pause.pause.name}
        return pause.due, Button("Resume", "/resume", "pause", fields)
    return None, None


def chart(series: list[Minute]) -> list[Column]:
    """The minutes as columns; heights are per cent of the highest."""
    most = max((m.succeeded + m.failed + m.other for m in series), default=0) or 1
    width = 100 / max(1, len(series))
    return [
        Column(
            place * width,
            100 * m.succeeded / most,
            100 * m.failed / most,
            100 * m.other / most,
            f"{m.succeeded} succeeded, {m.failed} failed",
        )
        for place, m in enumerate(series)
    ]


@action("/pause", Verb.PAUSE)
def pause(visit: Visit) -> ActionDone:
    """Let no worker claim tasks of a queue, of a kind, or any."""
    scope = _scope(visit)
    fresh = visit.jobs.pause(**scope)
    subject = _describe(scope)
    undo = ("Undo: resume", "/resume", _fields(scope))
    return ActionDone(f"{subject} is paused." if fresh else f"{subject} was paused already.", undo=undo)


@action("/resume", Verb.PAUSE)
def resume(visit: Visit) -> ActionDone:
    """End a pause."""
    scope = _scope(visit)
    ended = visit.jobs.resume(**scope)
    subject = _describe(scope)
    return ActionDone(
        f"{subject} goes on." if ended else f"{subject} was not paused.",
        undo=("Undo: pause it", "/pause", _fields(scope)),
        ok=ended,
    )


def _scope(visit: Visit) -> dict[str, Any]:
    if visit.ticked("all"):
        return {"all": True}
    for name in ("queue", "kind", "source"):
        if visit.given(name):
            return {name: visit.given(name)}
    raise BadInputError("say which: queue, kind, source, or all")


def _describe(scope: Mapping[str, Any]) -> str:
    name, value = next(iter(scope.items()))
    return "Everything" if name == "all" else f"{name.capitalize()} {value}"


def _fields(scope: Mapping[str, Any]) -> dict[str, str]:
    return {name: "1" if value is True else str(value) for name, value in scope.items()}
