"""Messages that go out, as tasks of their sinks: stored in the order of their groups, and read for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.outgoing import OUTBOX, PREFIX
from scheduler.model.spec import EdgeSpec, TaskId, TaskSpec
from scheduler.model.state import CANCELLED, FIRST_TERMINAL, SKIPPED, SUCCESS, Otherwise, TaskState, When
from scheduler.model.texts import listed
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.enqueue import enqueue, hold_writes


def put(
    tx: Tx,
    specs: Sequence[TaskSpec],
    groups: Sequence[str | None],
    *,
    sinks: Collection[str] = (),
) -> list[TaskId]:
    """Store messages. One of a group waits until those before it have gone out, or are dead letters.

    The groups are locked until the transaction ends, so that their order is that of the commits. ``sinks``:
    names that the program knows. Raises ConfigError for another sink than workers have published; before any worker
    has one, all are taken.
    """
    for kind in dict.fromkeys(spec.kind for spec in specs):
        check_sink(tx, kind, sinks)
    hold_writes(tx)
    wanted: list[TaskSpec] = []
    last: dict[tuple[str, str], int] = {}
    names = {f"{spec.kind} {group}" for spec, group in zip(specs, groups, strict=True) if group is not None}
    for name in sorted(names):
        tx.dialect.await_name(tx, f"outbox {name}")
    for position, (spec, group) in enumerate(zip(specs, groups, strict=True)):
        if group is not None:
            before = last.get((spec.kind, group))
            if before is None:
                parents = _last_of(tx, spec.kind, group)
                edges = [EdgeSpec(parent, When.FINISHED, Otherwise.RUN) for parent in parents]
            else:
                edges = [EdgeSpec(before, When.FINISHED, Otherwise.RUN, local=True)]
            last[spec.kind, group] = position
            wanted.append(msgspec.structs.replace(spec, edges=edges) if edges else spec)
        else:
            wanted.append(spec)
    return enqueue(tx, wanted)


def is_published(tx: Tx, kind: str) -> bool:
    """Whether a worker has published the sink of this kind."""
    return bool(tx.rows("SELECT 1 FROM schedd_kinds WHERE name = :kind", kind=kind))


def check_sink(tx: Tx, kind: str, sinks: Collection[str], named_by: str = "") -> bool:
    """Whether the program, which knows ``sinks``, or a worker has the sink of this kind.

    ``named_by``: where its name stands. Raises ConfigError if other sinks are known; before any is, none is refused.
    """
    name = kind.removeprefix(PREFIX)
    if name in sinks or is_published(tx, kind):
        return True
    known = sorted({*sink_names(tx), *sinks})
    if known:
        raise ConfigError(
            f"{named_by}there is no sink {name!r}; known are {listed(known)}: write it as [sinks.NAME], and "
            "start a daemon that has it first"
        )
    return False


def _last_of(tx: Tx, kind: str, group: str) -> list[int]:
    """The messages of a group that have not gone out, without those that another one waits for."""
    return [
        found
        for (found,) in tx.rows(
            f"SELECT t.id FROM schedd_tasks t WHERE t.subject = :subject AND t.kind = :kind AND t.queue = '{OUTBOX}' "
            f"AND t.state < {FIRST_TERMINAL} AND NOT EXISTS (SELECT 1 FROM schedd_edges e "
            f"JOIN schedd_tasks c ON c.id = e.child WHERE e.parent = t.id AND c.kind = :kind) ORDER BY t.id",
            kind=kind,
            subject=group,
        )
    ]


def result_of(tx: Tx, task_id: int) -> str | None:
    """The result of a task, as JSON; None if it is gone."""
    row = tx.run("SELECT t.result FROM schedd_tasks t WHERE t.id = :id", id=task_id).first()
    if row is not None and row.result is not None:
        return str(row.result)
    row = tx.run(
        "SELECT v.value FROM schedd_task_values v WHERE v.task_id = :id AND v.name = 'result'", id=task_id
    ).first()
    return None if row is None else str(row.value)


def sink_names(tx: Tx) -> list[str]:
    """The sinks that workers have published."""
    rows = tx.run("SELECT name FROM schedd_kinds WHERE name >= :first AND name < :end", first=PREFIX, end="sinks/")
    return sorted(row.name.removeprefix(PREFIX) for row in rows)


class OutboxRecord(NamedTuple):
    """One message that goes out, as people read it. Times are microseconds."""

    id: int
    sink: str
    key: str | None
    state: str
    attempt: int
    due: int
    created_at: int
    group: str | None
    error: str | None


def outbox_records(tx: Tx, kind: str | None, *, published: bool = False, limit: int = 50) -> list[OutboxRecord]:
    """Messages to a sink, or to all, newest first; ``published``: also those that have gone out."""
    more = "" if kind is None else "AND t.kind = :kind "
    more += "" if published else f"AND t.state NOT IN ({SUCCESS}, {CANCELLED}, {SKIPPED}) "
    rows = tx.run(
        "SELECT t.id, t.kind, coalesce(t.payload, v.value) AS payload, t.state, t.attempt, t.run_at, t.created_at, "
        "t.error FROM schedd_tasks t LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'payload' "
        f"WHERE t.queue = '{OUTBOX}' {more}ORDER BY t.id DESC LIMIT :limit",
        limit=limit,
        **({} if kind is None else {"kind": kind}),
    )
    found = []
    for row in rows:
        fields = _fields(row.payload)
        state = TaskState.from_code(row.state).value
        found.append(
            OutboxRecord(
                *(row.id, row.kind.removeprefix(PREFIX), fields.get("key"), state, row.attempt, row.run_at),
                *(row.created_at, fields.get("group"), row.error),
            )
        )
    return found


def _fields(payload: str | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(payload or "{}")
    except msgspec.MsgspecError:
        return {}
    return found if isinstance(found, dict) else {}
