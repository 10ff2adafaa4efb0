"""Gives claimed tasks to the slots that the plan meant them for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

from scheduler.engine.attempt.attempt import Attempt, CountedStarts
from scheduler.engine.attempt.outcomes import released
from scheduler.engine.dispatch.planner import SHORT_TASK_S, ClaimPlan, ClaimPlanner
from scheduler.engine.slots import Slots, ThreadSlots
from scheduler.engine.state import EngineState
from scheduler.model.capacity import PROCESS, SlotKey
from scheduler.model.lanes import QUARANTINE_LANE, kind_of
from scheduler.model.running import log_fields
from scheduler.ports import SECOND
from scheduler.store.durable.resume import Recorded
from scheduler.store.tasks import claim
from scheduler.store.tasks.claim import Claimed, LaneHead

log = logging.getLogger("scheduler.engine")

_KIND_OF = attrgetter("kind")
HOLD_MIN_TASKS = 50  # fewer are not worth holding back
STILL_RUNNING_DELAY_US = SECOND  # until a task is claimable again whose last attempt still runs here


def _by_pool(plan: ClaimPlan, claimed: Sequence[Claimed]) -> list[tuple[tuple[str, str, int], Sequence[Claimed]]]:
    """What was claimed, by pool, with one of its lanes: if all is of one lane, or of lanes of one kind, none of them in
    quarantine. Else nothing."""
    if len(plan.picks) == 1:
        return [(plan.picks[0][:3], claimed)]
    if len(set(map(_KIND_OF, claimed))) > 1 or any(pick[1][:1] == QUARANTINE_LANE for pick in plan.picks):
        return []
    shares = set(plan.shares.values())
    if any(len(of_lane) > 1 for of_lane in shares):
        return []
    pools: dict[int, list[Claimed]] = {}
    if len({of_lane[0].pool for of_lane in shares}) == 1:
        return [(claim.LANE_OF_CLAIMED(claimed[0]), claimed)]
    for one in claimed:
        pools.setdefault(plan.shares[claim.LANE_OF_CLAIMED(one)][0].pool, []).append(one)
    return [(claim.LANE_OF_CLAIMED(rows[0]), rows) for rows in pools.values()]


class SlotFeeder:
    """Makes attempts of claimed tasks and submits them to slots."""

    def __init__(
        self, engine_state: EngineState, slots: Mapping[SlotKey, Slots], planner: ClaimPlanner, *, holds: bool
    ) -> None:
        """``holds``: handlers may be held back until :meth:`release`."""
        self.engine_state = engine_state
        self.slots = slots
        self.planner = planner
        self._holds = holds
        self._held: list[ThreadSlots] = []

    def release(self) -> None:
        """Start the held handlers: the loop is about to block in SQLite, which releases the GIL.

        At any other moment hundreds of short handlers would keep the GIL from the loop.
        """
        while self._held:
            self._held.pop().release()

    def submit(
        self,
        claimed: list[Claimed],
        plan: ClaimPlan,
        start_by: Mapping[tuple[str, str], CountedStarts],
        recorded: Mapping[int, Sequence[Recorded]] = MappingProxyType({}),
    ) -> None:
        """Submit claimed tasks.

        ``start_by``: by (queue, lane), until when (microseconds) a handler must begin, or it is released. ``recorded``:
        checkpoints by task.
        """
        engine_state = self.engine_state
        if log.isEnabledFor(logging.DEBUG):
            for one_claimed in claimed:
                log.debug("task claimed", extra=log_fields(one_claimed) | {"claim": one_claimed.claim})
        at, timeout = engine_state.monotonic(), engine_state.options.default_timeout
        batches: dict[SlotKey, list[Attempt]] = {}
        alike = _by_pool(plan, claimed) if claimed and not start_by else []  # mostly
        lanes: Iterable[tuple[tuple[str, str, int], Iterable[Claimed]]]
        lanes = alike or groupby(claimed, key=claim.LANE_OF)
        planned = {lane: plan.shares[lane] for lane, _ in alike} if alike else plan.shares
        left = {lane: [[share.pool, share.most] for share in shares] for lane, shares in planned.items()}
        for lane, rows in lanes:
            kind = engine_state.registry.get(kind_of(lane[1]))
            assert kind is not None, "only lanes of registered kinds are claimed"
            shares, of_lane = left[lane], list(rows)
            while of_lane:
                pool, most = shares[0]
                if len(shares) == 1:
                    most = len(of_lane)
                part, of_lane = of_lane[:most], of_lane[most:]
                shares[0][1] -= len(part)
                if of_lane:
                    shares.pop(0)
                slot_key = (pool, self.planner.slot_type_of(LaneHead(*lane, 0)))
                if timeout:
                    part = [c if c.timeout is not None else c._replace(timeout=timeout) for c in part]
                attempts = [Attempt(c, kind, slot_key, at) for c in part]
                for attempt in attempts if recorded else ():
                    attempt.recorded = recorded.get(attempt.claimed.id)
                if engine_state.tracing is not None:
                    engine_state.tracing.sample(attempts)
                if lane[:2] in start_by:
                    for attempt in attempts:
                        attempt.counted_starts = start_by[lane[:2]]
                        attempt.start_by = min(until for _, until in attempt.counted_starts)
                engine_state.add_held(attempts)
                if engine_state.losing:
                    attempts = self._without_still_running(attempts)
                if attempts:
                    batches.setdefault(slot_key, []).extend(attempts)
                if attempts and lane[1].startswith(QUARANTINE_LANE):
                    if slot_key[1] != PROCESS:
                        self.planner.alone = attempts[-1]
                    else:
                        for attempt in attempts:
                            attempt.isolated = True
        for slot_key, attempts in batches.items():
            slots = self.slots[slot_key]
            wake = self._wake_for(attempts, slots)
            if wake == 1 and self._may_hold(attempts) and isinstance(slots, ThreadSlots):
                self._held.append(slots)
                slots.hold()
            self._give(attempts, slots, wake)

    def start_at_once(self, attempt: Attempt) -> None:
        """Give one to an idle slot that was reserved for it. From any thread."""
        claimed, timeout = attempt.claimed, self.engine_state.options.default_timeout
        if log.isEnabledFor(logging.DEBUG):
            log.debug("task claimed", extra=log_fields(claimed) | {"claim": claimed.claim})
        if timeout and claimed.timeout is None:
            attempt.claimed = attempt.claimed._replace(timeout=timeout)
        if self.engine_state.tracing is not None:
            self.engine_state.tracing.sample([attempt])
        self._give([attempt], self.slots[attempt.slot_key], 1)

    def _give(self, attempts: list[Attempt], slots: Slots, wake: int) -> None:
        try:
            slots.submit(attempts, wake)
        except (RuntimeError, OSError) as error:  # no thread can be started for it
            log.warning("%d tasks go back for %d s: %s", len(attempts), STILL_RUNNING_DELAY_US // SECOND, error)
            self._take_back(attempts, slots)

    def _may_hold(self, attempts: list[Attempt]) -> bool:
        """Whether to hold them back: they are many, and the loop has outcomes to record at once."""
        return self._holds and len(attempts) >= HOLD_MIN_TASKS and bool(self.engine_state.outcomes)

    def _take_back(self, attempts: list[Attempt], slots: Slots) -> None:
        now = self.engine_state.now()
        for attempt in attempts:
            with suppress(ValueError):  # a slot has begun it after all
                slots.waiting.remove(attempt)
                self.engine_state.report(attempt, released(attempt, now, now + STILL_RUNNING_DELAY_US))

    def _without_still_running(self, attempts: list[Attempt]) -> list[Attempt]:
        """Release attempts whose task still has a lost attempt running here; return the others."""
        now = self.engine_state.now()
        losing = {task_id for task_id, _ in self.engine_state.losing}
        for attempt in attempts:
            if attempt.claimed.id in losing:
                self.engine_state.report(attempt, released(attempt, now, now + STILL_RUNNING_DELAY_US))
        return [a for a in attempts if a.claimed.id not in losing]

    def _wake_for(self, attempts: list[Attempt], slots: Slots) -> int:
        """How many idle slots to wake. One thread runs short tasks faster than eight that fight for the GIL;
        the loop wakes more if that one gets stuck."""
        mean = max(self.engine_state.means.get(a.kind.name, 1.0) for a in attempts[:8])
        return 1 if mean < SHORT_TASK_S and len(attempts) > 1 else slots.size
