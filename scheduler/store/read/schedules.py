"""Recurring schedules as people see them: what is stored of each, and what it will run next."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from scheduler.errors import InvalidScheduleError, UnknownScheduleError
from scheduler.model.recurrence import Recurrence, Unreadable
from scheduler.model.times import LAST
from scheduler.ports import FOREVER
from scheduler.store.broken_rows import numbers_of, unreadable
from scheduler.store.db.dialect import prepared


class ScheduleRecord(NamedTuple):
    """A stored schedule. Instants are microseconds, UTC; ``next_at`` is FOREVER while a fixed-delay run goes on.

    ``trouble`` says why the recurrence cannot be read, if it cannot.
    """

    name: str
    kind: str
    payload: str
    recurrence: Recurrence
    catchup: str
    overlap: str
    anchor: int
    next_at: int
    paused: bool
    last_slot: int | None
    last_task: int | None
    created_at: int
    updated_at: int
    seen_at: int
    trouble: str | None = None


_RECORD = (
    "SELECT name, kind, payload, recurrence, catchup, overlap, anchor, next_at, paused, last_slot, last_task, "
    "created_at, updated_at, seen_at FROM schedd_schedules"
)


_NUMBERS = [name for name in numbers_of("schedd_schedules") if name != "paused"]


def _record_of(row: sa.Row[tuple[object, ...]]) -> ScheduleRecord:
    values = row._asdict()
    values["paused"] = bool(row.paused)
    try:
        values["recurrence"] = Recurrence.from_json(row.recurrence)
    except InvalidScheduleError as error:
        values |= {"recurrence": Unreadable("cron", str(error)), "trouble": str(error)}
    for name in _NUMBERS:
        if values[name] is not None and not isinstance(values[name], int):
            trouble = f"{name} is no number; see `schedctl doctor`"
            values |= {name: FOREVER, "recurrence": Unreadable("cron", trouble), "trouble": trouble}
    return ScheduleRecord(**values)


def records(connection: sa.Connection) -> list[ScheduleRecord]:
    """All schedules, by name."""
    return [_record_of(row) for row in connection.execute(prepared(f"{_RECORD} ORDER BY name"))]


def record(connection: sa.Connection, name: str) -> ScheduleRecord:
    """One schedule. Raises UnknownScheduleError."""
    row = connection.execute(prepared(f"{_RECORD} WHERE name = :name"), {"name": name}).first()
    if row is None:
        raise UnknownScheduleError(name)
    return _record_of(row)


def upcoming(schedule: ScheduleRecord, count: int, now: int) -> list[int]:
    """Its next instants, microseconds; for a fixed delay only the one that is known, if it is. Of slots that are
    overdue only those that are still to be run. Fewer where the calendar ends.

    Raises InvalidScheduleError if it cannot be read.
    """
    if schedule.trouble is not None:
        raise unreadable(schedule.name, schedule.trouble)
    if schedule.next_at >= FOREVER:
        return []
    instants = [_first(schedule, now)]
    while len(instants) < count and schedule.recurrence.mode != "fixed_delay":
        after = instants[-1] if schedule.catchup == "all" else max(instants[-1], now)
        try:
            following = schedule.recurrence.next_after(after, schedule.anchor)
        except InvalidScheduleError:
            break
        if following > LAST:
            break
        instants.append(following)
    return instants


def _first(schedule: ScheduleRecord, now: int) -> int:
    recurrence, next_at, anchor = schedule.recurrence, schedule.next_at, schedule.anchor
    if next_at > now:
        return next_at
    if schedule.paused or schedule.catchup == "none":
        return recurrence.next_after(now, anchor)
    if schedule.catchup == "all" or recurrence.mode == "fixed_delay":
        return next_at
    newest = recurrence.newest_between(next_at - 1, now, anchor)  # which one run for all of them has
    return next_at if newest is None else newest
