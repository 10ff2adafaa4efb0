"""Removes dead letters by age and filter."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.model import state as st
from scheduler.model.state import TaskState
from scheduler.model.task_filter import TaskFilter
from scheduler.store import audit
from scheduler.store.admin.retention import remove
from scheduler.store.db.tx import Tx
from scheduler.store.graph.release import parents_removed
from scheduler.store.read.dead_letters import BATCH, letters


def purge(tx: Tx, wanted: TaskFilter, *, batch: int = BATCH) -> int:
    """Remove one batch, the oldest first; their outcomes and the audit stay. Returns how many.

    What waits for one of them to be retried ends as failed. Fewer than ``batch``: there are no more.
    """
    where, bound = letters(tx, wanted)
    rows = tx.run(
        f"SELECT t.id, t.error FROM schedd_tasks t WHERE {where} ORDER BY t.state, t.finished_at LIMIT :batch "
        f"{tx.dialect.skip_locked}",
        **(bound | {"batch": batch}),
    ).fetchall()
    remove_dead(tx, {row.id: row.error for row in rows})
    return len(rows)


def remove_dead(tx: Tx, errors: Mapping[int, str | None]) -> None:
    """Remove these dead letters, ids with their errors, which the caller has locked."""
    if errors:
        audit.record(tx, "purge", tasks={task_id: {"error": error} for task_id, error in errors.items()})
        parents_removed(tx, dict.fromkeys(errors, TaskState.DEAD))
        remove(tx, [(task_id, st.DEAD) for task_id in errors])
