"""Reads past tasks whose payloads are too new for this program, as after a deploy was taken back.

Nothing is read for that until a slot has handed such a task back. From then on a cycle reads one stretch of each due
lane of the kind, and claims only what this program can read. Where a stretch holds nothing of that, the next one begins
behind it. After some seconds it is the first one again, since tasks may also become ready in front of that place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler.backoff import LogOnce
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.dispatch.lanes import Due, by_turn, flat
from scheduler.engine.state import EngineState
from scheduler.model.lanes import kind_of
from scheduler.ports import FOREVER, SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import LANE_OF, LaneHead, Within
from scheduler.store.tasks.lane_offsets import Lane, Place
from scheduler.store.tasks.newer_payloads import due_tasks

log = logging.getLogger("scheduler.engine")

ROWS_READ = 1000  # in one cycle, shared by the due lanes of such kinds
LEAST_READ = 4  # of each lane
WATCHED_S = 60.0  # from the last such task on that was seen of a kind
FROM_START_S = 5.0  # until a lane is read from its start again
STRETCH_S = 0.1  # and so much later for each stretch, so that the time for that stays small


class _Place(NamedTuple):
    """``number``: of stretches in front of it; ``until`` (monotonic): then the lane is read from its start again."""

    at: Place
    number: int
    until: float


class NewerPayloads:
    """Payloads that a worker reads past. ``kinds``: for which it looks, and until when (monotonic). Not thread-safe.

    Of the present cycle: ``within``: where the tasks are that it can read; ``without``: the lanes in which it found
    none; ``unread``: a lane may have more, behind the stretch that was read.
    """

    def __init__(self, engine_state: EngineState) -> None:
        self.engine_state = engine_state
        self.kinds: dict[str, float] = {}
        self.within: dict[Lane, Within] = {}
        self.without: list[LaneHead] = []
        self.unread = False
        self._places: dict[Lane, _Place] = {}
        self._long: dict[Lane, int] = {}  # lanes with more behind the stretch: how many tasks of it can be read
        self._logged = LogOnce()

    def met(self, attempts: Iterable[Attempt]) -> None:
        """Look for such tasks of the kinds of these, which a slot has handed back."""
        for attempt in attempts:
            kind, options = attempt.kind.name, attempt.kind.options
            self.kinds[kind] = self.engine_state.monotonic() + WATCHED_S
            if self._logged.is_new(key=kind):
                log.warning(
                    "tasks of kind %s have schema_version %d, this program knows %d: they are left to newer workers",
                    *(kind, attempt.claimed.schema_version, options.schema_version),
                )

    def read_past(self, tx: Tx, due: Due) -> Due:
        """The due lanes in which this program can read tasks, each with the first of those as its head."""
        self.within, self.without, self.unread, self._long = {}, [], False, {}
        now = self.engine_state.monotonic()
        self.kinds = {kind: until for kind, until in self.kinds.items() if until > now}
        self._places = {lane: place for lane, place in self._places.items() if place.until > now}
        heads = {LANE_OF(head): head for head in flat(due) if kind_of(head.lane) in self.kinds}
        if not heads:
            return due
        most = max(LEAST_READ, ROWS_READ // len(heads))
        starts = [(lane, self._places[lane].at if lane in self._places else head[3:]) for lane, head in heads.items()]
        for lane, tasks in due_tasks(tx, starts, most).items():
            kind = self.engine_state.registry.get(kind_of(lane[1]))
            assert kind is not None, "only lanes of registered kinds are claimed"
            version = kind.options.schema_version
            known = [one for one in tasks if one.version <= version]
            if len(known) < len(tasks):
                self.kinds[kind.name] = now + WATCHED_S
            if len(tasks) == most:
                self._long[lane] = len(known)
            if known:
                heads[lane] = LaneHead(*lane, *known[0].place)
                self.within[lane] = Within(version, *known[0].place, *known[-1].place, [one.id for one in known])
                continue
            self.without.append(heads.pop(lane))
            if len(tasks) == most:
                number = self._places[lane].number + 1 if lane in self._places else 1
                until = now + FROM_START_S + number * STRETCH_S
                self._places[lane] = _Place((tasks[-1].run_at, tasks[-1].id + 1), number, until)
                self.unread = True
        rest = (head for head in flat(due) if kind_of(head.lane) not in self.kinds)
        return by_turn([*rest, *heads.values()])

    def claimed(self, got: Mapping[Lane, int]) -> None:
        """Note what was claimed: of a lane whose stretch is used up the next one is to be read at once."""
        self.unread = self.unread or any(0 < known <= got[lane] for lane, known in self._long.items())

    def again(self, now: int) -> int:
        """When (microseconds) to read a lane from its start again."""
        if not self._places:
            return FOREVER
        left = min(place.until for place in self._places.values()) - self.engine_state.monotonic()
        return now + max(0, round(left * SECOND))
