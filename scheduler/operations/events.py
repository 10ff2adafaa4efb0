"""Events that tasks await: emit one, see which there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scheduler.errors import PayloadError
from scheduler.model.actor import in_bulk
from scheduler.model.checkpoint import MAX_VALUE
from scheduler.model.json_text import encode_json
from scheduler.model.names import check_text
from scheduler.model.times import SECOND
from scheduler.operations.desk import Desk
from scheduler.store import audit
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.durable import events
from scheduler.store.durable.events import EventEmit, EventRecord, Waiter
from scheduler.store.read.workers import no_worker_reason, workers


class EmitResult(NamedTuple):
    """``first``: whether nobody had emitted it before; ``same``: whether its payload is the one that was given now."""

    first: bool
    same: bool
    event: EventRecord


class EventPage(NamedTuple):
    """``awaited``: by name; ``emitted``: newest first; ``waiters``: some of the tasks that await each; ``more``: where
    the next page begins."""

    awaited: Sequence[EventRecord]
    emitted: Sequence[EventRecord]
    waiters: Mapping[str, Sequence[Waiter]]
    more: tuple[int, str] | None


def checked(name: str, payload: Any) -> EventEmit:
    """An event as it is stored. Raises PayloadError."""
    check_text(name, "an event's name")
    if payload is None:
        return EventEmit(name, None)
    text = encode_json(payload, "an event's payload")
    if len(text) > MAX_VALUE:
        raise PayloadError(f"an event's payload is {len(text)} bytes of JSON, over the limit of {MAX_VALUE}")
    return EventEmit(name, text)


def emit_in(tx: Tx, given: EventEmit) -> bool:
    """Emit it in a transaction that is under way: tasks that await it get its payload. Returns whether it was the
    first of its name; else nothing is changed."""
    new, _ = events.emit(tx, [given])
    if new:
        audit.record(tx, "event emitted", subject=f"event {given.name}")
    return bool(new)


def emit_on(tx: Tx, given: EventEmit, database: Database) -> bool:
    """:func:`emit_in` a caller's transaction. Raises sqlalchemy.exc.OperationalError if its snapshot is too old."""
    new = emit_in(tx, given)
    if new:
        events.refuse_unseen(tx, given.name, database.read)
    return new


def emit(desk: Desk, name: str, payload: Any = None) -> EmitResult:
    """Emit an event: the first one of a name wins. Raises PayloadError, StoreUnavailableError."""
    given = checked(name, payload)

    def work(tx: Tx) -> EmitResult:
        first = emit_in(tx, given)
        stored, found = events.emitted(tx, [name])[name], events.record(tx, name)
        assert found is not None
        return EmitResult(first, first or stored.payload == given.payload, found)

    return desk.write(work)


def listed(desk: Desk, limit: int) -> tuple[list[EventRecord], str | None]:
    """Awaited events, then emitted ones, newest first; and why no worker takes new work, if tasks await one."""
    with desk.read() as tx:
        found = events.records(tx, limit)
        idle = any(one.emitted_at is None for one in found)
        return found, no_worker_reason(workers(tx)) if idle else None


def page(tx: Tx, limit: int, before: tuple[int, str] | None, named: int) -> EventPage:
    """A page of events. ``before``: as the page before this one said; ``named``: waiting tasks of each event."""
    awaited = [] if before else events.awaited(tx, limit)
    emitted = events.newest(tx, limit + 1, before)
    waiters = {one.name: events.waiters(tx, one.name, named) for one in (*awaited, *emitted) if one.waiting}
    last = emitted[limit - 1] if len(emitted) > limit else None
    more = None if last is None or last.emitted_at is None else (last.emitted_at, last.name)
    return EventPage(awaited, emitted[:limit], waiters, more)


def cleanup(desk: Desk, age: int) -> int:
    """Remove events that were emitted longer ago than ``age`` microseconds and that no task awaits; how many."""

    def work(tx: Tx) -> int:
        removed = events.cleanup(tx, tx.now - age)
        if removed:
            audit.record(tx, "cleanup", subject="events", removed=removed)
        return removed

    removed, batch = 0, events.BATCH
    with in_bulk(audit.new_bulk(), {"older_than": age / SECOND}):
        while batch >= events.BATCH:
            batch = desk.database.change(work)
            removed += batch
    return removed
