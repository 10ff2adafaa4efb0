"""Counting tasks by state from narrow indexes, never by walking the table."""

from __future__ import annotations

import sqlalchemy as sa

from scheduler.model.state import TaskState
from scheduler.store.dialect import prepared

_COUNT = (
    "SELECT 0 AS state, count(*) AS n FROM schedd_tasks WHERE state = 0 "
    "UNION ALL SELECT state, count(*) FROM schedd_tasks WHERE state >= 1 AND state <= 3 GROUP BY state "
    "UNION ALL SELECT state, count(*) FROM schedd_tasks WHERE state >= 4 AND state <= 5 GROUP BY state "
    "UNION ALL SELECT 6, count(*) FROM schedd_tasks WHERE state = 6 "
    "UNION ALL SELECT state, count(*) FROM schedd_tasks WHERE state >= 7 GROUP BY state"
)


def by_state(connection: sa.Connection) -> dict[str, int]:
    """Tasks in each state that has any, in the order of the states."""
    rows = connection.execute(prepared(_COUNT)).fetchall()
    return {TaskState.from_code(row.state).value: row.n for row in sorted(rows, key=lambda r: r.state) if row.n}
