"""What tasks that are claimed again go on from: their checkpoints, and the events that they waited for.

Read and recorded for all that a cycle claims, so that handlers need not ask one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.checkpoint import CheckpointType
from scheduler.store.db.tx import Tx
from scheduler.store.durable import checkpoints, events, waits
from scheduler.store.durable.checkpoints import CheckpointEntry

MAX_CHECKPOINTS = 5_000  # checkpoints that one claim reads: where there are more, each handler reads its own
LARGE_CHARS = 1_024  # characters of a value, or of a payload, from which on a handler asks for its own

Recorded = tuple[str, int, str | None, str | None]  # name, type, value, failure


def resume(tx: Tx, claimed: Sequence[tuple[int, int]]) -> dict[int, list[Recorded]]:
    """Record the events that these (task id, claim) waited for and that have been emitted in time.

    In the transaction that claims them. Returns each task's recorded steps, in order. Tasks with too many or too large
    ones are left out.
    """
    found = _recorded(tx, [task_id for task_id, _ in claimed])
    entries = _happened(tx, claimed, found)
    if entries:
        checkpoints.write(tx, entries)
        waits.end(tx, [(entry.task_id, entry.name) for entry in entries])
        for entry in entries:
            found[entry.task_id].append((entry.name, entry.type, entry.value, entry.failure))
    return found


def _recorded(tx: Tx, ids: Sequence[int]) -> dict[int, list[Recorded]]:
    rows = tx.run(
        f"SELECT c.task_id, c.name, c.type, CASE WHEN length(c.value) < {LARGE_CHARS} THEN c.value END AS value, "
        f"c.failure, coalesce(length(c.value), 0) >= {LARGE_CHARS} FROM schedd_checkpoints c "
        f"WHERE {tx.dialect.among('c.task_id')} ORDER BY c.at, c.seq LIMIT {MAX_CHECKPOINTS + 1}",
        ids=tx.dialect.bind_ids(ids),
    ).fetchall()
    if len(rows) > MAX_CHECKPOINTS:
        return {}
    found: dict[int, list[Recorded]] = {task_id: [] for task_id in ids}
    for task_id, name, type_, value, failure, _ in rows:
        found[task_id].append((name, type_, value, failure))
    for row in rows:
        if row[-1]:
            found.pop(row[0], None)
    return found


def _happened(tx: Tx, claimed: Sequence[tuple[int, int]], found: dict[int, list[Recorded]]) -> list[CheckpointEntry]:
    """The checkpoints of awaited events. Of the waits in which the last claim was suspended only: a handler meets those
    again."""
    met = tx.run(
        "SELECT w.task_id, w.name, w.event, w.until, w.claim FROM schedd_waits w "
        f"WHERE {tx.dialect.among('w.task_id')} AND w.item = 0 AND w.met + 0 = {waits.MET} ORDER BY w.at, w.name",
        ids=tx.dialect.bind_ids([task_id for task_id, _ in claimed]),
    ).fetchall()
    now_held = dict(claimed)
    met = [row for row in met if row.task_id in found and row.claim == now_held[row.task_id] - 1]
    if not met:
        return []
    emitted = events.emitted(tx, [row.event for row in met])
    entries: list[CheckpointEntry] = []
    places = {task_id: len(recorded) for task_id, recorded in found.items()}
    for task_id, name, event, until, _ in met:
        there = emitted.get(event)
        if there is not None and there.emitted_at <= until and len(there.payload or "") < LARGE_CHARS:
            places[task_id] += 1
            entries.append(
                CheckpointEntry(task_id, now_held[task_id], name, CheckpointType.EVENT, places[task_id], there.payload)
            )
    return entries
