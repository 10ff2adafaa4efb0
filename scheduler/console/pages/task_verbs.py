"""Verbs on one task: ``POST /tasks/ID/cancel`` and its like, through the calls that programs use."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from scheduler.config.sources import parse_duration
from scheduler.console.masks import MASK
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import action
from scheduler.console.visit import BadInputError, Visit
from scheduler.errors import ConfigError
from scheduler.model.json_text import json_fault
from scheduler.model.task_filter import TaskFilter, Term
from scheduler.model.texts import counted
from scheduler.model.times import to_datetime
from scheduler.operations import dead_letters, masks, tasks
from scheduler.operations.changes import Changes
from scheduler.operations.details import get_task
from scheduler.operations.filter import instant
from scheduler.operations.verbs import TaskVerb, task_verbs

COMMAND_KINDS = frozenset({"CommandTask"})


@action("/tasks/{id:int}/cancel", Verb.CANCEL)
def cancel(visit: Visit) -> ActionDone:
    """End a task, or ask it to end."""
    task_id = visit.params["id"]
    done, _ = tasks.cancel(visit.desk, [task_id], cascade=visit.ticked("cascade"), force=visit.ticked("force"))
    if done.finished:
        return ActionDone(f"Task {task_id} had ended already.", ok=False)
    if done.requested:
        effect = "it ends now, whatever its handler does" if visit.ticked("force") else "it has been asked to end"
        return ActionDone(f"Task {task_id} is running: {effect}.")
    more = f", and {counted(len(done.affected), 'task')} ended with it" if done.affected else ""
    undo = ("Undo: run it after all", f"/tasks/{task_id}/uncancel", dict[str, str]())
    return ActionDone(f"Task {task_id} is cancelled{more}.", undo=undo, data={"cancelled": list(done.cancelled)})


def _act(verb: TaskVerb, visit: Visit) -> ActionDone:
    """Do a verb that has a module of its own."""
    given = {name: text for name in verb.args.__struct_fields__ if (text := visit.given(name))}
    return ActionDone(verb(visit.desk, visit.params["id"], given, strict=False))


for _name, _verb in task_verbs().items():
    action(f"/tasks/{{id:int}}/{_name}", Verb(_verb.needs))(partial(_act, _verb))


@action("/tasks/{id:int}/retry", Verb.RETRY)
def retry(visit: Visit) -> ActionDone:
    """Run an unsuccessful task again."""
    task_id = visit.params["id"]
    done = tasks.retry(visit.desk, [task_id], downstream=not visit.ticked("alone"))
    return _again(f"Task {task_id} runs again.", done, task_id)


@action("/tasks/{id:int}/rerun", Verb.RETRY)
def rerun(visit: Visit) -> ActionDone:
    """Run a task that has ended again from its beginning."""
    task_id = visit.params["id"]
    done = tasks.rerun(visit.desk, [task_id], downstream=not visit.ticked("alone"))
    return _again(f"Task {task_id} runs again, from its beginning.", done)


@action("/tasks/{id:int}/replay", Verb.REPLAY)
def replay(visit: Visit) -> ActionDone:
    """Run a dead letter again, under another key or as a copy if that is asked for."""
    task_id, key = visit.params["id"], visit.given("key") or None
    done = dead_letters.replay(visit.desk, [task_id], key=key, copy=visit.ticked("copy"))
    made = int(done.ids[0])
    if made != task_id:
        return ActionDone(f"Task {made} is a copy of {task_id}.", f"/tasks/{made}", data={"id": made})
    return _again(f"Task {task_id} is replayed.", done, task_id)


def _again(text: str, done: tasks.Again | dead_letters.Replayed, undo: int | None = None) -> ActionDone:
    """A task runs again. ``undo``: the task that a button would cancel."""
    for task_id, other in done.left.items():
        text = f"{text} Task {task_id} was not revived: task {other.id} has its key."
    if done.stale:
        ran = tasks.told(done.stale)
        text = f"{text} {ran[0].upper()}{ran[1:]}: rerun what is to see the new one."
    button = None if undo is None else ("Undo: cancel it", f"/tasks/{undo}/cancel", dict[str, str]())
    return ActionDone(
        text, data={"stale": done.stale.ids, "stale_more": done.stale.cut} if done.stale else {}, undo=button
    )


@action("/tasks/{id:int}/copy", Verb.SUBMIT)
def copy(visit: Visit) -> ActionDone:
    """Store a copy of a task as new work."""
    task_id = visit.params["id"]
    check_command(visit, task_id)
    made, beside = tasks.copy(visit.desk, task_id, changes_of(visit), dependencies=not visit.ticked("free"))
    text = f"Task {int(made)} is a copy of {task_id}."
    return ActionDone(text if beside is None else f"{text} {beside}.", f"/tasks/{int(made)}", data={"id": int(made)})


@action("/tasks/{id:int}/patch", Verb.PATCH)
def patch(visit: Visit) -> ActionDone:
    """Change a stored task that no worker holds."""
    task_id = visit.params["id"]
    given = changes_of(visit)
    if not given:
        raise BadInputError("nothing is to be changed: say what")
    if "fields" in given:
        check_command(visit, task_id)
    if tasks.change(visit.desk, [task_id], given).same:
        return ActionDone(f"Task {task_id} had these values already; nothing is changed.")
    return ActionDone(f"Task {task_id} is changed: {', '.join(given)}.")


@action("/tasks/{id:int}/reveal", Verb.REVEAL)
def reveal(visit: Visit) -> RenderedPage:
    """Show the secrets of a payload once; the audit says who saw them."""
    task_id = visit.params["id"]
    value = masks.reveal(visit.desk, task_id)
    return RenderedPage("task_revealed.html", value, {"id": task_id, "value": value}, live=False)


def check_command(visit: Visit, task_id: int) -> None:
    """Refuse to copy or change a task that runs a command, unless ``[console] commands`` allows it."""
    with visit.desk.read() as tx:
        kind = get_task(tx, task_id).kind
    if kind in COMMAND_KINDS and not visit.site.settings.commands:
        raise BadInputError(
            f"{kind} runs commands: from the pages they are not made or changed ([console] commands)", 403
        )


def without_commands(visit: Visit, wanted: TaskFilter) -> TaskFilter:
    """A filter of tasks that get other fields: none that run commands, unless ``[console] commands`` allows it."""
    if visit.site.settings.commands:
        return wanted
    return wanted.also(Term("kind", tuple(COMMAND_KINDS), exclude=True))


def changes_of(visit: Visit) -> Changes:
    """What the form wants changed. Raises BadInputError."""
    made: Changes = {}
    if visit.given("priority"):
        made["priority"] = visit.given("priority")
    if visit.given("queue"):
        made["queue"] = visit.given("queue")
    if visit.given("at"):
        _add_time(made, visit.given("at"))
    name = visit.given("field")
    if name:
        made["fields"] = {name: field_value(visit.given("value"), as_json=visit.given("as") == "json")}
    return made


def _add_time(made: Changes, text: str) -> None:
    try:
        made["after"] = parse_duration(text)
    except ConfigError:
        made["at"] = to_datetime(instant(text, 0))


def field_value(text: str, *, as_json: bool) -> Any:
    """The value that a form gives for a field of a payload: a text, or JSON. Raises BadInputError.

    A mask is never stored.
    """
    if MASK in text:
        raise BadInputError(f"{MASK} stands for a secret that is not shown: it is no value")
    if not as_json:
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadInputError(f"the value is not JSON: {json_fault(text, error)}") from None
