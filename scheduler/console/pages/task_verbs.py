"""Verbs on one task: ``POST /tasks/ID/cancel`` and its like, through the calls that programs use."""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler.client.steering import Changes
from scheduler.config.sources import parse_duration
from scheduler.console.masks import MASK
from scheduler.console.render import Done, Page
from scheduler.console.roles import Verb
from scheduler.console.routes import action
from scheduler.console.visit import BadInputError, Visit
from scheduler.errors import ConfigError, InvalidTransitionError
from scheduler.model.state import TaskState
from scheduler.model.texts import counted
from scheduler.model.times import to_datetime
from scheduler.operations.filter import instant
from scheduler.store.admin.copy import runs_beside
from scheduler.store.read.tasks import get_task
from scheduler.store.tasks.stale import ran_on, told

COMMAND_KINDS = frozenset({"CommandTask"})


@action("/tasks/{id:int}/cancel", Verb.CANCEL)
def cancel(visit: Visit) -> Done:
    """End a task, or ask it to end."""
    task_id = visit.params["id"]
    done = visit.jobs.cancel_task(task_id, cascade=visit.ticked("cascade"), force=visit.ticked("force"))
    if done.finished:
        return Done(f"Task {task_id} had ended already.", ok=False)
    if done.requested:
        effect = "it ends now, whatever its handler does" if visit.ticked("force") else "it has been asked to end"
        return Done(f"Task {task_id} is running: {effect}.")
    more = f", and {counted(len(done.affected), 'task')} ended with it" if done.affected else ""
    undo = ("Undo: run it after all", f"/tasks/{task_id}/uncancel", dict[str, str]())
    return Done(f"Task {task_id} is cancelled{more}.", undo=undo, data={"cancelled": list(done.cancelled)})


@action("/tasks/{id:int}/uncancel", Verb.CANCEL)
def uncancel(visit: Visit) -> Done:
    """Take back a cancel: what had not begun is scheduled for its old time, what had begun goes on."""
    task_id = visit.params["id"]
    try:
        visit.jobs.uncancel_task(task_id)
    except InvalidTransitionError:
        if visit.jobs.get_task_status(task_id) is not TaskState.CANCELLED:
            raise
        visit.jobs.retry_task(task_id)
    return Done(f"Task {task_id} is not cancelled any more.")


@action("/tasks/{id:int}/retry", Verb.RETRY)
def retry(visit: Visit) -> Done:
    """Run an unsuccessful task again."""
    task_id, began = visit.params["id"], visit.jobs.database.now()
    visit.jobs.retry_task(task_id, downstream=not visit.ticked("alone"))
    more, stale = _ran_on(visit, task_id, began)
    return Done(
        f"Task {task_id} runs again.{more}", data=stale, undo=("Undo: cancel it", f"/tasks/{task_id}/cancel", {})
    )


@action("/tasks/{id:int}/rerun", Verb.RETRY)
def rerun(visit: Visit) -> Done:
    """Run a task that has ended again from its beginning."""
    task_id = visit.params["id"]
    began = visit.jobs.database.now()
    visit.jobs.rerun(task_id, downstream=not visit.ticked("alone"))
    more, stale = _ran_on(visit, task_id, began)
    return Done(f"Task {task_id} runs again, from its beginning.{more}", data=stale)


def _ran_on(visit: Visit, task_id: int, began: int) -> tuple[str, dict[str, Any]]:
    """A sentence of what ran on the old end of a task that runs again since then, and its ids; nothing if none did."""
    with visit.read() as tx:
        stale = ran_on(tx, [task_id], began)
    if not stale:
        return "", {}
    text = told(stale)
    data = {"stale": stale.ids, "stale_more": stale.cut}
    return f" {text[0].upper()}{text[1:]}: rerun what is to see the new one.", data


@action("/tasks/{id:int}/replay", Verb.REPLAY)
def replay(visit: Visit) -> Done:
    """Run a dead letter again, under another key or as a copy if that is asked for."""
    task_id, began = visit.params["id"], visit.jobs.database.now()
    made = visit.jobs.dead_letters.replay(task_id, key=visit.given("key") or None, copy=visit.ticked("copy"))
    if int(made) != task_id:
        return Done(f"Task {int(made)} is a copy of {task_id}.", f"/tasks/{int(made)}", data={"id": int(made)})
    more, stale = _ran_on(visit, task_id, began)
    return Done(
        f"Task {task_id} is replayed.{more}", data=stale, undo=("Undo: cancel it", f"/tasks/{task_id}/cancel", {})
    )


@action("/tasks/{id:int}/copy", Verb.SUBMIT)
def copy(visit: Visit) -> Done:
    """Store a copy of a task as new work."""
    task_id = visit.params["id"]
    check_command(visit, visit.jobs.get_task(task_id).kind)
    made = visit.jobs.copy_task(task_id, dependencies=not visit.ticked("free"), **changes_of(visit))
    with visit.read() as tx:
        beside = runs_beside(get_task(tx, task_id), get_task(tx, int(made)))
    text = f"Task {int(made)} is a copy of {task_id}."
    return Done(text if beside is None else f"{text} {beside}.", f"/tasks/{int(made)}", data={"id": int(made)})


@action("/tasks/{id:int}/patch", Verb.PATCH)
def patch(visit: Visit) -> Done:
    """Change a stored task that no worker holds."""
    task_id = visit.params["id"]
    given = changes_of(visit)
    if not given:
        raise BadInputError("nothing is to be changed: say what")
    if "fields" in given:
        check_command(visit, visit.jobs.get_task(task_id).kind)
    if not visit.jobs.update_task(task_id, **given):
        return Done(f"Task {task_id} had these values already; nothing is changed.")
    return Done(f"Task {task_id} is changed: {', '.join(given)}.")


@action("/tasks/{id:int}/reveal", Verb.REVEAL)
def reveal(visit: Visit) -> Page:
    """Show the secrets of a payload once; the audit says who saw them."""
    task_id = visit.params["id"]
    value = visit.jobs.reveal(task_id)
    return Page("task_revealed.html", value, {"id": task_id, "value": value}, live=False)


def check_command(visit: Visit, kind: str) -> None:
    """Refuse to make or change tasks that run commands, unless ``[console] commands`` allows it."""
    if kind in COMMAND_KINDS and not visit.site.settings.commands:
        raise BadInputError(
            f"{kind} runs commands: from the pages they are not made or changed ([console] commands)", 403
        )


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
        raise BadInputError(f"the value is not JSON: {error}") from None
