"""Keeps caps and rates: what a worker may claim now, and when to try again.

A kind without limits costs nothing here. Tasks of a kind with limits are not claimed ahead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.state import EngineState
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.rate import Rate
from scheduler.ports import FOREVER
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import limits as caps
from scheduler.store.tasks.claim import Claimed, LaneClaim, LaneHead, kind_of
from scheduler.store.tasks.complete import Completion
from scheduler.store.tasks.limits import Headroom, Limit, base_lane

CONTENDED_RETRY_US = 10_000  # until a kind is retried that another worker was claiming


class Limits:
    """The limits of this worker's kinds, as published by the newest program that serves them."""

    def __init__(self, engine_state: EngineState) -> None:
        self.engine_state = engine_state
        self.known: dict[str, Limit] = {}
        self.closed: dict[str, int] = {}  # kinds whose rate is used up, and until when
        self._patience: dict[str, int] = {}  # microseconds that a start may take here, where it is more than usual

    def learn(self, tx: Tx) -> None:
        """Read them again: other programs may have published others."""
        registry = self.engine_state.registry
        self.known = {name: limit for name, limit in caps.known(tx).items() if registry.get(name)}
        self.closed.clear()
        self._patience = {name: patience // 2 for name, patience in self._patience.items()}

    def patience(self, kind: str, rate: Rate) -> int:
        """How long after its claim an attempt of this kind may start."""
        return max(rate.start_window, self._patience.get(kind, 0))

    def concern(self, outcomes: Iterable[tuple[Attempt, Outcome]]) -> bool:
        """Whether one of these attempts is of a kind with limits."""
        return bool(self.known) and any(attempt.kind.name in self.known for attempt, _ in outcomes)

    def recorded(self, tx: Tx, outcomes: Sequence[tuple[Attempt, Outcome]], finished: Completion) -> None:
        """Refund the starts of attempts that never began."""
        back: dict[tuple[str, int], int] = {}
        for attempt, o in _written(outcomes, finished):
            if attempt.start_by is None or o.end is not AttemptEnd.HANDED_BACK or o.started_at is not None:
                continue
            kind = attempt.kind.name
            limit = self.known.get(kind)
            if o.finished_at > attempt.start_by and limit is not None and limit.rate is not None:
                # Starts are slow here: allow them more time, and count that.
                self._patience[kind] = min(limit.rate.max_start_window, 2 * self.patience(kind, limit.rate))
            back[kind, attempt.start_by] = back.get((kind, attempt.start_by), 0) + 1
        self.refund(tx, back)

    def refund(self, tx: Tx, back: Mapping[tuple[str, int], int]) -> None:
        """Refund starts: how many, by kind and until when they count."""
        for (kind, until), starts in sorted(back.items()):
            caps.refund(tx, kind, until, starts)
            self.closed.pop(kind, None)

    def freed(self, outcomes: Iterable[tuple[Attempt, Outcome]]) -> list[LaneHead]:
        """The capped lanes of these attempts, which have room again."""
        lanes = {
            (c.queue, base_lane(c.lane), c.pool)
            for attempt, _ in outcomes
            if (limit := self.known.get(attempt.kind.name)) is not None and limit.caps
            for c in (attempt.claimed,)
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
        """Whether to notify other workers: a capped lane has room again, and due tasks.

        ``heads``: of all lanes, before the claim; None if they are not known.
        """
        if not self.known or finished is None:
            return False
        freed: dict[str, int] = {}
        for attempt, _ in _written(outcomes, finished):
            limit = self.known.get(attempt.kind.name)
            if limit is not None and limit.caps:
                lane = base_lane(attempt.claimed.lane)
                freed[lane] = freed.get(lane, 0) + 1
        if not freed:
            return False
        for c in claimed:
            lane = base_lane(c.lane)
            freed[lane] = freed.get(lane, 0) - 1
        lanes = {lane for lane, n in freed.items() if n > 0}
        return bool(lanes) and (
            heads is None or any(head.run_at <= now and base_lane(head.lane) in lanes for head in heads)
        )


def _written(outcomes: Sequence[tuple[Attempt, Outcome]], finished: Completion) -> list[tuple[Attempt, Outcome]]:
    left = {(o.task_id, o.claim) for o in (*finished.lost, *finished.deferred)}
    return [(a, o) for a, o in outcomes if (o.task_id, o.claim) not in left]


class Admission:
    """What one cycle may claim of kinds with limits, locked from :meth:`lock` until the commit."""

    def __init__(self, limits: Limits, tx: Tx) -> None:
        self._limits = limits
        self._tx = tx
        self._rooms: dict[str, Headroom | None] = {}  # None: another worker is claiming of it
        self.start_by: dict[str, int] = {}
        self.again = FOREVER  # when something that is due and was refused may be claimed
        self.capped: set[str] = set()  # kinds of which something that is due was refused: by a cap
        self.rated: set[str] = set()  # by a rate

    def admitted(self, due: Sequence[LaneHead]) -> list[LaneHead]:
        """The lanes that may be claimed from, as far as is known."""
        return [head for head in due if self._admits(head.lane)]

    def _admits(self, lane: str) -> bool:
        kind = kind_of(lane)
        if kind not in self._limits.known:
            return True
        until = self._limits.closed.get(kind, 0)
        if until > self._tx.now:
            self.again = min(self.again, until)
            self.rated.add(kind)
            return False
        if kind not in self._rooms:
            return True
        room = self._rooms[kind]
        if room is None:
            self.again = min(self.again, self._tx.now + CONTENDED_RETRY_US)
            return False
        if room.starts == 0:
            self._limits.closed[kind] = room.again
            self.again = min(self.again, room.again)
            self.rated.add(kind)
            return False
        lane = base_lane(lane)
        if (room.limit.of(lane) is not None and lane not in room.held) or room.of(lane) != 0:
            return True
        self.capped.add(kind)
        return False

    def lock(self, picks: Iterable[LaneClaim], due: Iterable[LaneHead]) -> None:
        """Lock the limited kinds of these picks, and count the held tasks of their due lanes."""
        kinds = {kind_of(pick.lane) for pick in picks} & self._limits.known.keys()
        lanes = {base_lane(head.lane) for head in due if kind_of(head.lane) in kinds}
        taken = {lane for lane in lanes if kind_of(lane) in self._rooms}
        new = {lane for lane in taken if (room := self._rooms[kind_of(lane)]) is not None and lane not in room.held}
        for lane, number in caps.held(self._tx, new).items():
            room = self._rooms[kind_of(lane)]
            assert room is not None
            room.held[lane] = number
        if lanes - taken:
            found = caps.lock(self._tx, lanes - taken, self._limits.known)
            self._rooms |= {kind: found.get(kind) for kind in map(kind_of, lanes - taken)}

    def cut(self, picks: list[LaneClaim]) -> list[LaneClaim]:
        """The picks, reduced to what caps and rates allow."""
        if not self._rooms:
            return picks
        kept: list[LaneClaim] = []
        lanes: dict[str, int] = {}
        starts: dict[str, int] = {}
        for pick in picks:
            kind, lane = kind_of(pick.lane), base_lane(pick.lane)
            room = self._rooms.get(kind)
            most = pick.limit
            if room is not None:
                free = room.of(lane)
                if free is not None:
                    most = min(most, free - lanes.get(lane, 0))
                if room.starts is not None:
                    most = min(most, room.starts - starts.get(kind, 0))
            lanes[lane] = lanes.get(lane, 0) + most
            starts[kind] = starts.get(kind, 0) + most
            if most > 0:
                kept.append(pick._replace(limit=most))
        return kept

    def count(self, claimed: Iterable[Claimed]) -> None:
        """Count the starts of what was claimed of kinds with a rate."""
        numbers: dict[str, int] = {}
        for c in claimed if self._rooms else ():
            numbers[c.kind] = numbers.get(c.kind, 0) + 1
        for kind, number in sorted(numbers.items()):
            room = self._rooms.get(kind)
            if room is not None and room.limit.rate is not None:
                until = room.limit.rate.until(self._tx.now, self._limits.patience(kind, room.limit.rate))
                caps.count(self._tx, kind, room.limit.rate, until, number)
                self.start_by[kind] = until
