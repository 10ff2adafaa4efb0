"""What the finders of problems share: the workers and the lanes, each read once, when it is first asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.ready import all_ready_since, first_of_each
from scheduler.store.read.workers import Fleet, WorkerRecord, fleet_of, workers
from scheduler.store.tasks.claim import LaneHead

if TYPE_CHECKING:
    import sqlalchemy as sa

OLDEST = 20  # lanes whose first tasks are looked at
MAX_COUNT = 10_000  # tasks of one lane that are counted


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


def due_ids(tx: Tx, head: LaneHead) -> list[int]:
    """The due tasks of a lane, the oldest first; at most ``MAX_COUNT``."""
    rows = tx.run(
        f"SELECT id FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND lane = :lane "
        f"AND priority = :priority AND run_at <= :now ORDER BY run_at, id LIMIT {MAX_COUNT}",
        **head._asdict(),
        now=tx.now,
    )
    return [row[0] for row in rows]
