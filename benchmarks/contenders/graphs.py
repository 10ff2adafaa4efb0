"""The layered graph of the DAG works: layers of 100 tasks, each below three of the layer above, the same every time."""

from __future__ import annotations

import random

WIDTH = 100


def parents_of(size: int, parents: int = 3) -> list[tuple[int, ...]]:
    """The parents' positions of each task; none in the first layer.

    To draw them is no part of what is measured; nor, as tuples, are they for the garbage collector to look at.
    """
    rng = random.Random(1)
    above = ((n // WIDTH - 1) * WIDTH for n in range(size))
    return [tuple(rng.sample(range(a, a + WIDTH), parents)) if parents and a >= 0 else () for a in above]
