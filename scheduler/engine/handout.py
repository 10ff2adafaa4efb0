"""Hands out what a turn has claimed: to the slots that its plan meant it for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby

from scheduler.engine.attempt import Attempt
from scheduler.engine.desk import Desk
from scheduler.engine.plan import Plan
from scheduler.engine.planner import QUICK, Planner
from scheduler.engine.pools import Slots, ThreadSlots
from scheduler.engine.verdict import hand_back
from scheduler.model.registry import PROCESS, SlotKey
from scheduler.ports import SECOND
from scheduler.store import claim as claims
from scheduler.store.claim import SUSPECT_LANE, Claimed, LaneHead

log = logging.getLogger("scheduler.engine")

MANY = 50  # tasks from which on it matters when their bodies begin
BESIDE = SECOND  # until a task may be claimed again whose last body has not ended here


class HandOut:
    """See the module."""

    def __init__(self, desk: Desk, slots: Mapping[SlotKey, Slots], planner: Planner, *, holds: bool) -> None:
        """``holds``: bodies may be held back until :meth:`release`."""
        self.desk = desk
        self.slots = slots
        self.planner = planner
        self._holds = holds
        self._held: list[ThreadSlots] = []

    def release(self) -> None:
        """Let bodies begin that were held back: the loop's thread is about to be in the database for a while.

        SQLite works in that thread, but without the interpreter. Hundreds of bodies of microseconds then take it from
        nobody; at any other moment the loop would have to wait for it until all of them have ended.
        """
        while self._held:
            self._held.pop().release()

    def give(self, claimed: list[Claimed], plan: Plan, start_by: Mapping[str, int]) -> None:
        """``start_by``: when (microseconds) a body of these kinds has to have begun, or it goes back."""
        desk = self.desk
        at = desk.monotonic()
        left = {key: [[share.pool, share.most] for share in shares] for key, shares in plan.shares.items()}
        batches: dict[SlotKey, list[Attempt]] = {}
        one = claimed and len(plan.picks) == 1  # mostly
        lanes = [(claims.LANE_OF(plan.picks[0]), claimed)] if one else groupby(claimed, key=claims.LANE_OF)
        for lane, rows in lanes:
            kind = desk.registry.get(claims.kind_of(lane[1]))
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
                sort = (pool, self.planner.sort_of(LaneHead(*lane, 0)))
                attempts = [Attempt(c, kind, sort, at) for c in part]
                if kind.name in start_by:
                    for attempt in attempts:
                        attempt.start_by = start_by[kind.name]
                desk.take_up(attempts)
                if desk.losing:
                    attempts = self._not_beside_themselves(attempts)
                if attempts:
                    batches.setdefault(sort, []).extend(attempts)
                if attempts and lane[1].startswith(SUSPECT_LANE):
                    if sort[1] != PROCESS:
                        self.planner.alone = attempts[-1]
                    else:
                        for attempt in attempts:
                            attempt.apart = True
        for sort, attempts in batches.items():
            slots = self.slots[sort]
            wake = self._wake_for(attempts, slots)
            if wake == 1 and self._may_hold(attempts) and isinstance(slots, ThreadSlots):
                self._held.append(slots)
                slots.hold()
            try:
                slots.submit(attempts, wake)
            except (RuntimeError, OSError) as error:  # no thread can be started for it
                log.warning("%d tasks go back for %d s: %s", len(attempts), BESIDE // SECOND, error)
                self._take_back(attempts, slots)

    def _may_hold(self, attempts: list[Attempt]) -> bool:
        """Whether they are many, and the loop goes on at once, with ends to record."""
        return self._holds and len(attempts) >= MANY and bool(self.desk.outcomes)

    def _take_back(self, attempts: list[Attempt], slots: Slots) -> None:
        now = self.desk.now()
        for attempt in attempts:
            with suppress(ValueError):  # somebody has begun it after all
                slots.waiting.remove(attempt)
                self.desk.report(attempt, hand_back(attempt, now, now + BESIDE))

    def _not_beside_themselves(self, attempts: list[Attempt]) -> list[Attempt]:
        """Without those whose task still has a body here that it was taken from: another worker may run them sooner."""
        now = self.desk.now()
        losing = {task_id for task_id, _ in self.desk.losing}
        for attempt in attempts:
            if attempt.claimed.id in losing:
                self.desk.report(attempt, hand_back(attempt, now, now + BESIDE))
        return [a for a in attempts if a.claimed.id not in losing]

    def _wake_for(self, attempts: list[Attempt], slots: Slots) -> int:
        """How many idle slots to wake. Tasks of microseconds are quicker in one thread than in eight that fight for the
        interpreter; the loop wakes more should that one get stuck."""
        mean = max(self.desk.means.get(a.kind.name, 1.0) for a in attempts[:8])
        return 1 if mean < QUICK and len(attempts) > 1 else slots.size
