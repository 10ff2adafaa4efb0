"""Recurrence: when a schedule fires, by cron in a zone or by a plain interval.

docs/reference/recurrence.md has the rules. A *slot* here is a fire time: microseconds since the epoch, UTC, like every
instant here. Windows are half-open, (after, until]: a fire time at ``after`` was handled when ``after`` was reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from msgspec.structs import force_setattr

from scheduler.errors import ConfigError, InvalidScheduleError
from scheduler.model.cron import is_hashed, normalise, with_numbers
from scheduler.model.texts import rfc3339
from scheduler.model.times import SECOND, instant_us, span_us
from scheduler.model.zoned import DAY_US, ZonedCron, offset_us, zone_of, zoned_cron
from scheduler.ports import NEVER

Mode = Literal["fixed_rate", "fixed_delay"]
SHORTEST_US = SECOND  # each fire time makes a task with its own row: work that comes more often belongs into one task
LONGEST_US = 100 * 366 * DAY_US


class Weekday(Enum):
    """A day of the week. Its value is cron's number for it, 7 for Sunday."""

    MONDAY = 1
    TUESDAY = 2
    WEDNESDAY = 3
    THURSDAY = 4
    FRIDAY = 5
    SATURDAY = 6
    SUNDAY = 7


class Recurrence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A cron expression in a zone, an interval, or the fleet's start: ``cron()``, ``every()``, ``at_start()`` …

    ``expression`` (kept in one spelling: capitals, single blanks) and ``tz`` belong to kind cron,
    ``interval_us`` and ``mode`` to kind interval. ``start_us`` and ``end_us``: no fire time is earlier or later.
    Kind start has no fire times of its own: store/fleet_starts.py makes it due.
    Raises InvalidScheduleError for what is invalid or could never fire.
    """

    kind: Literal["cron", "interval", "start"]
    expression: str = ""
    tz: str = ""
    interval_us: int = 0
    mode: Mode | Literal[""] = ""
    start_us: int | None = None
    end_us: int | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.start_us is not None and self.end_us is not None and not self._hashed:
            first = self.start_us if self.mode == "fixed_delay" else self.next_after(self.start_us - 1, self.start_us)
            if first > self.end_us:
                span = f"from {rfc3339(self.start_us, exact=False)} to {rfc3339(self.end_us, exact=False)}"
                raise InvalidScheduleError(f"it never fires: {span} there is no slot")

    def _check(self) -> None:
        if self.kind == "cron":
            zoned_cron(with_numbers(self.expression, "") if self._hashed else self.expression, self.tz)
            force_setattr(self, "expression", normalise(self.expression))
            return
        if self.kind == "start":
            if self.start_us is not None or self.end_us is not None:
                raise InvalidScheduleError("a schedule that runs at a start has neither starts_at nor ends_at")
            return
        if self.mode not in ("fixed_rate", "fixed_delay"):
            raise InvalidScheduleError(f"mode must be 'fixed_rate' or 'fixed_delay', not {self.mode!r}")
        if not SHORTEST_US <= self.interval_us <= LONGEST_US:
            seconds = self.interval_us / SECOND
            raise InvalidScheduleError(f"an interval of {seconds:g} s is not from 1 s to 100 years")

    def next_after(self, after_us: int, anchor_us: int | None = None) -> int:
        """The first fire time strictly after an instant.

        ``anchor_us``: the schedule's first registration, needed by fixed rate: it fires at anchor + k * interval with
        k from 1. For fixed delay ``after_us`` is the end of the last run (the registration, if there was none), and
        the schedule fires one interval later, ``start_us`` at the earliest. A fixed rate with a start counts from that.
        NEVER once the end has passed. Raises InvalidScheduleError outside the years 2 to 9998.
        """
        if self.end_us is not None and after_us >= self.end_us:
            return NEVER
        slot = self._following(self._from_start(after_us), anchor_us)
        return slot if self.end_us is None or slot <= self.end_us else NEVER

    def _following(self, after_us: int, anchor_us: int | None) -> int:
        if self.kind == "cron":
            return self._cron.next_after(after_us)
        if self.kind == "start":
            return NEVER
        if self.mode == "fixed_delay":
            return max(after_us + self.interval_us, self.start_us or 0)
        anchor = self._anchor(anchor_us)
        return anchor + (self._passed(after_us, anchor) + 1) * self.interval_us

    def _from_start(self, after_us: int) -> int:
        """The instant, or the one before the start if that is later."""
        if self.start_us is None or self.mode == "fixed_delay":
            return after_us
        return max(after_us, self.start_us - 1)

    def _to_end(self, until_us: int) -> int:
        return until_us if self.end_us is None else min(until_us, self.end_us)

    def _anchor(self, anchor_us: int | None) -> int:
        """What a fixed rate counts from: its first slot is one interval later."""
        if self.start_us is not None:
            return self.start_us - self.interval_us
        if anchor_us is None:
            raise ValueError("a fixed rate counts from its first registration; pass it as anchor_us")
        return anchor_us

    def slots_between(
        self, after_us: int, until_us: int, limit: int, anchor_us: int | None = None
    ) -> tuple[list[int], bool]:
        """The fire times in (after, until], oldest first, at most ``limit``; and whether there are more.

        Fixed delay has one at most, since the next one depends on the end of that run.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        slots: list[int] = []
        while after_us < until_us:
            after_us = self.next_after(after_us, anchor_us)
            if after_us > until_us:
                break
            if len(slots) == limit:
                return slots, True
            slots.append(after_us)
            if self.mode == "fixed_delay":
                break
        return slots, False

    def count_between(self, after_us: int, until_us: int, anchor_us: int | None = None) -> int:
        """Count the fire times in (after, until], without a visit of each."""
        after_us, until_us = self._from_start(after_us), self._to_end(until_us)
        if until_us <= after_us or self.kind == "start":
            return 0
        if self.kind == "cron":
            return self._cron.count_between(after_us, until_us)
        if self.mode == "fixed_delay":
            return int(self._following(after_us, None) <= until_us)
        anchor = self._anchor(anchor_us)
        return self._passed(until_us, anchor) - self._passed(after_us, anchor)

    def newest_between(self, after_us: int, until_us: int, anchor_us: int | None = None) -> int | None:
        """The last fire time in (after, until], or None. For cron it searches HORIZON_YEARS at most."""
        after_us, until_us = self._from_start(after_us), self._to_end(until_us)
        if until_us <= after_us or self.kind == "start":
            return None
        if self.kind == "cron":
            return self._cron.newest_between(after_us, until_us)
        if self.mode == "fixed_delay":
            slot = self._following(after_us, None)
        else:
            anchor = self._anchor(anchor_us)
            slot = anchor + self._passed(until_us, anchor) * self.interval_us
            if slot == anchor:
                return None
        return slot if after_us < slot <= until_us else None

    def describe(self) -> str:
        """One line for people, such as ``30 2 * * * Europe/Berlin`` or ``every 1 h 30 min, fixed rate``."""
        if self.kind == "cron":
            text = f"{self.expression} {self.tz}"
        elif self.kind == "start":
            text = "at start"
        else:
            text = f"every {_span(self.interval_us)}, {self.mode.replace('_', ' ')}"
        for word, at in (("from", self.start_us), ("to", self.end_us)):
            text += "" if at is None else f", {word} {rfc3339(at, exact=False)}"
        return text

    def within(self, start: datetime | None, end: datetime | None) -> Recurrence:
        """The same recurrence from ``start`` to ``end`` (aware, both included, None: open).

        Raises InvalidScheduleError.
        """
        bounds = [None if at is None else instant_us(at, what) for what, at in (("starts_at", start), ("ends_at", end))]
        return msgspec.structs.replace(self, start_us=bounds[0], end_us=bounds[1])

    def to_json(self) -> str:
        """The recurrence as compact JSON, the same text for equal recurrences."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Recurrence:
        """What :meth:`to_json` wrote. Raises InvalidScheduleError when it is something else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise InvalidScheduleError(f"not a stored recurrence: {error}") from None

    def named(self, name: str) -> Recurrence:
        """The recurrence of the schedule with this name: each ``H`` in it becomes a number made of the name.

        Raises InvalidScheduleError.
        """
        if not self._hashed:
            return self
        return msgspec.structs.replace(self, expression=with_numbers(self.expression, name))

    @property
    def _hashed(self) -> bool:
        return self.kind == "cron" and is_hashed(self.expression)

    @property
    def _cron(self) -> ZonedCron:
        return zoned_cron(self.expression, self.tz)

    def _passed(self, instant_us: int, anchor_us: int) -> int:
        """Count the fire times of a fixed rate at or before an instant."""
        return max(0, (instant_us - anchor_us) // self.interval_us)


class UnreadableRule(Recurrence, frozen=True):
    """Stands for a stored recurrence that cannot be read; its expression says why. It is never stored."""

    def __post_init__(self) -> None:
        pass

    def next_after(self, after_us: int, anchor_us: int | None = None) -> int:
        """Raises InvalidScheduleError."""
        raise InvalidScheduleError(self.expression)

    def describe(self) -> str:
        """Why."""
        return f"unreadable: {self.expression}"


def cron(expression: str, tz: str | ZoneInfo = "UTC") -> Recurrence:
    """Five cron fields in a zone, as docs/reference/recurrence.md reads them. Raises InvalidScheduleError."""
    if not isinstance(expression, str):
        raise InvalidScheduleError(f"a cron expression is a text of five fields, not {expression!r}")
    return Recurrence(kind="cron", expression=expression, tz=_zone_name(tz))


def daily_at(hour: int, minute: int, tz: str | ZoneInfo = "UTC") -> Recurrence:
    """Every day at this time of the wall clock, once, also when the clock changes."""
    return cron(f"{_part('minute', minute, 59)} {_part('hour', hour, 23)} * * *", tz)


def hourly_at(minute: int, tz: str | ZoneInfo = "UTC") -> Recurrence:
    """Every hour at this minute; in a repeated hour both times."""
    return cron(f"{_part('minute', minute, 59)} * * * *", tz)


def weekly_on(weekday: Weekday, hour: int, minute: int, tz: str | ZoneInfo = "UTC") -> Recurrence:
    """Every week on this day at this time of the wall clock."""
    if not isinstance(weekday, Weekday):  # numbers are ambiguous: Python's 0 is Monday, cron's is Sunday
        raise InvalidScheduleError(f"weekday must be a Weekday such as Weekday.MONDAY, not {weekday!r}")
    return cron(f"{_part('minute', minute, 59)} {_part('hour', hour, 23)} * * {weekday.value}", tz)


def monthly_on(day: int, hour: int, minute: int, tz: str | ZoneInfo = "UTC") -> Recurrence:
    """Every month on this day at this time of the wall clock; months without the day are left out."""
    fields = f"{_part('minute', minute, 59)} {_part('hour', hour, 23)} {_part('day', day, 31, 1)} * *"
    return cron(fields, tz)


def every(interval: float | timedelta | str, mode: Mode = "fixed_rate") -> Recurrence:
    """Fire every ``interval``, seconds or timedelta, from 1 s to 100 years.

    ``fixed_rate`` counts from the first registration, however long the runs take; ``fixed_delay`` from the
    end of each run. Raises InvalidScheduleError.
    """
    try:
        interval_us = span_us(interval, "an interval", positive=True)
    except (ConfigError, OverflowError) as error:
        raise InvalidScheduleError(str(error)) from None
    return Recurrence(kind="interval", interval_us=interval_us, mode=mode)


def at_start() -> Recurrence:
    """Fire when a worker starts and no other is live, as ``@reboot`` of cron does when the machine starts."""
    return Recurrence(kind="start")


class ZoneMark(NamedTuple):
    """An instant on a zone's clock. ``changed``: the offset differs from that of the instant before it."""

    instant_us: int
    local: str  # RFC 3339, to the second
    offset: str  # +02:00
    changed: bool


def fold_marks(instants_us: Iterable[int], tz: str | ZoneInfo) -> list[ZoneMark]:
    """Instants as a zone's clock shows them, marked where the clock was changed since the one before.

    A change that was undone before the next instant (both changes of a year, say) makes no mark. Raises
    InvalidScheduleError for an unknown zone.
    """
    zone = zone_of(_zone_name(tz))
    marks: list[ZoneMark] = []
    before: int | None = None
    for instant in instants_us:
        offset = offset_us(zone, instant)
        local = datetime.fromtimestamp(instant // SECOND, UTC).astimezone(zone).isoformat()
        marks.append(ZoneMark(instant, local, local[19:], before is not None and offset != before))
        before = offset
    return marks


def _zone_name(tz: object) -> str:
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str):
        raise InvalidScheduleError(f"tz must be the name of a time zone, like Europe/Berlin, not {tz!r}")
    return name


def _part(what: str, value: object, high: int, low: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidScheduleError(f"{what} must be a whole number from {low} to {high}, not {value!r}")
    return value


def _span(us: int) -> str:
    parts = []
    for unit, size in (("d", DAY_US), ("h", 3600 * SECOND), ("min", 60 * SECOND)):
        count, us = divmod(us, size)
        if count:
            parts.append(f"{count} {unit}")
    if us:
        parts.append(f"{us / SECOND:.6f}".rstrip("0").rstrip(".") + " s")
    return " ".join(parts)
