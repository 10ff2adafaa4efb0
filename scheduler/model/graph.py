"""Order and cycles of a batch, and a graph as the lines of a tree: parents above children, what has several parents in
full below the first. Pure; networkx is imported only when a batch is not in creation order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scheduler.errors import CycleError


def batch_order(parents: Sequence[Sequence[int]], label: Callable[[int], object]) -> Sequence[int]:
    """An order of the positions in which every task comes after its parents in the same batch.

    ``parents[i]`` are positions. Creation order already is one when every parent was created first, which needs no
    graph library. Raises CycleError naming the tasks along the cycle by their ``label``.
    """
    if all(parent < child for child, group in enumerate(parents) for parent in group):
        return range(len(parents))
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(parents)))
    graph.add_edges_from((parent, child) for child, group in enumerate(parents) for parent in group)
    try:
        return list(nx.lexicographical_topological_sort(graph))
    except nx.NetworkXUnfeasible:
        steps = nx.find_cycle(graph)
        path = [label(a) for a, _ in steps]
        raise CycleError([*path, path[0]]) from None


class TreeLine(NamedTuple):
    """One line. ``lead``: what stands in front of the task; ``parent``: whose child it is here, None at the top.

    ``again``: its children are drawn further up.
    """

    id: int
    lead: str
    parent: int | None
    again: bool


def tree(nodes: Iterable[int], edges: Iterable[tuple[int, int]]) -> list[TreeLine]:
    """The lines of the tree. ``edges``: (parent, child)."""
    below: dict[int, list[int]] = {}
    for parent, child in sorted(edges, key=lambda edge: edge[1]):
        below.setdefault(parent, []).append(child)
    children = {child for some in below.values() for child in some}
    lines: list[TreeLine] = []
    drawn: set[int] = set()
    # A stack instead of recursion, since a chain may be longer than Python's recursion limit.
    todo: list[tuple[int, str, str, int | None]] = [
        (node, "", "", None) for node in sorted(nodes, reverse=True) if node not in children
    ]
    while todo:
        task_id, own, indent, above = todo.pop()
        again = task_id in drawn and task_id in below
        lines.append(TreeLine(task_id, own, above, again))
        if again:
            continue
        drawn.add(task_id)
        found = below.get(task_id, [])
        for position, child in reversed(list(enumerate(found))):
            last = position == len(found) - 1
            todo.append((child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "), task_id))
    return lines
