"""What ran on how a task had ended, once that task runs again: it stays as it ended, unless it runs again, too."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model import state as st
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import bind_parents, from_parents
from scheduler.store.tasks.rerun import rerun_all

_MOST = 10_000  # tasks that are looked at


def ran_on(tx: Tx, ids: Sequence[int]) -> list[int]:
    """The ended tasks that ran on the old ends of these tasks, which live again, or of what was revived with them."""
    seen, level, found = set(ids), list(ids), list[int]()
    while level and len(seen) < _MOST:
        rows = tx.rows(
            f"SELECT child FROM schedd_edges WHERE {from_parents(tx.dialect)}", **bind_parents(tx.dialect, level)
        )
        children = sorted({row[0] for row in rows} - seen)
        seen.update(children)
        states = tx.rows(
            f"SELECT t.id, t.state, t.claimed_at FROM schedd_tasks t WHERE {tx.dialect.among('t.id')}",
            ids=tx.dialect.bind_ids(children),
        )
        level = sorted(row[0] for row in states if row[1] == st.WAITING)
        found += [row[0] for row in states if row[1] >= st.FIRST_TERMINAL and row[2] is not None]
    return sorted(found)


def rerun_on_new(tx: Tx, ids: Sequence[int], *, rerun: bool) -> list[int]:
    """:func:`ran_on`; with ``rerun`` they run again after these tasks, with all that is below them.

    Raises InvalidTransitionError if something below them has begun, DuplicateKeyError.
    """
    stale = ran_on(tx, ids)
    if rerun and stale:
        rerun_all(tx, stale)
    return stale
