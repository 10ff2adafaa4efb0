"""Cron in a zone: the instants of a cron expression's minutes, where the clock may shift.

Two rules, by the expression (docs/reference/recurrence.md shows them at work). *Elapsed time*, when the minute or hour
field starts with ``*``: every instant whose local time matches, so twice in a repeated hour and never in a
skipped one. *Wall clock*, all else: a skipped time fires at the first instant after the gap, a repeated time
at its first occurrence. Instants are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from scheduler.errors import InvalidScheduleError
from scheduler.model.cron import DAY, EPOCH_DAY, HORIZON_YEARS, LAST_DAY, CronFields, parse
from scheduler.model.names import nearest

MINUTE_US = 60_000_000
DAY_US = DAY * MINUTE_US
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = _EPOCH.replace(tzinfo=None)  # wall-clock times carry no zone; the zone is asked about them
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US = (366 - EPOCH_DAY) * DAY_US  # from here on no offset leads out of what datetime holds
_LAST_US = (LAST_DAY - EPOCH_DAY) * DAY_US
_PROBE_US = 1_767_225_600_000_000  # 2026-01-01, from where a new expression must find a slot
_read: set[str] = set()


def find_zone(name: str) -> tzinfo | None:
    """The zone of this IANA name; None if this machine has none. UTC needs no zone data."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):  # a directory, a path, or simply unknown
        return None


def no_zone(name: str) -> str:
    """Why this machine has no zone of this name, with the nearest names."""
    known = available_timezones()
    if not known:
        return (
            "this machine has no time zone data: install the system's package tzdata (`apt-get install tzdata`), "
            "or `pip install tzdata`"
        )
    if name.startswith("US/"):
        return f"unknown time zone {name!r}; old names are in Debian's package tzdata-legacy, or `pip install tzdata`"
    near = nearest(name, known, 3)
    hint = f"did you mean {', '.join(near)}?" if near else "use an IANA name such as Europe/Berlin or UTC"
    return f"unknown time zone {name!r}; {hint}"


@lru_cache(maxsize=512)
def zone_of(name: str) -> tzinfo:
    """The zone of this IANA name. Raises InvalidScheduleError when there is none."""
    zone = find_zone(name)
    if zone is None:
        raise InvalidScheduleError(no_zone(name))
    _read.add(name)
    return zone


def zones_read() -> set[str]:
    """The names of the zones that were read since :func:`forget_zones`."""
    return set(_read)


def forget_zones() -> None:
    """Read zones anew when they are next asked for: their rules may be others now."""
    ZoneInfo.clear_cache(only_keys=set(_read))
    _read.clear()
    zoned_cron.cache_clear()
    zone_of.cache_clear()


def offset_us(zone: tzinfo, instant_us: int) -> int:
    """The zone's offset from UTC at an instant, in microseconds, positive to the east."""
    return _us((_EPOCH + timedelta(microseconds=instant_us)).astimezone(zone).utcoffset())


def _us(offset: timedelta | None) -> int:
    assert offset is not None  # these zones have an offset for every time
    return offset // _MICROSECOND


