"""Starts tasks that the program itself stores, where a slot is free and nothing goes before them: by one commit.

A caller's thread reserves a slot, stores the task as claimed by this worker, and hands it to the slot. For the loop's
plans a reservation is an attempt that is held. A caller reserves first, and looks then at what the loop does. The loop
says first that it dispatches, drains or has lost its lease, and looks at the reservations then. So one of the two
always sees the other.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import msgspec

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.outcomes import released
from scheduler.engine.dispatch.cycle import DispatchCycle
from scheduler.engine.dispatch.planner import PRIORITIES
from scheduler.engine.maintenance.periodic import PeriodicWork
from scheduler.model.capacity import PROCESS, SlotKey
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.ports import FAILPOINTS
from scheduler.store.tasks import direct
from scheduler.store.tasks.claim import Claimed, LaneHead
from scheduler.store.tasks.direct import Served

_new = tuple.__new__  # as in claim.py
_SLOT_KEY_OF = attrgetter("slot_key")
_BLANK = Claimed(0, 0, 1, 0, 1, None, None, 0, None, 1, None, None, 0, 0, 0, "", "", 0, "", 0)
_QUEUE, _CLAIMED_AT = Claimed._fields.index("queue"), Claimed._fields.index("claimed_at")
_BEFORE, _AFTER = _BLANK[:_QUEUE], _BLANK[_CLAIMED_AT:]
OTHERS_S = 1.0  # for which the quick look is left out, once there were claimable tasks (PostgreSQL)
REFUSED_S = 0.05  # after the database had something that goes before: so long nobody asks again


class DirectStarts:
    """See the module. ``claims``: whether the engine takes new work at all. Called from any thread."""

    def __init__(self, dispatch: DispatchCycle, periodic: PeriodicWork, claims: Callable[[], bool]) -> None:
        self._dispatch = dispatch
        self._state = dispatch.engine_state
        self._periodic = periodic
        self._claims = claims
        self._kinds = 0, "[]"  # how many this worker serves, and their names as JSON
        self._refused_until = 0.0  # monotonic
        self._others_until = 0.0  # monotonic: until then other tasks are taken to be claimable, due or not

    def store(self, spec: TaskSpec) -> TaskId | None:
        """Store a task that is one row, and start it here. None: nothing is stored, for it may not start here now.

        Raises StoreUnavailableError.
        """
        attempt = self._candidate(spec)
        if attempt is None:
            return None
        state = self._state
        try:  # from here on Ctrl-C is not to leave the slot reserved
            if not self._reserve(attempt, spec):
                return None
            worker = self._dispatch.worker
            claimed = self._store(spec, worker)
            if claimed is not None:
                FAILPOINTS.hit("after direct start")
                self._hand_over(attempt, spec, claimed, worker)
            else:
                self._give_back(attempt)
        except BaseException:
            self._dispatch.lost_commits.on_uncertain_commit()  # it may be stored as claimed
            if attempt.slot is None and self._key_of(attempt) in state.held:
                state.report(attempt, released(attempt, state.now()))
            self._give_back(attempt)
            state.wake()
            raise
        if claimed is None:
            self._refused_until = state.monotonic() + REFUSED_S
            return None
        made = TaskId(claimed.id)
        return made if state.database.dialect.name == "sqlite" else made.at(claimed.created_at)

    def _store(self, spec: TaskSpec, worker: int) -> Claimed | None:
        """Store it as claimed, if nothing goes before it."""
        state = self._state
        database, above = state.database, state.claims_above
        if database.dialect.name == "postgresql" and state.monotonic() >= self._others_until:
            claimed = direct.store_claimed(database, spec, worker, above, None)
            if claimed is not None:
                return claimed
            self._others_until = state.monotonic() + OTHERS_S
        return direct.store_claimed(database, spec, worker, above, self._served(spec))

    def _candidate(self, spec: TaskSpec) -> Attempt | None:
        """An attempt that may reserve a slot for this task, if its kind and its time allow that."""
        state = self._state
        kind = state.registry.get(spec.kind)
        if kind is None or spec.delay or spec.executor is not None or (spec.run_at and spec.run_at > state.now()):
            return None
        slot_key, monotonic = (spec.priority, kind.slot_type), state.monotonic()
        if monotonic < self._refused_until or not self._has_room(slot_key, 1):
            return None
        return Attempt(_reservation(spec), kind, slot_key, monotonic)

    def _reserve(self, attempt: Attempt, spec: TaskSpec) -> bool:
        self._state.reserved.append(attempt)
        if self._may_start(spec, attempt.submitted_at) and self._has_room(attempt.slot_key, 0):
            return True
        self._give_back(attempt)
        return False

    def _may_start(self, spec: TaskSpec, monotonic: float) -> bool:
        """Whether the next cycle would start it if it has a slot, and nothing in the database goes before it."""
        dispatch, state, timers = self._dispatch, self._state, self._periodic.timers
        if dispatch.lost_commits.pending or dispatch.planner.alone is not None:
            return False
        if not (dispatch.worker and self._claims()) or self._periodic.known_kinds != len(state.registry):
            return False
        # As for a claim: not under a lease that may have run out, nor before live settings and pauses are read.
        # In this order: a look that has begun is not due any more.
        if timers.either_due("renew", "looks") or self._periodic.looking or monotonic >= state.lease_expires_at:
            return False
        known = dispatch.limits.known
        return not (known and known.concern(spec.queue, spec.kind)) and self._serves(spec)

    def _serves(self, spec: TaskSpec) -> bool:
        planner = self._dispatch.planner
        if planner.chosen is not None and not planner.chosen(LaneHead(spec.queue, spec.lane, spec.priority, 0)):
            return False
        return planner.serves_kind(spec.queue, spec.kind)

    def _has_room(self, slot_key: SlotKey, more: int) -> bool:
        """``more``: slots that are needed beside those that are reserved."""
        state, slots = self._state, self._dispatch.slots.get(slot_key)
        if slots is None or slot_key[1] == PROCESS or slots.waiting or state.dispatching or state.rung:
            return False
        most, size = state.options.max_concurrent, slots.size
        # In this order: one that is handed over meanwhile is held before it is reserved no more.
        if len(state.reserved) + more == 1 and not state.held:  # mostly
            return size > 0
        taken = list(map(_SLOT_KEY_OF, [*state.reserved, *state.held.values()]))
        return taken.count(slot_key) + more <= size and not (most and len(taken) + more > most)

    def _served(self, spec: TaskSpec) -> Served:
        """What would take the slot before it: lower priorities never do, but all share ``max_concurrent_tasks``."""
        options, registry = self._state.options, self._state.registry
        if self._kinds[0] != len(registry):
            names = [kind.name for kind in list(registry)]
            self._kinds = len(names), msgspec.json.encode(names).decode()
        queues = None if "*" in options.queues else msgspec.json.encode(options.queues).decode()
        return Served(self._kinds[1], queues, PRIORITIES[-1] if options.max_concurrent else spec.priority)

    def _hand_over(self, attempt: Attempt, spec: TaskSpec, claimed: Claimed, worker: int) -> None:
        """Hand it to its slot; as any other attempt, if the slot may not begin it any more."""
        dispatch, state = self._dispatch, self._state
        attempt.claimed, attempt.submitted_at = claimed, state.monotonic()
        state.add_held([attempt])
        self._give_back(attempt)
        if dispatch.worker != worker or state.closed:
            state.held.pop(self._key_of(attempt), None)  # whoever reclaims from that worker has it
            return
        if self._claims() and attempt.submitted_at < state.lease_expires_at and self._serves(spec):
            state.started_here.append(attempt.claimed)
            attempt.on_begin = state.nudge  # not here: the loop and the slot would want the interpreter at once
            dispatch.feeder.start_at_once(attempt)
        else:
            state.report(attempt, released(attempt, state.now()))

    def _give_back(self, attempt: Attempt) -> None:
        if attempt in self._state.reserved:
            self._state.reserved.remove(attempt)

    @staticmethod
    def _key_of(attempt: Attempt) -> tuple[int, int]:
        return attempt.claimed.id, attempt.claimed.claim


def _reservation(spec: TaskSpec) -> Claimed:
    """A claim as far as plans and caps read it; it has no id yet."""
    return _new(Claimed, (*_BEFORE, spec.queue, spec.lane, spec.priority, spec.kind, *_AFTER))
