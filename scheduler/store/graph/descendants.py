"""What may end because of what has ended above it, and what has ended so; all levels at once: one statement for a
chain of thousands."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.state import END_BIT, FIRST_TERMINAL, WAITING, TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import same

BROKEN_BITS = END_BIT[TaskState.FAILED] | END_BIT[TaskState.SKIPPED]  # how an edge may end a task
_MAY_BREAK = f"(e.ok & {BROKEN_BITS}) <> {BROKEN_BITS}"
# From each task by the index of its edges: PostgreSQL might else read all edges for each level, and SQLite all tasks.
_STEP = {
    "sqlite": f"""SELECT c.id FROM down d CROSS JOIN schedd_edges e CROSS JOIN schedd_tasks c
  WHERE e.parent = d.id AND {_MAY_BREAK} AND c.id = e.child AND c.state = {WAITING}""",
    "postgresql": f"""SELECT c.id FROM down d
  CROSS JOIN LATERAL (SELECT e.child FROM schedd_edges e WHERE {same("e.parent", "d.id")} AND {_MAY_BREAK} OFFSET 0) e
  CROSS JOIN LATERAL (SELECT t.id FROM schedd_tasks t WHERE t.id = e.child AND t.state = {WAITING} OFFSET 0) c""",
}
_DOWN = """
WITH RECURSIVE down(id) AS (SELECT id FROM schedd_tasks WHERE {among} UNION {step})
SELECT id FROM down
"""


def tasks_below(tx: Tx, ids: Sequence[int]) -> list[int]:
    """Waiting tasks that may end should these waiting ones end failed or skipped, and so on down; these first."""
    sql = _DOWN.format(among=tx.dialect.among("id"), step=_STEP[tx.dialect.name])
    return [row[0] for row in tx.rows(sql, ids=tx.dialect.bind_ids(ids))]


_ENDED_STEP = {
    "sqlite": f"""SELECT c.id FROM down d CROSS JOIN schedd_edges e CROSS JOIN schedd_tasks c
  WHERE e.parent = d.id AND c.id = e.child AND c.ended_by = d.id AND c.state >= {FIRST_TERMINAL}""",
    "postgresql": f"""SELECT c.id FROM down d
  CROSS JOIN LATERAL (SELECT e.child FROM schedd_edges e WHERE {same("e.parent", "d.id")} OFFSET 0) e
  CROSS JOIN LATERAL (SELECT t.id FROM schedd_tasks t
    WHERE t.id = e.child AND t.ended_by = d.id AND t.state >= {FIRST_TERMINAL} OFFSET 0) c""",
}


def ended_below(tx: Tx, ids: Sequence[int]) -> list[int]:
    """Tasks that have ended because these had, and so on down; without these, which live again."""
    sql = _DOWN.format(among=tx.dialect.among("id"), step=_ENDED_STEP[tx.dialect.name])
    found = {row[0] for row in tx.rows(sql, ids=tx.dialect.bind_ids(ids))}
    return sorted(found.difference(ids))


_ANY_STEP = {
    "sqlite": "SELECT e.child FROM down d CROSS JOIN schedd_edges e WHERE e.parent = d.id",
    "postgresql": f"""SELECT e.child FROM down d
  CROSS JOIN LATERAL (SELECT e.child FROM schedd_edges e WHERE {same("e.parent", "d.id")} OFFSET 0) e""",
}


def all_below(tx: Tx, ids: Sequence[int]) -> list[int]:
    """Whatever edges lead to from these, and so on down, in any state; without these."""
    sql = _DOWN.format(among=tx.dialect.among("id"), step=_ANY_STEP[tx.dialect.name])
    found = {row[0] for row in tx.rows(sql, ids=tx.dialect.bind_ids(ids))}
    return sorted(found.difference(ids))
