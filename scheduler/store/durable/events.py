"""Named events: the first emit wins, and tasks that await it are woken in the same transaction.

Emitting and beginning to wait both lock the event's name, so that neither can miss the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.state import FIRST_TERMINAL
from scheduler.store.db import snapshots
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.snapshots import Reader
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.predicates import exists, is_live, same

BATCH = 500


class EventEmit(NamedTuple):
    """An event to be emitted: its JSON payload (None: None), and the task that does it."""

    name: str
    payload: str | None
    task_id: int | None = None


class Event(NamedTuple):
    """An emitted event."""

    payload: str | None
    emitted_at: int


class EventRecord(NamedTuple):
    """An event for people; ``emitted_at`` None: it is only awaited. ``size``: characters of JSON."""

    name: str
    emitted_at: int | None
    emitted_by: int | None
    size: int
    payload: str | None
    waiting: int


def emit(tx: Tx, emits: Sequence[EventEmit], *, lock: bool = True) -> tuple[set[str], int]:
    """Emit events, of several with one name the first. Returns the names that were new, and how many tasks woke.

    ``lock`` False: the caller has locked the names.
    """
    if lock:
        for name in sorted({e.name for e in emits}):
            tx.dialect.await_name(tx, lock_name(name))
    firsts = {e.name: e for e in reversed(emits)}
    columns: dict[str, type] = {"name": str, "payload": str, "emitted_by": int}
    made = tx.rows(
        "INSERT INTO schedd_events (name, payload, emitted_by, emitted_at) SELECT name, payload, emitted_by, :now "
        f"FROM {tx.dialect.rows(columns)} j WHERE true ON CONFLICT (name) DO NOTHING RETURNING name",
        rows=bind_rows([firsts[name] for name in sorted(firsts)]),
        now=tx.now,
    )
    new = {row[0] for row in made}
    return new, waits.events_happened(tx, sorted(new)) if new else 0


_AWAITING = f"SELECT task_id FROM schedd_waits WHERE {same('event', ':name')}"


def refuse_unseen(tx: Tx, name: str, read: Reader) -> None:
    """Refuse a caller's transaction that has emitted this event, if its snapshot is older than a task's wait for it:
    else nothing would wake that task. The name is locked, so nobody begins to wait until the caller's commit."""
    snapshots.refuse_unseen(tx, lambda one: {*one.rows(_AWAITING, name=name)}, read, "a task awaits the event")


def lock_name(event: str) -> str:
    """What emitters and waiters lock."""
    return f"event {event}"


def emitted(tx: Tx, names: Sequence[str]) -> dict[str, Event]:
    """Those of these events that have been emitted."""
    rows = tx.run(
        f"SELECT e.name, e.payload, e.emitted_at FROM {tx.dialect.rows({'name': str})} j "
        "JOIN schedd_events e ON e.name = j.name",
        rows=bind_rows([(name,) for name in set(names)]),
    )
    return {row[0]: Event(row[1], row[2]) for row in rows}


_WAITING = (
    "(SELECT CAST(count(*) AS integer) FROM schedd_waits w JOIN schedd_tasks t ON t.id = w.task_id "
    f"WHERE w.event = e.name AND t.state < {FIRST_TERMINAL})"
)
_RECORD = (
    "SELECT e.name, e.emitted_at, e.emitted_by, coalesce(length(e.payload), 0) AS size, "
    f"CASE WHEN length(e.payload) <= 200 THEN e.payload END AS payload, {_WAITING} AS waiting FROM schedd_events e"
)


def record(tx: Tx, name: str) -> EventRecord | None:
    """An emitted event."""
    row = tx.run(f"{_RECORD} WHERE e.name = :name", name=name).first()
    return None if row is None else EventRecord(*row)


def records(tx: Tx, limit: int = 100) -> list[EventRecord]:
    """Awaited events that are not emitted yet, then emitted ones, newest first."""
    found = awaited(tx, limit)
    return found + newest(tx, limit - len(found))


def awaited(tx: Tx, limit: int) -> list[EventRecord]:
    """Events that tasks wait for and that are not emitted yet, by name."""
    rows = tx.run(
        "SELECT w.event AS name, CAST(count(*) AS integer) AS waiting FROM schedd_waits w "
        f"JOIN schedd_tasks t ON t.id = w.task_id AND t.state < {FIRST_TERMINAL} "
        "WHERE w.event IS NOT NULL AND NOT EXISTS (SELECT 1 FROM schedd_events e WHERE e.name = w.event) "
        "GROUP BY w.event ORDER BY w.event LIMIT :limit",
        limit=limit,
    )
    return [EventRecord(r.name, None, None, 0, None, r.waiting) for r in rows]


def newest(tx: Tx, limit: int, before: tuple[int, str] | None = None) -> list[EventRecord]:
    """Emitted events, newest first. ``before``: only those after this one (emitted_at, name) in that order."""
    order = "ORDER BY e.emitted_at DESC, e.name LIMIT :limit"
    if before is None:
        return [EventRecord(*row) for row in tx.run(f"{_RECORD} {order}", limit=limit)]
    rows = tx.run(
        f"{_RECORD} WHERE e.emitted_at <= :at AND (e.emitted_at < :at OR e.name > :name) {order}",
        at=before[0],
        name=before[1],
        limit=limit,
    )
    return [EventRecord(*row) for row in rows]


class Waiter(NamedTuple):
    """A task that awaits an event. ``since``: microseconds."""

    task: int
    kind: str
    since: int


def waiters(tx: Tx, name: str, limit: int) -> list[Waiter]:
    """Up to ``limit`` tasks that await an event."""
    rows = tx.run(
        "SELECT w.task_id, t.kind, w.at FROM schedd_waits w JOIN schedd_tasks t ON t.id = w.task_id "
        f"WHERE w.event = :name AND t.state < {FIRST_TERMINAL} ORDER BY w.task_id LIMIT :limit",
        name=name,
        limit=limit,
    )
    return [Waiter(*row) for row in rows]


_WAITERS = f"FROM schedd_waits w WHERE {same('w.event', 'e.name')} AND {is_live('w.task_id')}"
UNAWAITED = f"NOT {exists('w.event', _WAITERS)}"
_OLD = f"FROM schedd_events e WHERE e.emitted_at < :before AND {UNAWAITED}"


def cleanup(tx: Tx, before: int, batch: int = BATCH) -> int:
    """Remove a batch of events that were emitted before then, but for those that a task awaits."""
    removed = tx.run(
        f"DELETE FROM schedd_events WHERE name IN (SELECT e.name {_OLD} ORDER BY e.emitted_at LIMIT :batch)",
        before=before,
        batch=batch,
    )
    return int(removed.rowcount)
