"""Reads in one statement what an engine's periodic work has to do.

Mostly there is nothing, and an idle engine asks every second.
"""

from __future__ import annotations

from typing import NamedTuple

from scheduler.ports import FOREVER
from scheduler.store import pauses, schedules, settings
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.tasks import claim, deadlines

_POLL = (
    f"SELECT ({schedules.NEXT_LOOK}), EXISTS ({waits.ANY_MISSED}), EXISTS ({deadlines.ANY_DUE}), "
    f"CASE WHEN :polls = 1 THEN ({claim.FIRST}) END, {{paused}}, {{settings}}"
)
_POLLS = {
    name: _POLL.format(paused=paused, settings=settings.IN_EFFECT[name]) for name, paused in pauses.IN_EFFECT.items()
}


class DueWork(NamedTuple):
    """What is due.

    ``next_fire``: see :func:`schedules.next_look`. ``missed``: whether a suspended task has missed its wake-up.
    ``judged``: whether the deadlines of a task are to be applied. ``claimable``: whether a task is to be claimed, now
    or later. ``pauses``: what is paused, see Pauses.of(). ``settings``: the live settings, see LiveSettings.of().
    """

    next_fire: int
    missed: bool
    judged: bool
    claimable: bool
    pauses: str | None = None
    settings: str | None = None


def poll(tx: Tx, *, every: bool, polls: bool) -> DueWork:
    """Read what is due.

    ``every``: check tasks that await other tasks for missed wake-ups, too: there may be many, and each is read.
    ``polls``: check for a task to be claimed, too.
    """
    most = waits.TASKS if every else waits.MET
    if tx.dialect.name == "sqlite":
        most = 0  # one writer at a time: no wake-up is missed
    bound = {"now": tx.now, "most": most, "polls": int(polls)}
    ((next_fire, missed, judged, claimable, *live),) = tx.rows(_POLLS[tx.dialect.name], **bound)
    next_fire = FOREVER if next_fire is None else int(next_fire)
    return DueWork(next_fire, bool(missed), bool(judged), claimable is not None, *live)
