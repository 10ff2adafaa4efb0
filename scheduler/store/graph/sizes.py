"""How much work a graph is, by how long its kinds usually take: the mark in the lanes of its tasks, for workers that
start short graphs first.

A graph is what one call stores, and later calls add to it: what has a parent of a size takes that size.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from scheduler.model.capacity import PROCESS, SLOT_TYPES, THREAD, Capacity
from scheduler.model.defaults import POOLS
from scheduler.model.lanes import WAIT_FOR_WORK, fairness_of, parts_of, size_of, sized_lane
from scheduler.model.spec import TaskSpec
from scheduler.model.worker_states import LIVE
from scheduler.ports import SECOND
from scheduler.store.broken_rows import options_of
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.rollups import expected

if TYPE_CHECKING:
    import sqlalchemy as sa

_READ_ANEW = SECOND  # what workers say of themselves
_MEASURE_ANEW = 60 * SECOND  # how long kinds take
_WORKERS = f"SELECT pools FROM schedd_workers WHERE state = {LIVE} AND pools LIKE '%\"short_first\"%'"
_KINDS = "SELECT name, options FROM schedd_kinds WHERE name IN (SELECT kind FROM {rows} j)"

Usual = tuple[int, int | None]  # of a kind: slot type, how long it takes (microseconds)


class _GraphFleet:
    """The workers of a store, and the usual times of its kinds, as this process has read them. Callers of many threads
    share it, so what one of them works with is replaced, never emptied."""

    def __init__(self) -> None:
        self.read_at = self.measured_at = -_MEASURE_ANEW
        self.workers: list[Capacity] = []  # that start short graphs first
        self.usual: dict[str, Usual] = {}

    def read(self, tx: Tx) -> None:
        if not 0 <= tx.now - self.read_at < _READ_ANEW:
            self.read_at, workers = tx.now, []
            for (pools,) in tx.run(_WORKERS):
                with suppress(msgspec.MsgspecError):  # by another version
                    workers.append(msgspec.json.decode(pools, type=Capacity))
            self.workers = workers

    def measure(self, tx: Tx, kinds: set[str]) -> Mapping[str, Usual]:
        """The slot type and the usual time of each of these kinds, and of others."""
        if not 0 <= tx.now - self.measured_at < _MEASURE_ANEW:
            self.measured_at = tx.now
            self.usual = {}
        usual = self.usual
        new = kinds - usual.keys()
        if new:
            source, rows = tx.dialect.rows({"kind": str}), bind_rows([(kind,) for kind in sorted(new)])
            options = {name: options_of(text) for name, text in tx.run(_KINDS.format(rows=source), rows=rows)}
            times = expected(tx, new)
            for kind in new:
                slot_type = options.get(kind, {}).get("slot_type")
                place = SLOT_TYPES.index(slot_type) if slot_type in SLOT_TYPES else THREAD
                usual[kind] = place, times[kind].p50 if kind in times else None
        return usual

    def slots(self, queue: str, priority: int, slot_type: int) -> int:
        """How many tasks of a queue in short-first order run at once; 0 of another queue."""
        workers = [one for one in self.workers if one.starts_short_first(queue)]
        if slot_type == PROCESS:
            return sum(one.processes or 0 for one in workers)
        return sum(one.pool(level)[slot_type] for one in workers for level in range(priority, len(POOLS)))


_fleets: weakref.WeakKeyDictionary[sa.Engine, _GraphFleet] = weakref.WeakKeyDictionary()


def mark(tx: Tx, specs: Sequence[TaskSpec]) -> None:
    """Give these new tasks the lanes of their graph's size, in queues where a live worker asks for it."""
    if not any(spec.edges for spec in specs):
        return
    fleet = _fleets.setdefault(tx.connection.engine, _GraphFleet())
    fleet.read(tx)
    if not fleet.workers:
        return
    named = {spec.queue for spec in specs}
    queues = {queue for queue in named if any(worker.starts_short_first(queue) for worker in fleet.workers)}
    theirs = _sizes(tx, {e.parent for spec in specs for e in spec.edges if not e.local})
    graphs = [graph for graph in _graphs(specs) if len(graph) > 1 or theirs]
    usual = fleet.measure(tx, {specs[i].kind for graph in graphs for i in graph})
    for graph in graphs:
        members = [specs[i] for i in graph]
        size = max(
            (theirs[e.parent] for one in members for e in one.edges if not e.local and e.parent in theirs), default=None
        )
        if len(graph) > 1:
            own = _delay(fleet, usual, members)
            size = size if own is None else max(size or 0, size_of(own))
        if size is None or any(fairness_of(one.lane).key for one in members):
            continue
        for one in members:
            if one.queue in queues:
                one.lane = sized_lane(size, one.lane)


def _delay(fleet: _GraphFleet, usual: Mapping[str, Usual], members: Sequence[TaskSpec]) -> float | None:
    """How much later than it does this graph is taken to come (microseconds); None if nothing is known of its kinds."""
    work, known, unknown = 0.0, 0, 0
    for (kind, queue, priority), number in Counter((one.kind, one.queue, one.priority) for one in members).items():
        slot_type, span = usual[kind]
        slots = fleet.slots(queue, priority, slot_type)
        if span is None:
            unknown += number
        elif slots:
            work, known = work + number * span / slots, known + number
    return WAIT_FOR_WORK * work * (1 + unknown / known) if known else None


def _sizes(tx: Tx, ids: set[int]) -> dict[int, int]:
    """The sizes of these stored tasks, of those that have one."""
    if not ids:
        return {}
    rows = tx.run(f"SELECT id, lane FROM schedd_tasks WHERE id IN {tx.dialect.ids()}", ids=bind_rows(sorted(ids)))
    return {task_id: size for task_id, lane in rows if (size := parts_of(lane).size) is not None}


def _graphs(specs: Sequence[TaskSpec]) -> list[list[int]]:
    """The positions of the tasks of each graph: those that edges hold together."""
    first = list(range(len(specs)))

    def root(i: int) -> int:
        while first[i] != i:
            first[i] = i = first[first[i]]
        return i

    for i, spec in enumerate(specs):
        for edge in spec.edges:
            if edge.local:
                first[root(i)] = root(edge.parent)
    found: dict[int, list[int]] = {}
    for i in range(len(specs)):
        found.setdefault(root(i), []).append(i)
    return list(found.values())
