"""Counting tasks by state from narrow indexes, never by walking the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from scheduler.store.broken_rows import state_name
from scheduler.store.db.dialect import prepared

_COUNT = (
    "SELECT 0 AS state, count(*) AS n FROM schedd_tasks WHERE state = 0 "
    "UNION ALL SELECT state, count(*) FROM schedd_tasks WHERE state >= 1 AND state <= 3 GROUP BY state "
    "UNION ALL SELECT state, count(*) FROM schedd_tasks WHERE state >= 4 AND state <= 5 GROUP BY state "
    "UNION ALL SELECT 6, count(*) FROM schedd_tasks WHERE state = 6 "
    "UNION ALL SELECT state, count(*) FROM schedd_tasks WHERE state >= 7 GROUP BY state"
)
# The same up to a number of rows of each index: the order is the index's own, so that nothing is sorted or walked.
_ABOUT = " UNION ALL ".join(
    f"SELECT state, count(*) AS n FROM (SELECT state FROM schedd_tasks WHERE {where} ORDER BY {order} LIMIT :most) "
    f"AS {name} GROUP BY state"
    for name, where, order in (
        ("waiting", "state = 0", "id"),
        ("ready", "state >= 1 AND state <= 3", "queue, pool, lane, run_at, id"),
        ("held", "state >= 4 AND state <= 5", "worker, lane"),
        ("succeeded", "state = 6", "kept_until, finished_at"),
        ("done", "state >= 7", "state, finished_at"),
    )
)
_INDEX_OF = {0: 0, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3}  # of each state's code


def by_state(connection: sa.Connection) -> dict[str, int]:
    """Tasks in each state that has any, in the order of the states."""
    return _named(connection.execute(prepared(_COUNT)).fetchall())


def about(connection: sa.Connection, most: int) -> tuple[dict[str, int], bool]:
    """The same, looking at no more than ``most`` tasks of each index; and whether there may be more than it says."""
    rows = connection.execute(prepared(_ABOUT), {"most": most}).fetchall()
    seen = Counter[int]()
    for row in rows:
        seen[_INDEX_OF.get(row.state, 4)] += row.n
    return _named(rows), max(seen.values(), default=0) >= most


def _named(rows: Sequence[sa.Row[Any]]) -> dict[str, int]:
    return {state_name(row.state): row.n for row in sorted(rows, key=lambda r: r.state) if row.n}
