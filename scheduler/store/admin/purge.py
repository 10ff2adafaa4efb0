"""Removes dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.model import state as st
from scheduler.model.state import TaskState
from scheduler.store import audit
from scheduler.store.admin.retention import remove
from scheduler.store.db.tx import Tx
from scheduler.store.graph.release import parents_removed


def remove_dead(tx: Tx, errors: Mapping[int, str | None]) -> None:
    """Remove these dead letters, ids with their errors, which the caller has locked; outcomes and the audit stay.

    What waits for one of them to be retried ends as failed.
    """
    if errors:
        audit.record(tx, "purge", tasks={task_id: {"error": error} for task_id, error in errors.items()})
        parents_removed(tx, dict.fromkeys(errors, TaskState.DEAD))
        remove(tx, [(task_id, st.DEAD) for task_id in errors])
