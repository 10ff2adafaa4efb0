"""Replays dead letters: reopens the task with a new budget, or stores a copy as a new task."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.errors import PayloadError
from scheduler.model.lanes import base_lane, derived_lane
from scheduler.model.spec import MAX_KEY, EdgeSpec, TaskId, TaskSpec
from scheduler.model.state import DEAD, FIRST_TERMINAL, Otherwise, TaskState, When
from scheduler.ports import FAILPOINTS
from scheduler.store import audit
from scheduler.store.db.tx import Tx
from scheduler.store.read.dead_letters import not_dead
from scheduler.store.tasks import envelopes, keys
from scheduler.store.tasks.control import reopen
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.tasks.patch import NewPayload, new_key, set_payload
from scheduler.store.unknown import unknown

if TYPE_CHECKING:
    import sqlalchemy as sa

_WHENS, _OTHERWISES = tuple(When), tuple(Otherwise)
# Columns that a copy takes over unchanged.
COPIED = (
    *("kind", "queue", "priority", "max_attempts", "retry", "timeout", "payload_ref", "message_type", "causation"),
    *("subject", "sequence", "headers", "key_retention", "slot", "slot_tz", "missed", "missed_since"),
    *("result_ttl", "failed_ttl", "max_duration", "max_delay", "executor", "resources", "executor_options"),
)
READ = ", ".join(
    f"t.{name}"
    for name in (
        *("id", "state", "attempt", "error", "key", "lane", "payload", "schema_version", "dead_letter", "finished_at"),
        *("correlation", "original_id", "replay_count"),
        *COPIED,
    )
)


class Reopened(NamedTuple):
    """``id``: the task that runs; ``left``: descendants that stay ended, and the holders of their keys."""

    id: TaskId
    left: Mapping[int, keys.Other] = MappingProxyType({})


def replay_task(
    tx: Tx, task_id: int, *, key: str | None = None, payload: NewPayload | None = None, copy: bool = False
) -> Reopened:
    """Open a dead letter again, or (``copy``) store a copy of it under a key of its own and leave it dead.

    Raises UnknownTaskError, InvalidTransitionError if it is not dead (any more), DuplicateKeyError if another task
    holds its key or has completed under it since; the caller's transaction must then roll back.
    """
    row = _locked(tx, task_id)
    if copy:
        again = Reopened(_copy(tx, row, key, payload))
    else:
        again = Reopened(TaskId(task_id, created=False), _again(tx, row, key, payload))
    FAILPOINTS.hit("before replay commit")
    return again


def _locked(tx: Tx, task_id: int) -> sa.Row[Any]:
    row = None
    if 0 < task_id < 2**63:
        sql = f"SELECT {READ} FROM schedd_tasks t WHERE t.id = :id {tx.dialect.lock}"
        row = tx.run(sql, id=int(task_id)).first()
    if row is None:
        raise unknown(tx, task_id)
    if row.state != DEAD:
        raise not_dead(task_id, TaskState.from_code(row.state))
    return row


def _again(tx: Tx, row: sa.Row[Any], key: str | None, payload: NewPayload | None) -> dict[int, keys.Other]:
    if key is not None or payload is not None:
        envelopes.keep(tx, row.id)
    key = new_key(payload, row.key) if key is None else key
    tx.run(
        "UPDATE schedd_tasks SET replay_count = replay_count + 1, key = coalesce(:key, key), "
        "original_id = coalesce(original_id, id) WHERE id = :id",
        id=row.id,
        key=key,
    )
    left = reopen(tx, row.id, downstream=True)
    if payload is not None:
        set_payload(tx, row.id, payload)
    audit.record(tx, "replay", tasks=[row.id], **_detail(row, key, payload))
    return left


def _detail(row: sa.Row[Any], key: str | None, payload: NewPayload | None) -> dict[str, Any]:
    """The audit's detail: how the task died, and what the replay changed."""
    changed = None if payload is None else "replaced"
    return {"attempt": row.attempt, "error": row.error, "key": key, "payload": changed}


def _copy(tx: Tx, row: sa.Row[Any], key: str | None, payload: NewPayload | None) -> TaskId:
    detail = _detail(row, key, payload)
    states = None
    if key is None and payload is not None and payload.key is not None:
        key, states = new_key(payload, row.key), payload.key.states
    if payload is None:
        payload = NewPayload(payload_of(tx, row), base_lane(row.lane), row.schema_version)
    if key is not None:
        _refuse(tx, row, key)
    spec = TaskSpec(
        **{name: row._mapping[name] for name in COPIED},
        payload=payload.text,
        lane=derived_lane(payload.lane, row.lane),
        schema_version=payload.schema_version,
        dead_letter=bool(row.dead_letter),
        correlation=row.correlation or str(row.id),
        key=key,
        unique_states=states,
        conflict="reject",
        edges=edges_of(tx, row.id),
    )
    made = enqueue(tx, [spec])[0]
    original = row.original_id or row.id
    tx.run(
        "UPDATE schedd_tasks SET original_id = :original, replay_count = :count, extras = extras | 1, "
        f"key = coalesce(key, :own), held_key = CASE WHEN state < {FIRST_TERMINAL} THEN coalesce(key, :own) END "
        "WHERE id = :id",  # extras: an attempt reads original_id for its idempotency key
        id=int(made),
        original=original,
        count=row.replay_count + 1,
        own=_own_key(row.key, made),
    )
    audit.record(tx, "copy", tasks=[row.id], **detail, copy=int(made))
    audit.record(tx, "copied", tasks={int(made): {"from": row.id}})
    return made


def _refuse(tx: Tx, row: sa.Row[Any], key: str) -> None:
    """A copy under a key that the caller names: as for the task itself, nothing may have completed under it since."""
    ended = keys.EndedTask(row.id, row.kind, key, row.finished_at)
    refused = keys.others(tx, [ended])
    if refused:
        raise refused[row.id].error


def _own_key(key: str | None, made: int) -> str | None:
    """The key of a copy: it is another piece of work than that of its original, which may be done by now."""
    return None if key is None else f"{key[: MAX_KEY - 30]}~copy-{int(made)}"


def payload_of(tx: Tx, row: sa.Row[Any]) -> str:
    """A task's payload as JSON text. Raises PayloadError if it is gone."""
    text = row.payload
    if text is None:
        sql = "SELECT value FROM schedd_task_values WHERE task_id = :id AND name = 'payload'"
        text = tx.run(sql, id=row.id).scalar()
    if text is None:
        raise PayloadError(f"the payload of task {row.id} is missing from the database")
    return str(text)


def edges_of(tx: Tx, task_id: int) -> list[EdgeSpec]:
    """The edges to parents whose end is still known: a copy reads their results, too."""
    rows = tx.run(
        "SELECT e.parent, e.on_end, e.otherwise FROM schedd_edges e "
        "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes o ON o.task_id = e.parent "
        "WHERE e.child = :id AND coalesce(p.state, o.state) IS NOT NULL ORDER BY e.parent",
        id=task_id,
    )
    return [EdgeSpec(r.parent, _WHENS[r.on_end], _OTHERWISES[r.otherwise]) for r in rows]
