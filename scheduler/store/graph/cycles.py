"""Cycles among stored tasks: only an edge that a stored task gets later can close one."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.errors import CycleError
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import bind_parents, from_parents


def lock_graph(tx: Tx) -> None:
    """Lock the graph: no other transaction adds edges to stored tasks until this one ends.

    Two writers adding a->b and b->a at once must not both succeed. To be called before any row is locked.
    """
    if tx.dialect.name == "postgresql":
        tx.rows("SELECT pg_advisory_xact_lock(7237123448)")


def refuse_cycle(tx: Tx, child: int, parents: Iterable[int]) -> None:
    """Raise CycleError, with the path, if ``child`` cannot wait for these tasks since one of them waits for it."""
    for parent in parents:
        if parent == child:
            raise CycleError([child, child])
        path = find_path(tx, child, parent)
        if path:
            raise CycleError([*path, child])


def find_path(tx: Tx, start: int, goal: int) -> list[int]:
    """A path of edges from ``start`` down to ``goal``, empty if there is none."""
    came: dict[int, int] = {start: start}
    level = [start]
    while level:
        rows = tx.run(
            f"SELECT parent, child FROM schedd_edges WHERE {from_parents(tx.dialect)}",
            **bind_parents(tx.dialect, level),
        ).fetchall()
        level = []
        for row in rows:
            if row.child not in came:
                came[row.child] = row.parent
                level.append(row.child)
        if goal in came:
            path = [goal]
            while path[-1] != start:
                path.append(came[path[-1]])
            return path[::-1]
    return []
