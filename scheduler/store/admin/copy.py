"""Stores a copy of a task, in whatever state that is, as a new piece of work."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from scheduler.model.lanes import base_lane, derived_lane
from scheduler.model.parent_names import names_in, with_names
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.unique import is_derived
from scheduler.store import audit
from scheduler.store.admin.replay import COPIED, READ, edges_of, payload_of
from scheduler.store.db.tx import Tx
from scheduler.store.read.tasks import TaskRecord
from scheduler.store.tasks import keys
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.tasks.patch import NewPayload, Patch, StoredPayload, new_key
from scheduler.store.unknown import unknown


def copy_task(tx: Tx, task_id: int, change: Patch, *, key: str | None = None, dependencies: bool = True) -> TaskId:
    """Store a new task with the options, envelope and payload of this one, and over them what ``change`` says.

    It is due now unless ``change`` says when, and has an idempotency key of its own. It has no key but ``key``, or the
    one that another payload makes. With ``dependencies`` it waits for what this one waits or waited for. Raises
    UnknownTaskError, PayloadError; DuplicateKeyError if another task holds its key or has completed under it since this
    one ended.
    """
    row = tx.run(f"SELECT {READ} FROM schedd_tasks t WHERE t.id = :id", id=task_id).first()
    if row is None:
        raise unknown(tx, task_id)
    payload = NewPayload(payload_of(tx, row), base_lane(row.lane), row.schema_version)
    if change.payload is not UNSET:
        payload = change.payload(
            StoredPayload(task_id, row.kind, payload.text, row.schema_version, frozenset(names_in(row.headers)))
        )
    given: dict[str, Any] = {name: row._mapping[name] for name in COPIED}
    if key is None:
        key, given["key_retention"] = new_key(payload, row.key), None
        if key is not None and payload.key is not None:
            given |= {"key_retention": payload.key.retention, "unique_states": payload.key.states}
    if key is not None:
        ended = keys.EndedTask(row.id, row.kind, key, row.finished_at)
        refused = keys.others(tx, [ended])
        if refused:
            raise refused[row.id].error
    for name in ("priority", "queue", "headers", "timeout", "run_at", "delay"):
        value = getattr(change, name)
        if value is not UNSET:
            given[name] = value
    given["headers"] = with_names(given["headers"], names_in(row.headers) if dependencies else {})
    if change.retry is not UNSET:
        given["retry"], given["max_attempts"] = change.retry
    spec = TaskSpec(
        **given,
        payload=payload.text,
        lane=derived_lane(payload.lane, row.lane),
        schema_version=payload.schema_version,
        dead_letter=bool(row.dead_letter),
        correlation=row.correlation or str(row.id),
        key=key,
        conflict="reject",
        edges=edges_of(tx, row.id) if dependencies else (),
    )
    made = enqueue(tx, [spec])[0]
    audit.record(tx, "copy", tasks=[task_id], copy=int(made), key=key)
    audit.record(tx, "copied", tasks={int(made): {"from": task_id}})
    return made


def runs_beside(original: TaskRecord, made: TaskRecord) -> str | None:
    """What to say of a copy that has no key, although its kind is unique by its fields; None: nothing."""
    if original.key is None or made.key is not None or not is_derived(original.key):
        return None
    return f"kind {original.kind} is unique by its fields; a copy has no key, and runs beside whatever has it"
