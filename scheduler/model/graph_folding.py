"""Folds large graphs of tasks into few boxes: by role, by look, by layer; and finds what is around one task. Pure.

A role is a class of the coarsest bisimulation both ways: two tasks have one role if they have one kind, and the tasks
above and below them have the same roles. How many of them there are does not matter, so a fan of 10,000 is one box.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Literal, NamedTuple

from scheduler.model.graph_layout import topological

MAX_DRAWN = 200  # nodes or boxes that a drawing shows
_MAX_ROUNDS = 64  # of refinement, so that a zigzag of thousands does not take them all
View = Literal["whole", "roles", "layers"]


class Box(NamedTuple):
    """Tasks that are drawn as one; ``id`` is the least of them."""

    id: int
    kind: str | None
    tasks: tuple[int, ...]


class Fold(NamedTuple):
    """``edges``: (parent box, child box, number of edges between their tasks); ``box_of``: task -> its box."""

    boxes: list[Box]
    edges: list[tuple[int, int, int]]
    box_of: dict[int, int]


Edges = Iterable[tuple[int, int]]
Kinds = Mapping[int, str | None]


class _Indexed:
    """The graph by positions."""

    def __init__(self, kinds: Kinds, edges: Edges) -> None:
        self.ids = list(kinds)
        self.kinds = list(kinds.values())
        index = {node: i for i, node in enumerate(self.ids)}
        self.above: list[list[int]] = [[] for _ in self.ids]
        self.below: list[list[int]] = [[] for _ in self.ids]
        self.edges = [(a, b) for a, b in dict.fromkeys(edges) if a in index and b in index and a != b]
        for parent, child in self.edges:
            self.above[index[child]].append(index[parent])
            self.below[index[parent]].append(index[child])

    def fold(self, colours: list[int]) -> Fold:
        groups: dict[tuple[int, str | None], list[int]] = {}
        for node, kind, colour in zip(self.ids, self.kinds, colours, strict=True):
            groups.setdefault((colour, kind), []).append(node)
        boxes = [Box(min(tasks), kind, tuple(sorted(tasks))) for (_, kind), tasks in groups.items()]
        boxes.sort()
        box_of = {task: box.id for box in boxes for task in box.tasks}
        counts: dict[tuple[int, int], int] = {}
        for parent, child in self.edges:
            key = box_of[parent], box_of[child]
            counts[key] = counts.get(key, 0) + 1
        return Fold(boxes, [(a, b, count) for (a, b), count in sorted(counts.items()) if a != b], box_of)


def fold_none(kinds: Kinds, edges: Edges) -> Fold:
    """A box for each task."""
    graph = _Indexed(kinds, edges)
    return graph.fold(list(range(len(graph.ids))))


def fold_roles(kinds: Kinds, edges: Edges) -> Fold:
    """A box for each role. Graphs of the same structure fold in the same way, whatever their ids are."""
    graph = _Indexed(kinds, edges)
    return graph.fold(_roles(graph))


def fold_look_alikes(kinds: Kinds, edges: Edges) -> Fold:
    """A box for tasks of one kind with the same parents and the same children; one without either stays alone."""
    graph = _Indexed(kinds, edges)
    looks: list[Hashable] = [
        (graph.kinds[i], frozenset(graph.above[i]), frozenset(graph.below[i]))
        if graph.above[i] or graph.below[i]
        else i
        for i in range(len(graph.ids))
    ]
    return graph.fold(_numbers(looks))


def fold_layers(kinds: Kinds, edges: Edges) -> Fold:
    """A box for tasks of one kind with as many tasks on the longest path above them."""
    graph = _Indexed(kinds, edges)
    depth = [0] * len(graph.ids)
    for i in topological(graph.above, graph.below):
        for child in graph.below[i]:
            depth[child] = max(depth[child], depth[i] + 1)
    return graph.fold(_numbers([(graph.kinds[i], depth[i]) for i in range(len(depth))]))


def choose_view(kinds: Kinds, edges: Edges, most: int = MAX_DRAWN) -> tuple[View, Fold]:
    """What to draw of a graph: all of it up to ``most`` tasks; else its roles, or its layers where those are fewer."""
    edges = list(edges)
    if len(kinds) <= most:
        return "whole", fold_none(kinds, edges)
    roles = fold_roles(kinds, edges)
    if len(roles.boxes) <= most:
        return "roles", roles
    layers = fold_layers(kinds, edges)
    return ("layers", layers) if len(layers.boxes) < len(roles.boxes) else ("roles", roles)


def neighbourhood(
    task_id: int,
    edges: Edges,
    *,
    steps: int = 2,
    limit: int = MAX_DRAWN,
    rank: Callable[[int], int] = lambda _: 0,
) -> list[int]:
    """The tasks up to ``steps`` edges above or below one, nearest first, at most ``limit``.

    ``rank``: of tasks as near those with the least rank come first, for instance what has not ended.
    """
    near: dict[int, list[int]] = {}
    for parent, child in edges:
        near.setdefault(parent, []).append(child)
        near.setdefault(child, []).append(parent)
    found, level = {task_id: None}, [task_id]
    for _ in range(steps):
        following = dict.fromkeys(n for node in level for n in near.get(node, ()) if n not in found)
        level = sorted(following, key=lambda node: (rank(node), node))[: max(0, limit - len(found))]
        found |= dict.fromkeys(level)
    return list(found)


def role_classes(kinds: Mapping[int, Hashable], edges: Edges) -> dict[int, int]:
    """Task -> number of its role. Also of several graphs at once: the same role in each has the same number."""
    graph = _Indexed(kinds, edges)  # type: ignore[arg-type]
    return dict(zip(graph.ids, _roles(graph), strict=True))


def _roles(graph: _Indexed) -> list[int]:
    """Refine the kinds by what is above and below until nothing changes.

    Each sweep follows the order of the graph, so one sweep down tells each task all that is above it.
    """
    order = topological(graph.above, graph.below)
    colours = _numbers([(kind,) for kind in graph.kinds])
    count = 0
    for _ in range(_MAX_ROUNDS):
        colours = _refined(colours, order, graph.above)
        colours = _refined(colours, order[::-1], graph.below)
        now = max(colours, default=-1) + 1
        if now in (count, len(colours)):
            break
        count = now
    return colours


def _refined(colours: list[int], order: list[int], side: list[list[int]]) -> list[int]:
    """Colours that also say which colours the neighbours on one side have by now."""
    numbers: dict[tuple[int, frozenset[int]], int] = {}
    found = [-1] * len(colours)
    for i in order:
        key = colours[i], frozenset([found[n] for n in side[i]])
        found[i] = numbers.setdefault(key, len(numbers))
    return found


def _numbers(given: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in given]
