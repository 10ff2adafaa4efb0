"""Keys that callers of the door gave when these were not yet the door's own: what comes again runs no second time."""

from __future__ import annotations

from scheduler.model.inbox import DOOR
from scheduler.model.spec import TaskSpec
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.keys import holder_of

_MARK = "keys"


def begin(tx: Tx) -> None:
    """From now on the door's keys are its own. Remembers when that was, once."""
    tx.run(
        "INSERT INTO schedd_inbox_subjects (source, subject, sequence, at) VALUES (:source, :mark, 0, :now) "
        "ON CONFLICT (source, subject) DO NOTHING",
        source=DOOR,
        mark=_MARK,
        now=tx.now,
    )


def former(tx: Tx, spec: TaskSpec, key: str) -> int | None:
    """The task that was made of the same request before :func:`begin`, if its key is still held."""
    holder = holder_of(tx, spec.kind, key)
    if holder is None:
        return None
    row = tx.run(
        "SELECT coalesce(t.payload, v.value) AS payload, t.correlation, t.subject FROM schedd_tasks t "
        "LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'payload' WHERE t.id = :id AND t.created_at < "
        "(SELECT s.at FROM schedd_inbox_subjects s WHERE s.source = :source AND s.subject = :mark)",
        id=holder.id,
        source=DOOR,
        mark=_MARK,
    ).first()
    if row is None or (row.payload, row.subject) != (spec.payload, spec.subject):
        return None
    return holder.id if spec.correlation in (None, row.correlation) else None
