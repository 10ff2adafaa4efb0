"""What keeps a task that is due from being claimed, and what to do about it: by the predicates that claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.model.capacity import PROCESS
from scheduler.model.lanes import LANE_SEPARATOR, QUARANTINE_LANE, base_lane, executor_of, kind_of
from scheduler.model.live_settings import KEY, QUEUE
from scheduler.model.state import FIRST_TERMINAL
from scheduler.model.texts import listed, rfc3339, span_text
from scheduler.ports import SECOND
from scheduler.store import pauses
from scheduler.store.db import pg_blockers
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE, HELD, claimable
from scheduler.store.read import executors, slot_usage
from scheduler.store.read.lanes import heads_of_queues
from scheduler.store.read.unserved import left_behind
from scheduler.store.read.workers import Fleet
from scheduler.store.tasks import limits
from scheduler.store.tasks.claim import LaneHead

if TYPE_CHECKING:
    import sqlalchemy as sa

MAX_NAMED = 3  # tasks that hold a place under a cap, by their ids
_MAX_HELD = 1000  # that are looked at
_MAX_SUSPECTS = 20  # lanes of tasks that are due to run alone, likewise
_LONG_HELD = 60 * SECOND  # from then on since when is said

_COLUMNS = "t.id, t.kind, t.schema_version, t.queue, t.priority, t.lane, t.run_at"
CLOCK_AHEAD = 60 * SECOND  # what was made so far ahead of now has its times from a clock that was ahead
_SLOTS = "Give the pool more slots (`schedctl set pool`), start more workers, or store less work."
REMEDIES = {
    "paused": "Resume it.",
    "unserved": "Start a worker that serves it: `schedctl workers` shows what the live ones serve.",
    "locked": "End that session: `SELECT pg_terminate_backend(PID)`.",
    "alone": "It runs once the worker's other tasks have ended.",
    "cap": "See what those that hold it do: `schedctl logs ID`. Or raise the cap: `schedctl set`.",
    "rate": "Raise the rate (`schedctl set`), or wait.",
    "executor": "`schedctl executors` shows what the executor does.",
    "slots": _SLOTS,
    "soon": "If that stays so, `schedctl doctor` looks closer.",
}


class ReadyCause(NamedTuple):
    """``name``: a key of :data:`REMEDIES`. ``words`` go on from "due since …"."""

    name: str
    words: str
    own_remedy: str | None = None

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.own_remedy or REMEDIES[self.name]


class CapHolder(NamedTuple):
    """A task that fills a place under a cap, and since when (microseconds)."""

    id: int
    kind: str
    since: int


class Full(NamedTuple):
    """A cap without room. ``most``: ``its cap of 1``; ``holders``: the longest first, or some of them."""

    subject: str
    most: str
    holders: list[CapHolder]


def due_since(tx: Tx, row: sa.Row[Any]) -> str:
    """``due since …``."""
    return f"due since {rfc3339(ready_since(tx, row.id, row.run_at), exact=False)}"


def first_of(tx: Tx, head: LaneHead) -> sa.Row[Any] | None:
    """The task of a lane that has been due for the longest time, as :func:`cause_of` wants it."""
    return tx.run(
        f"SELECT {_COLUMNS} FROM schedd_tasks t WHERE {CLAIMABLE} AND queue = :queue AND lane = :lane "
        "AND priority = :priority ORDER BY run_at, id LIMIT 1",
        **head._asdict(),
    ).first()


def first_of_each(tx: Tx, heads: Sequence[LaneHead]) -> list[sa.Row[Any]]:
    """The rows of these heads, as :func:`cause_of` wants them, in their order; without those that are gone."""
    if not heads:
        return []
    found = tx.run(
        f"SELECT {_COLUMNS} FROM schedd_tasks t WHERE {tx.dialect.among('t.id')} AND {claimable('t')}",
        ids=tx.dialect.bind_ids([head.id for head in heads]),
    )
    rows = {row.id: row for row in found}
    return [rows[head.id] for head in heads if head.id in rows]


def cause_of(tx: Tx, row: sa.Row[Any], fleet: Fleet) -> ReadyCause:
    """What keeps this task, which is due, from being claimed."""
    kept_out = out_of_reach(tx, row, fleet)
    if kept_out is not None:
        return kept_out
    holder = pg_blockers.holder(tx, row.id)
    if holder is not None:
        return ReadyCause("locked", f", but its row is locked by {holder}: claims pass over it until that ends")
    rooms = limits.read(tx, row.queue, row.lane)
    limited = _limited(tx, row, rooms)
    if limited is not None:
        return limited
    capped = _full_workers(tx, row, fleet, rooms)
    if capped is not None and capped.every:
        return ReadyCause("cap", f"; its kind is at its cap of {capped.most} on each worker that would claim it")
    named = executor_of(row.lane)
    suspect = row.lane.startswith(QUARANTINE_LANE)
    if suspect and named is None and fleet.slot_types.get(row.kind) != PROCESS:  # a child harms no other task
        return ReadyCause("alone", _alone(row, fleet))
    executor = fleet.places(row.queue) if named is None else fleet.executors.get(named)
    if executor is not None and executor.scale is None:
        return ReadyCause("executor", f"; {executors.waits_there(tx, executor)}")
    if named is not None and executor is not None:  # no other worker takes it
        return ReadyCause("executor", f"; {executors.waits_for_worker(tx, executor)}")
    taken = slot_usage.full_reason(tx, fleet, row, capped, lambda: _next_alone(tx, fleet))
    if executor is not None and (taken or not fleet.serving(row.queue, row.kind, row.schema_version)):
        waits = executors.waits_for_worker(tx, executor)
        return ReadyCause("executor", f"; {'' if taken is None else f'{taken}; '}{waits}")
    if taken is not None:
        return ReadyCause("slots", f"; {taken}")
    return ReadyCause("soon", "; a worker claims it at its next cycle")


def _next_alone(tx: Tx, fleet: Fleet) -> Sequence[sa.Row[Any]]:
    """The suspects that are due and wait for nothing but to be alone, one of each lane; read once for each fleet."""
    if fleet.next_alone is None:
        fleet.next_alone = []  # for the causes of these themselves
        heads = [one for one in heads_of_queues(tx) if one.lane.startswith(QUARANTINE_LANE) and one.run_at <= tx.now]
        rows = first_of_each(tx, heads[:_MAX_SUSPECTS])
        fleet.next_alone = [row for row in rows if cause_of(tx, row, fleet).name == "alone"]
    return fleet.next_alone


def _alone(row: sa.Row[Any], fleet: Fleet) -> str:
    slotless = fleet.unserved(row.queue, row.kind, row.schema_version, row.priority)
    if slotless is None:
        return "; it ran when its worker died, twice, so it runs alone once the others have ended"
    # Only the worker knows whether its children have what the kind needs, such as the program's state.
    return f"; it ran when its worker died, twice, so a child process runs it if one can run its kind: {slotless}"


def out_of_reach(tx: Tx, row: sa.Row[Any], fleet: Fleet) -> ReadyCause | None:
    """A pause, or that no live worker serves this task, due or not; None if some worker may run it."""
    paused = pauses.of_task(tx, row.queue, row.kind)
    if paused is not None:
        return ReadyCause("paused", f", but {paused.describe()}; `{paused.remedy}` ends that")
    unserved = unserved_reason(row, fleet)
    if unserved is None:
        return None
    if not unserved.startswith("no live worker serves"):
        return ReadyCause("unserved", f", but {unserved}")
    last, remedy = left_behind(tx, fleet, row.queue, row.kind)
    return ReadyCause("unserved", f", but {unserved}{'' if last is None else f'; {last}. {remedy}'}", remedy)


def unserved_reason(row: sa.Row[Any], fleet: Fleet) -> str | None:
    """Why no live worker would claim this task; None if one would."""
    suspect = row.lane.startswith(QUARANTINE_LANE)
    executor = executor_of(row.lane)
    return fleet.unserved(row.queue, row.kind, row.schema_version, row.priority, executor, suspect=suspect)


def full_cap(tx: Tx, queue: str, lane: str) -> Full | None:
    """The cap without room that tasks of this lane and queue wait for."""
    return next(
        (_full(tx, place, room) for place, room in limits.read(tx, queue, lane).items() if room.free == 0), None
    )


def _full(tx: Tx, place: limits.LimitPlace, room: limits.Headroom) -> Full:
    subject = f"queue {place.name}" if place.scope == QUEUE else "its kind"
    return Full(subject, f"its cap of {room.limit.cap}{_of_key(place)}", _holders(tx, place))


def _of_key(place: limits.LimitPlace) -> str:
    _, separator, key = place.name.partition(LANE_SEPARATOR)
    return f" for concurrency key {key!r}" if separator and place.scope == KEY else ""


def _limited(tx: Tx, row: sa.Row[Any], rooms: Mapping[limits.LimitPlace, limits.Headroom]) -> ReadyCause | None:
    """The limit over all workers that it waits for, if any: of its kind, its concurrency key, or its queue."""
    for place, room in rooms.items():
        if room.free == 0:
            full = _full(tx, place, room)
            return ReadyCause("cap", f"; {full.subject} is at {full.most}: {holding(full.holders, tx.now)}")
        if room.starts == 0:
            of = f" of queue {place.name}" if place.scope == QUEUE else _of_key(place)
            again = rfc3339(room.again, exact=False)
            return ReadyCause("rate", f"; rate limit {room.limit.rate}{of}, next start at {again}")
    return None


def _holders(tx: Tx, place: limits.LimitPlace) -> list[CapHolder]:
    """The tasks that count under this cap, claimed first."""
    column, value = ("queue", place.name) if place.scope == QUEUE else ("kind", kind_of(place.name))
    rows = tx.rows(
        f"SELECT id, kind, lane, coalesce(started_at, claimed_at) FROM schedd_tasks WHERE {HELD} "
        f"AND {column} = :value ORDER BY claimed_at, id LIMIT {_MAX_HELD}",
        value=value,
    )
    return [
        CapHolder(task_id, kind, since or tx.now)
        for task_id, kind, lane, since in rows
        if place.scope != KEY or base_lane(lane) == place.name
    ]


def holding(holders: list[CapHolder], now: int) -> str:
    """``tasks 4, 5 hold it``."""
    if not holders:
        return "its room is free again"
    ids = [str(one.id) for one in holders]
    age = now - holders[0].since
    since = f" since {rfc3339(holders[0].since, exact=False)} ({span_text(age)})" if age > _LONG_HELD else ""
    if len(ids) < 2:
        return f"task {ids[0]} holds it{since}"
    return f"tasks {listed([*ids[:MAX_NAMED], *(['others'] if len(ids) > MAX_NAMED else [])])} hold it{since}"


def _full_workers(
    tx: Tx, row: sa.Row[Any], fleet: Fleet, rooms: Mapping[limits.LimitPlace, limits.Headroom]
) -> slot_usage.CappedWorkers | None:
    """The workers that hold as many tasks of the kind as one worker may; None without such a cap."""
    most = next((room.limit.per_worker for room in rooms.values() if room.limit.per_worker is not None), None)
    if most is None:
        return None
    rows = tx.rows(
        f"SELECT worker, count(*) FROM schedd_tasks WHERE {HELD} AND kind = :kind GROUP BY worker",
        kind=row.kind,
    )
    held = {row[0]: row[1] for row in rows}
    able = fleet.serving(row.queue, row.kind, row.schema_version)
    full = {worker.id for worker in able if held.get(worker.id, 0) >= most}
    return slot_usage.CappedWorkers(most, full, bool(able) and len(full) == len(able))


def ready_since(tx: Tx, task_id: int, run_at: int) -> int:
    """Since when nothing but a worker is missing: due, and its last parent had ended."""
    ended = tx.run(
        "SELECT max(p.finished_at) FROM schedd_edges e JOIN schedd_tasks p ON p.id = e.parent "
        f"WHERE e.child = :id AND p.state >= {FIRST_TERMINAL}",
        id=task_id,
    ).scalar()
    return max(run_at, ended or 0)


def all_ready_since(tx: Tx, heads: Sequence[LaneHead]) -> dict[int, int]:
    """The same of each of these heads, by its id."""
    if not heads:
        return {}
    rows = tx.run(
        "SELECT e.child, max((SELECT p.finished_at FROM schedd_tasks p WHERE p.id = e.parent "
        f"AND p.state >= {FIRST_TERMINAL})) AS ended FROM schedd_edges e WHERE {tx.dialect.among('e.child')} "
        "GROUP BY e.child",
        ids=tx.dialect.bind_ids([head.id for head in heads]),
    )
    ended = {row.child: row.ended or 0 for row in rows}
    return {head.id: max(head.run_at, ended.get(head.id, 0)) for head in heads}
