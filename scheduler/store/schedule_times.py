"""Next fire times that have to be found again: the recurrence has changed, or the rules of its zone have."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.errors import InvalidScheduleError
from scheduler.model.recurrence import Recurrence
from scheduler.model.zoned import DAY_US, find_zone
from scheduler.ports import FOREVER
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

if TYPE_CHECKING:
    import sqlalchemy as sa


class _Stored(NamedTuple):
    name: str
    recurrence: str
    anchor: int
    next_at: int
    last_slot: int | None
    created_at: int


_PAGE = 500  # schedules that are looked at in one go, some milliseconds
_ZONED, _UTC = '"tz":"', '"tz":"UTC"'
_NEXT_PAGE = (
    f"SELECT {', '.join(_Stored._fields)} FROM schedd_schedules "
    f"WHERE name > :after AND next_at < {FOREVER} ORDER BY name LIMIT {_PAGE}"
)


def is_ahead(row: sa.Row[Any], now: int) -> bool:
    """Whether its recurrence has a slot before the one that it waits for, which a clock that was ahead has found."""
    try:
        recurrence = Recurrence.from_json(row.recurrence)
    except InvalidScheduleError:
        return False
    next_at = int(row.next_at)
    return next_at < FOREVER and recurrence.next_after(now, min(row.anchor, now)) < next_at


def after_change(row: sa.Row[Any], old: Recurrence, new: Recurrence, now: int, last: int | None) -> tuple[int, int]:
    """The anchor and the next fire time of a schedule that gets another recurrence. ``last``: that it ran last.

    Two versions of a program may register theirs in turn, each before the other's is due; it must fire all the same.
    """
    since = row.created_at if last is None else last
    if new.mode == "fixed_delay":
        if row.next_at == FOREVER:
            return now, FOREVER
        end = row.next_at - old.interval_us if old.mode == "fixed_delay" and row.next_at < FOREVER else now
        return now, new.next_after(min(end, now))
    if old.mode == "fixed_delay":
        return now, new.next_after(now, now)
    alike = old.mode == new.mode
    anchor, after = (row.anchor if alike else now), now
    if alike and new.mode == "fixed_rate":
        after = max(now, since + new.interval_us // 2)  # no run right after one by the other interval
    if since < now and row.next_at > now and old.count_between(since, now, min(row.anchor, since)):
        # By either of the two it would have run since.
        due = new.newest_between(since, now, anchor if alike else since)
        if due is not None:
            return anchor, due
    return anchor, new.next_after(after, anchor)


def by_present_rules(row: _Stored | sa.Row[Any]) -> int | None:
    """The next fire time, if the stored one is none of the recurrence by the present rules of its zone; else None.

    The one nearest to the stored one, after the last that ran. None for a recurrence that cannot be read.
    """
    at = int(row.next_at)
    if at >= FOREVER or _ZONED not in row.recurrence or _UTC in row.recurrence:
        return None
    try:
        recurrence = Recurrence.from_json(row.recurrence)
        following = recurrence.next_after(at - 1, row.anchor)
        before = None if following == at else recurrence.newest_between(at - DAY_US, at, row.anchor)
    except InvalidScheduleError:
        return None
    if following == at:
        return None
    handled = row.created_at if row.last_slot is None else row.last_slot
    if before is not None and before > handled and at - before < following - at:
        return before
    return following


def unknown_zone(text: str) -> str | None:
    """The zone of a stored recurrence, if this machine does not know it."""
    try:
        name = json.loads(text)["tz"]
    except (ValueError, KeyError, TypeError):
        return None  # it cannot be read at all
    return None if find_zone(name) is not None else str(name)


class Moved(NamedTuple):
    """A schedule whose next fire time was found again, in microseconds."""

    name: str
    stored: int
    next_at: int


def moved(tx: Tx, after: str = "") -> tuple[list[Moved], str | None]:
    """Schedules whose stored next fire time is none by the present rules, of some hundred that follow the name
    ``after``; and after which name to go on, None if these were the last. Unreadable ones are passed over."""
    rows = [_Stored._make(row) for row in tx.rows(_NEXT_PAGE, after=after)]
    found = []
    for row in rows:
        next_at = by_present_rules(row) if isinstance(row.next_at, int) else None
        if next_at is not None:
            found.append(Moved(row.name, row.next_at, next_at))
    return found, rows[-1].name if len(rows) == _PAGE else None


def move(tx: Tx, found: Iterable[Moved]) -> list[str]:
    """Store these fire times where the old ones still stand. Returns the names."""
    source = tx.dialect.rows({"name": str, "stored": int, "following": int})
    given = tx.run(
        f"UPDATE schedd_schedules SET next_at = j.following FROM {source} j "
        "WHERE schedd_schedules.name = j.name AND next_at = j.stored RETURNING schedd_schedules.name",
        rows=bind_rows([tuple(one) for one in found]),
    )
    return [row[0] for row in given]
