"""Verbs on one task: ``POST /tasks/ID/cancel`` and its like, through the calls that programs use."""

from __future__ import annotations

from scheduler.console.render import Done
from scheduler.console.roles import Verb
from scheduler.console.routes import action
from scheduler.console.visit import Visit
from scheduler.model.texts import counted


@action("/tasks/{id:int}/cancel", Verb.CANCEL)
def cancel(visit: Visit) -> Done:
    """End a task, or ask it to end."""
    task_id = visit.params["id"]
    done = visit.jobs.cancel_task(task_id, cascade=visit.ticked("cascade"))
    if done.finished:
        return Done(f"Task {task_id} had ended already.", ok=False)
    if done.requested:
        return Done(f"Task {task_id} is running: it has been asked to end.")
    more = f", and {counted(len(done.affected), 'task')} below it" if done.affected else ""
    return Done(f"Task {task_id} is cancelled{more}.", undo=("Undo: run it after all", f"/tasks/{task_id}/retry", {}))


@action("/tasks/{id:int}/retry", Verb.RETRY)
def retry(visit: Visit) -> Done:
    """Run an unsuccessful task again."""
    task_id = visit.params["id"]
    visit.jobs.retry_task(task_id, downstream=not visit.ticked("alone"))
    return Done(f"Task {task_id} runs again.", undo=("Undo: cancel it", f"/tasks/{task_id}/cancel", {}))
