"""``/tasks``: the tasks that fit a filter, which is in the URL."""

from __future__ import annotations

import time
from typing import Any

from scheduler.client.json_views import task_view
from scheduler.console.filters import compose, parse, words_of
from scheduler.console.masks import is_secret_name, masked, masked_text, secret_path
from scheduler.console.render import Page
from scheduler.console.routes import Nav, page
from scheduler.console.visit import Visit
from scheduler.model.state import TaskState
from scheduler.store.read.search import WINDOW, search

PAGE_ROWS = 50
MAX_ROWS = 500
_FORM_FIELDS = ("state", "kind", "queue", "since")


@page("/tasks", nav=Nav("Tasks", "t", 10))
def tasks(visit: Visit) -> Page:
    """Tasks, the newest first."""
    text = _text(visit)
    wanted = parse(text, visit.jobs.database.now(), _hidden)
    limit = visit.number("limit", PAGE_ROWS, least=1, most=MAX_ROWS) or PAGE_ROWS
    broken: list[str] = []
    began = time.perf_counter()
    with visit.read() as tx:
        found = search(tx, wanted.terms, limit=limit, cursor=visit.number("cursor", least=1), broken=broken.append)
        at = tx.now
    took = time.perf_counter() - began
    data: dict[str, Any] = {
        "filter": wanted.text,
        "tasks": [_view(task.at(at)) for task in found.tasks],
        "cursor": found.cursor,
        "bounded": found.bound,
    }
    context = {
        "filter": wanted,
        "found": found,
        "states": list(TaskState),
        "window": WINDOW,
        "broken": broken,
        "at": at,
        "took": took,
        "cursor": visit.number("cursor", least=1),
        "masked_text": masked_text,
        "shown_key": lambda key: key,
    }
    return Page("tasks.html", data, context, wanted.command())


def _text(visit: Visit) -> str:
    """The filter of ``q``, with what the form's own fields say in front of it."""
    parts = [(name, visit.asked(name)) for name in _FORM_FIELDS]
    parts += [("state", ",".join(visit.query.get("states", [])))]
    rest = visit.asked("q")
    given = {name for name, value in parts if value}
    if given:
        rest = " ".join(word for word in words_of(rest) if word.partition(":")[0] not in given)
    return compose(parts, rest)


def _hidden(path: str) -> bool:
    return secret_path(path)


def _view(task: Any) -> dict[str, Any]:
    view = task_view(task)
    for name in ("payload", "result", "headers"):
        view[name] = masked(view[name])
    view["error"] = masked_text(view["error"])
    if view["key"] is not None and is_secret_name(view["key"]):
        view["key"] = masked_text(view["key"])
    return view
