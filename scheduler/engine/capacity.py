"""What this worker publishes of its slots, and of the bodies that fill some of them without a claim."""

from __future__ import annotations

from scheduler.engine.desk import Desk
from scheduler.model.capacity import Capacity, Stray
from scheduler.model.registry import SlotKey

NAMED = 50  # tasks of such bodies, of each sort of slot


def capacity_of(desk: Desk) -> Capacity:
    """All of it, as it is at this moment."""
    options = desk.options
    return Capacity(
        **options.pools,
        processes=options.processes.children,
        most=options.max_concurrent,
        childless=desk.processes is not None and desk.processes.out_of_order,
        strays=_strays(desk),
    )


def _strays(desk: Desk) -> tuple[Stray, ...]:
    tasks: dict[SlotKey, list[int]] = {}
    for attempt in desk.strays:
        tasks.setdefault(attempt.sort, []).append(attempt.claimed.id)
    return tuple(Stray(*sort, len(ids), tuple(sorted(ids)[:NAMED])) for sort, ids in sorted(tasks.items()))
