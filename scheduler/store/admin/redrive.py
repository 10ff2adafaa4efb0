"""Retries many failed tasks at once, chosen by their envelopes, up to a limit."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from scheduler.errors import DuplicateKeyError
from scheduler.model import state as st
from scheduler.store import audit
from scheduler.store.db.dialect import dialect_of, prepared
from scheduler.store.read.dead_letters import Filter
from scheduler.store.tasks.control import reopen

# Failed by itself: a task that a parent's end ended comes back with that parent. SQLite needs the first term verbatim
# to use the index.
_FAILED = f"t.state >= 7 AND t.state IN ({st.FAILED}, {st.DEAD}) AND t.ended_by IS NULL"


class Redriven(NamedTuple):
    """``ids``: what runs again; ``conflicts``: id -> the task that has its key, also of what would have been revived
    with those; ``last``: where the next batch begins; ``more``: whether there may be one."""

    ids: list[int]
    conflicts: dict[int, int]
    last: tuple[int, int]
    more: bool


def redrive(
    connection: sa.Connection,
    now: int,
    wanted: Filter,
    *,
    limit: int,
    downstream: bool = True,
    after: tuple[int, int] = (0, 0),
) -> Redriven:
    """Retry up to ``limit`` tasks that are failed or dead, the oldest first, beginning behind ``after`` (ended at, id).

    Each has its whole budget again. One whose key another task holds, or has completed since, is left as it is: its
    message was sent anew. Skips rows that another transaction is changing.
    """
    dialect = dialect_of(connection)
    where, bound = wanted.where(_FAILED)
    rows = connection.execute(
        prepared(
            f"SELECT t.id, t.finished_at FROM schedd_tasks t WHERE {where} AND t.finished_at >= :at "
            f"AND (t.finished_at > :at OR t.id > :id) ORDER BY t.finished_at, t.id LIMIT :limit {dialect.skip_locked}"
        ),
        bound | {"at": after[0], "id": after[1], "limit": limit},
    ).fetchall()
    done: list[int] = []
    conflicts: dict[int, int] = {}
    for row in rows:
        try:
            left = reopen(connection, row.id, now, downstream=downstream)
        except DuplicateKeyError as error:
            conflicts[row.id] = error.existing_id
            continue
        conflicts |= {task_id: other.id for task_id, other in left.items()}
        done.append(row.id)
    audit.record(connection, now, "retry", tasks=done, downstream=None if downstream else False)
    last = (rows[-1].finished_at, rows[-1].id) if rows else after
    return Redriven(done, conflicts, last, len(rows) >= limit)
