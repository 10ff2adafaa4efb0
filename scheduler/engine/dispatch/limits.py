"""Keeps caps and rates: what a worker may claim now, and when to try again.

A kind and a queue without limits cost nothing here. Tasks under limits are not claimed ahead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from scheduler.engine.attempt.attempt import Attempt, CountedStarts
from scheduler.engine.dispatch.lanes import Turn, forget_first, turn_of
from scheduler.engine.fair_rotation import FairRotation
from scheduler.engine.options import EngineOptions
from scheduler.model.lanes import QUARANTINE_LANE, kind_of
from scheduler.model.live_settings import KEY, KIND, QUEUE
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.rate import Rate
from scheduler.model.registry import Registry
from scheduler.ports import FOREVER
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import limits as caps
from scheduler.store.tasks.claim import LANE_OF, Claimed, LaneClaim, LaneHead
from scheduler.store.tasks.complete import Completion
from scheduler.store.tasks.limits import Headroom, KnownLimits, LimitPlace

CONTENDED_RETRY_US = 10_000  # until a kind or queue is retried that another worker was claiming


class Claiming(Protocol):
    """Who claims: which kinds and queues."""

    @property
    def registry(self) -> Registry: ...
    @property
    def options(self) -> EngineOptions: ...


class DispatchLimits:
    """The limits of this worker's kinds and queues: as published by the newest program, and as operators set them."""

    def __init__(self, engine_state: Claiming) -> None:
        self.engine_state = engine_state
        self.known = KnownLimits()
        self.turns = QueueTurns()
        self.closed: dict[str, int] = {}  # rates that are used up, by the name of their starts, and until when
        self._patience: dict[str, int] = {}  # microseconds that a start may take here, where it is more than usual

    def learn(self, tx: Tx) -> None:
        """Read them again: other programs may have published others."""
        queues = self.engine_state.options.queues
        self.known = caps.known(tx).served(
            self.engine_state.registry.get, lambda queue: "*" in queues or queue in queues
        )
        self.turns.keep(self.known.queues)
        self.closed.clear()
        self._patience = {name: patience // 2 for name, patience in self._patience.items()}

    def patience(self, starts: str, rate: Rate) -> int:
        """How long after its claim an attempt that counts under this name may start."""
        return max(rate.start_window, self._patience.get(starts, 0))

    def concern(self, outcomes: Iterable[tuple[Attempt, Outcome]]) -> bool:
        """Whether one of these attempts is under a limit."""
        known = self.known
        return bool(known) and any(known.concern(a.claimed.queue, a.kind.name) for a, _ in outcomes)

    def recorded(self, tx: Tx, outcomes: Sequence[tuple[Attempt, Outcome]], finished: Completion) -> None:
        """Refund the starts of attempts that never began."""
        back: Counter[tuple[str, int]] = Counter()
        for attempt, o in _written(outcomes, finished):
            if o.end is not AttemptEnd.HANDED_BACK or o.started_at is not None:
                continue
            for name, until in attempt.counted_starts:
                rate = self.known.rate(name)
                if o.finished_at > until and rate is not None:
                    # Starts are slow here: allow them more time, and count that.
                    self._patience[name] = min(rate.max_start_window, 2 * self.patience(name, rate))
                back[name, until] += 1
        self.refund(tx, back)

    def refund(self, tx: Tx, back: Mapping[tuple[str, int], int]) -> None:
        """Refund starts: how many, by the name and the time under which they count."""
        for (name, until), starts in sorted(back.items()):
            caps.refund(tx, name, until, starts)
            self.closed.pop(name, None)

    def freed(self, outcomes: Iterable[tuple[Attempt, Outcome]]) -> list[LaneHead]:
        """The lanes of these attempts that are under a cap, which has room again."""
        lanes = {
            (c.queue, c.lane.lstrip(QUARANTINE_LANE), c.priority)
            for attempt, _ in outcomes
            for c in (attempt.claimed,)
            if self.known.concern(c.queue, attempt.kind.name)
            and any(limit.cap or limit.per_worker for limit in self.known.of(c.queue, c.lane).values())
        }
        return [LaneHead(*lane, 0) for lane in sorted(lanes)]

    def opens(
        self,
        outcomes: Sequence[tuple[Attempt, Outcome]],
        finished: Completion | None,
        claimed: Iterable[Claimed],
        heads: Iterable[LaneHead] | None,
        now: int,
    ) -> bool:
        """Whether to notify other workers: a cap has room again, and there may be due tasks under it.

        ``heads``: of all lanes that this worker serves, before the claim; None if they are not known. Of a capped queue
        other workers may serve other kinds.
        """
        if not self.known or finished is None:
            return False
        freed: Counter[LimitPlace] = Counter()
        for attempt, _ in _written(outcomes, finished):
            freed.update(self._capped(attempt.claimed.queue, attempt.claimed.lane))
        if not freed:
            return False
        for c in claimed:
            freed.subtract(self._capped(c.queue, c.lane))
        places = {place for place, n in freed.items() if n > 0}
        return bool(places) and (
            heads is None
            or any(place.scope == QUEUE for place in places)
            or any(head.run_at <= now and not places.isdisjoint(self._capped(head.queue, head.lane)) for head in heads)
        )

    def _capped(self, queue: str, lane: str) -> list[LimitPlace]:
        return [place for place, limit in self.known.of(queue, lane).items() if limit.cap is not None]


def _written(outcomes: Sequence[tuple[Attempt, Outcome]], finished: Completion) -> list[tuple[Attempt, Outcome]]:
    left = {(o.task_id, o.claim) for o in (*finished.lost, *finished.deferred)}
    return [(a, o) for a, o in outcomes if (o.task_id, o.claim) not in left]


class Admission:
    """What one cycle may claim under limits, locked from :meth:`lock` until the commit.

    ``held``: what this worker holds once the cycle has recorded what has ended.
    """

    def __init__(self, limits: DispatchLimits, tx: Tx, held: Iterable[Attempt] = ()) -> None:
        self._limits = limits
        self._tx = tx
        self._known = limits.known  # and what is locked, as it is now
        self._held = held
        self._here: Counter[str] | None = None  # tasks that this worker holds, by kind
        self._locked: dict[LimitPlace, bool] = {}  # False: another worker is claiming of it
        self._rooms: dict[LimitPlace, Headroom] = {}
        self._refused: dict[tuple[str, str, int], LimitPlace] = {}  # lanes that were looked at, and by which limit
        self._asked: Sequence[LaneClaim] = ()  # the picks before they were cut
        self.start_by: dict[tuple[str, str], CountedStarts] = {}  # by (queue, lane)
        self.again = FOREVER  # when something that is due and was refused may be claimed
        self.capped: set[str] = set()  # kinds whose due tasks were refused: by a cap
        self.rated: set[str] = set()  # by a rate

    def admitted(self, due: Sequence[LaneHead]) -> list[LaneHead]:
        """The lanes that may be claimed from, as far as is known."""
        admitted = []
        for head in due:
            place = self._refusing(head)
            if place is None:
                admitted.append(head)
            else:
                self._refused[LANE_OF(head)] = place
        return admitted

    def refused(self, due: Sequence[LaneHead]) -> list[LaneHead]:
        """The lanes that may not be claimed from, as far as was looked at, without those that wait for their queue: the
        end of a task of any other lane may open it."""
        if not self._refused:
            return []
        refused = [self._refused.get(LANE_OF(head)) for head in due]
        return [h for h, place in zip(due, refused, strict=True) if place is not None and place.scope != QUEUE]

    def full_lanes(self, looked: Iterable[LaneHead]) -> list[LaneHead]:
        """Those of these that a limit of the lane itself has refused."""
        found = [(head, self._refused.get(LANE_OF(head))) for head in looked]
        return [head for head, place in found if place is not None and place.scope == KEY]

    def _refusing(self, head: LaneHead) -> LimitPlace | None:
        """What keeps this lane from being claimed from, as far as is known."""
        kind, now = kind_of(head.lane), self._tx.now
        if not self._known.concern(head.queue, kind):
            return None
        limits = self._known.of(head.queue, head.lane)
        for place, limit in limits.items():
            room, until = self._rooms.get(place), 0
            if limit.rate is not None:
                until = self._limits.closed.get(place.starts, 0)
                if until <= now and room is not None and room.starts == 0:
                    until = self._limits.closed[place.starts] = room.again
            if until > now:
                self.again = min(self.again, until)
                self.rated.add(kind)
                return place
            if limit.shared and not self._locked.get(place.lock, True):
                self.again = min(self.again, now + CONTENDED_RETRY_US)
                return place.lock
            full = room is not None and room.free == 0
            if full or (limit.per_worker is not None and self._held_of(kind) >= limit.per_worker):
                self.capped.add(kind)
                return place
        return None

    def _held_of(self, kind: str) -> int:
        if self._here is None:
            self._here = Counter(attempt.kind.name for attempt in self._held)
        return self._here[kind]

    def lock(self, picks: Sequence[LaneClaim], due: Iterable[LaneHead]) -> None:
        """Lock the limited kinds and queues of these picks, and look how much room their due lanes have.

        No queue of a kind that another worker claims: two workers, each with one lock of two, would both claim nothing.
        """
        self._lock(place for pick in picks for place in self._locks(pick) if place.scope == KIND)
        ours = [pick for pick in picks if self._locked.get(LimitPlace(KIND, kind_of(pick.lane)), True)]
        self._lock(place for pick in ours for place in self._locks(pick) if place.scope == QUEUE)
        limits = {
            place: limit
            for head in due
            for place, limit in self._known.of(head.queue, head.lane).items()
            if limit.shared and place not in self._rooms and self._locked.get(place.lock, False)
        }
        if limits:
            self._rooms |= caps.headroom(self._tx, limits)

    def _locks(self, pick: LaneClaim) -> set[LimitPlace]:
        limits = self._known.of(pick.queue, pick.lane)
        return {place.lock for place, limit in limits.items() if limit.shared}

    def _lock(self, places: Iterable[LimitPlace]) -> None:
        new = set(places) - self._locked.keys()
        if new:
            found = caps.lock(self._tx, new)
            self._locked |= {place: place in found for place in new}
            self._known = self._known.as_locked(found)

    def cut(self, picks: list[LaneClaim], start_of: Callable[[LaneClaim], float]) -> list[LaneClaim]:
        """The picks, reduced to what caps and rates allow. ``start_of``: when the turn of a pick's key begins."""
        known, kept, self._asked = self._known, [], picks
        taken: Counter[LimitPlace] = Counter()
        turns, left = self._limits.turns, Counter((pick.queue, pick.priority) for pick in picks)
        for pick in turns.order(picks, known.queues, start_of) if known.queues else picks:
            most, limits = pick.limit, {}
            if known.concern(pick.queue, kind_of(pick.lane)):
                limits = known.of(pick.queue, pick.lane)
            for place, limit in limits.items():
                room = None if place not in self._rooms else self._rooms[place].most
                if room is not None and place.scope == QUEUE:  # the lanes of a priority share it
                    most = min(most, -(-(room - taken[place]) // left[pick.queue, pick.priority]))
                elif room is not None:
                    most = min(most, room - taken[place])
                if limit.per_worker is not None:
                    most = min(most, limit.per_worker - self._held_of(place.name) - taken[place])
            left[pick.queue, pick.priority] -= 1
            if most > 0:
                taken.update(dict.fromkeys(limits, most))
                kept.append(pick._replace(limit=most))
        return kept

    def count(self, claimed: Sequence[Claimed]) -> None:
        """Count the starts of what was claimed under a rate, and whose turn it was in a capped queue."""
        if not (self._locked and claimed):
            return
        if self._known.queues:
            self._limits.turns.record(self._asked, claimed, self._known.queues)
        numbers: Counter[LimitPlace] = Counter()
        rated: defaultdict[LimitPlace, list[tuple[str, str]]] = defaultdict(list)
        for (queue, lane), number in Counter((c.queue, c.lane) for c in claimed).items():
            for place, limit in self._known.of(queue, lane).items():
                if limit.rate is not None and place in self._rooms:
                    numbers[place] += number
                    rated[place].append((queue, lane))
        for place, number in sorted(numbers.items()):
            rate = self._rooms[place].limit.rate
            assert rate is not None, "only places with a rate are counted"
            until = rate.until(self._tx.now, self._limits.patience(place.starts, rate))
            caps.count(self._tx, place.starts, rate, until, number)
            for lane_of in rated[place]:
                self.start_by[lane_of] = (*self.start_by.get(lane_of, ()), (place.starts, until))


MAX_REMEMBERED_LANES = 1024  # when each was last claimed from; an older one goes first, like a new one


class QueueTurns:
    """By priority as where priorities share slots, within one by kind, the one first that was served the longest ago,
    then by fairness key, and of its lanes the one that was served the longest ago."""

    def __init__(self) -> None:
        self._rotations: dict[str, FairRotation] = {}
        self._served: dict[tuple[str, str, int], int] = {}  # the longest ago first
        self._kinds: dict[Turn, int] = {}
        self._serial = 0

    def keep(self, queues: Collection[str]) -> None:
        """Forget all but these queues."""
        self._rotations = {queue: rotation for queue, rotation in self._rotations.items() if queue in queues}
        self._served = {lane: serial for lane, serial in self._served.items() if lane[0] in queues}
        self._kinds = {turn: serial for turn, serial in self._kinds.items() if turn[0] in queues}

    def order(
        self, picks: Sequence[LaneClaim], queues: Collection[str], start_of: Callable[[LaneClaim], float]
    ) -> list[LaneClaim]:
        """The picks in their order; those of limited queues in the order in which they take of the queue's room.

        ``start_of``: when the turn of a pick's fairness key begins.
        """
        rank: dict[tuple[str, int], int] = {}
        for queue in {pick.queue for pick in picks if pick.queue in queues}:
            rotation = self._rotations.setdefault(queue, FairRotation())
            order = rotation.order({pick.priority for pick in picks if pick.queue == queue})
            rank |= {(queue, priority): place for place, priority in enumerate(order)}

        def turn(pick: LaneClaim) -> tuple[int, int, float, int]:
            place = rank.get((pick.queue, pick.priority), -1)
            if place < 0:
                return place, 0, 0.0, 0
            return place, self._kinds.get(turn_of(pick), 0), start_of(pick), self._served.get(LANE_OF(pick), 0)

        return sorted(picks, key=turn)

    def record(self, picks: Sequence[LaneClaim], claimed: Iterable[Claimed], queues: Collection[str]) -> None:
        """Record which of these picks of limited queues gave something."""
        got = {LANE_OF(c) for c in claimed if c.queue in queues}
        if not got:
            return
        waiting: dict[str, set[int]] = {}
        for pick in picks:
            if pick.queue in queues:
                waiting.setdefault(pick.queue, set()).add(pick.priority)
        for queue, priorities in waiting.items():
            given = {lane[2] for lane in got if lane[0] == queue}
            self._rotations.setdefault(queue, FairRotation()).record(priorities, given)
        self._serial += 1
        self._kinds |= dict.fromkeys((turn_of(pick) for pick in picks if LANE_OF(pick) in got), self._serial)
        for lane in sorted(got):
            self._served.pop(lane, None)
            self._served[lane] = self._serial
        forget_first(self._served, MAX_REMEMBERED_LANES)
