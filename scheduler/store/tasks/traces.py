"""The trace contexts of attempts, and those that a new attempt's span links to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.statements import Columns, run_over
from scheduler.store.db.tx import Tx

MAX_LINKED_PARENTS = 32  # of a task with more, the span of an attempt links to the newest
_TRACE_COLUMNS: Columns = (("task_id", int), ("claim", int), ("trace", str))
# Also of an attempt that its own transaction recorded: the fence is (worker, claim), as everywhere.
_WRITE = """
WITH {rows} UPDATE schedd_attempts AS a SET trace = j.trace FROM j
WHERE a.task_id = j.task_id AND a.claim = j.claim AND a.worker = :worker
"""
_LINKED = """
SELECT j.id,
  (SELECT a.trace FROM schedd_attempts a WHERE a.task_id = j.id AND a.claim < j.claim AND a.trace IS NOT NULL
   ORDER BY a.claim DESC LIMIT 1),
  (SELECT {join}(p.trace, ' ') FROM (
     SELECT (SELECT a.trace FROM schedd_attempts a WHERE a.task_id = e.parent AND a.trace IS NOT NULL
             ORDER BY a.claim DESC LIMIT 1) AS trace
     FROM schedd_edges e WHERE e.child = j.id ORDER BY e.parent DESC LIMIT :most) p),
  (SELECT t.replay_count FROM schedd_tasks t WHERE t.id = j.id)
FROM {rows} j
"""


class Linked(NamedTuple):
    """What an attempt's span links to, each as a ``traceparent``, and how often its task was replayed."""

    previous: str | None
    parents: tuple[str, ...]
    replay_count: int


def write(tx: Tx, worker: int, traces: Sequence[tuple[int, int, str]]) -> None:
    """Keep the trace contexts (task id, claim, traceparent) of attempts that ``worker`` has recorded."""
    run_over(tx, _WRITE, _TRACE_COLUMNS, traces, worker=worker)


def linked(tx: Tx, claims: Sequence[tuple[int, int]]) -> dict[int, Linked]:
    """What the spans of these attempts (task id, claim) link to, by task."""
    join = "group_concat" if tx.dialect.name == "sqlite" else "string_agg"
    sql = _LINKED.format(join=join, rows=tx.dialect.rows({"id": int, "claim": int}))
    rows = tx.run(sql, rows=bind_rows(claims), most=MAX_LINKED_PARENTS)
    return {row[0]: Linked(row[1], tuple((row[2] or "").split()), row[3] or 0) for row in rows}
