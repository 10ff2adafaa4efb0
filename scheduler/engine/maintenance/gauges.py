"""Metrics of an engine that are read when asked for: its slots, its loop, its store. From any thread."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping

from scheduler.engine.slots import Slots
from scheduler.engine.state import EngineState
from scheduler.model.capacity import PROCESS, SLOT_TYPES, SlotKey
from scheduler.model.defaults import POOLS
from scheduler.telemetry import metrics
from scheduler.telemetry.metrics import Family, Sample

SHARED = "shared"  # the label ``pool`` of child processes, which all pools share


class Gauges:
    """See the module. ``loop_age``: seconds; ``unreachable``: whether the engine cannot use the database."""

    def __init__(
        self,
        engine_state: EngineState,
        slots: Mapping[SlotKey, Slots],
        loop_age: Callable[[], float],
        unreachable: Callable[[], bool],
        version: str,
    ) -> None:
        self._engine_state = engine_state
        self._slots = slots
        self._loop_age = loop_age
        self._unreachable = unreachable
        self._build = (version, platform.python_version(), engine_state.database.dialect.name)

    def kinds(self) -> list[str]:
        """The kinds that this worker serves."""
        return [kind.name for kind in list(self._engine_state.registry)]

    def read(self) -> list[Family]:
        """The present values."""
        slots, busy = self._count_slots()
        return [
            Family(metrics.SLOTS, slots),
            Family(metrics.SLOTS_BUSY, busy),
            Family(metrics.ORPHANED_ATTEMPTS, [Sample((), self._orphans())]),
            Family(metrics.LOOP_AGE, [Sample((), self._loop_age())]),
            Family(metrics.STORE_UNREACHABLE, [Sample((), int(self._unreachable()))]),
            Family(metrics.BUILD_INFO, [Sample(self._build, 1)]),
            *self._engine_state.traffic.families(),
        ]

    def _orphans(self) -> int:
        state = self._engine_state
        return sum(attempt is not None and attempt.lost for attempt in map(state.held.get, state.losing.copy()))

    def _count_slots(self) -> tuple[list[Sample], list[Sample]]:
        state, options = self._engine_state, self._engine_state.options
        labels = {id(slots): _labels(key) for key, slots in self._slots.items()}
        sizes = {
            (name, SLOT_TYPES[number]): size
            for name in POOLS
            for number, size in enumerate(options.pools.get(name, (0, 0)))
        }
        if state.processes is not None:
            sizes[SHARED, SLOT_TYPES[PROCESS]] = options.processes.children
        taken = dict.fromkeys(sizes, 0)
        for attempt in list(state.held.copy().values()):
            if attempt.started_at is None or attempt.ended or attempt.slot is None:
                continue
            key = labels.get(id(attempt.slot))
            if key is not None:
                taken[key] = taken.get(key, 0) + 1
        return [Sample(k, n) for k, n in sizes.items()], [Sample(k, n) for k, n in taken.items()]


def _labels(key: SlotKey) -> tuple[str, str]:
    priority, slot_type = key
    return (SHARED if slot_type == PROCESS else POOLS[priority], SLOT_TYPES[slot_type])
