"""Removing what has outlived its retention, in batches; of a removed task its outcome is remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.ports import SECOND
from scheduler.store import checkpoints, events
from scheduler.store.dialect import Dialect, bind_rows, prepared

BATCH = 500
WORKER_ROWS = 7 * 86400 * SECOND  # how long a stopped or dead worker stays in the list


class Removed(NamedTuple):
    tasks: int
    outcomes: int
    workers: int
    events: int
    more: bool


# What depends on a task may be retried for as long as it is there, and is judged by that task's outcome then: so an
# outcome lives until its own time is over and no edge leads from it any more.
#
# A row lives until the latest of its retention, result lifetime and key retention, and while a child that has not
# ended refers to it.
_EXPIRED = f"""
SELECT t.id, t.state FROM schedd_tasks t
WHERE t.state = :state AND t.state >= 6 AND t.finished_at < :before
  AND (t.state <> {st.SUCCESS} OR (coalesce(t.result_until, 0) <= :now AND coalesce(t.key_until, 0) <= :now))
  AND NOT EXISTS (SELECT 1 FROM schedd_edges e JOIN schedd_tasks c ON c.id = e.child
                  WHERE e.parent = t.id AND c.state < {st.FIRST_TERMINAL})
ORDER BY t.finished_at LIMIT :batch
"""


def sweep(
    connection: sa.Connection, dialect: Dialect, now: int, retention: Mapping[str, float], batch: int = BATCH
) -> Removed:
    """Remove one batch. ``retention``: seconds by success, failed, outcomes, events. ``more``: call again."""
    expired: list[tuple[int, int]] = []
    for state in (st.SUCCESS, st.FAILED, st.DEAD, st.CANCELLED, st.SKIPPED):
        kept = retention["success" if state == st.SUCCESS else "failed"]
        rows = connection.execute(
            prepared(f"{_EXPIRED} {dialect.skip_locked}"),
            {"state": state, "before": now - round(kept * SECOND), "now": now, "batch": batch - len(expired)},
        )
        expired += [(row[0], row[1]) for row in rows]
        if len(expired) >= batch:
            break
    full = len(expired) >= batch
    if expired and dialect.skip_locked:
        expired = _unneeded(connection, dialect, expired)
    if expired:
        remove(connection, dialect, expired, now)
    gone = connection.execute(
        prepared(
            "DELETE FROM schedd_outcomes WHERE task_id IN (SELECT o.task_id FROM schedd_outcomes o "
            "WHERE o.removed_at < :before AND NOT EXISTS (SELECT 1 FROM schedd_edges e WHERE e.parent = o.task_id) "
            "ORDER BY o.removed_at LIMIT :batch) RETURNING task_id"
        ),
        {"before": now - round(retention["outcomes"] * SECOND), "batch": batch},
    ).fetchall()
    if gone:
        connection.execute(
            prepared(f"DELETE FROM schedd_audit WHERE task_id IN {dialect.ids()}"),
            {"ids": bind_rows([row[0] for row in gone])},
        )
    workers = connection.execute(
        prepared(
            "DELETE FROM schedd_workers WHERE state >= 2 AND heartbeat_at < :before AND NOT EXISTS "
            "(SELECT 1 FROM schedd_tasks t WHERE t.worker = schedd_workers.id AND t.state >= 4 AND t.state <= 5)"
        ),
        {"before": now - WORKER_ROWS},
    )
    if workers.rowcount:
        connection.execute(
            prepared("DELETE FROM schedd_worker_kinds WHERE worker NOT IN (SELECT id FROM schedd_workers)")
        )
    old = events.cleanup(connection, now - round(retention["events"] * SECOND), batch)
    return Removed(len(expired), len(gone), workers.rowcount, old, full or len(gone) >= batch or old >= batch)


def _unneeded(connection: sa.Connection, dialect: Dialect, expired: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Without those that have got a child since the statement that found and locked them began; now none can."""
    rows = connection.execute(
        prepared(
            "SELECT e.parent FROM schedd_edges e JOIN schedd_tasks c ON c.id = e.child "
            f"WHERE e.parent IN {dialect.ids()} AND c.state < {st.FIRST_TERMINAL}"
        ),
        {"ids": bind_rows([task_id for task_id, _ in expired])},
    )
    needed = {row[0] for row in rows}
    return [(task_id, state) for task_id, state in expired if task_id not in needed]


def remove(connection: sa.Connection, dialect: Dialect, expired: Sequence[tuple[int, int]], now: int) -> None:
    """Delete ended tasks, rows (id, state), with all that belongs to them; their outcomes are remembered."""
    rows = dialect.rows({"id": int, "state": int})
    connection.execute(
        prepared(
            "INSERT INTO schedd_outcomes (task_id, state, removed_at) "
            f"SELECT id, state, :now FROM {rows} j WHERE true ON CONFLICT (task_id) DO NOTHING"
        ),
        {"rows": bind_rows(expired), "now": now},
    )
    ids = [task_id for task_id, _ in expired]
    checkpoints.forget(connection, dialect, ids)
    bound = {"ids": bind_rows(ids)}
    for sql in (
        f"DELETE FROM schedd_edges WHERE child IN {dialect.ids()}",
        f"DELETE FROM schedd_task_values WHERE task_id IN {dialect.ids()}",
        f"DELETE FROM schedd_attempts WHERE task_id IN {dialect.ids()}",
        f"DELETE FROM schedd_tasks WHERE id IN {dialect.ids()}",
    ):
        connection.execute(prepared(sql), bound)
