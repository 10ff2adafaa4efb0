"""PostgreSQL: locks what a completion changes, the tasks and their waiting descendants.

It never waits. A caller's open transaction may hold FOR SHARE on a parent for minutes while it adds a child, and must
not delay the worker's other tasks: a completion whose rows are locked is deferred.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from operator import or_
from typing import Any, NamedTuple

from scheduler.model.outcome import Outcome
from scheduler.model.state import CANCELLED, END_BIT, FIRST_TERMINAL, WAITING, TaskState
from scheduler.store.db.dialect import fence
from scheduler.store.db.statements import Columns, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.graph import spawned
from scheduler.store.graph.cancel_cascade import lock_below
from scheduler.store.graph.descendants import BROKEN_BITS, tasks_below
from scheduler.store.predicates import IS_HELD, bind_parents, from_parents, is_parent, state_of
from scheduler.store.tasks.replace import blocked_replacements

_PAIR: Columns = (("id", int), ("claim", int))
_LOOK_HELD = (
    "WITH {rows} SELECT t.id, t.claim, t.cancel_requested, t.rerun, "
    f"{is_parent('t.id')} FROM j JOIN schedd_tasks t ON t.id = j.id "
    "WHERE {among t} "
    f"{fence(IS_HELD)}"
)
_LOCK_HELD = f"{_LOOK_HELD} ORDER BY t.id FOR UPDATE OF t SKIP LOCKED"


def lock_ends(
    tx: Tx, worker: int, outcomes: Sequence[Outcome]
) -> tuple[Sequence[Outcome], list[Outcome], Mapping[int, int]]:
    """Lock the outcomes' rows and their waiting descendants, without waiting.

    Returns the outcomes to write, the deferred ones, and the ends (id -> bit) that are known to break no edge.

    A row whose fence is lost is not locked; the write reports it.
    """
    bound = {"worker": worker}
    pairs = [(o.task_id, o.claim) for o in outcomes]
    locked = run_over(tx, _LOCK_HELD, _PAIR, pairs, **bound)
    # By task and claim: a stale outcome of the same task may be among them, and decides nothing.
    got = {(row[0], row[1]): row[2] is not None for row in locked}
    replaced = [row[0] for row in locked if row[3]]
    parents = {row[0] for row in locked if row[4]}
    blocked: set[int] = set()
    if len(got) < len(outcomes):
        held = {row[0] for row in run_over(tx, _LOOK_HELD, _PAIR, pairs, **bound)}
        blocked = held - {task_id for task_id, _ in got}
    ends = {o.task_id: CANCELLED if got[key] else o.state for o in outcomes if (key := (o.task_id, o.claim)) in got}
    ends = {i: state for i, state in ends.items() if i in parents or state == CANCELLED}
    bits = {i: END_BIT[TaskState.from_code(state)] for i, state in ends.items() if state >= FIRST_TERMINAL}
    if replaced:
        blocked |= blocked_replacements(tx, replaced)
        bits |= {i: bits.get(i, 0) | BROKEN_BITS for i in replaced}  # their new edges may end them at once
    below = lock_descendants(tx, bits)
    blocked |= below.blocked
    unbroken = bits if below.unbroken else {}
    if not blocked:
        return outcomes, [], unbroken
    return [o for o in outcomes if o.task_id not in blocked], [o for o in outcomes if o.task_id in blocked], unbroken


# PostgreSQL only. Of the edges whose child could be locked, those that one of these ends may break. The locked ones are
# looked up, not joined: of a join it may expect one row, and compare each edge with each of them.
_LOCK_WAITING = f"""
WITH e AS MATERIALIZED (SELECT parent, child, ok FROM schedd_edges WHERE {{e}}),
l AS MATERIALIZED (SELECT t.id FROM schedd_tasks t WHERE t.id = ANY(ARRAY(SELECT child FROM e))
  AND t.state = {WAITING} ORDER BY t.id FOR UPDATE OF t SKIP LOCKED)
