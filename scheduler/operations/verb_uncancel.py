"""Take back a cancel."""

from __future__ import annotations

from scheduler.errors import InvalidTransitionError
from scheduler.model.spec import check_id
from scheduler.model.state import TaskState
from scheduler.operations.desk import Desk
from scheduler.operations.new_task import Act
from scheduler.operations.verbs import TaskVerb
from scheduler.store.admin.uncancel import uncancel_task
from scheduler.store.db.tx import Tx
from scheduler.store.read.tasks import get_task
from scheduler.store.tasks import control


def uncancel(desk: Desk, task_id: int, *, begun: bool = False) -> None:
    """Take back a cancel of a task that had not begun: it waits again, or is scheduled for its old time.

    What ended with it comes back, too. ``begun``: one that had begun is retried. Raises UnknownTaskError;
    InvalidTransitionError if it is not cancelled, or had begun; DuplicateKeyError if another task holds its key or has
    completed under it since.
    """
    check_id(task_id)

    def work(tx: Tx) -> None:
        try:
            uncancel_task(tx, task_id)
        except InvalidTransitionError:
            if not begun or get_task(tx, task_id).state is not TaskState.CANCELLED:
                raise
            control.retry(tx, task_id)

    desk.write(work)


def _run_after_all(desk: Desk, task_id: int, _: Act) -> None:
    """Take back a cancel."""
    uncancel(desk, task_id, begun=True)


VERB = TaskVerb(_run_after_all, "cancel", frozenset({TaskState.CANCELLED}), "Task {id} is not cancelled any more.")
