"""``/tasks``: the tasks that fit a filter, which is in the URL."""

from __future__ import annotations

import shlex
import time
from typing import Any

from scheduler.client.json_views import task_view
from scheduler.console.masks import PageTaskMasks, TaskMask
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import Visit
from scheduler.model.state import TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.operations import console
from scheduler.operations.details import TaskRecord, whys
from scheduler.operations.filter import compose, quoted, words_of
from scheduler.operations.kinds import kind_names
from scheduler.operations.search import WINDOW, search

PAGE_ROWS = 50
MAX_ROWS = 500
WHYS = 50  # rows for which a page says why they do not run
_FORM_FIELDS = ("kind", "queue", "since", "not_kind", "not_queue")
_BULK_VERBS = (
    ("retry", "retry", "Retry"),
    ("replay", "replay", "Replay"),
    ("rerun", "retry", "Run again"),
    ("cancel", "cancel", "Cancel"),
    ("purge", "purge", "Purge"),
)
_PAGE = "tasks"  # whose views are saved


@page("/tasks", nav=Nav("Tasks", "t", 10))
def tasks(visit: Visit) -> RenderedPage:
    """Tasks, the newest first."""
    text = _text(visit)
    limit = visit.number("limit", PAGE_ROWS, least=1, most=MAX_ROWS) or PAGE_ROWS
    cursor = visit.number("cursor", least=1)
    broken: list[str] = []
    began = time.perf_counter()
    with visit.read() as tx:
        at = tx.now
        wanted = visit.filter(tx, text)
        found = search(tx, wanted, limit=limit, cursor=cursor, broken=broken.append)
        masks = PageTaskMasks(tx, {task.kind for task in found.tasks})
        reasons = whys(tx, [task.id for task in found.tasks if not task.state.terminal][:WHYS])
        views = console.saved_views(tx, _PAGE, visit.who.name)
        kinds = kind_names(tx)
    rows = [_row(task, masks.of(task), reasons.get(task.id)) for task in found.tasks]
    took = time.perf_counter() - began
    data: dict[str, Any] = {
        "filter": wanted.text,
        "tasks": [_view(task.at(at), mask, why) for task, mask, why in rows],
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
        "views": views,
        "kinds": kinds,
        "bulk_verbs": _BULK_VERBS,
        "acts": any(visit.may(needs) for _, needs, _ in _BULK_VERBS),
    }
    return RenderedPage("tasks.html", data, context, list_command(wanted))


def list_command(wanted: TaskFilter) -> str:
    """The ``schedctl list`` that shows the same."""
    text = [*(["--"] if wanted.text.startswith("-") else []), *([wanted.text] if wanted.text else [])]
    return shlex.join(["schedctl", "list", *text])


def _row(task: TaskRecord, mask: TaskMask, reason: str | None) -> tuple[TaskRecord, TaskMask, str]:
    """A task, and why it does not run or what it failed of; nothing for a success."""
    reason = reason if not task.state.terminal else None if task.state is TaskState.SUCCESS else task.error
    return task, mask, mask.text(reason) or ""


def _text(visit: Visit) -> str:
    """The filter of ``q``, in which the form's own fields take the place of the words about the same."""
    parts = [("state", ",".join(visit.query.get("states", [])))]
    for name in _FORM_FIELDS:
        parts.append((f"-{name.removeprefix('not_')}" if name.startswith("not_") else name, visit.asked(name)))
    given = {name for name, value in parts if value}
    rest = " ".join(quoted(word) for word in words_of(visit.asked("q")) if word.partition(":")[0] not in given)
    return compose(parts, rest)


@action("/tasks/views/save", Verb.SAVE_VIEW)
def save_view(visit: Visit) -> ActionDone:
    """Keep the filter under a name, for oneself or for everybody."""
    text = visit.given("q")
    with visit.read() as tx:
        visit.filter(tx, text)
    name, shared = visit.given("name"), visit.ticked("shared")
    console.save_view(visit.jobs.desk, _PAGE, name, text, visit.who.name, shared=shared)
    return ActionDone(f"The view “{name}” is saved.")


@action("/tasks/views/forget", Verb.SAVE_VIEW)
def forget_view(visit: Visit) -> ActionDone:
    """Forget a view."""
    name, shared = visit.given("name"), visit.ticked("shared")
    gone = console.forget_view(visit.jobs.desk, _PAGE, name, visit.who.name, shared=shared)
    return ActionDone(f"The view “{name}” is forgotten." if gone else "There is no such view.", ok=gone)


def _view(task: TaskRecord, mask: TaskMask, why: str) -> dict[str, Any]:
    view = task_view(task)
    return {
        **view,
        "why": why,
        "payload": mask.payload(task.payload),
        "result": mask.json(task.result_text),
        "headers": mask.value(view["headers"]),
        "error": mask.text(view["error"]),
    }
