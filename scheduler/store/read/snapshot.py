"""What the finders of problems share: the workers and the lanes, each read once, when it is first asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, claimable
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.ready import all_ready_since, first_of_each
from scheduler.store.read.workers import Fleet, WorkerRecord, fleet_of, workers
from scheduler.store.tasks.claim import LaneHead

if TYPE_CHECKING:
    import sqlalchemy as sa

OLDEST = 20  # lanes whose first tasks are looked at
MAX_COUNT = 10_000  # tasks of one lane that are counted
_AT_ONCE = 50  # lanes that one statement counts
_LANE: dict[str, type] = {"queue": str, "lane": str, "priority": int}
_DUE = (
    f"SELECT sum((SELECT count(*) FROM (SELECT 1 AS one FROM schedd_tasks t WHERE {claimable('t')} "
    "AND t.queue = j.queue AND t.lane = j.lane AND t.priority = j.priority AND t.run_at <= :now "
    f"LIMIT {MAX_COUNT}) d)) FROM {{}} j"
)


class Snapshot:
    """One look at a store, in one transaction. ``unreadable``: a part of it met a row that cannot be read."""

    def __init__(self, tx: Tx) -> None:
        self.tx = tx
        self.unreadable = False

    @cached_property
    def workers(self) -> list[WorkerRecord]:
        """Workers that have neither stopped nor been found dead."""
        return workers(self.tx)

    @cached_property
    def fleet(self) -> Fleet:
        """Those that take new work."""
        return fleet_of(self.tx, self.workers)

    @cached_property
    def heads(self) -> list[LaneHead]:
        """The first task of each lane, of a bounded number."""
        return heads_of_queues(self.tx)

    @cached_property
    def due(self) -> list[LaneHead]:
        """The lanes with a task that is due, the one that has been due for the longest time first."""
        return sorted((h for h in self.heads if h.run_at <= self.tx.now), key=lambda h: h.run_at)

    @cached_property
    def oldest(self) -> list[tuple[LaneHead, sa.Row[Any], int]]:
        """The first tasks of the lanes that have been due for the longest time, each with since when it is ready."""
        heads = self.due[:OLDEST]
        since = all_ready_since(self.tx, heads)
        lanes = {head.id: head for head in heads}
        return [(lanes[row.id], row, since[row.id]) for row in first_of_each(self.tx, heads)]


def due_number(tx: Tx, heads: Sequence[LaneHead]) -> int:
    """How many tasks of these lanes are due; once it is ``MAX_COUNT`` or more, the other lanes are not looked at."""
    number = 0
    for at in range(0, len(heads), _AT_ONCE):
        if number >= MAX_COUNT:
            break
        lanes = [(head.queue, head.lane, head.priority) for head in heads[at : at + _AT_ONCE]]
        number += int(tx.run(_DUE.format(tx.dialect.rows(_LANE)), rows=bind_rows(lanes), now=tx.now).scalar() or 0)
    return number


def due_ids(tx: Tx, head: LaneHead, most: int = MAX_COUNT) -> list[int]:
    """The due tasks of a lane, the oldest first; at most so many."""
    rows = tx.run(
        f"SELECT id FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND lane = :lane "
        f"AND priority = :priority AND run_at <= :now ORDER BY run_at, id LIMIT {most}",
        **head._asdict(),
        now=tx.now,
    )
    return [row[0] for row in rows]
