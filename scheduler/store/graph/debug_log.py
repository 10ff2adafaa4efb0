"""Debug lines on a task's way until its handler begins: stored as scheduled or waiting, then released."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from scheduler.model.spec import TaskId
from scheduler.model.state import SCHEDULED, WAITING, TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import bind_parents, from_parents

log = logging.getLogger("scheduler.store")


def wanted() -> bool:
    """Whether such lines are logged: they cost a statement."""
    return log.isEnabledFor(logging.DEBUG)


def scheduled(task_id: int, kind: str) -> None:
    """Log a task that was stored, and waits for no other."""
    if log.isEnabledFor(logging.DEBUG):
        log.debug("task scheduled", extra={"task": int(task_id), "kind": kind})


def stored(tx: Tx, ids: Iterable[TaskId]) -> None:
    """Log tasks that this transaction has just stored. It may still be rolled back."""
    for task_id, kind, code, unmet in _rows(tx, [int(i) for i in ids if i.created]):
        if code == WAITING:
            log.debug("task waiting", extra={"task": task_id, "kind": kind, "for": unmet})
        elif code == SCHEDULED:
            scheduled(task_id, kind)
        else:
            log.debug("task ended as it was stored", extra={"task": task_id, "state": TaskState.from_code(code).value})


def released(tx: Tx, ended: Collection[int], ready_children: Iterable[int]) -> None:
    """Log what may run now that these tasks have ended; ``ready_children``: of those what is not written yet."""
    children = tx.run(
        f"SELECT DISTINCT child FROM schedd_edges WHERE {from_parents(tx.dialect)}", **bind_parents(tx.dialect, ended)
    )
    early = set(ready_children)
    for task_id, kind, code, _ in _rows(tx, sorted({row[0] for row in children})):
        if code == SCHEDULED or task_id in early:
            log.debug("task released", extra={"task": task_id, "kind": kind})


def _rows(tx: Tx, ids: Sequence[int]) -> Iterable[tuple[int, str, int, int]]:
    sql = f"SELECT id, kind, state, unmet FROM schedd_tasks WHERE {tx.dialect.among('id')} ORDER BY id"
    return [(row[0], row[1], row[2], row[3]) for row in tx.run(sql, ids=tx.dialect.bind_ids(ids))]
