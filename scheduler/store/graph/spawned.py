"""The tasks that a task's handler spawned: cancelling them with it, and how they ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from scheduler.model.state import CANCELLED, CLAIMED, FIRST_TERMINAL, RUNNING, TaskState
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import IS_GONE

_LIVE = (
    "SELECT t.id, t.state, t.spawned_by FROM schedd_tasks t "
    f"WHERE t.spawned_by IN {{ids}} AND t.state < {FIRST_TERMINAL}"
)


class SpawnedEnd(NamedTuple):
    """How a task ended, if it has; ``result`` is JSON text. ``removed``: only its outcome is remembered; ``expired``:
    if it had a result, that is gone."""

    id: int
    state: TaskState
    finished_at: int | None
    result: str | None
    error: str | None
    removed: bool = False
    expired: bool = False


def adopt(tx: Tx, children: Sequence[tuple[int, int]]) -> None:
    """Rows (child, parent) of tasks that have just been stored: their parent's handler did it."""
    rows = tx.dialect.rows({"id": int, "parent": int})
    tx.run(
        f"UPDATE schedd_tasks SET spawned_by = j.parent FROM {rows} j WHERE schedd_tasks.id = j.id",
        rows=bind_rows(children),
    )


def cancel(tx: Tx, parents: Sequence[int]) -> list[int]:
    """These tasks have ended cancelled: end what they spawned, or ask it to end. Returns those that ended at once."""
    sql = _LIVE.format(ids=tx.dialect.ids())
    live = tx.run(f"{sql} ORDER BY t.id {tx.dialect.lock}", ids=bind_rows(parents)).fetchall()
    if not live:
        return []
    bound = {"ids": bind_rows([row.id for row in live]), "now": tx.now}
    tx.run(
        "UPDATE schedd_tasks SET cancel_requested = coalesce(cancel_requested, :now), "
        "rerun = CASE WHEN rerun = 1 THEN 2 ELSE rerun END "  # what replaced it is meant, too
        f"WHERE id IN {tx.dialect.ids()} AND state >= {CLAIMED} AND state <= {RUNNING}",
        **bound,
    )
    ended = tx.run(
        f"UPDATE schedd_tasks SET state = {CANCELLED}, cancel_requested = :now, finished_at = :now, "
        f"held_key = NULL WHERE id IN {tx.dialect.ids()} AND state < {CLAIMED} RETURNING id",
        **bound,
    ).fetchall()
    return [row[0] for row in ended]


def cancelled_with(tx: Tx, parents: Collection[int]) -> list[int]:
    """What those of these tasks that ended cancelled had spawned, and that was cancelled with them."""
    rows = tx.run(
        "SELECT t.id FROM schedd_tasks p JOIN schedd_tasks t ON t.spawned_by = p.id "
        f"WHERE {tx.dialect.among('p.id')} AND p.state = {CANCELLED} AND t.state = {CANCELLED} "
        "AND t.cancel_requested >= p.finished_at ORDER BY t.id",
        ids=tx.dialect.bind_ids(sorted(parents)),
    )
    return [row[0] for row in rows]


def below(tx: Tx, parents: Sequence[int]) -> set[int]:
    """What lives of the tasks that these spawned, and so on down."""
    found: set[int] = set()
    level = list(parents)
    while level:
        rows = tx.run(_LIVE.format(ids=tx.dialect.ids()), ids=bind_rows(level))
        level = [row.id for row in rows if row.id not in found]
        found.update(level)
    return found


def blocked(tx: Tx, parents: Sequence[int]) -> tuple[set[int], dict[int, int]]:
    """Lock the tasks that these tasks spawned, without waiting. Returns the parents whose children another
    transaction holds, and, of the children locked, those that would end at once, with their parents."""
    sql = _LIVE.format(ids=tx.dialect.ids())
    live = tx.run(sql, ids=bind_rows(parents)).fetchall()
    if not live:
        return set(), {}
    lock = f"{_LIVE.format(ids=tx.dialect.ids())} ORDER BY t.id {tx.dialect.skip_locked}"
    held = {row.id: row for row in tx.run(lock, ids=bind_rows(parents))}
    if len(held) < len(live):
        live = tx.run(sql, ids=bind_rows(parents)).fetchall()  # some may have ended meanwhile
    busy = {row.spawned_by for row in live if row.id not in held}
    return busy, {row.id: row.spawned_by for row in held.values() if row.state < CLAIMED}


def ends(tx: Tx, ids: Sequence[int]) -> dict[int, SpawnedEnd]:
    """How these tasks stand or ended; ids that never were are left out."""
    found = {
        row[0]: SpawnedEnd(
            row[0], TaskState.from_code(row[1]), row[2], row[3], row[4], expired=bool(row[5]) and row[3] is None
        )
        for row in tx.run(
            "SELECT t.id, t.state, t.finished_at, coalesce(t.result, v.value), t.error, "
            f"{IS_GONE.format('t')} FROM schedd_tasks t "
            "LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'result' "
            f"WHERE t.id IN {tx.dialect.ids()}",
            ids=bind_rows(ids),
        )
    }
    gone = [i for i in ids if i not in found]
    if gone:
        for row in tx.run(
            f"SELECT task_id, state FROM schedd_outcomes WHERE task_id IN {tx.dialect.ids()}", ids=bind_rows(gone)
        ):
            found[row[0]] = SpawnedEnd(
                row[0], TaskState.from_code(row[1]), None, None, "its row has been removed", True
            )
    return found


class ChildRecord(NamedTuple):
    """A spawned task for people."""

    id: int
    kind: str
    state: TaskState


def records(tx: Tx, task_id: int, limit: int) -> tuple[list[ChildRecord], int]:
    """The tasks that a task spawned, those that live first, and how many there are."""
    count = tx.run("SELECT count(*) FROM schedd_tasks WHERE spawned_by = :id", id=task_id).scalar_one()
    rows = tx.run(
        "SELECT id, kind, state FROM schedd_tasks WHERE spawned_by = :id "
        f"ORDER BY CASE WHEN state < {FIRST_TERMINAL} THEN 0 ELSE 1 END, id LIMIT :limit",
        id=task_id,
        limit=limit,
    )
    return [ChildRecord(row[0], row[1], TaskState.from_code(row[2])) for row in rows], int(count)
