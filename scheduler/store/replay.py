"""Replaying dead letters: the same task opened again with a new budget, or a copy of it as a new task."""

from __future__ import annotations

from typing import Any, NamedTuple

import sqlalchemy as sa

from scheduler.errors import DuplicateKeyError, PayloadError, UnknownTaskError
from scheduler.model import state as st
from scheduler.model.spec import EdgeSpec, TaskId, TaskSpec
from scheduler.model.state import Otherwise, TaskState, When
from scheduler.ports import FAILPOINTS
from scheduler.store import envelopes, keys
from scheduler.store.attempts import write_values
from scheduler.store.control import reopen
from scheduler.store.dead_letters import Filter, not_dead, write_audit
from scheduler.store.dialect import dialect_of, prepared
from scheduler.store.enqueue import enqueue
from scheduler.store.new_task import INLINE

_WHENS, _OTHERWISES = tuple(When), tuple(Otherwise)
_TRIES = 3
# What a copy takes over as it is.
_COPIED = (
    *("kind", "queue", "pool", "max_attempts", "retry", "timeout", "payload_ref", "message_type", "causation"),
    *("subject", "sequence", "headers", "key_retention", "slot", "missed", "missed_since", "result_ttl"),
    *("max_duration", "max_delay"),
)
_READ = ", ".join(
    f"t.{name}"
    for name in (
        *("id", "state", "attempt", "error", "key", "lane", "payload", "schema_version", "dead_letter"),
        *("correlation", "original_id", "replay_count"),
        *_COPIED,
    )
)


class NewPayload(NamedTuple):
    """What replaces a payload: JSON text, the lane it belongs to, the schema version that it has."""

    text: str
    lane: str
    schema_version: int


class _KeyTaken(Exception):
    """Reopened, but its key was gone."""


class Replayed(NamedTuple):
    """``ids``: what runs again; ``conflicts``: id -> the task that holds its key; ``last``: where the next
    batch begins; ``more``: whether there may be one."""

    ids: list[int]
    conflicts: dict[int, int]
    last: tuple[int, int]
    more: bool


def replay(
    connection: sa.Connection,
    task_id: int,
    now: int,
    *,
    by: str | None = None,
    key: str | None = None,
    payload: NewPayload | None = None,
    copy: bool = False,
) -> TaskId:
    """Open a dead letter again, or (``copy``) store a copy of it and leave it dead. Returns the id of what runs.

    Raises UnknownTaskError, InvalidTransitionError if it is not dead (any more), DuplicateKeyError if another task
    holds its key; the caller's transaction must then roll back.
    """
    row = _locked(connection, task_id)
    if copy:
        made = _copy(connection, row, now, by, key, payload)
    else:
        _again(connection, row, now, by, key, payload)
        made = TaskId(task_id, created=False)
    FAILPOINTS.hit("before replay commit")
    return made


def replay_some(
    connection: sa.Connection, now: int, wanted: Filter, *, limit: int, by: str | None, after: tuple[int, int] = (0, 0)
) -> Replayed:
    """Replay up to ``limit`` dead letters, the oldest first, beginning behind ``after`` (died at, id).

    One whose key is held by another stays as it is. What somebody else is replaying is passed over.
    """
    where, bound = wanted.where()
    rows = connection.execute(
        prepared(
            f"SELECT t.id, t.finished_at FROM schedd_tasks t WHERE {where} AND t.finished_at >= :at "
            "AND (t.finished_at > :at OR t.id > :id) "
            f"ORDER BY t.state, t.finished_at, t.id LIMIT :limit {dialect_of(connection).skip_locked}"
        ),
        bound | {"at": after[0], "id": after[1], "limit": limit},
    ).fetchall()
    replayed: list[int] = []
    conflicts: dict[int, int] = {}
    for row in rows:
        try:
            with connection.begin_nested():
                replay(connection, row.id, now, by=by)
            replayed.append(row.id)
        except DuplicateKeyError as error:
            conflicts[row.id] = error.existing_id
    last = (rows[-1].finished_at, rows[-1].id) if rows else after
    return Replayed(replayed, conflicts, last, len(rows) >= limit)


def _locked(connection: sa.Connection, task_id: int) -> sa.Row[Any]:
    row = None
    if 0 < task_id < 2**63:
        sql = prepared(f"SELECT {_READ} FROM schedd_tasks t WHERE t.id = :id {dialect_of(connection).lock}")
        row = connection.execute(sql, {"id": int(task_id)}).first()
    if row is None:
        raise UnknownTaskError(task_id)
    if row.state != st.DEAD:
        raise not_dead(task_id, TaskState.from_code(row.state))
    return row


