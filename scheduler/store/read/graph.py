"""Reading edges: around one task, and the whole graph that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.model.state import EdgeVerdict, Otherwise, TaskState, When, edge_verdict
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import bind_parents, from_parents
from scheduler.store.unknown import unknown

if TYPE_CHECKING:
    import sqlalchemy as sa

_WHENS = tuple(When)
_OTHERWISES = tuple(Otherwise)
_WHEN_CODES, _OTHERWISE_CODES, _STATE_CODES = (frozenset(range(len(one))) for one in (When, Otherwise, TaskState))


class EdgeRecord(NamedTuple):
    """``child`` waits for ``parent``; ``kind`` and ``state`` are those of the end that was not asked about.

    ``kind`` is None for a task that retention removed; its state is then the recorded outcome. ``satisfied``:
    whether the edge is, by the parent's present state. ``id`` is that of the same end, ``status`` its state.
    """

    parent: int
    child: int
    when: When
    otherwise: Otherwise
    kind: str | None
    state: TaskState
    satisfied: bool
    id: int = 0

    @property
    def status(self) -> TaskState:
        """Another name of ``state``."""
        return self.state


class GraphNode(NamedTuple):
    """One task of a graph; ``kind`` is None if retention removed it."""

    id: int
    kind: str | None
    state: TaskState


class GraphEdge(NamedTuple):
    """``child`` waits for ``parent``."""

    parent: int
    child: int
    when: When
    otherwise: Otherwise


class StoredGraph(NamedTuple):
    """Tasks connected with one another, nearest to the one asked for first; ``truncated``: there are more."""

    nodes: list[GraphNode]
    edges: list[GraphEdge]
    truncated: bool


_EDGES = (
    "SELECT e.parent, e.child, e.on_end, e.otherwise, coalesce(p.state, op.state) AS parent_state, "
    "coalesce(c.state, oc.state) AS child_state, p.kind AS parent_kind, c.kind AS child_kind "
    "FROM schedd_edges e "
    "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes op ON op.task_id = e.parent "
    "LEFT JOIN schedd_tasks c ON c.id = e.child LEFT JOIN schedd_outcomes oc ON oc.task_id = e.child "
)


def dependencies(tx: Tx, task_id: int) -> list[EdgeRecord]:
    """What this task waits for, or waited for."""
    rows = tx.run(_EDGES + "WHERE e.child = :id ORDER BY e.parent", id=task_id)
    return [_edge(r, r.parent, r.parent_kind, r.parent_state) for r in rows if _is_readable(r, r.parent_state)]


def dependents(tx: Tx, task_id: int) -> list[EdgeRecord]:
    """What waits for this task, or waited for it."""
    rows = tx.run(_EDGES + "WHERE e.parent = :id ORDER BY e.child", id=task_id)
    return [_edge(r, r.child, r.child_kind, r.child_state) for r in rows if _is_readable(r, r.child_state)]


def _is_readable(row: sa.Row[Any], state: int | None) -> bool:
    """Whether there is such a task, and each code has a meaning; ``doctor`` names those that have none."""
    states = range(len(TaskState))
    known = row.on_end in range(len(_WHENS)) and row.otherwise in range(len(_OTHERWISES))
    return known and state in states and (row.parent_state is None or row.parent_state in states)


def _edge(row: sa.Row[Any], end: int, kind: str | None, state: int) -> EdgeRecord:
    when, otherwise = _WHENS[row.on_end], _OTHERWISES[row.otherwise]
    parent = None if row.parent_state is None else TaskState.from_code(row.parent_state)
    satisfied = (
        parent is not None and parent.terminal and edge_verdict(parent, when, otherwise) is EdgeVerdict.SATISFIED
    )
    return EdgeRecord(row.parent, row.child, when, otherwise, kind, TaskState.from_code(state), satisfied, end)


def graph(tx: Tx, task_id: int, limit: int = 200) -> StoredGraph:
    """The tasks that edges connect with this one, directly or not, at most ``limit`` of them.

    Raises UnknownTaskError.
    """
    ids = tx.dialect.ids()
    level, truncated = [int(task_id)], False  # a TaskId does not fit JSON
    order: dict[int, None] = dict.fromkeys(level)
    edges: dict[tuple[int, int], GraphEdge] = {}
    around = (
        f"SELECT parent, child, on_end, otherwise FROM schedd_edges WHERE {from_parents(tx.dialect)} "
        f"UNION SELECT parent, child, on_end, otherwise FROM schedd_edges WHERE {tx.dialect.among('child')} "
        "ORDER BY parent, child"
    )
    while level:
        following: list[int] = []
        for parent, child, on_end, otherwise in tx.rows(around, **bind_parents(tx.dialect, level)):
            key = parent, child
            if key in edges or on_end not in _WHEN_CODES or otherwise not in _OTHERWISE_CODES:
                continue
            edges[key] = GraphEdge(parent, child, _WHENS[on_end], _OTHERWISES[otherwise])
            for other in key:
                if other in order:
                    continue
                if len(order) >= limit:
                    truncated = True
                    continue
                order[other] = None
                following.append(other)
        level = following
    found = {
        row[0]: GraphNode(row[0], row[1], TaskState.from_code(row[2]))
        for row in tx.rows(
            f"SELECT id, kind, state FROM schedd_tasks WHERE id IN {ids} "
            f"UNION ALL SELECT task_id, NULL, state FROM schedd_outcomes WHERE task_id IN {ids}",
            ids=bind_rows(list(order)),
        )
        if row[2] in _STATE_CODES
    }
    if task_id not in found:
        raise unknown(tx, task_id)
    nodes = [found[i] for i in order if i in found]
    kept = [e for e in edges.values() if e.parent in found and e.child in found]
    return StoredGraph(nodes, kept, truncated)


class GraphSummary(NamedTuple):
    """A graph among the newest. ``id``: its first task, of kind ``kind``; ``size``: how many of its tasks were seen.

    ``more``: it reaches beyond the edges that were looked at. ``states``: of those tasks.
    """

    id: int
    kind: str | None
    size: int
    more: bool
    states: dict[TaskState, int]


_NEWEST = "SELECT parent, child FROM schedd_edges ORDER BY child DESC, parent DESC LIMIT :limit"


def newest_graphs(tx: Tx, limit: int = 50, look_at: int = 2_000) -> list[GraphSummary]:
    """The graphs of the newest ``look_at`` edges, the newest first, at most ``limit``."""
    edges = tx.run(_NEWEST, limit=look_at).fetchall()
    root: dict[int, int] = {}

    def find(task_id: int) -> int:
        while root.setdefault(task_id, task_id) != task_id:
            root[task_id] = root[root[task_id]]
            task_id = root[task_id]
        return task_id

    for parent, child in edges:
        a, b = find(parent), find(child)
        root[max(a, b)] = min(a, b)
    tasks: dict[int, list[int]] = {}
    for task_id in list(root):
        tasks.setdefault(find(task_id), []).append(task_id)
    oldest = edges[-1].child if len(edges) == look_at else 0
    found = {
        row.id: row
        for row in tx.run(
            f"SELECT id, kind, state FROM schedd_tasks WHERE {tx.dialect.among('id')}",
            ids=tx.dialect.bind_ids(sorted(root)),
        )
    }
    graphs = []
    for first in sorted(tasks, key=lambda one: -max(tasks[one]))[:limit]:
        states: dict[TaskState, int] = {}
        for task_id in tasks[first]:
            if task_id in found and found[task_id].state in range(len(TaskState)):
                state = TaskState.from_code(found[task_id].state)
                states[state] = states.get(state, 0) + 1
        kind = found[first].kind if first in found else None
        more = min(tasks[first]) <= oldest
        graphs.append(GraphSummary(first, kind, len(tasks[first]), more, states))
    return graphs
