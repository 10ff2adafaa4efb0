"""What an engine's duties have to do, by one question: mostly nothing, and an idle engine asks every second."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from scheduler.ports import FOREVER
from scheduler.store import policies, schedules, waits
from scheduler.store.dialect import prepared

_LOOK = prepared(f"SELECT ({schedules.NEXT_LOOK}), EXISTS ({waits.ANY_OVERLOOKED}), EXISTS ({policies.ANY_DUE})")


class Seen(NamedTuple):
    """``next_fire``: see :func:`schedules.next_look`. ``overlooked``: whether a task is suspended that need not be.
    ``judged``: whether some task's policies are to be applied."""

    next_fire: int
    overlooked: bool
    judged: bool


def look(connection: sa.Connection, now: int, *, every: bool) -> Seen:
    """``every``: look also for overlooked ones that wait for tasks; there may be many such, and each is looked at."""
    most = waits.TASKS if every else waits.MET
    if connection.dialect.name == "sqlite":
        most = 0  # one writer at a time: nobody falls between
    next_fire, overlooked, judged = connection.execute(_LOOK, {"now": now, "most": most}).one()
    return Seen(FOREVER if next_fire is None else int(next_fire), bool(overlooked), bool(judged))