class ZonedCron:
    """A cron expression in a zone. Raises InvalidScheduleError when either is invalid or it never fires."""

    __slots__ = ("fields", "zone")

    fields: CronFields
    zone: tzinfo

    def __init__(self, expression: str, zone: str) -> None:
        self.fields = parse(expression)
        self.zone = zone_of(zone)
        # What parse() cannot see: `*/5 2 25-31 3 */7` names only minutes that Berlin skips, every year.
        if self._next(_PROBE_US) is None:
            raise InvalidScheduleError(
                f"cron expression {expression!r}: it never fires in {zone}, each of its times falling "
                "into the hour that the clock skips"
            )

    def next_after(self, after_us: int) -> int:
        """The first fire time strictly after an instant. InvalidScheduleError when the year 9998 ends first."""
        slot = self._next(after_us)
        if slot is None:
            raise InvalidScheduleError("no slot follows in the years 2 to 9998")
        return slot

    def count_between(self, after_us: int, until_us: int) -> int:
        """Count the fire times in (after, until]; the cost depends on the days only."""
        return sum(slots for slots, _ in self._strides(after_us, until_us))

    def newest_between(self, after_us: int, until_us: int) -> int | None:
        """The last fire time in (after, until], or None. Searches HORIZON_YEARS at most."""
        # In spans that double, since the newest fire time is mostly near.
        span, floor = DAY_US, max(after_us, until_us - HORIZON_YEARS * 366 * DAY_US)
        while True:
            start = max(floor, until_us - span)
            newest = max((slot for _, slot in self._strides(start, until_us)), default=None)
            if newest is not None or start == floor:
                return newest
            span *= 2

    def _next(self, after_us: int) -> int | None:
        if not _FIRST_US < after_us < _LAST_US:
            return None
        return self._next_elapsed(after_us) if self.fields.elapsed else self._next_wall(after_us)

    def _next_wall(self, after_us: int) -> int | None:
        wall = after_us + offset_us(self.zone, after_us)
        # Slots never go back as the wall clock goes forward, so the first that is late enough is the next.
        for minute in self.fields.minutes_from(wall // MINUTE_US + 1):
            early, late = self._offsets(minute)
            slot = minute * MINUTE_US - early
            if early < late:
                slot = self._end_of_gap(slot - (late - early), slot)
            if slot > after_us:
                return slot
        return None

    def _next_elapsed(self, after_us: int) -> int | None:
        offset = offset_us(self.zone, after_us)
        wall = after_us + offset
        # In the first pass of a repeated hour, minutes that have gone by come once more.
        early, late = self._offsets(wall // MINUTE_US)
        repeated = early - late if early > late and offset == early else 0
        best: int | None = None
        for minute in self.fields.minutes_from((wall - repeated) // MINUTE_US + 1):
            early, late = self._offsets(minute)
            if early < late:
                continue
            passes = (minute * MINUTE_US - early, minute * MINUTE_US - late)
            slots = [slot for slot in passes if slot > after_us]
            best = min(slots if best is None else [best, *slots], default=None)
            if slots and minute * MINUTE_US > wall:
                break  # minutes further on come later, in either pass
        return best

    def _offsets(self, minute: int) -> tuple[int, int]:
        """UTC offsets of a wall-clock minute, read both ways: rising in a gap, falling in a repeat."""
        wall = _WALL_EPOCH + timedelta(minutes=minute)
        return _us(self.zone.utcoffset(wall)), _us(self.zone.utcoffset(wall.replace(fold=1)))

    def _end_of_gap(self, before: int, after: int) -> int:
        """The instant in (before, after] at which the clock went forward."""
        old = offset_us(self.zone, before)
        while after - before > 1:
            middle = (before + after) // 2
            if offset_us(self.zone, middle) == old:
                before = middle
            else:
                after = middle
        return after

    def _strides(self, after_us: int, until_us: int) -> Iterator[tuple[int, int]]:
        """All slots in (after, until] as (how many, the last of them), a whole day's at once where it can."""
        slot = self._next(after_us)
        while slot is not None and slot <= until_us:
            more, last = self._rest_of_day(slot, until_us)
            yield more + 1, last
            slot = self._next(last)

    def _rest_of_day(self, slot: int, until_us: int) -> tuple[int, int]:
        """How many slots follow ``slot`` on its local day up to ``until``, and the last of them.

        Says 0 when the clock changes on that day: then the slots are to be found one by one.
        """
        offset = offset_us(self.zone, slot)
        day, of_day = divmod((slot + offset) // MINUTE_US, DAY)
        if self._offsets(day * DAY) != (offset, offset) or self._offsets((day + 1) * DAY) != (offset, offset):
            return 0, slot
        if not self.fields.matches_day(day + EPOCH_DAY):  # moved here from a day that was skipped
            return 0, slot
        times = self.fields.times
        first = bisect_right(times, of_day)
        end = bisect_right(times, (until_us + offset) // MINUTE_US - day * DAY)
        if end <= first:
            return 0, slot
        return end - first, (day * DAY + times[end - 1]) * MINUTE_US - offset


@lru_cache(maxsize=512)
def zoned_cron(expression: str, zone: str) -> ZonedCron:
    """A cached ZonedCron, since a schedule is evaluated often."""
    return ZonedCron(expression, zone)
