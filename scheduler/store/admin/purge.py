"""Removes dead letters by age and filter."""

from __future__ import annotations

from scheduler.model import state as st
from scheduler.model.state import TaskState
from scheduler.store import audit
from scheduler.store.admin.retention import remove
from scheduler.store.db.tx import Tx
from scheduler.store.graph.release import parents_removed
from scheduler.store.read.dead_letters import BATCH, Filter


def purge(tx: Tx, wanted: Filter, *, batch: int = BATCH) -> int:
    """Remove one batch, the oldest first; their outcomes and the audit stay. Returns how many.

    What waits for one of them to be retried ends as failed. Fewer than ``batch``: there are no more.
    """
    where, bound = wanted.where()
    rows = tx.run(
        f"SELECT t.id, t.error FROM schedd_tasks t WHERE {where} ORDER BY t.state, t.finished_at LIMIT :batch "
        f"{tx.dialect.skip_locked}",
        **(bound | {"batch": batch}),
    ).fetchall()
    if not rows:
        return 0
    ids = [row.id for row in rows]
    audit.record(tx, "purge", tasks={row.id: {"error": row.error} for row in rows})
    parents_removed(tx, dict.fromkeys(ids, TaskState.DEAD))
    remove(tx, [(i, st.DEAD) for i in ids])
    return len(ids)
