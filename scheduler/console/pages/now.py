"""``/``: what is wrong, in sentences, each with what mends it."""

from __future__ import annotations

from typing import Any, NamedTuple

from scheduler.client.json_views import status_view
from scheduler.console.render import Page
from scheduler.console.routes import Nav, page
from scheduler.console.visit import Visit
from scheduler.store.read.status import Status, Stuck, status
from scheduler.store.read.workers import no_worker_reason

_WORST_FIRST = ("writes", "broken", "unserved", "lease", "hung", "bodies", "overdue", "stalled", "schedule")


class Trouble(NamedTuple):
    """One thing that is wrong. ``level``: bad or warn. ``tasks``: some of the tasks. ``link``: (label, path)."""

    level: str
    text: str
    problem: str
    tasks: tuple[int, ...] = ()
    remedy: str | None = None
    link: tuple[str, str] | None = None


@page("/", nav=Nav("Now", "n", 0))
def now(visit: Visit) -> Page:
    """What is wrong, what waits, who works."""
    with visit.read() as tx:
        found = status(tx)
        at = tx.now
    context: dict[str, Any] = {
        "status": found,
        "troubles": troubles(found),
        "live_workers": [w for w in found.workers if w.alive],
        "at": at,
    }
    return Page("now.html", status_view(found, at), context, "schedctl status")


def troubles(found: Status) -> list[Trouble]:
    """What is wrong, the worst first."""
    made = []
    idle = no_worker_reason(found.workers)
    if idle is not None:
        made.append(Trouble("bad", f"{idle}: nothing runs", "idle", remedy="Start schedd, or resume a worker."))
    for stuck in sorted(found.stuck, key=lambda one: _rank(one.problem)):
        made.append(_trouble(stuck))
    return made


def _rank(problem: str) -> int:
    return _WORST_FIRST.index(problem) if problem in _WORST_FIRST else len(_WORST_FIRST)


def _trouble(stuck: Stuck) -> Trouble:
    level = "bad" if stuck.problem in ("writes", "broken", "unserved", "hung") else "warn"
    remedy, link = _REMEDIES.get(stuck.problem, (None, None))
    return Trouble(level, stuck.text, stuck.problem, stuck.tasks, remedy, link)


_REMEDIES: dict[str, tuple[str | None, tuple[str, str] | None]] = {
    "unserved": ("Start a worker that serves them, or look at what the workers serve.", ("Workers", "/workers")),
    "lease": ("Nothing to do: the next live worker takes them back.", ("Workers", "/workers")),
    "hung": ("Restart the worker, or cancel the task by force.", ("Workers", "/workers")),
    "bodies": ("Restart the worker when its other tasks may be interrupted.", ("Workers", "/workers")),
    "overdue": ("Cancel them, by force if their handlers do not look.", ("Running tasks", "/tasks?q=state:running")),
    "stalled": ("Look at their logs; cancel them if they hang.", ("Running tasks", "/tasks?q=state:running")),
    "parent": ("Retry the parent; the children go on by themselves.", ("Waiting tasks", "/tasks?q=state:waiting")),
    "success": ("Cancel them.", ("Waiting tasks", "/tasks?q=state:waiting")),
    "schedule": ("Is a daemon running? Trigger what must not wait.", ("Schedules", "/schedules")),
    "ahead": ("Pause and resume each schedule.", ("Schedules", "/schedules")),
    "unserved_schedule": ("Start a worker that serves the kind.", ("Schedules", "/schedules")),
}
