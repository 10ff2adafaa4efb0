"""Running again what has failed, many at once: chosen by what the messages say of themselves, and bounded."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.store import keys
from scheduler.store.control import reopen
from scheduler.store.dead_letters import Filter
from scheduler.store.dialect import dialect_of, prepared

# Failed by itself: what its parents' ends ended comes back with them. The first is its index's own word, for SQLite.
_FAILED = f"t.state >= 7 AND t.state IN ({st.FAILED}, {st.DEAD}) AND t.ended_by IS NULL"


class Redriven(NamedTuple):
    """``ids``: what runs again; ``conflicts``: id -> the task that holds its key; ``last``: where the next batch
    begins; ``more``: whether there may be one."""

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

    Each has its whole budget again. One whose key is held by another is left as it is: its message was sent anew. What
    somebody else is changing is passed over.
    """
    dialect = dialect_of(connection)
    where, bound = wanted.where(_FAILED)
    rows = connection.execute(
        prepared(
            f"SELECT t.id, t.kind, t.key, t.finished_at FROM schedd_tasks t WHERE {where} AND t.finished_at >= :at "
            f"AND (t.finished_at > :at OR t.id > :id) ORDER BY t.finished_at, t.id LIMIT :limit {dialect.skip_locked}"
        ),
        bound | {"at": after[0], "id": after[1], "limit": limit},
    ).fetchall()
    done: list[int] = []
    conflicts: dict[int, int] = {}
    for row in rows:
        holder = None if row.key is None else keys.holder_of(connection, row.kind, row.key, now)
        if holder is not None:
            conflicts[row.id] = holder.id
            continue
        reopen(connection, row.id, now, downstream=downstream)
        done.append(row.id)
    last = (rows[-1].finished_at, rows[-1].id) if rows else after
    return Redriven(done, conflicts, last, len(rows) >= limit)
