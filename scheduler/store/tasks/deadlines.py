"""Cancels tasks that exceed their max_duration or max_delay (see ``model/policy.py``)."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.model.outcome import Failure
from scheduler.model.policy import TaskLifetime, check_deadlines
from scheduler.model.state import CANCELLED, CLAIMED, END_BIT, FIRST_TERMINAL, TaskState
from scheduler.ports import SECOND
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.graph.release import release
from scheduler.store.tasks.outcome_locks import lock_descendants

BATCH = 500
BLOCKED_RECHECK = 2 * SECOND  # how soon tasks whose dependants are locked are judged again
_DUE = "t.check_at IS NOT NULL AND t.check_at <= :now"
ANY_DUE = f"SELECT 1 FROM schedd_tasks t WHERE {_DUE}"  # reads an index that is mostly empty
_READY_AT = (
    "(SELECT max(p.finished_at) FROM schedd_edges e JOIN schedd_tasks p ON p.id = e.parent "
    f"WHERE e.child = t.id AND p.state >= {FIRST_TERMINAL})"
)
# In the index's own order: by their ids, too, each batch sorted all that are due at the same moment.
_LOOK = (
    f"SELECT t.id, t.state, t.run_at, {_READY_AT} AS ready_at, t.claimed_at, t.started_at, t.last_heartbeat_at, "
    f"t.expires_at, t.max_duration, t.max_delay FROM schedd_tasks t WHERE {_DUE} ORDER BY t.check_at LIMIT :batch"
)


class Judged(NamedTuple):
    """``cancelled``, ``requested``: id -> reason, of tasks ended at once and of those still running.

    ``ready``: how many dependants may run now; ``more``: judge again.
    """

    cancelled: dict[int, str]
    requested: dict[int, str]
    ready: int
    more: bool


def apply(tx: Tx, batch: int = BATCH) -> Judged:
    """Judge one batch of the tasks that are due for it; skip rows that another transaction holds."""
    rows = tx.run(f"{_LOOK} {tx.dialect.skip_locked}", now=tx.now, batch=batch).fetchall()
    looks: list[tuple[int, int | None]] = []
    ending: dict[int, Failure] = {}
    asked: dict[int, Failure] = {}
    for row in rows:
        reason, look_at = check_deadlines(TaskLifetime(*row[1:]), tx.now)
        if reason is None:
            looks.append((row.id, look_at))
        elif row.state < CLAIMED:
            ending[row.id] = reason
        else:
            asked[row.id] = reason
    if ending and tx.dialect.skip_locked:
        # Another transaction holds tasks that wait for them: they are judged again later.
        blocked = lock_descendants(tx, dict.fromkeys(ending, END_BIT[TaskState.CANCELLED])).blocked
        for task_id in blocked:
            del ending[task_id]
        if len(rows) >= batch:  # else the same tasks would fill every batch
            looks += [(task_id, tx.now + BLOCKED_RECHECK) for task_id in blocked]
    _put_off(tx, looks)
    _cancel(tx, ending, f"state = {CANCELLED}, finished_at = :now, held_key = NULL,")
    _cancel(tx, asked, "")
    ready = release(tx, [(i, TaskState.CANCELLED) for i in ending]) if ending else 0
    done = len(looks) + len(ending) + len(asked)
    return Judged(
        {i: reason.text for i, reason in ending.items()},
        {i: reason.text for i, reason in asked.items()},
        ready,
        len(rows) >= batch and done > 0,
    )


def _put_off(tx: Tx, looks: list[tuple[int, int | None]]) -> None:
    if looks:
        rows = tx.dialect.rows({"id": int, "look_at": int})
        tx.run(
            f"UPDATE schedd_tasks SET check_at = j.look_at FROM {rows} j WHERE schedd_tasks.id = j.id",
            rows=bind_rows(looks),
        )


def _cancel(tx: Tx, tasks: dict[int, Failure], end: str) -> None:
    """Request the tasks' end, or with ``end`` end them; a reason given before stays."""
    if tasks:
        rows = tx.dialect.rows({"id": int, "error": str, "error_class": str})
        fresh = "CASE WHEN schedd_tasks.cancel_requested IS NULL THEN {} ELSE {} END"
        sets = ", ".join(
            f"{name} = {fresh.format(new, f'schedd_tasks.{name}')}"
            for name, new in (
                ("error", "j.error"),
                ("error_class", "j.error_class"),
                ("fingerprint", "NULL"),
                ("status_code", "NULL"),
            )
        )
        tx.run(
            f"UPDATE schedd_tasks SET {end} check_at = NULL, {sets}, "
            "cancel_requested = coalesce(schedd_tasks.cancel_requested, :now) "
            f"FROM {rows} j WHERE schedd_tasks.id = j.id",
            rows=bind_rows([(i, reason.text, reason.error_class) for i, reason in tasks.items()]),
            now=tx.now,
        )
