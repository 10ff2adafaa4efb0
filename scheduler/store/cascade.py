"""Cancelling what waits for the success of a cancelled task, if the canceller asked for that.

``cancel_cascade`` on a task says so. A task that is held when it is cancelled ends when its body does, and what is
below it moves only then: so the cascade is carried out where ends are released, and stops at what is held.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.store.dialect import Dialect, bind_rows, dialect_of, prepared
from scheduler.store.lookup import bind_parents, from_parents, lives, state_of

_ON_SUCCESS = 0  # index into model.state.When
_LIVE = f"FROM schedd_edges e WHERE {{parents}} AND e.on_end = {_ON_SUCCESS} AND {lives('e.child')}"
_BELOW = f"{_LIVE} AND (SELECT p.cancel_cascade FROM schedd_tasks p WHERE p.id = e.parent) = 1"


def below(connection: sa.Connection, ids: Sequence[int], *, through_held: bool = False) -> dict[int, int]:
    """Live descendants along when=success edges, with their states, not counting ``ids`` themselves.

    What is below a task that is held is left out, unless ``through_held``.
    """
    dialect = dialect_of(connection)
    found: dict[int, int] = {}
    level = list(ids)
    live = _LIVE.format(parents=from_parents(dialect, "e.parent"))
    while level:
        rows = connection.execute(
            prepared(f"SELECT DISTINCT e.child AS id, {state_of('e.child')} AS state {live}"),
            bind_parents(dialect, level),
        ).fetchall()
        level = [row.id for row in rows if row.id not in found and (through_held or row.state < st.CLAIMED)]
        found |= {row.id: row.state for row in rows}
    return {i: state for i, state in found.items() if i not in set(ids)}


def cancel_below(connection: sa.Connection, dialect: Dialect, cancelled: Sequence[int], now: int) -> list[int]:
    """End what waits for the success of these tasks, which have just ended cancelled, and so on down; ask what is held.

    Only where the cancel asked for it. Returns those ended.
    """
    ended: list[int] = []
    parents = from_parents(dialect, "e.parent")
    level = list(cancelled)
    while level:
        rows = connection.execute(
            prepared(f"SELECT DISTINCT e.child {_BELOW.format(parents=parents)} ORDER BY e.child"),
            bind_parents(dialect, level),
        ).fetchall()
        if not rows:
            break
        bound = {"ids": bind_rows([row[0] for row in rows]), "now": now}
        asks = "cancel_cascade = 1, cancel_requested = coalesce(cancel_requested, :now)"
        held = connection.execute(
            prepared(
                f"UPDATE schedd_tasks SET {asks}, rerun = CASE WHEN rerun = 1 THEN 2 ELSE rerun END "
                f"WHERE id IN {dialect.ids()} AND state >= 4 AND state <= 5 RETURNING id"
            ),
            bound,
        ).fetchall()
        level = [
            row[0]
            for row in connection.execute(
                prepared(
                    f"UPDATE schedd_tasks SET {asks}, state = {st.CANCELLED}, finished_at = :now, held_key = NULL "
                    f"WHERE id IN {dialect.ids()} AND state < {st.CLAIMED} RETURNING id"
                ),
                bound,
            ).fetchall()
        ]
        ended += level
        if not level and not held:
            break
    return ended


def lock_below(
    connection: sa.Connection, dialect: Dialect, roots: Sequence[int]
) -> tuple[dict[int, set[int]], set[int]]:
    """Lock, without waiting, what :func:`cancel_below` would change of these tasks, which are about to end cancelled.

    Returns id -> the roots that it is below of, for what would end; and the roots below which somebody holds a row.
    """
    reached: dict[int, set[int]] = {}
    blocked: set[int] = set()
    flagged = connection.execute(
        prepared(f"SELECT id FROM schedd_tasks WHERE id IN {dialect.ids()} AND cancel_cascade = 1"),
        {"ids": bind_rows(sorted(roots))},
    ).fetchall()
    level = {row[0]: {row[0]} for row in flagged}
    live_edges = f"SELECT e.parent, e.child {_LIVE}".format(parents=from_parents(dialect, "e.parent"))
    while level:
        edges = connection.execute(prepared(live_edges), bind_parents(dialect, level)).fetchall()
        children = bind_rows(sorted({edge.child for edge in edges}))
        named = f"t.id IN {dialect.ids()} AND t.state < {st.FIRST_TERMINAL}"
        live = f"SELECT t.id, t.state FROM schedd_tasks t WHERE {named}"
        locked = connection.execute(prepared(f"{live} ORDER BY t.id {dialect.skip_locked}"), {"ids": children})
        got = {row.id: row.state for row in locked}
        still = {row.id for row in connection.execute(prepared(live), {"ids": children})}
        following: dict[int, set[int]] = {}
        for edge in edges:
            if edge.child in got:
                if got[edge.child] < st.CLAIMED and edge.child not in reached:
                    following.setdefault(edge.child, set()).update(level[edge.parent])
                elif edge.child in reached:
                    reached[edge.child] |= level[edge.parent]
            elif edge.child in still:
                blocked |= level[edge.parent]
        reached |= following
        level = following
    return reached, blocked
