"""What this worker publishes of its slots, and of the bodies that fill some of them without a claim."""

from __future__ import annotations

from scheduler.engine.state import EngineState
from scheduler.model.capacity import Capacity, OrphanedAttempts
from scheduler.model.registry import SlotKey

MAX_NAMED = 50  # tasks of such bodies, of each sort of slot


def capacity_of(engine_state: EngineState) -> Capacity:
    """All of it, as it is at this moment."""
    options = engine_state.options
    return Capacity(
        **options.pools,
        processes=options.processes.children,
        most=options.max_concurrent,
        childless=engine_state.processes is not None and engine_state.processes.backing_off,
        strays=_orphans(engine_state),
        hung=engine_state.hung,
        begun="" if engine_state.begun is None else str(engine_state.begun.path),
        lease_needed=engine_state.lease_needed,
    )


def _orphans(engine_state: EngineState) -> tuple[OrphanedAttempts, ...]:
    tasks: dict[SlotKey, list[int]] = {}
    for attempt in engine_state.orphans:
        tasks.setdefault(attempt.slot_type, []).append(attempt.claimed.id)
    return tuple(
        OrphanedAttempts(*sort, len(ids), tuple(sorted(ids)[:MAX_NAMED])) for sort, ids in sorted(tasks.items())
    )
