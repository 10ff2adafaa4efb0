"""Layered layout of a graph of tasks, as a drawing needs it: a layer for each node and its place in the layer. Pure.

Longest-path layers with sources pulled down to their children; six barycentre sweeps against crossings; six passes of
isotonic regression for the places. Each step is linear in nodes and edges, but for the sorting of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

SWEEPS = 6  # over all layers, alternately from above and from below
PASSES = 6
_PULL = 0.01  # weight of a node's present place where nothing pulls at it


class Layout(NamedTuple):
    """``layer``: node -> layer, 0 at the top; ``x``: node -> its centre, in widths of a node, from 0.5 on.

    ``layers``: the nodes of each layer from left to right. ``width``: of the whole, in widths of a node. Within a layer
    two centres are at least 1 apart. Each edge goes to a greater layer, unless it is part of a cycle.
    """

    layer: dict[int, int]
    x: dict[int, float]
    layers: list[list[int]]
    width: float


def layout(nodes: Sequence[int], edges: Iterable[tuple[int, int]]) -> Layout:
    """Lay out a graph. ``edges``: (parent, child); those to nodes that are not given are left out.

    The same nodes and edges give the same layout.
    """
    ids = list(dict.fromkeys(nodes))
    index = {node: i for i, node in enumerate(ids)}
    above: list[list[int]] = [[] for _ in ids]
    below: list[list[int]] = [[] for _ in ids]
    for parent, child in dict.fromkeys(edges):
        a, b = index.get(parent), index.get(child)
        if a is not None and b is not None and a != b:
            below[a].append(b)
            above[b].append(a)
    order = topological(above, below)
    depth = _depths(order, above, below)
    rows: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for i in order:
        rows[depth[i]].append(i)
    _untangle(rows, above, below)
    place = _places(rows, above, below)
    least = min(place, default=0.0) - 0.5
    return Layout(
        {ids[i]: depth[i] for i in range(len(ids))},
        {ids[i]: place[i] - least for i in range(len(ids))},
        [[ids[i] for i in row] for row in rows],
        max(place, default=-0.5) - least + 0.5,
    )


def topological(above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> list[int]:
    """Positions 0 to n-1 with each after those above it. A cycle is cut at its first position."""
    missing = [len(parents) for parents in above]
    order = [i for i, count in enumerate(missing) if not count]
    head, cut = 0, 0
    while len(order) < len(above):
        while head < len(order):
            for child in below[order[head]]:
                missing[child] -= 1
                if not missing[child]:
                    order.append(child)
            head += 1
        while cut < len(above) and missing[cut] <= 0:
            cut += 1
        if cut < len(above):
            missing[cut] = 0
            order.append(cut)
    return order


def _depths(order: list[int], above: list[list[int]], below: list[list[int]]) -> list[int]:
    depth = [-1] * len(order)
    for i in order:
        known = [depth[p] for p in above[i]]  # -1: behind a cut
        depth[i] = max(known) + 1 if known else 0
    for i in order:
        if not above[i] and below[i]:
            depth[i] = max(depth[i], min(depth[c] for c in below[i]) - 1)
    return depth


def _untangle(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Order each layer by the mean places of the neighbours on one side, alternately of both."""
    place = [0.0] * len(above)
    for row in rows:
        for position, i in enumerate(row):
            place[i] = position / len(row)
    for sweep in range(SWEEPS):
        side, some = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in some:
            if len(row) == 1:
                continue
            wanted = {}
            for i in row:
                near = side[i]
                wanted[i] = sum([place[n] for n in near]) / len(near) if near else place[i]
            row.sort(key=wanted.__getitem__)
            share = 1 / len(row)
            for position, i in enumerate(row):
                place[i] = position * share


def _places(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[float]:
    place = [0.0] * len(above)
    for row in rows:
        shift = len(row) / 2
        for position, i in enumerate(row):
            place[i] = position - shift
    for number in range(PASSES):
        side, some = (above, rows) if number % 2 == 0 else (below, rows[::-1])
        for row in some:
            targets, weights = [], []
            for position, i in enumerate(row):
                near = side[i]
                if near:
                    targets.append(sum([place[n] for n in near]) / len(near) - position)
                    weights.append(float(len(near)))
                else:
                    targets.append(place[i] - position)
                    weights.append(_PULL)
            for position, (i, at) in enumerate(zip(row, isotonic(targets, weights), strict=True)):
                place[i] = at + position
    return place


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to the values, by weighted squares (pool adjacent violators)."""
    means: list[float] = []
    sums: list[float] = []
    counts: list[int] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while means and means[-1] > mean:
            before = sums.pop()
            mean = (means.pop() * before + mean * total) / (before + total)
            total += before
            count += counts.pop()
        means.append(mean)
        sums.append(total)
        counts.append(count)
    found: list[float] = []
    for mean, count in zip(means, counts, strict=True):
        found.extend([mean] * count)
    return found
