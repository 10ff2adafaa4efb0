"""Takes back cancels of tasks that had not begun."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.errors import InvalidTransitionError, SchedulerError
from scheduler.model.state import CANCELLED, SCHEDULED, TaskState
from scheduler.store import audit
from scheduler.store.admin.bulk_plan import rows_of
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.read.audit import last_of
from scheduler.store.tasks.control import reopen_all
from scheduler.store.unknown import unknown

UNBEGUN = (TaskState.WAITING, TaskState.SCHEDULED)


def uncancel_task(tx: Tx, task_id: int) -> None:
    """Take back a cancel of a task that had not begun: it waits again, or is scheduled for its old time.

    What ended with it comes back, too. Raises UnknownTaskError, DuplicateKeyError; InvalidTransitionError if it is not
    cancelled, or the audit does not say that it had not begun.
    """
    for error in uncancel_all(tx, [task_id]).values():
        raise error


def uncancel_all(tx: Tx, ids: Sequence[int]) -> Mapping[int, SchedulerError]:
    """:func:`uncancel_task` for each of these. Returns those that stay cancelled, each with its error."""
    rows = rows_of(tx, ids, tx.dialect.lock)
    entries = last_of(tx, ids, "cancel")
    refused: dict[int, SchedulerError] = {}
    able: list[int] = []
    for task_id in ids:
        row = rows.get(task_id)
        if row is None:
            refused[task_id] = unknown(tx, task_id)
        elif row.state != CANCELLED:
            refused[task_id] = _why_not(f"task {task_id} is {TaskState.from_code(row.state)}")
        elif task_id not in entries or entries[task_id].before not in UNBEGUN:
            refused[task_id] = _why_not(f"task {task_id} had begun")
        else:
            able.append(task_id)
    if not able:
        return refused
    back, left = reopen_all(tx, able)
    for task_id in set(able).difference(back):
        other = left.get(task_id)
        refused[task_id] = _why_not(f"task {task_id} ended with a task that stays") if other is None else other.error
    later = [(task_id, rows[task_id].run_at) for task_id in back if rows[task_id].run_at > tx.now]
    tx.run(
        f"UPDATE schedd_tasks SET run_at = j.run_at FROM {tx.dialect.rows({'id': int, 'run_at': int})} j "
        f"WHERE schedd_tasks.id = j.id AND schedd_tasks.state <= {SCHEDULED}",
        rows=bind_rows(later),
    )
    audit.record(tx, "uncancel", tasks={task_id: {"before": TaskState.CANCELLED} for task_id in back})
    return refused


def _why_not(what: str) -> InvalidTransitionError:
    return InvalidTransitionError(f"{what}: only a cancel of what had not begun can be taken back; retry it instead")
