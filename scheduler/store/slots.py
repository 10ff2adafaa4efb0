"""Which slots a task that is due waits for: by what its workers publish of theirs, and what they hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import sqlalchemy as sa

from scheduler.model.capacity import POOLS, Room
from scheduler.model.registry import PROCESS, THREAD, SlotKey
from scheduler.store.dialect import prepared
from scheduler.store.read_workers import Fleet, WorkerRecord

_NOBODY = 0  # no worker's id


def taken(connection: sa.Connection, fleet: Fleet, row: sa.Row[Any]) -> str | None:
    """What keeps every worker that serves this task from claiming it, where it is slots; None if one has room."""
    sort = fleet.sorts.get(row.kind)
    held = _held(connection, fleet)
    rooms: list[Room] = []
    at_most: list[int] = []
    able = fleet.serving(row.queue, row.kind, row.schema_version)
    for worker in able:
        most = worker.capacity.most
        if most and worker.holds >= most:
            at_most.append(most)
            continue
        room = None if sort is None else worker.capacity.room(row.pool, sort, held.get(worker.id, {}))
        if room is None or room.free:
            return None
        rooms.append(room)
    return _said(able, row.pool, sort or THREAD, rooms, at_most)


def _held(connection: sa.Connection, fleet: Fleet) -> dict[int, Counter[SlotKey]]:
    """What each worker holds, by level and sort; without kinds of which no worker has said their sort."""
    held: dict[int, Counter[SlotKey]] = {}
    rows = connection.execute(
        prepared(
            "SELECT worker, pool, kind, count(*) AS n FROM schedd_tasks WHERE state >= 4 AND state <= 5 "
            "GROUP BY worker, pool, kind"
        )
    )
    for row in rows:
        sort = fleet.sorts.get(row.kind)
        if sort is not None:
            held.setdefault(row.worker or _NOBODY, Counter())[row.pool, sort] += row.n
    return held


def _said(able: list[WorkerRecord], level: int, sort: int, rooms: list[Room], at_most: list[int]) -> str:
    waits = []
    if rooms:
        room = rooms[0]
        for other in rooms[1:]:
            room = room.plus(other)
        if any(not one.full for one in rooms):
            return _perhaps(room)
        more = f", {room.more} more claimed" if room.more else ""
        waits.append(f"{_what(able, level, sort)} ({room.busy} busy of {room.slots}{more})")
    if at_most:
        waits.append(f"room under max_concurrent_tasks ({sum(at_most)} held of {sum(at_most)})")
    return f"waits for {' or '.join(waits)}"


def _perhaps(room: Room) -> str:
    """In which pool's slot a task runs that another level's pool may have helped with is known by its worker only."""
    some = "a task of a higher level ends that may have its slot"
    if room.guests > 1:
        some = f"one of {room.guests} tasks of higher levels ends that may have its slots"
    return f"a worker claims it at its next turn, or when {some}"


def _what(able: list[WorkerRecord], level: int, sort: int) -> str:
    if sort == PROCESS:
        return "a free child process"
    pools = [POOLS[one] for one in range(level, len(POOLS)) if any(w.capacity.pool(one)[sort] for w in able)]
    name = "thread" if sort == THREAD else "async"
    return f"a free {name} slot of pool{'s' if len(pools) > 1 else ''} {', '.join(pools)}"
