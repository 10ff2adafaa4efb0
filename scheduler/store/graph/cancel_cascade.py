"""Cancels what waits for the success of a cancelled task, if the caller asked for that.

``cancel_cascade`` on a task says so. A task that is held when it is cancelled ends when its handler does, and what is
below it moves only then: so the cascade is carried out where ends are released, and stops at what is held. All levels
at once, however deep: a chain of thousands takes no more statements than one task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from scheduler.model.state import CANCELLED, CLAIMED, FIRST_TERMINAL, RUNNING
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import bind_parents, from_parents, same

_ON_SUCCESS = 0  # index into model.state.When
_ROOT = -1  # the state of a task whose descendants are wanted whatever its own is
# From each task by the index of its edges, as in downward.py.
_STEP = {
    "sqlite": f"""SELECT c.id, c.state FROM down d CROSS JOIN schedd_edges e CROSS JOIN schedd_tasks c
  WHERE e.parent = d.id AND e.on_end = {_ON_SUCCESS} AND c.id = e.child AND c.state < {FIRST_TERMINAL}""",
    "postgresql": f"""SELECT c.id, c.state FROM down d CROSS JOIN LATERAL
  (SELECT e.child FROM schedd_edges e WHERE {same("e.parent", "d.id")} AND e.on_end = {_ON_SUCCESS} OFFSET 0) e
  CROSS JOIN LATERAL (SELECT t.id, t.state FROM schedd_tasks t WHERE t.id = e.child OFFSET 0) c
  WHERE c.state < {FIRST_TERMINAL}""",
}
_DOWN = f"""
WITH RECURSIVE down(id, state) AS (SELECT id, {_ROOT} FROM schedd_tasks WHERE {{among}} {{asked}}
  UNION {{step}} AND d.state < {{last}})
SELECT id, state FROM down WHERE state > {_ROOT}
"""
_ASKED = "AND cancel_cascade = 1"
_LIVE = f"SELECT t.id, t.state FROM schedd_tasks t WHERE {{among}} AND t.state < {FIRST_TERMINAL} ORDER BY t.id"
_EDGES = f"SELECT parent, child FROM schedd_edges WHERE {{parents}} AND on_end = {_ON_SUCCESS}"
_SET = "cancel_cascade = 1, cancel_requested = coalesce(cancel_requested, :now)"
_ASK = f"""
UPDATE schedd_tasks SET {_SET}, rerun = CASE WHEN rerun = 1 THEN 2 ELSE rerun END
WHERE {{among}} AND state + 0 >= {CLAIMED} AND state + 0 <= {RUNNING}
"""
_END = f"""
UPDATE schedd_tasks SET {_SET}, state = {CANCELLED}, finished_at = :now, held_key = NULL
WHERE {{among}} AND state + 0 < {CLAIMED} RETURNING id
"""


def below(tx: Tx, ids: Sequence[int], *, through_held: bool = False) -> dict[int, int]:
    """Live descendants along when=success edges, with their states, not counting ``ids`` themselves.

    What is below a task that is held is left out, unless ``through_held``.
    """
    found = _down(tx, ids, through_held=through_held)
    own = set(ids)
    return {i: state for i, state in found.items() if i not in own}


def _down(tx: Tx, ids: Collection[int], *, asked: bool = False, through_held: bool = False) -> dict[int, int]:
    """Live descendants of these tasks, with their states; ``asked``: of those of them that are to take theirs along."""
    if not ids:
        return {}
    sql = _DOWN.format(
        among=tx.dialect.among("id"),
        asked=_ASKED if asked else "",
        step=_STEP[tx.dialect.name],
        last=FIRST_TERMINAL if through_held else CLAIMED,
    )
    return _states(tx.rows(sql, ids=tx.dialect.bind_ids(sorted(ids))))


def cancel_below(tx: Tx, cancelled: Sequence[int]) -> list[int]:
    """End what waits for the success of these tasks, which have just ended cancelled, and so on down; ask what is held.

    Only where the cancel asked for it. Returns those ended.
    """
    ended: list[int] = []
    level = list(cancelled)
    while found := _down(tx, level, asked=True):
        if tx.dialect.name == "postgresql":  # what is claimed until it is locked keeps what is below it
            locked = _locked(tx, found, tx.dialect.lock)
            found = {i: s for i, s in _down(tx, level, asked=True).items() if i in locked}
        bound = {"ids": tx.dialect.bind_ids(sorted(found)), "now": tx.now}
        tx.rows(_ASK.format(among=tx.dialect.among("id")), **bound)
        level = [row[0] for row in tx.rows(_END.format(among=tx.dialect.among("id")), **bound)]
        ended += level
        if tx.dialect.name == "sqlite":
            break  # the only writer: nothing is stored below them meanwhile
    return ended


def lock_below(tx: Tx, roots: Sequence[int]) -> tuple[dict[int, set[int]], set[int]]:
    """Lock, without waiting, what :func:`cancel_below` would change of these tasks, which are about to end cancelled.

    Returns id -> the roots that it is below of, for what would end; and the roots below which another transaction holds
    a row.
    """
    flagged = f"SELECT id FROM schedd_tasks WHERE {tx.dialect.among('id')} {_ASKED}"
    tops = {row[0] for row in tx.rows(flagged, ids=tx.dialect.bind_ids(sorted(roots)))}
    down: dict[int, int] = {}
    locked: dict[int, int] = {}
    while len(found := _down(tx, tops)) > len(down):  # or stored before it was locked
        down = found
        locked = _locked(tx, down, tx.dialect.skip_locked)
    if not down:
        return {}, set()
    ending = {i for i, state in locked.items() if state < CLAIMED}
    edges: dict[int, list[int]] = {}
    for parent, child in tx.rows(
        _EDGES.format(parents=from_parents(tx.dialect)), **bind_parents(tx.dialect, tops | ending)
    ):
        edges.setdefault(parent, []).append(child)
    reached = {top: {top} for top in tops}
    grown = list(tops)
    while grown:  # until nothing more comes from above
        parent = grown.pop()
        for child in edges.get(parent, ()):
            known = reached.setdefault(child, set()) if child in ending else reached[parent]
            if not reached[parent] <= known:
                known |= reached[parent]
                grown.append(child)
    missed = [i for i in down if i not in locked]
    held = _locked(tx, missed) if missed else {}  # the others have ended meanwhile
    blocked = {
        root for parent in reached if not held.keys().isdisjoint(edges.get(parent, ())) for root in reached[parent]
    }
    return {i: roots for i, roots in reached.items() if i not in tops}, blocked


def _locked(tx: Tx, ids: Collection[int], lock: str = "") -> dict[int, int]:
    """Those of these tasks that live, with their states, and locked in this way: in one order by all writers."""
    sql = f"{_LIVE.format(among=tx.dialect.among('t.id'))} {lock}"
    return _states(tx.rows(sql, ids=tx.dialect.bind_ids(sorted(ids))))


def _states(rows: Iterable[tuple[Any, ...]]) -> dict[int, int]:
    return {row[0]: row[1] for row in rows}