SELECT * FROM (SELECT parent, child, ok, CASE WHEN child IN (SELECT id FROM l) THEN 1 ELSE 0 END AS locked FROM e) f
WHERE f.locked = 0 OR (f.ok & :bits) <> :bits
"""
_STILL_WAITING = f"SELECT parent, child FROM schedd_edges WHERE {{e}} AND {state_of('schedd_edges.child')} = {WAITING}"


class LockedDescendants(NamedTuple):
    """``blocked``: tasks with a locked descendant; ``unbroken``: all is locked by us, no edge breaks."""

    blocked: set[int]
    unbroken: bool


def lock_descendants(tx: Tx, level: dict[int, int]) -> LockedDescendants:
    """Lock the descendants that the end of these tasks (id -> bit of its end) would change.

    A child whose edge breaks ends too, and may end its own children. Goes level by level while tasks are cancelled,
    which ends what they spawned; then locks the rest at once.
    """
    unbroken = True
    blocked: set[int] = set()
    roots = {i: {i} for i in level}  # whose end reaches a task of this level
    cancelled = [i for i, bits in level.items() if bits & END_BIT[TaskState.CANCELLED]]
    if cancelled:
        taken, blocked = lock_below(tx, cancelled)
        roots |= taken
        level = level | dict.fromkeys(taken, END_BIT[TaskState.CANCELLED])
    while level:
        below: dict[int, int] = {}
        reached: dict[int, set[int]] = {}
        cancelled = [i for i, bits in level.items() if bits & END_BIT[TaskState.CANCELLED]]
        if cancelled:
            busy, parent_of = spawned.blocked(tx, cancelled)
            blocked |= {root for i in busy for root in roots[i]}
            for child, parent in parent_of.items():
                reached.setdefault(child, set()).update(roots[parent])
                below[child] = END_BIT[TaskState.CANCELLED]
        edges, held = _lock_children(tx, level)
        unbroken = unbroken and not edges
        blocked |= {root for parent in held for root in roots[parent]}
        for parent, child, ok, locked in edges:
            if locked and level[parent] & ~ok:
                reached.setdefault(child, set()).update(roots[parent])
                below[child] = below.get(child, 0) | BROKEN_BITS
        if below and not any(bits & END_BIT[TaskState.CANCELLED] for bits in below.values()):
            blocked |= _lock_all_below(tx, reached)
            break
        roots, level = reached, below
    return LockedDescendants(blocked, unbroken and not blocked)


def _lock_children(tx: Tx, level: Mapping[int, int]) -> tuple[list[tuple[Any, ...]], set[int]]:
    """Lock what waits for these (id -> bits). Returns edges (parent, child, ok, whether it is locked) that may break or
    are not locked, and the parents of rows that another transaction holds."""
    bound = bind_parents(tx.dialect, level) | {"bits": functools.reduce(or_, level.values())}
    edges = tx.rows(_LOCK_WAITING.format(e=from_parents(tx.dialect)), **bound)
    # Not locked: another transaction holds it, or it no longer waits (then there is nothing to release).
    missed = {child for _, child, _, locked in edges if not locked}
    if not missed:
        return edges, set()
    still = tx.rows(_STILL_WAITING.format(e=from_parents(tx.dialect)), **bound)
    return edges, {parent for parent, child in still if child in missed}


def _lock_all_below(tx: Tx, roots: dict[int, set[int]]) -> set[int]:
    """Lock what the end of these waiting tasks, failed or skipped, would change. ``roots``: whose end brings theirs
    about. Returns those with a descendant that another transaction holds."""
    edges: list[tuple[Any, ...]] = []
    held: set[int] = set()
    down: list[int] = []
    while len(found := tasks_below(tx, sorted(roots))) > len(down):  # or stored before it was locked
        down = found
        edges, held = _lock_children(tx, dict.fromkeys(down, BROKEN_BITS))
    if not held:
        return set()
    following: dict[int, list[int]] = {}
    for parent, child, _, locked in edges:
        if locked:
            following.setdefault(parent, []).append(child)
    grown = list(roots)
    while grown:  # until nothing more comes from above
        parent = grown.pop()
        for child in following.get(parent, ()):
            known = roots.setdefault(child, set())
            if not roots[parent] <= known:
                known |= roots[parent]
                grown.append(child)
    return {root for parent in held for root in roots.get(parent, ())}
