"""Recording how attempts ended, and releasing what waited for them: one transaction, lists only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Lives, Outcome, OutcomeColumns
from scheduler.model.state import END_BIT, TaskState
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.graph import debug_log
from scheduler.store.graph.release import release
from scheduler.store.tasks import attempts
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.tasks.outcome_locks import lock_ends
from scheduler.store.tasks.outcome_rows import USUAL_LIVES, complete_unlocked, write
from scheduler.store.tasks.ready_children import ReadyChildren, release_and_collect
from scheduler.store.tasks.replace import apply_deferred


class Completion(NamedTuple):
    """What became of a list of outcomes.

    ``ended``: tasks that reached a terminal state. ``lost``: the fence no longer held, so nothing was changed.
    ``deferred``: another transaction holds the row; the next dispatch cycle tries again. ``ready``: how many dependents
    may run now. ``overridden``: the recorded end of each attempt whose own outcome was overridden.
    ``ready_children``: further dependents that may run now, which the caller has to write.
    """

    ended: dict[int, TaskState]
    lost: list[Outcome]
    deferred: list[Outcome]
    ready: int
    overridden: Mapping[int, AttemptEnd] = MappingProxyType({})
    ready_children: ReadyChildren | None = None


def finish(
    tx: Tx,
    worker: int,
    outcomes: Sequence[Outcome],
    ends: OutcomeColumns | None = None,
    *,
    quick: bool = False,
    meanwhile: Callable[[], object] | None = None,
    claims: bool = False,
    lives: Lives = USUAL_LIVES,
) -> Completion:
    """Write the outcomes that ``worker`` still holds, their attempts and what follows for dependents.

    ``ends``: the outcomes as columns, if the caller has them. ``meanwhile`` (SQLite): called before the longest
    statement, if one statement writes all outcomes. ``claims`` (SQLite): the caller writes the ``ready_children``.
    ``lives``: default lifetimes of results and keys. ``quick`` (PostgreSQL): write the usual successes without
    locking them first; raises RowLocked if another transaction holds one of them or a waiting descendant. The caller
    then rolls back and locks first.
    """
    deferred: list[Outcome] = []
    unbroken: Mapping[int, int] = {}
    ends = OutcomeColumns.of(outcomes) if ends is None else ends
    if tx.dialect.name == "sqlite":
        wrote = write(tx, worker, outcomes, ends, meanwhile=meanwhile, lives=lives)
    elif quick:
        wrote, rest, unbroken = complete_unlocked(tx, worker, outcomes, ends, lives)
        if rest:
            rest, deferred, also = lock_ends(tx, worker, rest)
            more = write(tx, worker, rest, OutcomeColumns.of(rest), usual=False, lives=lives)
            wrote, unbroken = wrote.plus(more), {**unbroken, **also}
    else:
        outcomes, deferred, unbroken = lock_ends(tx, worker, outcomes)
        ends = OutcomeColumns.of(outcomes) if deferred else ends
        wrote = write(tx, worker, outcomes, ends, lives=lives)
    ends = ends if wrote.accepted is outcomes else OutcomeColumns.of(wrote.accepted)
    attempts.record(tx, worker, wrote.accepted, ends, wrote.recorded)
    if any(ends.results) or any(ends.logs):
        attempts.keep_long(tx, wrote.accepted)
    ready = 0
    if (
        st.SUSPENDED in ends.states
    ):  # first, so that an end in this list does not wake a task that no longer waits for it
        paused = [(o.task_id, o.claim) for o in wrote.accepted if o.state == st.SUSPENDED]
        ready += waits.suspended(tx, paused)
    ready_children = release_and_collect(tx, wrote.ended) if wrote.plain and claims else None
    parents = wrote.ended if wrote.plain and ready_children is None else wrote.parents
    released = {i: wrote.ended[i] for i in parents if i in wrote.ended}
    if wrote.overridden:  # what a cancelled task spawned ends with it
        released |= {i: wrote.ended[i] for i in wrote.overridden if wrote.ended.get(i) is TaskState.CANCELLED}
    awaited = wrote.awaited if wrote.awaited is not None else bool(wrote.ended) and waits.any_waiting(tx)
    known = not wrote.overridden and all(unbroken.get(i) == END_BIT[state] for i, state in released.items())
    ready += release(tx, released.items(), unbroken=known, awaited=awaited) if released else 0
    if awaited:
        ready += waits.tasks_ended(tx, [i for i in wrote.ended if i not in released])
    if wrote.ended and debug_log.wanted():
        debug_log.released(tx, wrote.ended, ready_children.ids() if ready_children is not None else ())
    if any(ends.publish):
        told = [o.publish for o in wrote.accepted if o.publish and wrote.ended.get(o.task_id) is TaskState.SUCCESS]
        ready += len(enqueue(tx, told, ours=False))
    overridden: dict[int, AttemptEnd] = {}
    if wrote.overridden:
        apply_deferred(tx, wrote.overridden)
        overridden = {o.task_id: o.end for o in wrote.accepted if o.task_id in wrote.overridden}
    return Completion(wrote.ended, wrote.lost, deferred, ready, overridden, ready_children)
