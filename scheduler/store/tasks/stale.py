"""What ran on how a task had ended, once that task runs again: it stays as it ended, unless it runs again, too."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model import state as st
from scheduler.model.bulk import ItemResult
from scheduler.model.texts import listed
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import bind_parents, from_parents
from scheduler.store.tasks.rerun import rerun_all

_MOST = 10_000  # tasks that are looked at
_FIRST = 100  # changed tasks of a bulk whose time is looked for
AGAIN = ("retry", "rerun", "replay")  # verbs of bulks after which tasks run again


def ran_on(tx: Tx, ids: Sequence[int], before: int | None = None) -> list[int]:
    """The ended tasks that ran on the old ends of these tasks, which live again, or of what was revived with them.

    ``before``: these tasks were changed at that instant (microseconds), and may have run since; None: just now.
    """
    seen, level, found = set(ids), list(ids[:_MOST]), list[int]()
    while level and len(found) < _MOST:
        rows = tx.rows(
            f"SELECT child FROM schedd_edges WHERE {from_parents(tx.dialect)}", **bind_parents(tx.dialect, level)
        )
        children = sorted({row[0] for row in rows} - seen)[:_MOST]
        seen.update(children)
        states = tx.rows(
            f"SELECT t.id, t.state, t.claimed_at FROM schedd_tasks t WHERE {tx.dialect.among('t.id')}",
            ids=tx.dialect.bind_ids(children),
        )
        revived = [row[0] for row in states if before is not None and row[2] is not None and row[2] > before]
        level = sorted({*revived, *(row[0] for row in states if row[1] == st.WAITING)})
        ended = (row[0] for row in states if row[1] >= st.FIRST_TERMINAL and row[2] is not None)
        found += [task_id for task_id in ended if task_id not in revived]
    return sorted(found)


def ran_on_bulk(tx: Tx, name: str, verb: str) -> list[int]:
    """:func:`ran_on` of what a bulk has changed."""
    if verb not in AGAIN:
        return []
    rows = tx.run(
        f"SELECT task_id FROM schedd_bulk_items WHERE bulk = :name AND result = {ItemResult.DONE.code} "
        f"ORDER BY position LIMIT {_MOST}",
        name=name,
    )
    ids = [int(row[0]) for row in rows]
    sql = f"SELECT min(at) FROM schedd_audit WHERE {tx.dialect.among('task_id')} AND bulk = :name"
    began = tx.rows(sql, ids=tx.dialect.bind_ids(ids[:_FIRST]), name=name)[0][0] if ids else None
    return [] if began is None else ran_on(tx, ids, int(began))


def told(stale: Sequence[int]) -> str:
    """``tasks 4 and 7 ran on the old outcome``."""
    return f"{'tasks' if len(stale) > 1 else 'task'} {listed([str(i) for i in stale], 20)} ran on the old outcome"


def rerun_on_new(tx: Tx, ids: Sequence[int], *, rerun: bool) -> list[int]:
    """:func:`ran_on`; with ``rerun`` they run again after these tasks, with all that is below them.

    Raises InvalidTransitionError if something below them has begun, DuplicateKeyError.
    """
    stale = ran_on(tx, ids)
    if rerun and stale:
        rerun_all(tx, stale)
    return stale
