"""The envelopes of attempts: the task's own, or the copy kept when that changed.

So recording an attempt writes no envelope.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduler.model.envelope import Envelope, idempotency_key
from scheduler.model.times import to_datetime
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.attempts import INLINE

_READ = (
    "SELECT t.id, t.kind, t.schema_version, t.message_type, t.correlation, t.causation, t.key, t.original_id, "
    "t.subject, t.sequence, t.created_at, coalesce(t.payload, v.value) AS payload, t.payload_ref "
    "FROM schedd_tasks t LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'payload' WHERE t.id = :id"
)

_EPOCHS = "SELECT first_id FROM schedd_store WHERE epoch > 1"


def envelope_of(tx: Tx, task_id: int) -> Envelope | None:
    """The envelope that the task has now; None if there is no such task."""
    row = tx.run(_READ, id=task_id).first()
    if row is None:
        return None
    epoch = 1
    if row.key is None:
        known = tx.run(_EPOCHS).fetchall()
        epoch = 1 + sum(first <= (row.original_id or task_id) for (first,) in known)
    return Envelope(
        schema_version=row.schema_version,
        message_type=row.message_type or row.kind,
        correlation_id=row.correlation or str(row.id),
        causation_id=row.causation,
        idempotency_key=idempotency_key(row.key, row.original_id, row.id, epoch),
        subject=row.subject,
        sequence=row.sequence,
        created_at=to_datetime(row.created_at),
        payload=row.payload,
        payload_ref=row.payload_ref,
    )


def keep(tx: Tx, task_id: int) -> None:
    """Keep the present envelope with the past attempts, before the task's own or its payload changes."""
    bound: dict[str, Any] = {"id": task_id}
    some = "SELECT 1 FROM schedd_attempts WHERE task_id = :id AND envelope IS NULL LIMIT 1"
    if not tx.rows(some, **bound):
        return
    had = envelope_of(tx, task_id)
    if had is None:
        return
    if had.payload is not None and len(had.payload) > INLINE:
        had = msgspec.structs.replace(had, payload=None)
    tx.run(
        "UPDATE schedd_attempts SET envelope = :envelope WHERE task_id = :id AND envelope IS NULL",
        **(bound | {"envelope": msgspec.json.encode(had).decode()}),
    )


def kept(text: str | None, present: Envelope) -> Envelope:
    """An attempt's envelope: what was kept with it, else the one that its task has at ``present``."""
    try:
        return present if text is None else msgspec.json.decode(text, type=Envelope)
    except msgspec.MsgspecError:
        return present  # no text of ours; the rest of the attempt can still be shown
