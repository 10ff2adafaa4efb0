"""Whose open transaction holds a row, or keeps others waiting: on PostgreSQL, where claims pass over such rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from scheduler.model.texts import span_text
from scheduler.ports import SECOND
from scheduler.store.db.dialect import prepared

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.store.db.tx import Tx

MIN_AGE = SECOND  # microseconds; a cycle holds its rows for less

_AGE = "CAST(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000 AS bigint)"
_WHO = f"a.pid, coalesce(nullif(a.application_name, ''), 'no name') AS name, a.usename, a.state, {_AGE} AS age"
# Who locks a row leaves its transaction's id there, and holds a lock on that id until it ends. (Several that share the
# lock leave the number of a group, which is no task's id.) ``age`` is not seen of other users' sessions.
_HOLDER = f"""
SELECT {_WHO} FROM schedd_tasks t
JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = t.xmax AND l.granted
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE t.id = :id AND a.pid <> pg_backend_pid()
"""
_BLOCKED = f"""
SELECT w.pid AS waits, coalesce(nullif(w.application_name, ''), 'no name') AS waiter, {_WHO},
  CAST(extract(epoch FROM clock_timestamp() - w.query_start) * 1000000 AS bigint) AS waited
FROM pg_stat_activity w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
JOIN pg_stat_activity a ON a.pid = b.pid
WHERE w.datname = current_database() AND w.wait_event_type = 'Lock'
  AND a.pid <> ALL (CAST(:ours AS int[]))
  AND w.query_start <= clock_timestamp() - CAST(:long AS float) * interval '1 microsecond'
ORDER BY w.query_start, w.pid, a.pid LIMIT 5
"""
# Modes that a statement of ours has to wait for; a session that writes rows has none of them.
_TABLE = f"""
SELECT c.relname AS relation, {_WHO} FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation AND c.relname LIKE 'schedd\\_%'
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock')
  AND a.pid <> ALL (CAST(:ours AS int[]))
ORDER BY c.relkind <> 'r', a.xact_start, l.pid LIMIT 1
"""


def holder(tx: Tx, task_id: int) -> str | None:
    """The session whose transaction has held this task's row for longer than a cycle; None: not known."""
    if tx.dialect.name != "postgresql":
        return None
    row = tx.run(_HOLDER, id=task_id).first()
    return None if row is None or (row.age is not None and row.age < MIN_AGE) else _session(row)


def blocked(connection: sa.Connection, ours: Collection[int] = ()) -> list[str]:
    """Sessions that have waited for a lock for longer than a cycle, with its holders. PostgreSQL only.

    ``ours``: process numbers of sessions that are not named as holders.
    """
    rows = connection.execute(prepared(_BLOCKED), {"long": MIN_AGE, "ours": list(ours)})
    return [f"session {r.waits} ({r.waiter}) has waited {span_text(r.waited)} for {_session(r)}" for r in rows]


def in_the_way(connection: sa.Connection, ours: Collection[int] = ()) -> str | None:
    """The session whose lock on a table or rows keeps others waiting, if any; none of ``ours``. PostgreSQL only."""
    row = connection.execute(prepared(_TABLE), {"ours": list(ours)}).first()
    if row is not None:
        ends = f"`SELECT pg_terminate_backend({row.pid})` ends it"
        return f"table {row.relation} is locked by {_session(row)}: {ends}"
    return next(iter(blocked(connection, ours)), None)


def _session(row: sa.Row[Any]) -> str:
    age = "" if row.age is None else f" open for {span_text(row.age)}"
    return f"session {row.pid} ({row.name}, user {row.usename}, {row.state or 'state unknown'}), its transaction{age}"
