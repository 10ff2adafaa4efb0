"""``/compare/ID``: a run beside the last good one of its kind, or beside another."""

from __future__ import annotations

from typing import Any

from scheduler.client.analysis import comparison_view
from scheduler.console.masks import TaskMasks
from scheduler.console.pages.task import plain_log
from scheduler.console.render import Page
from scheduler.console.routes import page
from scheduler.console.visit import Visit
from scheduler.operations.analysis import beside
from scheduler.operations.details import get_task

LINES = 400  # of the difference between two logs
ROLES = 200


@page("/compare/{id:int}")
def comparison(visit: Visit) -> Page:
    """What is different in this run."""
    task_id = visit.params["id"]
    other = visit.number("with", least=1)
    with visit.read() as tx:
        task = get_task(tx, task_id)
        both = beside(tx, task_id, other, masks=TaskMasks, shown=plain_log)
    command = f"schedctl compare {task_id}" + (f" {other}" if other else "")
    if both is None:
        context: dict[str, Any] = {"task": task, "found": None, "other": other}
        return Page("compare.html", {"task": task_id, "other": None}, context, command, live=False)
    found, different, lines = both
    data = comparison_view(found) | {"payload": [one._asdict() for one in different], "log": lines.lines}
    context = {
        "task": task,
        "found": found,
        "other": other,
        "changes": different,
        "lines": lines.lines[:LINES],
        "more_lines": max(0, len(lines.lines) - LINES),
        "roles": found.roles[:ROLES],
        "cut": lines.truncated,
        "more_roles": max(0, len(found.roles) - ROLES),
    }
    return Page("compare.html", data, context, command, live=False)
