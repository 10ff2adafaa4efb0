"""Catch-up of a schedule: which of its fire times to run now, and which were missed. Pure."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from scheduler.model.recurrence import Recurrence
from scheduler.ports import FOREVER, NEVER, SECOND

CATCHUPS = ("skip", "last", "all", "none")
OVERLAPS = ("allow", "skip")
MAX_JITTER = 24 * 3600 * SECOND
PER_TICK = 1000  # fire times of one schedule that become tasks in one tick; the next ticks take the rest


class Fire(NamedTuple):
    """A fire time to run. This run stands for ``missed`` fire times since ``missed_since``."""

    slot: int
    missed: int | None = None
    missed_since: int | None = None


class CatchupPlan(NamedTuple):
    fires: list[Fire]
    next_at: int


def jitter_of(name: str, slot: int, most: int) -> int:
    """How long after its fire time a run is due: from 0 to ``most`` microseconds, the same for the same fire time."""
    if not most:
        return 0
    return int.from_bytes(blake2b(f"{name}@{slot}".encode(), digest_size=8).digest()) % (most + 1)


def plan(
    recurrence: Recurrence, anchor: int, next_at: int, now: int, catchup: str, grace: int, most: int = PER_TICK
) -> CatchupPlan:
    """Plan at ``now`` for a schedule that was due at ``next_at`` (<= now). All in microseconds.

    A fire time is missed once it is ``grace`` late. ``skip`` runs only the newest of the missed ones, and none of them
    if a later fire time is still on time. ``last`` does the same, and passes on how many the run stands for. ``all``
    runs each, at most ``most`` in one tick. ``none`` runs only fire times that are on time.
    """
    if recurrence.kind == "start":
        return CatchupPlan(
            [Fire(next_at)], NEVER
        )  # however late: the worker that started may have died before it fired
    if recurrence.mode == "fixed_delay":
        late = now - next_at >= grace
        if late and catchup == "none":
            return CatchupPlan([], recurrence.next_after(now))
        return CatchupPlan([Fire(next_at)], FOREVER)  # due again once this run has ended
    if catchup == "all":
        slots, more = recurrence.slots_between(next_at - 1, now, most, anchor)
        return CatchupPlan([Fire(s) for s in slots], recurrence.next_after(slots[-1] if more else now, anchor))
    edge = max(next_at - 1, now - grace)
    on_time, more = recurrence.slots_between(edge, now, most, anchor)
    following = recurrence.next_after(on_time[-1] if more else now, anchor)
    missed = recurrence.count_between(next_at - 1, edge, anchor)
    fires = [Fire(s) for s in on_time]
    if missed and catchup != "none":
        story = (missed, next_at) if catchup == "last" else (None, None)
        if fires:
            fires[0] = Fire(fires[0].slot, *story)
        else:
            newest = recurrence.newest_between(next_at - 1, edge, anchor)
            fires = [Fire(next_at if newest is None else newest, *story)]
    return CatchupPlan(fires, following)
