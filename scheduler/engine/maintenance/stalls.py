"""Attempts that stall: no heartbeat, progress report or checkpoint for longer than their kind's ``stall_after``.

A stall is logged once; with ``on_stall="reclaim"`` the attempt loses its claim. A thread cannot be ended from outside:
its next context call raises LeaseLost. Until it ends it keeps its slot, and this process does not run the task beside
it (other workers do).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.state import EngineState
from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import TaskState
from scheduler.model.texts import span_text
from scheduler.ports import SECOND
from scheduler.store.tasks import attempts, stalls

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")


def watch_stalls(
    engine_state: EngineState, connection: sa.Connection, worker: int, reported: Callable[[], set[tuple[int, int]]]
) -> bool:
    """Log new stalls, and reclaim what their kinds want reclaimed. True: something was.

    ``reported``: (id, claim) of attempts that have ended and are about to be recorded.
    """
    taken: list[Attempt] = []
    for attempt in list(engine_state.held.values()):
        if stalled_text(engine_state, attempt) is not None:
            taken.append(attempt)
    if taken:
        done = reported()
        taken = [a for a in taken if (a.claimed.id, a.claimed.claim) not in done]
    return bool(taken) and _reclaim(engine_state, connection, worker, taken)


def stalled_text(engine_state: EngineState, attempt: Attempt) -> str | None:
    """Why an attempt is to be reclaimed, if it is; a stall that is new is logged."""
    span = attempt.kind.options.stall_after
    if span is None or attempt.started_at is None or attempt.lost:
        return None
    quiet = engine_state.monotonic() - max(attempt.started_mono, attempt.last_activity)
    if quiet < span / SECOND:
        attempt.stalled = False
        return None
    if not attempt.stalled:
        attempt.stalled = True
        _log_stall(attempt, quiet)
    return f"stalled: no heartbeat for {_span(attempt)}" if attempt.kind.options.on_stall == "reclaim" else None


def _log_stall(attempt: Attempt, quiet: float) -> None:
    c = attempt.claimed
    reclaims = attempt.kind.options.on_stall == "reclaim"
    log.warning(
        "task stalled: no heartbeat for %s, over its kind's %s%s",
        span_text(round(quiet * SECOND)),
        _span(attempt),
        ", taking it back" if reclaims else "",
        extra={"task": c.id, "kind": c.kind, "attempt": c.attempt, "key": c.key},
    )


def _reclaim(engine_state: EngineState, connection: sa.Connection, worker: int, quiet: list[Attempt]) -> bool:
    rows = [(a.claimed.id, a.claimed.claim, a.started_at or 0, f"stalled: no heartbeat for {_span(a)}") for a in quiet]
    return take_away(engine_state, connection, worker, rows)


def take_away(
    engine_state: EngineState,
    connection: sa.Connection,
    worker: int,
    rows: Sequence[tuple[int, int, int, str]],
    end: AttemptEnd = AttemptEnd.LOST,
    error_class: str = "Stalled",
) -> bool:
    """Take claims from attempts that run here and may go on: rows (id, claim, started_at, text). True: some were."""
    keys = {(row[0], row[1]) for row in rows}
    tried = keys & engine_state.losing
    # Before the commit: if its answer gets lost, none of them may run here twice at a time.
    engine_state.losing |= keys
    with engine_state.database.write(connection) as tx:
        taken = stalls.reclaim(tx, worker, rows, end=end, error_class=error_class)
        gone = set(taken.again)
        # By a commit whose answer was lost.
        earlier = attempts.recorded(tx, tried - gone) if tried - gone else {}
        engine_state.dead_letter_hook.pending.update(i for i, state in taken.ended.items() if state is TaskState.DEAD)
    gone |= earlier.keys()
    engine_state.losing -= keys - gone
    started = {(row[0], row[1]): row[2] for row in rows}
    for key in gone:
        attempt = engine_state.held.get(key)
        if attempt is None:
            continue
        if engine_state.rollups is not None and not attempt.lost:
            now, c = engine_state.now(), attempt.claimed
            engine_state.rollups.add_taken(now, c.kind, c.queue, end, now - (started[key] or now))
        engine_state.mark_lost(attempt)
    engine_state.dead_letter_hook.notify_pending(engine_state.database)
    return bool(gone)


def _span(attempt: Attempt) -> str:
    return span_text(attempt.kind.options.stall_after or 0)
