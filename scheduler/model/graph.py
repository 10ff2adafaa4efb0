"""Order and cycles of a batch. Pure; networkx is imported only when a batch is not in creation order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
