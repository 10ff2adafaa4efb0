"""Shares free slots out over due lanes. Pure.

Each pool serves its own level first and, when none of it is ready, the levels above, highest first; high serves only
high. So no flood of one level takes another's slots, and idle slots help upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler.store.tasks.claim import LaneClaim, LaneHead

LEVELS = (0, 1, 2)


class PoolShare(NamedTuple):
    """Up to ``most`` of the tasks claimed from a lane are for this pool."""

    pool: int
    most: int


class Plan(NamedTuple):
    picks: list[LaneClaim]
    shares: dict[tuple[str, str, int], list[PoolShare]]  # by (queue, lane, level), in the order of hand-out


def allocate(
    heads: Sequence[LaneHead],
    room: Callable[[int, LaneHead], int],
    budget: int,
    rotation: int,
    most: int,
    pools: Sequence[int] = LEVELS,
) -> Plan:
    """Share free room out over the due lanes, evenly within a level.

    ``room(pool, head)``: how many more of this lane's tasks the pool can take, running and ahead; ``budget``: over all
    pools; ``rotation``: a number that grows by one each turn, so that no lane is always first; ``most``: for one pool;
    ``pools``: in the order in which they take of the budget.
    """
    shares: dict[tuple[str, str, int], list[PoolShare]] = {}
    counts: dict[LaneHead, int] = {}
    for pool in pools:
        for level in [pool, *range(pool)]:
            lanes = [h for h in heads if h.pool == level]
            taken = _share_out(lanes, pool, room, min(budget, most), rotation)
            for head, count in taken.items():
                key = (head.queue, head.lane, head.pool)
                shares.setdefault(key, []).append(PoolShare(pool, count))
                counts[head] = counts.get(head, 0) + count
                budget -= count
            if taken:
                break  # this pool has work of this level: the levels above have pools of their own
    picks = [LaneClaim(h.queue, h.lane, h.pool, n) for h, n in counts.items()]
    return Plan(picks, shares)


def _share_out(
    lanes: list[LaneHead], pool: int, room: Callable[[int, LaneHead], int], budget: int, rotation: int
) -> dict[LaneHead, int]:
    taken: dict[LaneHead, int] = {}
    if not lanes or budget <= 0:
        return taken
    start = rotation % len(lanes)
    used = 0
    for index, head in enumerate(lanes[start:] + lanes[:start]):
        free = min(room(pool, head) - used, budget - used)
        if free <= 0:
            continue
        fair = -(-free // (len(lanes) - index))
        taken[head] = fair
        used += fair
    return taken
