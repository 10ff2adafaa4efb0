"""Which slots a task that is due waits for: by what its workers publish of theirs, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.model.capacity import PROCESS, THREAD, OrphanedAttempts, Room, SlotKey
from scheduler.model.defaults import POOLS, SUSPECT_ALONE_S
from scheduler.model.lanes import QUARANTINE_LANE
from scheduler.model.texts import listed
from scheduler.ports import SECOND
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
    some have reached; ``suspects``: tasks that run alone on some; ``next_alone``: that are to, and let none go first.
    """

    rooms: list[Room] = []
    at_most: list[tuple[int, int]] = []
    orphans: list[OrphanedAttempts] = []
    childless: bool = False
    capped: int | None = None
    suspects: list[int] = []
    next_alone: set[int] = set()


class _Load(NamedTuple):
    """The load of each worker, by pool and slot type, without kinds whose slot type no worker has reported. ``old``: of
    it, beside which a suspect runs; ``young``: how much of all is not; ``alone``: the task that runs alone on it, which
    leaves quarantine when it has run for a while."""

    held: dict[int, Counter[SlotKey]]
    old: dict[int, Counter[SlotKey]]
    young: Counter[int]
    alone: dict[int, int]


def full_reason(
    tx: Tx,
    fleet: Fleet,
    row: sa.Row[Any],
    capped: CappedWorkers | None = None,
    suspects: Callable[[], Sequence[sa.Row[Any]]] = tuple,
) -> str | None:
    """The lack of slots that keeps every worker which serves this task from claiming it; None if one has room.

    ``capped``: workers that do not claim it, whatever slots they have. ``suspects``: reads the tasks that are due to
    run alone, and wait for nothing else.
    """
    able, slot_type = fleet.serving(row.queue, row.kind, row.schema_version), fleet.slot_types.get(row.kind)
    if slot_type is not None:
        able = [w for w in able if not w.capacity.lacks(row.priority, slot_type)]
    here = _with_its_body(able, row)
    others = [w for w in able if w not in here]
    text = _taken(tx, fleet, row, others, capped, suspects) if others else None
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
    tx: Tx,
    fleet: Fleet,
    row: sa.Row[Any],
    able: list[WorkerRecord],
    capped: CappedWorkers | None,
    suspects: Callable[[], Sequence[sa.Row[Any]]],
) -> str | None:
    slot_type = fleet.slot_types.get(row.kind)
    load = _load(tx, fleet)
    full, slotted = _Full(), list[WorkerRecord]()
    for worker in able:
        capacity, holds = worker.capacity, worker.holds + worker.orphans
        if worker.id in load.alone:
            full.suspects.append(load.alone[worker.id])
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
        room = None if slot_type is None else capacity.room(row.priority, slot_type, load.held.get(worker.id, {}))
        if slot_type is None or room is None or room.free:
            first = _first_alone(fleet, worker, load, suspects) if load.young[worker.id] else None
            if first is None:
                return None
            full.next_alone.add(first)
            continue
        slotted.append(worker)
        full.rooms.append(room)
        full.orphans.extend(capacity.orphans_of(row.priority, slot_type))
    return _describe(slotted, row.priority, THREAD if slot_type is None else slot_type, full)


def _first_alone(
    fleet: Fleet, worker: WorkerRecord, load: _Load, suspects: Callable[[], Sequence[sa.Row[Any]]]
) -> int | None:
    """The suspect for which this worker claims nothing else until its young attempts have ended; None without one."""
    capacity, old = worker.capacity, load.old.get(worker.id, Counter())
    if capacity.most and old.total() >= capacity.most:
        return None
    for suspect in suspects():
        slot_type = fleet.slot_types.get(suspect.kind)
        if slot_type is None or worker not in fleet.serving(suspect.queue, suspect.kind, suspect.schema_version):
            continue
        room = capacity.room(suspect.priority, slot_type, old)
        children = (
            capacity.room(suspect.priority, PROCESS, load.held.get(worker.id, {})) if capacity.processes else None
        )
        # The worker alone knows the kinds that its children can run. With a free child it runs there, if it can.
        if room is not None and not room.full and (children is None or children.free):
            return int(suspect.id)
    return None


def _load(tx: Tx, fleet: Fleet) -> _Load:
    load = _Load({}, {}, Counter(), {})
    rows = tx.run(
        "SELECT worker, priority, kind, count(*) AS n, sum(CASE WHEN started_at <= :since THEN 1 ELSE 0 END) AS old, "
        f"max(CASE WHEN substr(lane, 1, 1) = '{QUARANTINE_LANE}' THEN id END) AS suspect "
        f"FROM schedd_tasks WHERE {HELD} GROUP BY worker, priority, kind",
        since=tx.now - round(SUSPECT_ALONE_S * SECOND),
    )
    for row in rows:
        worker, slot_type = row.worker or _NO_WORKER, fleet.slot_types.get(row.kind)
        if row.suspect is not None and row.worker is not None:
            load.alone[worker] = row.suspect
        load.young[worker] += row.n - row.old
        if slot_type is not None:
            load.held.setdefault(worker, Counter())[row.priority, slot_type] += row.n
            load.old.setdefault(worker, Counter())[row.priority, slot_type] += row.old
    return load


def _describe(able: list[WorkerRecord], priority: int, slot_type: int, full: _Full) -> str:
    waits = []
    if full.suspects:
        names, run = listed([str(i) for i in sorted(full.suspects)]), "runs" if len(full.suspects) == 1 else "run"
        waits.append(f"task {names}, which {run} alone at first, since its worker died when it ran before")
    if full.next_alone:
        names, goes = listed([str(i) for i in sorted(full.next_alone)]), "goes" if len(full.next_alone) == 1 else "go"
        over = f"each other task of its worker has ended or run for {SUSPECT_ALONE_S:.0f} s"
        waits.append(f"task {names}, which {goes} first, alone, once {over}")
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
