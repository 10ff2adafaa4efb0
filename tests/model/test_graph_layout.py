"""Layout and folding of graphs: what a drawing of any graph has to keep."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from scheduler.model.graph_folding import (
    choose_view,
    fold_layers,
    fold_look_alikes,
    fold_none,
    fold_roles,
    neighbourhood,
    role_classes,
)
from scheduler.model.graph_layout import isotonic, layout

KINDS = ("load", "clean", "mail")


@some.composite
def graphs(draw: Any, most: int = 24) -> tuple[dict[int, str | None], list[tuple[int, int]]]:
    """An acyclic graph with ids in no order of their own."""
    count = draw(some.integers(1, most))
    ids = draw(some.permutations(range(100, 100 + count)))
    pairs = some.tuples(some.integers(0, count - 1), some.integers(0, count - 1))
    edges = {(ids[min(pair)], ids[max(pair)]) for pair in draw(some.lists(pairs, max_size=60)) if pair[0] != pair[1]}
    kinds = {node: draw(some.sampled_from(KINDS)) for node in ids}
    return kinds, sorted(edges)


@given(graphs())
def test_nodes_do_not_overlap_and_edges_go_downward(graph: Any) -> None:
    kinds, edges = graph
    found = layout(list(kinds), edges)
    assert set(found.x) == set(found.layer) == set(kinds)
    assert sorted(node for row in found.layers for node in row) == sorted(kinds)
    assert all(found.layers)
    for number, row in enumerate(found.layers):
        assert all(found.layer[node] == number for node in row)
        places = [found.x[node] for node in row]
        assert all(b - a >= 1 - 1e-6 for a, b in itertools.pairwise(places))
        assert min(places) >= 0.5 - 1e-6
        assert max(places) <= found.width - 0.5 + 1e-6
    assert all(found.layer[parent] < found.layer[child] for parent, child in edges)
    assert layout(list(kinds), edges) == found


@given(some.lists(some.tuples(some.integers(0, 9), some.integers(0, 9)), max_size=40))
def test_a_cycle_that_another_program_stored_is_laid_out_too(edges: list[tuple[int, int]]) -> None:
    found = layout(range(10), edges)
    assert set(found.x) == set(range(10))
    assert sum(map(len, found.layers)) == 10
    assert {task for box in fold_roles(dict.fromkeys(range(10)), edges).boxes for task in box.tasks} == set(range(10))


def test_a_source_stands_above_its_children_and_parents_above_their_middle() -> None:
    found = layout([1, 2, 3, 4, 5, 6], [(1, 2), (2, 3), (3, 4), (6, 4), (2, 5)])
    assert found.layer[6] == 2, "a source is not left at the top"
    fan = layout([1, *range(2, 7), 7], [*((1, n) for n in range(2, 7)), *((n, 7) for n in range(2, 7))])
    assert fan.width == 5
    assert fan.x[1] == fan.x[7] == fan.x[4]


def test_barycentres_remove_crossings() -> None:
    edges = [(0, 15), (1, 14), (2, 13), (3, 12), (4, 11), (5, 10)]
    found = layout([*range(6), *range(10, 16)], edges)
    lines = sorted((found.x[a], found.x[b]) for a, b in edges)
    assert all(one[1] < two[1] for one, two in itertools.pairwise(lines))


@given(some.lists(some.tuples(some.floats(-1e3, 1e3), some.floats(0.1, 10)), max_size=30))
def test_isotonic_regression(points: list[tuple[float, float]]) -> None:
    values, weights = [v for v, _ in points], [w for _, w in points]
    found = isotonic(values, weights)
    assert len(found) == len(values)
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(found))
    if values == sorted(values):
        assert found == values
    elif values:
        total = sum(weights)
        means = [sum(x * w for x, w in zip(some_, weights, strict=True)) / total for some_ in (values, found)]
        assert abs(means[0] - means[1]) < 1e-6


FOLDS = (fold_none, fold_roles, fold_look_alikes, fold_layers)


@given(graphs(), some.sampled_from(FOLDS))
def test_folding_partitions_the_tasks(graph: Any, fold: Any) -> None:
    kinds, edges = graph
    found = fold(kinds, edges)
    assert sorted(task for box in found.boxes for task in box.tasks) == sorted(kinds)
    assert all({kinds[task] for task in box.tasks} == {box.kind} for box in found.boxes)
    assert all(found.box_of[task] == box.id == min(box.tasks) for box in found.boxes for task in box.tasks)
    between = {(found.box_of[a], found.box_of[b]) for a, b in edges if found.box_of[a] != found.box_of[b]}
    assert {(a, b) for a, b, _ in found.edges} == between
    drawn = layout([box.id for box in found.boxes], [(a, b) for a, b, _ in found.edges])
    assert all(drawn.layer[a] < drawn.layer[b] for a, b, _ in found.edges), "a folded graph has no cycle"


@given(graphs())
def test_a_role_has_the_same_roles_above_and_below(graph: Any) -> None:
    kinds, edges = graph
    role = role_classes(kinds, edges)
    above: dict[int, set[int]] = {node: set() for node in kinds}
    below: dict[int, set[int]] = {node: set() for node in kinds}
    for parent, child in edges:
        above[child].add(role[parent])
        below[parent].add(role[child])
    seen: dict[int, Any] = {}
    for node in kinds:
        assert seen.setdefault(role[node], (kinds[node], above[node], below[node])) == (
            kinds[node],
            above[node],
            below[node],
        )


@given(graphs(most=12), some.randoms(use_true_random=False))
def test_the_same_structure_folds_in_the_same_way(graph: Any, random: Any) -> None:
    """Two copies with other ids: each task has the role of its copy, and each copy alone folds into as many boxes."""
    kinds, edges = graph
    others = list(range(500, 500 + len(kinds)))
    random.shuffle(others)
    copy = dict(zip(kinds, others, strict=True))
    copied = {copy[node]: kind for node, kind in kinds.items()}
    copied_edges = [(copy[a], copy[b]) for a, b in edges]
    role = role_classes({**kinds, **copied}, [*edges, *copied_edges])
    assert all(role[node] == role[copy[node]] for node in kinds)
    one, other = fold_roles(kinds, edges), fold_roles(copied, copied_edges)
    assert sorted(len(box.tasks) for box in one.boxes) == sorted(len(box.tasks) for box in other.boxes)
    assert len(one.boxes) == len({role[node] for node in kinds}), "twice the graph has no more roles than once"


def chains(count: int) -> tuple[dict[int, str | None], list[tuple[int, int]]]:
    """``count`` chains of extract, clean, load below one start, with one report of all."""
    kinds: dict[int, str | None] = {0: "start", 1: "report"}
    edges: list[tuple[int, int]] = []
    for number in range(count):
        first = 2 + number * 3
        kinds |= {first: "extract", first + 1: "clean", first + 2: "load"}
        edges += [(0, first), (first, first + 1), (first + 1, first + 2), (first + 2, 1)]
    return kinds, edges


def test_ten_thousand_tasks_of_five_roles_are_five_boxes() -> None:
    kinds, edges = chains(3_333)
    view, fold = choose_view(kinds, edges)
    assert view == "roles"
    assert sorted((box.kind, len(box.tasks)) for box in fold.boxes) == [
        ("clean", 3333),
        ("extract", 3333),
        ("load", 3333),
        ("report", 1),
        ("start", 1),
    ]
    assert {count for *_, count in fold.edges} == {3333}


def test_a_zigzag_of_thousands_takes_no_longer_than_its_bound() -> None:
    """Each round of refinement tells one step more of a zigzag: 5,000 rounds would take seconds."""
    edges = [(n, n + 1) if n % 2 == 0 else (n + 1, n) for n in range(10_000)]
    fold = fold_roles({**dict.fromkeys(range(10_001), "even"), 0: "end"}, edges)
    assert sum(len(box.tasks) for box in fold.boxes) == 10_001


def test_small_graphs_are_whole_and_random_ones_fold_by_layers() -> None:
    kinds, edges = chains(10)
    assert choose_view(kinds, edges)[0] == "whole"
    assert len(choose_view(kinds, edges)[1].boxes) == 32
    wide = {n: f"kind{n % 7}" for n in range(400)}
    ladder = [(n, m) for n in range(300) for m in (n + 7 + n % 5, n + 9 + n % 11) if m < 400]
    view, fold = choose_view(wide, ladder)
    assert view == "layers"
    assert len(fold.boxes) < 400


def test_look_alikes_need_the_same_neighbours_themselves() -> None:
    kinds, edges = chains(5)
    assert len(fold_look_alikes(kinds, edges).boxes) == len(kinds)
    fan: dict[int, str | None] = {0: "start", **dict.fromkeys(range(1, 9), "page"), 9: "join", 10: "alone", 11: "alone"}
    found = fold_look_alikes(fan, [*((0, n) for n in range(1, 9)), *((n, 9) for n in range(1, 9))])
    assert [(box.kind, len(box.tasks)) for box in found.boxes] == [
        ("start", 1),
        ("page", 8),
        ("join", 1),
        ("alone", 1),
        ("alone", 1),
    ]


def test_the_neighbourhood_is_near_and_has_what_matters_first() -> None:
    kinds, edges = chains(100)
    assert neighbourhood(3, edges, steps=1) == [3, 2, 4]
    around = neighbourhood(1, edges, steps=2, limit=20, rank=lambda node: node < 290)
    assert len(around) == 20
    assert around[0] == 1
    assert all(node >= 290 for node in around[1:5]), "those of the least rank come first"
    assert set(neighbourhood(1, edges, steps=20, limit=10_000)) == set(kinds)
