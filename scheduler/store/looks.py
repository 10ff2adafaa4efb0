"""What an engine's duties have to do, by one question: mostly nothing, and an idle engine asks every second."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from scheduler.ports import FOREVER
from scheduler.store import claim, policies, schedules, waits
from scheduler.store.statement import run

_LOOK = (
    f"SELECT ({schedules.NEXT_LOOK}), EXISTS ({waits.ANY_OVERLOOKED}), EXISTS ({policies.ANY_DUE}), "
    f"CASE WHEN :polls = 1 THEN ({claim.FIRST}) END"
)


class Seen(NamedTuple):
    """``next_fire``: see :func:`schedules.next_look`. ``overlooked``: whether a task is suspended that need not be.
    ``judged``: whether some task's policies are to be applied. ``claimable``: whether a task is to be claimed, now or
    later."""

    next_fire: int
    overlooked: bool
    judged: bool
    claimable: bool


def look(connection: sa.Connection, now: int, *, every: bool, polls: bool) -> Seen:
    """``every``: look also for overlooked ones that wait for tasks; there may be many such, and each is looked at.
    ``polls``: look also for one to be claimed."""
    most = waits.TASKS if every else waits.MET
    if connection.dialect.name == "sqlite":
        most = 0  # one writer at a time: nobody falls between
    bound = {"now": now, "most": most, "polls": int(polls)}
    ((next_fire, overlooked, judged, claimable),) = run(connection, _LOOK, bound)
    next_fire = FOREVER if next_fire is None else int(next_fire)
    return Seen(next_fire, bool(overlooked), bool(judged), claimable is not None)
