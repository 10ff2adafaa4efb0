"""Cycles among stored tasks: only an edge that a stored task gets later can close one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from scheduler.errors import CycleError
from scheduler.store.db import snapshots
from scheduler.store.db.snapshots import Reader
from scheduler.store.db.tx import Tx
from scheduler.store.graph.descendants import all_below
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


_WAITERS = "SELECT item, task_id, name FROM schedd_waits WHERE item > 0 AND {}"


def refuse_unseen(tx: Tx, replaced: Collection[int], read: Reader) -> None:
    """Refuse a caller's transaction that gave these tasks other parents, if its snapshot lacks an edge below them, or a
    wait for their ends: else a cycle may close, or nothing would release what was stored since.

    The tasks are locked, and the graph is, so nobody adds more of these until the caller's commit.
    """

    def below(one: Tx) -> set[tuple[Any, ...]]:
        tasks = [*replaced, *all_below(one, list(replaced))]
        edges = one.rows(
            f"SELECT parent, child FROM schedd_edges WHERE {from_parents(one.dialect)}",
            **bind_parents(one.dialect, tasks),
        )
        waiters = one.rows(_WAITERS.format(one.dialect.among("item")), ids=one.dialect.bind_ids(tasks))
        return {*waiters, *(edge for edge in edges if edge[1] not in replaced)}

    snapshots.refuse_unseen(tx, below, read, "a task waits for one that it replaces")
