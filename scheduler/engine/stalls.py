"""Watching the bodies that run here for signs of life.

A kind's ``stall_after`` says how long a body may run without a heartbeat, progress report or checkpoint. One that is
quiet for longer is told of once; with ``on_stall="reclaim"`` its claim is taken from it. The body cannot be ended from
outside if it runs in a thread: its next context call raises LeaseLost, and until it ends it keeps its slot, and this
process does not run the task beside it (other workers do).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.engine.attempt import Attempt
from scheduler.engine.desk import Desk
from scheduler.model.state import TaskState
from scheduler.model.texts import span_text
from scheduler.ports import SECOND
from scheduler.store import attempts, stalls

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")


def watch_stalls(
    desk: Desk, connection: sa.Connection, worker: int, reported: Callable[[], set[tuple[int, int]]]
) -> bool:
    """Tell of bodies that have become quiet, and take back what their kinds want taken back. True: something was.

    ``reported``: (id, claim) of bodies that have ended and are about to be recorded.
    """
    taken: list[Attempt] = []
    for attempt in list(desk.held.values()):
        span = attempt.kind.options.stall_after
        if span is None or attempt.started_at is None or attempt.lost:
            continue
        quiet = desk.monotonic() - max(attempt.started_mono, attempt.last_sign)
        if quiet < span / SECOND:
            attempt.stalled = False
            continue
        if not attempt.stalled:
            attempt.stalled = True
            _tell(attempt, quiet)
        if attempt.kind.options.on_stall == "reclaim":
            taken.append(attempt)
    if taken:
        done = reported()
        taken = [a for a in taken if (a.claimed.id, a.claimed.claim) not in done]
    return bool(taken) and _reclaim(desk, connection, worker, taken)


def _tell(attempt: Attempt, quiet: float) -> None:
    c = attempt.claimed
    reclaims = attempt.kind.options.on_stall == "reclaim"
    log.warning(
        "task stalled: no heartbeat for %.0f s%s",
        quiet,
        ", taking it back" if reclaims else "",
        extra={"task": c.id, "kind": c.kind, "attempt": c.attempt, "key": c.key},
    )


def _reclaim(desk: Desk, connection: sa.Connection, worker: int, quiet: list[Attempt]) -> bool:
    rows = [(a.claimed.id, a.claimed.claim, a.started_at or 0, f"stalled: no heartbeat for {_span(a)}") for a in quiet]
    keys, dialect = {(row[0], row[1]) for row in rows}, desk.database.dialect
    tried = keys & desk.losing
    # Before the commit: should its answer get lost, none of them runs here beside itself.
    desk.losing |= keys
    with desk.database.write(connection) as c:
        taken = stalls.reclaim(c, dialect, worker, rows, desk.now())
        gone = set(taken.again)
        earlier = attempts.recorded(c, dialect, tried - gone) if tried - gone else {}  # by a commit without an answer
        desk.alerts.owed.update(i for i, state in taken.ended.items() if state is TaskState.DEAD)
    gone |= earlier.keys()
    desk.losing -= keys - gone
    for key in gone:
        if key in desk.held:
            desk.lose(desk.held[key])
    desk.alerts.tell_owed(desk.database)
    return bool(gone)


def _span(attempt: Attempt) -> str:
    return span_text(attempt.kind.options.stall_after or 0)
