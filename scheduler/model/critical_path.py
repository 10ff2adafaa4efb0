"""The rest of a running graph: the longest path through what has not ended, when it may be over, what blocks most.

Pure. Instants and spans are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler.model.graph_layout import topological
from scheduler.model.state import HELD, TaskState

MAX_BLOCKERS = 20
_OVERDUE_SHARE = 0.1  # of its usual time that a task is expected to take that has run for longer than that


class Expected(NamedTuple):
    """How long a kind runs: half of its attempts took no longer than ``p50``, nine of ten no longer than ``p90``."""

    p50: int
    p90: int


class LeftTask(NamedTuple):
    """A task that has not ended. ``expected``: None if nothing is known of its kind.

    ``begun``: when its attempt started, if one is under way; ``due``: not before then, None: it waits for an event or
    for other tasks. ``group``: the slots that it runs in, such as (pool, slot type). ``stuck``: a parent ended in such
    a way that it waits for ever.
    """

    id: int
    state: TaskState
    expected: Expected | None
    begun: int | None = None
    due: int | None = 0
    group: object = None
    stuck: bool = False


class Blocker(NamedTuple):
    """A task that could end next, and how many unfinished tasks come after it."""

    id: int
    below: int


class Estimate(NamedTuple):
    """What is left. ``low``, ``high``: from now on, None if it is unknown; ``high`` None alone: it may take any
    time, as it waits for an event.

    ``path``: the longest path by what is usual, from the top; ``remaining``: how many tasks have not ended;
    ``stuck``: those of them that wait for ever; ``unknown``: how many are of kinds that have not run. ``path_low`` and
    ``work_low``: the parts of ``low``, the longest path and the work divided by the slots. ``blockers``: those with the
    most below first.
    """

    low: int | None
    high: int | None
    path: list[int]
    path_low: int
    work_low: int
    remaining: int
    stuck: list[int]
    unknown: int
    blockers: list[Blocker]


def estimate(
    tasks: Iterable[LeftTask], edges: Iterable[tuple[int, int]], now: int, slots: Mapping[object, int]
) -> Estimate:
    """Estimate when a graph will have ended. ``tasks``: those that have not; ``edges``: (parent, child).

    ``slots``: how many tasks of each group may run at once; a group that is not there does not bound the work.
    """
    left = list(tasks)
    index = {task.id: i for i, task in enumerate(left)}
    above: list[list[int]] = [[] for _ in left]
    below: list[list[int]] = [[] for _ in left]
    for parent, child in dict.fromkeys(edges):
        a, b = index.get(parent), index.get(child)
        if a is not None and b is not None:
            above[b].append(a)
            below[a].append(b)
    order = topological(above, below)
    never = [task.stuck for task in left]
    for i in order:
        never[i] = never[i] or any(never[p] for p in above[i])
    alive = [i for i in order if not never[i]]
    stuck = sorted(left[i].id for i in range(len(left)) if never[i])
    low, high = ([_left(task, now, most=most) for task in left] for most in (False, True))
    ends, via = _ends(alive, above, low)
    late, _ = _ends(alive, above, high)
    path_low = max((ends[i] for i in alive), default=0)
    work_low = _work(left, alive, low, slots)
    endless = any(left[i].due is None and left[i].begun is None and not above[i] for i in alive)
    unknown = sum(left[i].expected is None for i in alive)
    known = bool(alive) and unknown < len(alive)
    whole_low = max(path_low, work_low)
    whole_high = max(max((late[i] for i in alive), default=0), _work(left, alive, high, slots))
    return Estimate(
        whole_low if known else None,
        None if endless or not known or unknown else max(whole_low, whole_high),
        [left[i].id for i in _path(alive, ends, via)],
        path_low,
        work_low,
        len(left),
        stuck,
        unknown,
        _blockers(left, alive, above, below),
    )


def _left(task: LeftTask, now: int, *, most: bool) -> int:
    """How long it still takes by itself, its pause included."""
    usual = 0 if task.expected is None else task.expected.p90 if most else task.expected.p50
    if task.state in HELD and task.begun is not None:
        return max(usual - max(0, now - task.begun), round(usual * _OVERDUE_SHARE))
    return usual + max(0, (task.due or 0) - now)


def _ends(alive: list[int], above: list[list[int]], spans: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    """When each ends at the earliest, from now on, and the parent that it waits for longest."""
    ends: dict[int, int] = {}
    via: dict[int, int] = {}
    for i in alive:
        start = 0
        for parent in above[i]:
            if parent in ends and (ends[parent] > start or i not in via):
                start, via[i] = ends[parent], parent
        ends[i] = start + spans[i]
    return ends, via


def _path(alive: list[int], ends: dict[int, int], via: dict[int, int]) -> list[int]:
    if not alive:
        return []
    last = max(alive, key=lambda i: (ends[i], -i))
    path = [last]
    while path[-1] in via:
        path.append(via[path[-1]])
    return path[::-1]


def _work(left: list[LeftTask], alive: list[int], spans: list[int], slots: Mapping[object, int]) -> int:
    total: dict[object, int] = {}
    for i in alive:
        total[left[i].group] = total.get(left[i].group, 0) + spans[i]
    return max((work // slots[group] for group, work in total.items() if slots.get(group, 0) > 0), default=0)


def _blockers(left: list[LeftTask], alive: list[int], above: list[list[int]], below: list[list[int]]) -> list[Blocker]:
    """What waits for no other task, by how many come after it. A set of tasks is an integer with a bit for each."""
    after: dict[int, int] = {}
    for i in reversed(alive):
        bits = 0
        for child in below[i]:
            bits |= after.get(child, 0) | 1 << child
        after[i] = bits
    found = [Blocker(left[i].id, after[i].bit_count()) for i in alive if not above[i]]
    return sorted(found, key=lambda one: (-one.below, one.id))[:MAX_BLOCKERS]
