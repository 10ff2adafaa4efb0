"""The layered graph of the DAG works: layers of 100 tasks, each below three of the layer above, the same every time."""

from __future__ import annotations

import random
from collections.abc import Iterator

WIDTH = 100


def parents_of(size: int, parents: int = 3) -> Iterator[list[int]]:
    """The parents' positions of each task in turn; none in the first layer."""
    rng = random.Random(1)
    for n in range(size):
        above = (n // WIDTH - 1) * WIDTH
        yield rng.sample(range(above, above + WIDTH), parents) if parents and n >= WIDTH else []
