"""Cron expressions: five strict fields, and the minutes of a calendar without zones that they name.

A *minute* here is the number of minutes from 1970-01-01 00:00 on a wall clock; ``zoned.py`` turns it into instants.
The fields are read here, since croniter misreads some terms (it takes ``22 3-3 * * MON`` for every hour) and accepts
dates that never come. It makes the numbers of ``H``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterator
from datetime import date
from functools import lru_cache

import msgspec

from scheduler.errors import InvalidScheduleError
from scheduler.model.texts import counted

DAY = 1440  # minutes
EPOCH_DAY = date(1970, 1, 1).toordinal()
LAST_DAY = date(9998, 12, 31).toordinal()  # a year short of what datetime holds, so that no offset leads out of it
HORIZON_YEARS = 48  # 29 February on one weekday returns within 40 years, the gap of 2100 included

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), 1
    )
}
_WEEKDAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_LONGEST_MONTH = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_NICKNAMES = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}
_TERM = re.compile(
    r"(?:(?P<star>\*)|(?P<low>[0-9]{1,4}|[A-Z]{3})(?:-(?P<high>[0-9]{1,4}|[A-Z]{3}))?)(?:/(?P<step>[0-9]{1,4}))?"
)
_LAST_DAY = "L"
_NEAREST = re.compile(r"([0-9]{1,2})W|W([0-9]{1,2})")
_NTH = re.compile(r"([0-7]|[A-Z]{3})#([1-5])")
_LAST_WEEKDAY = re.compile(r"L([0-7])")
_HASH = re.compile(r"H(?:\((?P<low>[0-9]{1,2})-(?P<high>[0-9]{1,2})\))?(?P<step>/[0-9]{1,2})?")
_HASHED = re.compile(r"(?:^|[ ,])H(?=$|[ ,/(])")
_STAR_STEP = re.compile(r"\*/([0-9]{1,4})")


class CronFields(msgspec.Struct, frozen=True):
    """A parsed cron expression; :func:`parse` builds it."""

    times: tuple[int, ...]  # minutes of the day, ascending
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    both_days: bool  # day of month AND day of week must match; else either
    elapsed: bool  # follows elapsed time, not the wall clock
    last_day: bool = False
    nearest: frozenset[int] = frozenset()  # days whose nearest working day matches
    nth: frozenset[tuple[int, int]] = frozenset()  # (weekday, which of the month's); 0: the last one

    def matches_day(self, ordinal: int) -> bool:
        """Whether the date with this proleptic ordinal is one of the expression's."""
        day = date.fromordinal(ordinal)
        return day.month in self.months and self._matches(day.day, ordinal)

    def _matches(self, day: int, ordinal: int) -> bool:
        # Ordinal 1 is a Monday, so the remainder by 7 is cron's own count, 0 for Sunday.
        in_month, in_week = day in self.days, ordinal % 7 in self.weekdays
        if self.last_day or self.nearest or self.nth:
            length = monthrange(*date.fromordinal(ordinal).timetuple()[:2])[1]
            in_month = in_month or (self.last_day and day == length) or self._is_nearest(day, ordinal, length)
            which = {(ordinal % 7, (day + 6) // 7), (ordinal % 7, 0 if day + 7 > length else -1)}
            in_week = in_week or not self.nth.isdisjoint(which)
        return in_month and in_week if self.both_days else in_month or in_week

    def _is_nearest(self, day: int, ordinal: int, length: int) -> bool:
        """Whether this is the working day nearest to one of the days; never in another month."""
        for wanted in self.nearest:
            if wanted <= length:
                weekday = (ordinal - day + wanted) % 7
                if weekday == 6:
                    move = -1 if wanted > 1 else 2
                elif weekday == 0:
                    move = 1 if wanted < length else -2
                else:
                    move = 0
                if day == wanted + move:
                    return True
        return False

    def minutes_from(self, start: int) -> Iterator[int]:
        """The expression's minutes from ``start`` on, ascending, for HORIZON_YEARS and not for ever."""
        of_day = start % DAY
        for ordinal in self._days_from(start // DAY + EPOCH_DAY):
            midnight = (ordinal - EPOCH_DAY) * DAY
            first = bisect_left(self.times, of_day) if midnight + of_day == start else 0
            for time in self.times[first:]:
                yield midnight + time

    def _days_from(self, start: int) -> Iterator[int]:
        if start > LAST_DAY:
            return
        first = date.fromordinal(start)
        ordinal, year, month, day = start, first.year, first.month, first.day
        for _ in range(12 * HORIZON_YEARS + 1):
            length = monthrange(year, month)[1]
            if month in self.months:
                for offset in range(length - day + 1):
                    if self._matches(day + offset, ordinal + offset):
                        yield ordinal + offset
            ordinal, day = ordinal + length - day + 1, 1
            if ordinal > LAST_DAY:
                return
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)


class _Field(msgspec.Struct, frozen=True):
    name: str
    low: int
    high: int
    names: dict[str, int]
    day: bool = False  # one of the two that are both to match if either starts with a star

    def numbers(self, text: str) -> frozenset[int]:
        """The numbers that the field's terms name; none of those that depend on the month.

        Raises InvalidScheduleError, saying what is wrong and what fits.
        """
        given = text.split(",")
        plain = [term for term in given if not self.is_special(term)]
        if len(plain) < len(given):
            self._check_special(given, plain, text)
        found: set[int] = set()
        step = _STAR_STEP.fullmatch(given[0])
        if self.day and len(given) > 1 and step is not None and int(step[1]) > self.high - self.low + 1:
            # The idiom for the first Monday: */100,1-7 * MON. For the star's sake both days must match.
            found.add(self.low)
            del plain[0]
        return frozenset(found.union(*(self._term(term, text) for term in plain)))

    def is_special(self, term: str) -> bool:
        """Whether the term names days that depend on the month: ``L`` and ``15W``, or ``FRI#2`` and ``L5``."""
        if self.high == 31:
            return term == _LAST_DAY or _NEAREST.fullmatch(term) is not None
        if not self.day:
            return False
        nth = _NTH.fullmatch(term)
        named = nth is not None and (nth[1].isdigit() or nth[1] in self.names)
        return named or _LAST_WEEKDAY.fullmatch(term) is not None

    def _check_special(self, given: list[str], plain: list[str], text: str) -> None:
        """W stands by itself, and # and L of weekdays have none of the others beside them, as croniter has it, too."""
        for term in given:
            near = _NEAREST.fullmatch(term) if self.high == 31 else None
            if near is not None and len(given) > 1:
                raise self._error(text, "W goes with one day by itself, not in a list")
            if near is not None and not 1 <= int(near[1] or near[2]) <= 31:
                raise self._error(text, f"{near[1] or near[2]} is not one of 1-31")
        if self.high == 7 and plain:
            raise self._error(text, "# and L go with no other term but their like: FRI#1,FRI#3")

    def _term(self, term: str, text: str) -> range:
        match = _TERM.fullmatch(term)
        if match is None:
            raise self._error(
                text,
                f"{term!r} is not one of *, N, N-M, */S, N/S, N-M/S{self._more()} (? is not read)",
            )
        low, high, step = match["low"], match["high"], int(match["step"] or 1)
        most = self.high - self.low + 1
        if not 1 <= step <= most:
            raise self._error(
                text,
                f"a step of {step} is not from 1 to {most}; for other periods use an interval",
            )
        if match["star"]:
            return range(self.low, self.high + 1, step)
        first = self._number(low, text)
        if high is None:
            last = self.high if match["step"] else first
        else:
            last = self._number(high, text)
            if high == "SUN" and first > 0:
                last = 7  # FRI-SUN is no range backwards
        if last < first:
            raise self._error(text, f"the range {term} runs backwards; write its two parts, separated by a comma")
        return range(first, last + 1, step)

    def _more(self) -> str:
        return "" if not self.day else ", L, NW" if self.high == 31 else ", N#1 to N#5, LN"

    def _number(self, text: str, field: str) -> int:
        if text in self.names:
            return self.names[text]
        if not text.isdigit() or not self.low <= int(text) <= self.high:
            names = f" or {', '.join(self.names)}" if self.names else ""
            raise self._error(field, f"{text} is not one of {self.low}-{self.high}{names}")
        return int(text)

    def _error(self, field: str, reason: str) -> InvalidScheduleError:
        return InvalidScheduleError(f"{self.name} field {field!r}: {reason}")


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day-of-month", 1, 31, {}, day=True),
    _Field("month", 1, 12, _MONTHS),
    _Field("day-of-week", 0, 7, _WEEKDAYS, day=True),
)


def normalise(expression: str) -> str:
    """One spelling for expressions that differ in blanks or case only, so that they compare equal."""
    return " ".join(expression.upper().split())


@lru_cache(maxsize=4096)  # as many expressions as a large fleet's schedules have: reading one anew takes a millisecond
def parse(expression: str) -> CronFields:
    """Read five fields: minute, hour, day of month, month, day of week (docs/reference/recurrence.md has the rules).

    Raises InvalidScheduleError naming the field that does not fit, also when no date can ever match.
    """
    text = normalise(expression)
    prefix = f"cron expression {expression!r}: "
    if is_hashed(text):
        raise InvalidScheduleError(f"{prefix}H stands for a number made of a schedule's name, and there is none here")
    if text in _NICKNAMES:
        raise InvalidScheduleError(f"{prefix}nicknames are not read; write {_NICKNAMES[text]!r}")
    parts = text.split()
    if len(parts) != 5:
        raise InvalidScheduleError(
            f"{prefix}{counted(len(parts), 'field')}; write exactly five: minute, hour, day of month, month, "
            "day of week"
        )
    try:
        numbers = [field.numbers(part) for field, part in zip(_FIELDS, parts, strict=True)]
    except InvalidScheduleError as error:
        raise InvalidScheduleError(f"{prefix}{error}") from None
    minutes, hours, days, months, weekdays = numbers
    near, nth = _special_days(parts[2], parts[4])
    last_day = _LAST_DAY in parts[2].split(",")
    both_days = parts[2].startswith("*") or parts[4].startswith("*")
    if both_days and not last_day and min(days | near) > max(_LONGEST_MONTH[month] for month in months):
        raise InvalidScheduleError(f"{prefix}it never fires: day {min(days | near)} is in none of its months")
    return CronFields(
        times=tuple(60 * hour + minute for hour in sorted(hours) for minute in sorted(minutes)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        both_days=both_days,
        elapsed=parts[0].startswith("*") or parts[1].startswith("*"),
        last_day=last_day,
        nearest=near,
        nth=nth,
    )


def _special_days(of_month: str, of_week: str) -> tuple[frozenset[int], frozenset[tuple[int, int]]]:
    near = [int(found[1] or found[2]) for term in of_month.split(",") if (found := _NEAREST.fullmatch(term))]
    nth: list[tuple[int, int]] = []
    for term in of_week.split(","):
        if found := _NTH.fullmatch(term):
            nth.append((int(_WEEKDAYS.get(found[1], found[1])) % 7, int(found[2])))
        elif found := _LAST_WEEKDAY.fullmatch(term):
            nth.append((int(found[1]) % 7, 0))
    return frozenset(near), frozenset(nth)


def is_hashed(expression: str) -> bool:
    """Whether the expression has an ``H``, which stands for a number made of the schedule's name."""
    return _HASHED.search(normalise(expression)) is not None


def with_numbers(expression: str, name: str) -> str:
    """The expression with numbers in place of each ``H``: those that croniter makes of the name.

    Raises InvalidScheduleError for an H that is not ``H``, ``H(N-M)``, ``H/S`` or ``H(N-M)/S``.
    """
    parts = normalise(expression).split()
    if len(parts) != len(_FIELDS):
        return expression  # parse() says what is wrong
    made = []
    for number, (field, text) in enumerate(zip(_FIELDS, parts, strict=True)):
        terms = [_number_of(number, field, term, name) if term[:1] == "H" else term for term in text.split(",")]
        made.append(",".join(terms))
    return " ".join(made)


def _number_of(number: int, field: _Field, term: str, name: str) -> str:
    from croniter import CroniterError, croniter

    found = _HASH.fullmatch(term)
    problem: object = "write H, H(N-M), H/S or H(N-M)/S"
    if found is not None:
        # By itself: the days that each month has, and each weekday once.
        low, high = field.low, {31: 28, 7: 6}.get(field.high, field.high)
        if found["low"] is not None:
            low, high = int(found["low"]), int(found["high"])
            if not field.low <= low < high <= field.high:
                raise InvalidScheduleError(
                    f"cron expression: {field.name} field {term!r}: {low}-{high} is not a range within "
                    f"{field.low}-{field.high}"
                )
        fields = ["*"] * len(_FIELDS)
        fields[number] = f"h({low}-{high}){found['step'] or ''}"
        try:
            expanded, _ = croniter.expand(" ".join(fields), hash_id=name.encode())
            return ",".join(map(str, expanded[number]))
        except (CroniterError, ValueError) as error:
            problem = error
    raise InvalidScheduleError(f"cron expression: {field.name} field {term!r}: {problem}")
