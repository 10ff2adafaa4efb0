"""When a graph will have ended, by how long its kinds usually run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scheduler.model.capacity import PROCESS, THREAD
from scheduler.model.critical_path import Estimate, LeftTask, estimate
from scheduler.model.defaults import POOLS
from scheduler.model.state import CLAIMED, FIRST_TERMINAL, RUNNING, EdgeVerdict, TaskState, edge_verdict
from scheduler.ports import FOREVER
from scheduler.store.db.tx import Tx
from scheduler.store.read.graph import StoredGraph
from scheduler.store.read.workers import Fleet, read_fleet
from scheduler.store.rollups import expected

_CHUNK = 5_000

Group = tuple[int, int]  # priority, slot type


def slots_of(fleet: Fleet, groups: Collection[Group]) -> dict[object, int]:
    """How many tasks of each group the live workers run at once."""
    return {
        (priority, slot_type): sum(
            (w.capacity.processes or 0)
            if slot_type == PROCESS
            else sum(w.capacity.pool(one)[slot_type] for one in range(priority, len(POOLS)))
            for w in fleet.claiming
        )
        for priority, slot_type in groups
    }


def graph_estimate(tx: Tx, graph: StoredGraph) -> Estimate:
    """The rest of a graph: longest path, time until it has ended as a range, what blocks most."""
    states = {node.id: node.state for node in graph.nodes}
    stuck = {
        edge.child
        for edge in graph.edges
        if states[edge.parent].terminal
        and not states[edge.child].terminal
        and edge_verdict(states[edge.parent], edge.when, edge.otherwise) is EdgeVerdict.WAIT
    }
    unfinished = [node.id for node in graph.nodes if not node.state.terminal]
    fleet = read_fleet(tx)
    usual = expected(tx, {node.kind for node in graph.nodes if node.kind and not node.state.terminal})
    tasks = [
        LeftTask(
            row.id,
            TaskState.from_code(row.state),
            usual.get(row.kind),
            row.started_at if row.state == RUNNING else row.claimed_at if row.state == CLAIMED else None,
            None if row.run_at >= FOREVER else row.run_at,
            (row.priority, fleet.slot_types.get(row.kind, THREAD)),
            row.id in stuck,
        )
        for row in _rows(tx, unfinished)
    ]
    groups = {task.group for task in tasks}
    slots = slots_of(fleet, groups)  # type: ignore[arg-type]
    return estimate(tasks, [(edge.parent, edge.child) for edge in graph.edges], tx.now, slots)


def _rows(tx: Tx, ids: list[int]) -> list[Any]:
    found: list[Any] = []
    for begin in range(0, len(ids), _CHUNK):
        found += tx.run(
            "SELECT id, kind, state, priority, run_at, claimed_at, started_at FROM schedd_tasks "
            f"WHERE {tx.dialect.among('id')} AND state < {FIRST_TERMINAL}",
            ids=tx.dialect.bind_ids(ids[begin : begin + _CHUNK]),
        ).fetchall()
    return found
