"""``/graphs``: the newest graphs; ``/graphs/ID``: one of them; ``/compare/ID``: a run beside an earlier one."""

from __future__ import annotations

from typing import Any

from scheduler.client.analysis import comparison_view, estimate_view
from scheduler.console.drawing import draw, states_of
from scheduler.console.masks import PageTaskMasks
from scheduler.console.pages.task import plain_log
from scheduler.console.render import RenderedPage
from scheduler.console.routes import Nav, page
from scheduler.console.visit import BadInputError, Visit, asked_instant
from scheduler.model.graph import tree
from scheduler.model.graph_folding import (
    MAX_DRAWN,
    Fold,
    choose_view,
    fold_layers,
    fold_look_alikes,
    fold_none,
    fold_roles,
    neighbourhood,
)
from scheduler.model.state import TaskState
from scheduler.model.texts import rfc3339
from scheduler.operations.analysis import StoredGraph, beside, graph, graph_at, graph_estimate, newest_graphs
from scheduler.operations.details import get_task

MAX_GRAPH = 10_000
ROWS = 200  # of the table, and lines of the tree, on one page
MAX_STEPS = 10
LIVE_UP_TO = 1_000  # tasks of a graph that is read again while its page is open
_FOLDS = {"whole": fold_none, "roles": fold_roles, "alike": fold_look_alikes, "layers": fold_layers}
VIEWS = ("auto", "whole", "roles", "alike", "layers", "around")
_ENDED_WELL = (TaskState.SUCCESS,)


LINES = 400  # of the difference between two logs
ROLES = 200


@page("/graphs", nav=Nav("Graphs", "p", 30))
def graphs(visit: Visit) -> RenderedPage:
    """The newest graphs."""
    with visit.read() as tx:
        found = newest_graphs(tx)
    data = [
        {
            "id": one.id,
            "kind": one.kind,
            "tasks": one.size,
            "more": one.more,
            "states": {state.value: count for state, count in one.states.items()},
        }
        for one in found
    ]
    return RenderedPage("graphs.html", data, {"found": found}, "schedctl graph ID")


@page("/graphs/{id:int}")
def one_graph(visit: Visit) -> RenderedPage:
    """The graph of a task."""
    task_id = visit.params["id"]
    view = visit.asked("view", "auto")
    if view not in VIEWS:
        raise BadInputError(f"view is one of {', '.join(VIEWS)}, not {view!r:.40}")
    steps = visit.number("steps", 2, least=1, most=MAX_STEPS) or 2
    offset = visit.number("from", 0, most=MAX_GRAPH) or 0
    box = visit.number("box")
    with visit.read() as tx:
        found = graph(tx, task_id, MAX_GRAPH)
        now = tx.now
        at = asked_instant(visit, now)
    with visit.read() as tx:  # another transaction: on SQLite its time is bounded as a whole
        past = None if at is None else graph_at(tx, found, at)
        left = graph_estimate(tx, found) if past is None else None
    states: dict[int, TaskState | None] = {node.id: node.state for node in found.nodes}
    if past is not None:
        states = past.states
        found = StoredGraph([node for node in found.nodes if node.id in states], found.edges, found.truncated)
    kinds = {node.id: node.kind for node in found.nodes}
    edges = [(edge.parent, edge.child) for edge in found.edges if edge.parent in kinds and edge.child in kinds]
    view, fold = _folded(view, task_id, kinds, edges, states, steps)
    drawn = None
    if kinds and len(fold.boxes) <= MAX_DRAWN:
        drawn = draw(fold, states, () if left is None else left.path)
    members = next((one.tasks for one in fold.boxes if one.id == box), None)
    rows = _rows(found, edges, states, members)
    lines = tree(kinds, edges) if len(kinds) <= ROWS else _box_tree(fold)
    watched = at is None and len(kinds) <= LIVE_UP_TO
    context: dict[str, Any] = {
        "task_id": task_id,
        "view": view,
        "views": VIEWS,
        "steps": steps,
        "found": found,
        "fold": fold,
        "drawing": drawn,
        "left": left,
        "at": at,
        "at_text": visit.asked("at"),
        "states": states,
        "kinds": kinds,
        "absent": 0 if past is None else len(past.absent),
        "counts": states_of(list(kinds), states),
        "rows": rows[offset : offset + ROWS],
        "offset": offset,
        "more": offset + ROWS if offset + ROWS < len(rows) else None,
        "row_count": len(rows),
        "box": next((one for one in fold.boxes if one.id == box), None),
        "lines": lines[:ROWS],
        "tree_left": max(0, len(lines) - ROWS),
        "tree_folded": len(kinds) > ROWS,
        "sizes": {one.id: len(one.tasks) for one in fold.boxes},
        "max_drawn": MAX_DRAWN,
        "max_graph": MAX_GRAPH,
        "live_up_to": LIVE_UP_TO,
        "watched": watched,
    }
    command = f"schedctl graph {task_id}" + (f" --limit {MAX_GRAPH}" if len(kinds) > MAX_DRAWN else "")
    data = {
        "task": task_id,
        "at": None if at is None else rfc3339(at),
        "view": view,
        "nodes": [
            {"id": i, "kind": kind, "state": "unknown" if states[i] is None else states[i].value}  # type: ignore[union-attr]
            for i, kind in kinds.items()
        ],
        "edges": [
            {"parent": e.parent, "child": e.child, "when": e.when.value, "otherwise": e.otherwise.value}
            for e in found.edges
            if e.parent in kinds and e.child in kinds
        ],
        "boxes": [{"id": one.id, "kind": one.kind, "tasks": len(one.tasks)} for one in fold.boxes],
        "truncated": found.truncated,
        "estimate": None if left is None else estimate_view(left),
    }
    return RenderedPage("graph.html", data, context, command, live=watched)


