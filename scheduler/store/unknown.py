"""What is known of an id that names no task: a restore lost it, retention removed it, or there never was one. And what
can be no schedule's name."""

from __future__ import annotations

from scheduler.errors import UnknownScheduleError, UnknownTaskError
from scheduler.model.state import TaskState
from scheduler.model.texts import rfc3339, storable
from scheduler.store.db.tx import Tx

_EPOCHS = "SELECT since FROM schedd_store WHERE epoch > 1 AND first_id > :id ORDER BY epoch LIMIT 1"
# Ids are given in order, and never twice.
_HIGHEST = (
    "SELECT coalesce((SELECT max(id) FROM schedd_tasks), 0) AS tasks, "
    "coalesce((SELECT max(task_id) FROM schedd_outcomes), 0) AS outcomes"
)
FORGOTTEN = (
    "ids up to {} have been given, so it has been removed, and its outcome is forgotten by now "
    "([retention] outcomes); or it was never committed"
)


def unknown(tx: Tx, task_id: int, *, taken: bool = False) -> UnknownTaskError:
    """What to raise for an id that names no task, or (``taken``) another one than the caller was given it for."""
    wanted = int(task_id)
    if not 0 < wanted < 2**63:
        return UnknownTaskError(task_id)
    epochs = tx.run(_EPOCHS, id=wanted).fetchall()
    if epochs:
        when = rfc3339(epochs[0].since, exact=False)
        return UnknownTaskError(task_id, f"a failover or a restore, noticed at {when}, may have lost it")
    if taken:
        return UnknownTaskError(task_id, "a failover or a restore has lost it, and another task has its id")
    row = tx.run("SELECT state, removed_at FROM schedd_outcomes WHERE task_id = :id", id=wanted).first()
    if row is not None and row.state in range(len(TaskState)):
        ended, removed = TaskState.from_code(row.state), rfc3339(row.removed_at, exact=False)
        return UnknownTaskError(task_id, f"it ended as {ended}, and retention removed it at {removed}", lost=False)
    highest = max(tx.run(_HIGHEST).one())
    if wanted < highest:
        return UnknownTaskError(task_id, FORGOTTEN.format(highest), lost=False)
    return UnknownTaskError(task_id)


def schedule_name(given: str) -> str:
    """The name of a schedule that a caller asks for. Raises UnknownScheduleError for what the database cannot look for.

    Its driver's error would say nothing of a schedule.
    """
    if not isinstance(given, str) or given != storable(given):
        raise UnknownScheduleError(given)
    return given
