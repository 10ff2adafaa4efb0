"""Recording how attempts ended, and releasing what waited for them: one transaction, lists only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Ends, Outcome
from scheduler.model.state import END_BIT, TaskState
from scheduler.store import attempts, waits
from scheduler.store.dialect import Dialect
from scheduler.store.locking import lock_ends
from scheduler.store.outcomes import succeed_at_once, write
from scheduler.store.release import release
from scheduler.store.replacing import settle
from scheduler.store.ripe import Ripe, release_ripe


class Finished(NamedTuple):
    """What became of a list of outcomes.

    ``ended``: tasks that reached a terminal state; ``lost``: the fence no longer held, nothing was changed;
    ``deferred``: somebody's open transaction holds the row, to be tried again next turn; ``ready``: dependents
    that may run now; ``told``: how the history says that attempts ended, where something else overruled what they said;
    ``ripe``: more dependents that may run now, which the caller still has to write.
    """

    ended: dict[int, TaskState]
    lost: list[Outcome]
    deferred: list[Outcome]
    ready: int
    told: Mapping[int, AttemptEnd] = MappingProxyType({})
    ripe: Ripe | None = None


def finish(
    connection: sa.Connection,
    dialect: Dialect,
    worker: int,
    outcomes: Sequence[Outcome],
    now: int,
    ends: Ends | None = None,
    *,
    quick: bool = False,
    meanwhile: Callable[[], object] | None = None,
    claims: bool = False,
) -> Finished:
    """Write the outcomes that ``worker`` still holds, their attempts and what follows for dependents.

    ``ends``: the outcomes by their columns, if somebody has looked at them so already; ``meanwhile`` (SQLite): called
    before the statement that takes longest, if that is one for all of them; ``claims`` (SQLite): the caller sees to
    what is ``ripe``.
    ``quick`` (PostgreSQL): without locking the usual successes first, which takes as long as half the writing. Raises
    ContendedError if somebody holds one of them, or what waits below: then roll back, and lock first.
    """
    deferred: list[Outcome] = []
    unbroken: Mapping[int, int] = {}
    ends = Ends.of(outcomes) if ends is None else ends
    if dialect.name == "sqlite":
        wrote = write(connection, dialect, worker, outcomes, now, ends, meanwhile=meanwhile)
    elif quick:
        wrote, rest, unbroken = succeed_at_once(connection, dialect, worker, outcomes, now, ends)
        if rest:
            rest, deferred, also = lock_ends(connection, dialect, worker, rest)
            more = write(connection, dialect, worker, rest, now, Ends.of(rest), usual=False)
            wrote, unbroken = wrote.plus(more), {**unbroken, **also}
    else:
        outcomes, deferred, unbroken = lock_ends(connection, dialect, worker, outcomes)
        ends = Ends.of(outcomes) if deferred else ends
        wrote = write(connection, dialect, worker, outcomes, now, ends)
    ends = ends if wrote.kept is outcomes else Ends.of(wrote.kept)
    attempts.record(connection, worker, wrote.kept, ends, wrote.recorded)
    if any(ends.results) or any(ends.logs):
        attempts.keep_long(connection, dialect, wrote.kept)
    ready = 0
    if st.SUSPENDED in ends.states:  # first, so that what they no longer wait for and ends now does not wake them
        paused = [(o.task_id, o.claim) for o in wrote.kept if o.state == st.SUSPENDED]
        ready += waits.suspended(connection, dialect, paused, now)
    ripe = release_ripe(connection, dialect, wrote.ended, now) if wrote.plain and claims else None
    parents = wrote.ended if wrote.plain and ripe is None else wrote.parents
    released = {i: wrote.ended[i] for i in parents if i in wrote.ended}
    if wrote.overruled:  # what a cancelled task spawned ends with it
        released |= {i: wrote.ended[i] for i in wrote.overruled if wrote.ended.get(i) is TaskState.CANCELLED}
    awaited = wrote.awaited if wrote.awaited is not None else bool(wrote.ended) and waits.anybody(connection)
    known = not wrote.overruled and all(unbroken.get(i) == END_BIT[state] for i, state in released.items())
    ready += release(connection, dialect, released.items(), now, unbroken=known, awaited=awaited) if released else 0
    if awaited:
        ready += waits.tasks_ended(connection, dialect, [i for i in wrote.ended if i not in released], now)
    told: dict[int, AttemptEnd] = {}
    if wrote.overruled:
        settle(connection, dialect, wrote.overruled, now)
        told = {o.task_id: o.end for o in wrote.kept if o.task_id in wrote.overruled}
    return Finished(wrote.ended, wrote.lost, deferred, ready, told, ripe)
