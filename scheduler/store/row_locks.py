"""Whose open transaction holds a row, or keeps others waiting: on PostgreSQL, where claims pass over such rows."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from scheduler.model.texts import span_text
from scheduler.ports import SECOND
from scheduler.store.dialect import dialect_of, prepared

LONG = SECOND  # microseconds; a turn holds its rows for less

_AGE = "CAST(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000 AS bigint)"
_WHO = f"a.pid, coalesce(nullif(a.application_name, ''), 'no name') AS name, a.usename, a.state, {_AGE} AS age"
# Who locks a row leaves its transaction's id there, and holds a lock on that id until it ends. (Several that share the
# lock leave the number of a group, which is nobody's id.) ``age`` is not seen of other users' sessions.
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
  AND w.query_start <= clock_timestamp() - CAST(:long AS float) * interval '1 microsecond'
ORDER BY w.query_start, w.pid, a.pid LIMIT 5
"""


def holder(connection: sa.Connection, task_id: int) -> str | None:
    """The session whose transaction has held this task's row for longer than a turn takes; None: nobody known."""
    if dialect_of(connection).name != "postgresql":
        return None
    row = connection.execute(prepared(_HOLDER), {"id": task_id}).first()
    return None if row is None or (row.age is not None and row.age < LONG) else _session(row)


def blocked(connection: sa.Connection) -> list[str]:
    """Who has waited for whose lock for longer than a turn takes. Only for PostgreSQL."""
    rows = connection.execute(prepared(_BLOCKED), {"long": LONG})
    return [f"session {r.waits} ({r.waiter}) has waited {span_text(r.waited)} for {_session(r)}" for r in rows]


def _session(row: sa.Row[Any]) -> str:
    age = "" if row.age is None else f" open for {span_text(row.age)}"
    return f"session {row.pid} ({row.name}, user {row.usename}, {row.state or 'state unknown'}), its transaction{age}"
