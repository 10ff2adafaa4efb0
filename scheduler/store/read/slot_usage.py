"""Which slots a task that is due waits for: by what its workers publish of theirs, and what they hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.model.capacity import PROCESS, THREAD, OrphanedAttempts, Room, SlotKey
from scheduler.model.defaults import POOLS
from scheduler.model.lanes import QUARANTINE_LANE
from scheduler.model.texts import listed
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import HELD
from scheduler.store.read.workers import Fleet, WorkerRecord, orphans_phrase

if TYPE_CHECKING:
    import sqlalchemy as sa

_NO_WORKER = 0  # no worker's id


class CappedWorkers(NamedTuple):
    """The workers (``ids``) that hold ``most`` tasks of a kind, its cap on each. ``every``: no other one serves it."""

    most: int
    ids: set[int]
    every: bool


class _Full(msgspec.Struct):
    """Why those that serve a task have no room: slots, (held, most) of max_concurrent_tasks; and what fills either
    without a claim. ``childless``: some cannot start a child process; ``capped``: the kind's cap on each worker, which
    some have reached; ``suspects``: tasks that run alone on some."""

    rooms: list[Room] = []
    at_most: list[tuple[int, int]] = []
    orphans: list[OrphanedAttempts] = []
    childless: bool = False
    capped: int | None = None
    suspects: list[int] = []


def full_reason(tx: Tx, fleet: Fleet, row: sa.Row[Any], capped: CappedWorkers | None = None) -> str | None:
    """The lack of slots that keeps every worker which serves this task from claiming it; None if one has room.

    ``capped``: workers that do not claim it, whatever slots they have.
    """
    able = fleet.serving(row.queue, row.kind, row.schema_version)
    here = _with_its_body(able, row)
    others = [w for w in able if w not in here]
    text = _taken(tx, fleet, row, others, capped) if others else None
    if not here:
        return text
    if not others:
        return _beside(here, others)
    return f"{_beside(here, others)}; {text or 'another worker claims it at its next cycle'}"


def previous_attempt(fleet: Fleet, row: sa.Row[Any]) -> str | None:
    """Where a handler of this task that lost its claim still runs, so that it is handed back there; None if nowhere."""
    able = fleet.serving(row.queue, row.kind, row.schema_version)
    here = _with_its_body(able, row)
    return _beside(here, [w for w in able if w not in here]) if here else None


def _with_its_body(able: list[WorkerRecord], row: sa.Row[Any]) -> list[WorkerRecord]:
    return [w for w in able if any(row.id in s.tasks for s in w.capacity.orphans)]


def _beside(here: list[WorkerRecord], others: list[WorkerRecord]) -> str:
    where = f"worker {listed([w.label for w in here])}"
    text = f"its previous handler, which lost its claim, still runs on {where}, which does not run it beside that"
    return text if others else f"{text}; no other live worker would take it"


def _taken(
    tx: Tx, fleet: Fleet, row: sa.Row[Any], able: list[WorkerRecord], capped: CappedWorkers | None
) -> str | None:
    slot_type = fleet.slot_types.get(row.kind)
    held, alone = _held(tx, fleet)
    full, slotted = _Full(), list[WorkerRecord]()
    for worker in able:
        capacity, holds = worker.capacity, worker.holds + worker.orphans
        if worker.id in alone:
            full.suspects.append(alone[worker.id])
            continue
        if capped is not None and worker.id in capped.ids:
            full.capped = capped.most
            continue
        if capacity.most and holds >= capacity.most:
            full.at_most.append((holds, capacity.most))
            full.orphans.extend(capacity.orphans)
            continue
        if slot_type == PROCESS and capacity.childless:
            full.childless = True
            continue
        room = None if slot_type is None else capacity.room(row.priority, slot_type, held.get(worker.id, {}))
        if slot_type is None or room is None or room.free:
            return None
        slotted.append(worker)
        full.rooms.append(room)
        full.orphans.extend(capacity.orphans_of(row.priority, slot_type))
    return _describe(slotted, row.priority, THREAD if slot_type is None else slot_type, full)


def _held(tx: Tx, fleet: Fleet) -> tuple[dict[int, Counter[SlotKey]], dict[int, int]]:
    """What each worker holds, by pool and slot type, without kinds whose slot type no worker has reported; and the
    task that runs alone on a worker, which leaves quarantine when it has run for a while."""
    held: dict[int, Counter[SlotKey]] = {}
    alone: dict[int, int] = {}
    rows = tx.run(
        "SELECT worker, priority, kind, count(*) AS n, "
        f"max(CASE WHEN substr(lane, 1, 1) = '{QUARANTINE_LANE}' THEN id END) AS suspect "
        f"FROM schedd_tasks WHERE {HELD} GROUP BY worker, priority, kind"
    )
    for row in rows:
        if row.suspect is not None and row.worker is not None:
            alone[row.worker] = row.suspect
        slot_type = fleet.slot_types.get(row.kind)
        if slot_type is not None:
            held.setdefault(row.worker or _NO_WORKER, Counter())[row.priority, slot_type] += row.n
    return held, alone


def _describe(able: list[WorkerRecord], priority: int, slot_type: int, full: _Full) -> str:
    waits = []
    if full.suspects:
        names, run = listed([str(i) for i in sorted(full.suspects)]), "runs" if len(full.suspects) == 1 else "run"
        waits.append(f"task {names}, which {run} alone at first, since its worker died when it ran before")
    if full.childless:
        waits.append("a child process: none can be started at present, its worker's log says why")
    if full.rooms:
        room = full.rooms[0]
        for other in full.rooms[1:]:
            room = room.plus(other)
        if any(not one.full for one in full.rooms):
            return _perhaps(room)
        more = f", {room.more} more claimed" if room.more else ""
        waits.append(f"{_what(able, priority, slot_type)} ({room.busy} busy of {room.slots}{more})")
    if full.capped is not None:
        waits.append(f"room under its kind's cap of {full.capped} on each worker")
    if full.at_most:
        held, most = map(sum, zip(*full.at_most, strict=True))
        waits.append(f"room under max_concurrent_tasks ({held} held of {most})")
    text = f"waits for {' or '.join(waits)}"
    if full.orphans:
        runs = "runs until it ends" if sum(s.count for s in full.orphans) == 1 else "run until they end"
        text += f", where {orphans_phrase(full.orphans)} {runs}"
    return text


def _perhaps(room: Room) -> str:
    """In which pool's slot a task runs that a lower pool may have taken is known by its worker only."""
    some = "a task of a higher priority ends that may have its slot"
    if room.guests > 1:
        some = f"one of {room.guests} tasks of higher priorities ends that may have its slots"
    return f"a worker claims it at its next cycle, or when {some}"


def _what(able: list[WorkerRecord], priority: int, slot_type: int) -> str:
    if slot_type == PROCESS:
        return "a free child process"
    pools = [POOLS[one] for one in range(priority, len(POOLS)) if any(w.capacity.pool(one)[slot_type] for w in able)]
    name = "thread" if slot_type == THREAD else "async"
    return f"a free {name} slot of pool{'s' if len(pools) > 1 else ''} {', '.join(pools)}"