def _folded(
    view: str,
    task_id: int,
    kinds: dict[int, str | None],
    edges: list[tuple[int, int]],
    states: dict[int, TaskState | None],
    steps: int,
) -> tuple[str, Fold]:
    """The graph as it is to be drawn, and the name of that view."""
    if view == "auto":
        return choose_view(kinds, edges)
    if view == "around":

        def rank(one: int) -> int:
            state = states.get(one)
            return int(state is not None and state in _ENDED_WELL)

        near = neighbourhood(task_id, edges, steps=steps, limit=MAX_DRAWN, rank=rank)
        some = {one: kinds[one] for one in near if one in kinds}
        return view, fold_none(some, edges)
    return view, _FOLDS[view](kinds, edges)


def _rows(
    found: StoredGraph,
    edges: list[tuple[int, int]],
    states: dict[int, TaskState | None],
    members: tuple[int, ...] | None,
) -> list[dict[str, Any]]:
    """The tasks for the table: what failed and what is under way first."""
    above: dict[int, list[int]] = {}
    below: dict[int, int] = {}
    for parent, child in edges:
        above.setdefault(child, []).append(parent)
        below[parent] = below.get(parent, 0) + 1
    wanted = None if members is None else set(members)
    rows = [
        {
            "id": node.id,
            "kind": node.kind,
            "state": states.get(node.id),
            "above": sorted(above.get(node.id, ())),
            "below": below.get(node.id, 0),
        }
        for node in found.nodes
        if wanted is None or node.id in wanted
    ]
    return sorted(rows, key=lambda row: (_place(row["state"]), row["id"]))


def _place(state: TaskState | None) -> int:
    order = (TaskState.DEAD, TaskState.FAILED, TaskState.RUNNING, TaskState.CLAIMED, TaskState.RETRY)
    if state is None:
        return len(order)
    return order.index(state) if state in order else len(order) + 1 + int(state.terminal)


def _box_tree(fold: Fold) -> list[Any]:
    return tree([box.id for box in fold.boxes], [(a, b) for a, b, _ in fold.edges])


@page("/compare/{id:int}")
def comparison(visit: Visit) -> RenderedPage:
    """What is different in this run."""
    task_id = visit.params["id"]
    other = visit.number("with", least=1)
    with visit.read() as tx:
        task = get_task(tx, task_id)
        both = beside(tx, task_id, other, masks=PageTaskMasks, shown=plain_log)
    command = f"schedctl compare {task_id}" + (f" {other}" if other else "")
    if both is None:
        context: dict[str, Any] = {"task": task, "found": None, "other": other}
        return RenderedPage("compare.html", {"task": task_id, "other": None}, context, command, live=False)
    found, different, lines = both
    data = comparison_view(found) | {"payload": [one._asdict() for one in different], "log": lines.lines}
    context = {
        "task": task,
        "found": found,
        "other": other,
        "changes": different,
        "lines": lines.lines[:LINES],
        "more_lines": max(0, len(lines.lines) - LINES),
        "roles": found.roles[:ROLES],
        "cut": lines.truncated,
        "more_roles": max(0, len(found.roles) - ROLES),
    }
    return RenderedPage("compare.html", data, context, command, live=False)
