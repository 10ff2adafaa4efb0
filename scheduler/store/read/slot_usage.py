"""Which slots a task that is due waits for: by what its workers publish of theirs, and what they hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.model.capacity import PROCESS, THREAD, OrphanedAttempts, Room, SlotKey
from scheduler.model.defaults import POOLS
from scheduler.model.texts import listed
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import HELD
from scheduler.store.read.workers import Fleet, WorkerRecord, orphans_phrase

if TYPE_CHECKING:
    import sqlalchemy as sa

_NO_WORKER = 0  # no worker's id


class _Full(msgspec.Struct):
    """Why those that serve a task have no room: slots, (held, most) of max_concurrent_tasks; and what fills either
    without a claim. ``childless``: some cannot start a child process."""

    rooms: list[Room] = []
    at_most: list[tuple[int, int]] = []
    orphans: list[OrphanedAttempts] = []
    childless: bool = False


def full_reason(tx: Tx, fleet: Fleet, row: sa.Row[Any]) -> str | None:
    """What keeps every worker that serves this task from claiming it, where it is slots; None if one has room."""
    able = fleet.serving(row.queue, row.kind, row.schema_version)
    here = _with_its_body(able, row)
    others = [w for w in able if w not in here]
    text = _taken(tx, fleet, row, others) if others else None
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


def _taken(tx: Tx, fleet: Fleet, row: sa.Row[Any], able: list[WorkerRecord]) -> str | None:
    slot_type = fleet.slot_types.get(row.kind)
    held = _held(tx, fleet)
    full = _Full()
    for worker in able:
        capacity, holds = worker.capacity, worker.holds + worker.orphans
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
        full.rooms.append(room)
        full.orphans.extend(capacity.orphans_of(row.priority, slot_type))
    return _describe(able, row.priority, THREAD if slot_type is None else slot_type, full)


def _held(tx: Tx, fleet: Fleet) -> dict[int, Counter[SlotKey]]:
    """What each worker holds, by pool and slot type; without kinds whose slot type no worker has reported."""
    held: dict[int, Counter[SlotKey]] = {}
    rows = tx.run(
        f"SELECT worker, priority, kind, count(*) AS n FROM schedd_tasks WHERE {HELD} GROUP BY worker, priority, kind"
    )
    for row in rows:
        slot_type = fleet.slot_types.get(row.kind)
        if slot_type is not None:
            held.setdefault(row.worker or _NO_WORKER, Counter())[row.priority, slot_type] += row.n
    return held


def _describe(able: list[WorkerRecord], priority: int, slot_type: int, full: _Full) -> str:
    waits = []
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