def _again(
    connection: sa.Connection, row: sa.Row[Any], now: int, by: str | None, key: str | None, payload: NewPayload | None
) -> None:
    dialect = dialect_of(connection)
    if key is not None or payload is not None:
        envelopes.keep(connection, row.id)
    for left in reversed(range(_TRIES)):
        _refuse_if_held(connection, row, key if key is not None else row.key, now)
        try:
            with connection.begin_nested():
                connection.execute(
                    prepared(
                        "UPDATE schedd_tasks SET replay_count = replay_count + 1, key = coalesce(:key, key), "
                        "original_id = coalesce(original_id, id) WHERE id = :id"
                    ),
                    {"id": row.id, "key": key},
                )
                reopen(connection, row.id, now, downstream=True)
                if _without_its_key(connection, row.id):
                    raise _KeyTaken
            break
        except (_KeyTaken, sa.exc.IntegrityError):
            # Somebody took the key, or that of a descendant, between the look and the write: look again.
            if not left:
                raise
    if payload is not None:
        _replace_payload(connection, row.id, payload)
    write_audit(connection, dialect, [(row.id, "replay", _detail(row, key, payload))], by, now)


def _without_its_key(connection: sa.Connection, task_id: int) -> bool:
    sql = "SELECT 1 FROM schedd_tasks WHERE id = :id AND key IS NOT NULL AND held_key IS NULL AND state <= 1"
    return connection.execute(prepared(sql), {"id": task_id}).first() is not None


def _detail(row: sa.Row[Any], key: str | None, payload: NewPayload | None) -> dict[str, Any]:
    """What the audit says: how it died, and what was changed."""
    changed = None if payload is None else "replaced"
    return {"attempt": row.attempt, "error": row.error, "key": key, "payload": changed}


def _refuse_if_held(connection: sa.Connection, row: sa.Row[Any], key: str | None, now: int) -> None:
    if key is None:
        return
    holder = keys.holder_of(connection, row.kind, key, now)
    if holder is not None and holder.id != row.id:
        raise DuplicateKeyError(row.kind, key, holder.id)


def _replace_payload(connection: sa.Connection, task_id: int, payload: NewPayload) -> None:
    inline = len(payload.text) <= INLINE
    connection.execute(
        prepared("UPDATE schedd_tasks SET payload = :text, lane = :lane, schema_version = :version WHERE id = :id"),
        {
            "id": task_id,
            "text": payload.text if inline else None,
            "lane": payload.lane,
            "version": payload.schema_version,
        },
    )
    if inline:
        connection.execute(
            prepared("DELETE FROM schedd_task_values WHERE task_id = :id AND name = 'payload'"), {"id": task_id}
        )
    else:
        write_values(connection, dialect_of(connection), [(task_id, "payload", payload.text)])


def _copy(
    connection: sa.Connection, row: sa.Row[Any], now: int, by: str | None, key: str | None, payload: NewPayload | None
) -> TaskId:
    detail = _detail(row, key, payload)
    if payload is None:
        payload = NewPayload(_payload(connection, row), row.lane.lstrip("!"), row.schema_version)
    spec = TaskSpec(
        **{name: row._mapping[name] for name in _COPIED},
        payload=payload.text,
        lane=payload.lane,
        schema_version=payload.schema_version,
        dead_letter=bool(row.dead_letter),
        correlation=row.correlation or str(row.id),
        key=key if key is not None else row.key,
        conflict="reject",
        edges=_edges(connection, row.id),
    )
    made = enqueue(connection, [spec], now, ours=True)[0]
    original = row.original_id or row.id
    connection.execute(
        prepared(
            "UPDATE schedd_tasks SET original_id = :original, replay_count = :count, extras = 1 WHERE id = :id"
        ),  # extras: an attempt reads original_id for its idempotency key
        {"id": int(made), "original": original, "count": row.replay_count + 1},
    )
    entries = [
        (row.id, "copy", detail | {"copy": int(made)}),
        (int(made), "copied", {"from": row.id}),
    ]
    write_audit(connection, dialect_of(connection), entries, by, now)
    return made


def _payload(connection: sa.Connection, row: sa.Row[Any]) -> str:
    text = row.payload
    if text is None:
        sql = "SELECT value FROM schedd_task_values WHERE task_id = :id AND name = 'payload'"
        text = connection.execute(prepared(sql), {"id": row.id}).scalar()
    if text is None:
        raise PayloadError(f"the payload of task {row.id} is missing from the database")
    return str(text)


def _edges(connection: sa.Connection, task_id: int) -> list[EdgeSpec]:
    """The parents whose end is still known: a copy reads their results as its original did."""
    rows = connection.execute(
        prepared(
            "SELECT e.parent, e.on_end, e.otherwise FROM schedd_edges e "
            "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes o ON o.task_id = e.parent "
            "WHERE e.child = :id AND coalesce(p.state, o.state) IS NOT NULL ORDER BY e.parent"
        ),
        {"id": task_id},
    )
    return [EdgeSpec(r.parent, _WHENS[r.on_end], _OTHERWISES[r.otherwise]) for r in rows]
