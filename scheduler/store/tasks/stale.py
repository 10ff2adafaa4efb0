"""What ran on how a task had ended, once that task runs again: it stays as it ended, unless it runs again, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.bulk import ItemResult
from scheduler.model.state import FIRST_TERMINAL, WAITING
from scheduler.model.texts import listed
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import bind_parents, from_parents
from scheduler.store.tasks.rerun import rerun_all

_MOST = 10_000  # tasks that are looked at, unless those found run again
_FIRST = 100  # changed tasks of a bulk whose time is looked for
AGAIN = ("retry", "rerun", "replay")  # verbs of bulks after which tasks run again


class Stale(NamedTuple):
    """Tasks that ran on an old end. ``cut``: so many were looked at that others may have, too."""

    ids: list[int]
    cut: bool = False

    def __bool__(self) -> bool:
        return bool(self.ids) or self.cut


NONE = Stale([])


def ran_on(tx: Tx, ids: Sequence[int], before: int | None = None, *, bounded: bool = True) -> Stale:
    """The ended tasks that ran on the old ends of these tasks, which live again, or of what was revived with them.

    ``before``: these tasks were changed at that instant (microseconds), and may have run since; None: just now.
    ``bounded``: look at the first tasks of each generation only.
    """
    most = _MOST if bounded else None
    seen, level, found = set(ids), list(ids[:most]), list[int]()
    cut = len(ids) > len(level)
    while level:
        if most is not None and len(found) >= most:
            cut = True
            break
        rows = tx.rows(
            f"SELECT child FROM schedd_edges WHERE {from_parents(tx.dialect)}", **bind_parents(tx.dialect, level)
        )
        children = sorted({row[0] for row in rows} - seen)
        cut = cut or len(children) > len(children[:most])
        children = children[:most]
        seen.update(children)
        states = tx.rows(
            f"SELECT t.id, t.state, t.claimed_at FROM schedd_tasks t WHERE {tx.dialect.among('t.id')}",
            ids=tx.dialect.bind_ids(children),
        )
        revived = [row[0] for row in states if before is not None and row[2] is not None and row[2] > before]
        level = sorted({*revived, *(row[0] for row in states if row[1] == WAITING)})
        ended = (row[0] for row in states if row[1] >= FIRST_TERMINAL and row[2] is not None)
        found += [task_id for task_id in ended if task_id not in revived]
    return Stale(sorted(found), cut)


def ran_on_bulk(tx: Tx, name: str, verb: str) -> Stale:
    """:func:`ran_on` of what a bulk has changed."""
    if verb not in AGAIN:
        return NONE
    rows = tx.run(
        f"SELECT task_id FROM schedd_bulk_items WHERE bulk = :name AND result = {ItemResult.DONE.code} "
        f"ORDER BY position LIMIT {_MOST + 1}",
        name=name,
    )
    ids = [int(row[0]) for row in rows]
    sql = f"SELECT min(at) FROM schedd_audit WHERE {tx.dialect.among('task_id')} AND bulk = :name"
    began = tx.rows(sql, ids=tx.dialect.bind_ids(ids[:_FIRST]), name=name)[0][0] if ids else None
    return NONE if began is None else ran_on(tx, ids, int(began))


def told(stale: Stale) -> str:
    """``tasks 4, 7 ran on the old outcome``."""
    ids = stale.ids
    if not ids:
        return f"the first {_MOST:,} tasks were looked at, and none ran on an old outcome; others may have"
    text = f"{'tasks' if len(ids) > 1 else 'task'} {listed([str(i) for i in ids], 20)} ran on the old outcome"
    return f"{text}, and perhaps others, as the first {_MOST:,} tasks were looked at" if stale.cut else text


def rerun_on_new(tx: Tx, ids: Sequence[int], *, rerun: bool) -> Stale:
    """:func:`ran_on`; with ``rerun`` they run again after these tasks, with all that is below them.

    Raises InvalidTransitionError if something below them has begun, DuplicateKeyError.
    """
    stale = ran_on(tx, ids, bounded=not rerun)
    if rerun and stale:
        rerun_all(tx, stale.ids)
    return stale
