"""``/tasks``: the tasks that fit a filter, which is in the URL."""

from __future__ import annotations

import time
from typing import Any

from scheduler.client.json_views import task_view
from scheduler.console.filters import compose, parse, words_of
from scheduler.console.masks import TaskMask, TaskMasks, secret_path
from scheduler.console.render import Page
from scheduler.console.routes import Nav, page
from scheduler.console.visit import Visit
from scheduler.model.state import TaskState
from scheduler.store.read.search import WINDOW, search
from scheduler.store.read.tasks import TaskRecord

PAGE_ROWS = 50
MAX_ROWS = 500
_FORM_FIELDS = ("state", "kind", "queue", "since")


@page("/tasks", nav=Nav("Tasks", "t", 10))
def tasks(visit: Visit) -> Page:
    """Tasks, the newest first."""
    text = _text(visit)
    limit = visit.number("limit", PAGE_ROWS, least=1, most=MAX_ROWS) or PAGE_ROWS
    cursor = visit.number("cursor", least=1)
    broken: list[str] = []
    began = time.perf_counter()
    with visit.read() as tx:
        at = tx.now
        wanted = parse(text, at, lambda path: secret_path(tx, path))
        found = search(tx, wanted.terms, limit=limit, cursor=cursor, broken=broken.append)
        masks = TaskMasks(tx, {task.kind for task in found.tasks})
    rows = [(task, masks.of(task)) for task in found.tasks]
    took = time.perf_counter() - began
    data: dict[str, Any] = {
        "filter": wanted.text,
        "tasks": [_view(task.at(at), mask) for task, mask in rows],
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
        "cursor": cursor,
        "rows": rows,
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


def _view(task: TaskRecord, mask: TaskMask) -> dict[str, Any]:
    view = task_view(task)
    return {
        **view,
        "payload": mask.payload(task.payload),
        "result": mask.json(task.result_text),
        "headers": mask.value(view["headers"]),
        "error": mask.text(view["error"]),
    }
