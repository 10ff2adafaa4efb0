"""Looks at due tasks behind those whose payloads are too new for a worker.

The ready index does not know versions, so the rows of one stretch of each lane are read, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.store.db.statements import Columns, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import claimable
from scheduler.store.tasks.lane_offsets import Lane, Place

_COLUMNS: Columns = (("queue", str), ("lane", str), ("priority", int), ("from_at", int), ("from_id", int))
_DUE = f"""{claimable("t")} AND t.queue = j.queue AND t.lane = j.lane AND t.priority = j.priority
  AND {{behind}} ORDER BY t.run_at, t.id LIMIT :most"""
_SQLITE_DUE = f"SELECT t.id FROM schedd_tasks t INDEXED BY ix_schedd_tasks_ready WHERE {_DUE}"
# Two ranges on SQLite, which uses only the first column of a row-value for its index: very many may have one time.
_READ = {
    "sqlite": f"""
WITH {{rows}} SELECT n.queue, n.lane, n.priority, n.run_at, n.id, n.schema_version
FROM j CROSS JOIN schedd_tasks n ON n.id IN (
  SELECT id FROM ({_SQLITE_DUE.format(behind="t.run_at = j.from_at AND +t.run_at <= :now AND t.id >= j.from_id")})
  UNION ALL SELECT id FROM ({_SQLITE_DUE.format(behind="t.run_at > j.from_at AND t.run_at <= :now")}))""",
    "postgresql": f"""
WITH {{rows}} SELECT n.* FROM j CROSS JOIN LATERAL (
  SELECT t.queue, t.lane, t.priority, t.run_at, t.id, t.schema_version FROM schedd_tasks t
  WHERE {_DUE.format(behind="t.run_at <= :now AND (t.run_at, t.id) >= (j.from_at, j.from_id)")}) n""",
}


class DueTask(NamedTuple):
    """A task that is due, by its place in its lane."""

    run_at: int
    id: int
    version: int

    @property
    def place(self) -> Place:
        """Where it stands in its lane."""
        return self.run_at, self.id


def due_tasks(tx: Tx, start: Sequence[tuple[Lane, Place]], most: int) -> dict[Lane, list[DueTask]]:
    """The first ``most`` due tasks of each of these lanes, from this place in it on, in their order."""
    found: dict[Lane, list[DueTask]] = {lane: [] for lane, _ in start}
    rows = [(*lane, *place) for lane, place in start]
    for queue, lane, priority, *task in run_over(tx, _READ[tx.dialect.name], _COLUMNS, rows, now=tx.now, most=most):
        found[queue, lane, priority].append(DueTask._make(task))
    return {lane: sorted(tasks)[:most] for lane, tasks in found.items()}
