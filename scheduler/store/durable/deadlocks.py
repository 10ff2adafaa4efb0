"""Finds tasks that await one another, so that none of them ever goes on. Run on demand.

Each knows only what it awaits itself, and two may begin to at the same time, so neither could be refused for certain.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from scheduler.model.state import FIRST_TERMINAL, SUSPENDED, WAITING
from scheduler.ports import FOREVER
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import state_of

if TYPE_CHECKING:
    import networkx as nx  # imported on demand: it takes longer than most commands

_MAX_TASKS = 10_000  # tasks that one search reads
_SUSPENDED = f"t.state = {SUSPENDED} AND t.run_at >= {FOREVER}"
_FOREVER = (
    "SELECT w.task_id AS task, w.item AS awaits FROM schedd_waits w JOIN schedd_tasks t ON t.id = w.task_id "
    f"WHERE w.item > 0 AND w.met = 0 AND {_SUSPENDED}"
)
# Each task is looked up by its id alone: PostgreSQL may read the whole table for a join, and plans it for longer.
_STANDING = (
    "SELECT w.task_id FROM (SELECT task_id, item, met FROM schedd_waits WHERE item > 0 ORDER BY item {some}) w "
    "WHERE w.met = 0 AND (SELECT t.state FROM schedd_tasks t WHERE t.id = w.task_id "
    f"AND t.run_at >= {FOREVER}) = {SUSPENDED} AND {state_of('w.item')} IN ({WAITING}, {SUSPENDED}) "
    f"ORDER BY w.task_id LIMIT {_MAX_TASKS}"
)


def through(tx: Tx, task_id: int) -> list[int]:
    """The shortest cycle of tasks that await one another, from this task on; empty: none."""
    import networkx as nx

    graph = _reached(tx, [task_id])
    back = nx.single_target_shortest_path(graph, task_id)
    cycles = [back[awaited] for awaited in graph.successors(task_id) if awaited in back]
    return [task_id, *min(cycles, key=len)[:-1]] if cycles else []


def found(tx: Tx, looked: int | None = None) -> list[list[int]]:
    """Rings of tasks that wait for one another, or of one for itself, without end: one of each such knot.

    ``looked``: waits that are looked at, those for the oldest tasks; None: all.
    """
    starts = tx.run(_STANDING.format(some="" if looked is None else f"LIMIT {looked}")).scalars().all()
    if not starts:
        return []
    import networkx as nx

    graph = _reached(tx, set(starts))
    knots = [knot for knot in nx.strongly_connected_components(graph) if len(knot) > 1 or graph.has_edge(*[*knot] * 2)]
    return sorted([a for a, _ in nx.find_cycle(graph.subgraph(knot), min(knot))] for knot in knots)


def describe(cycle: list[int]) -> str:
    """The cycle as a sentence."""
    names = " -> ".join(str(i) for i in [*cycle, cycle[0]])
    if len(cycle) == 1:
        return f"this task waits for itself, and never goes on: {names}; {remedy(cycle)}"
    return f"these tasks wait for one another, and none goes on until one is cancelled: {names}; {remedy(cycle)}"


def remedy(cycle: list[int]) -> str:
    """What ends the cycle: the task that awaits, since one that only depends on it is cancelled with it."""
    return f"`schedctl cancel {cycle[0]}` ends that"


def _reached(tx: Tx, starts: Collection[int]) -> nx.DiGraph[int]:
    """What these tasks wait for, and what that waits for, and so on."""
    import networkx as nx

    sql = (
        f"{_FOREVER} AND {tx.dialect.among('w.task_id')} UNION ALL "
        "SELECT e.child, e.parent FROM schedd_edges e JOIN schedd_tasks t ON t.id = e.child "
        f"JOIN schedd_tasks p ON p.id = e.parent WHERE t.state = {WAITING} AND p.state < {FIRST_TERMINAL} "
        f"AND {tx.dialect.among('e.child')}"
    )
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(starts)
    new = set(starts)
    while new and len(graph) < _MAX_TASKS:
        pairs = tx.run(sql, ids=tx.dialect.bind_ids(sorted(new))).fetchall()
        new = {awaits for _, awaits in pairs} - set(graph)
        graph.add_edges_from((task, awaits) for task, awaits in pairs)
    return graph
