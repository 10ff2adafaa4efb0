"""Slots against their definition: a clock watched minute by minute, over days on which it is changed."""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.cron import EPOCH_DAY, parse
from scheduler.model.recurrence import cron

MIN = 60_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(day: str) -> int:
    return (datetime.fromisoformat(day).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


ZONED_DAYS = [
    ("UTC", "2026-03-28"),
    ("Europe/Berlin", "2026-03-28"),
    ("Europe/Berlin", "2026-10-24"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("America/Havana", "2026-03-07"),  # the clock skips midnight
    ("America/Havana", "2026-10-31"),
    ("America/St_Johns", "2010-11-06"),  # goes back from 00:01 to 23:01 of the day before
    ("America/St_Johns", "2010-03-13"),
    ("Antarctica/Casey", "2018-03-10"),  # by three hours
    ("Pacific/Apia", "2011-12-29"),  # by a day
]
DAYS = 3


@cache
def watched(zone: str, start: str) -> tuple[list[tuple[int, int]], dict[int, int]]:
    """A clock watched for three days and the day before them, in minutes.

    What it shows at every instant; and when it has reached each wall-clock time: shown it for the first time,
    or just skipped it.
    """
    info, first = ZoneInfo(zone), us(start) // MIN
    shown, reached, highest = [], {}, None
    for minute in range(first - 1440, first + DAYS * 1440):
        here = (EPOCH + timedelta(minutes=minute)).astimezone(info)
        wall = (here.replace(tzinfo=UTC) - EPOCH) // timedelta(minutes=1)
        shown.append((minute, wall))
        for time in range(wall if highest is None else highest + 1, wall + 1):
            reached[time] = minute
        highest = wall if highest is None else max(highest, wall)
    return shown, reached


def expected_slots(expression: str, zone: str, start: str) -> list[int]:
    """The slots of the three days by the definition alone."""
    fields, first = parse(expression), us(start) // MIN // 1440
    named = {
        day * 1440 + time
        for day in range(first - 3, first + DAYS + 2)
        if fields.matches_day(day + EPOCH_DAY)
        for time in fields.times
    }
    shown, reached = watched(zone, start)
    if fields.elapsed:
        minutes = {minute for minute, wall in shown if wall in named}
    else:
        minutes = {reached[wall] for wall in named & reached.keys()}
    return sorted(minute * MIN for minute in minutes if minute * MIN > us(start))


def a_field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.tuples(st.just("*") | span | number.map(str), st.integers(1, high - low + 1))
    term = number.map(str) | span | step.map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.just("*") | st.lists(term, min_size=1, max_size=3).map(",".join)


expressions = st.tuples(
    a_field(0, 59),
    a_field(0, 23) | a_field(0, 3) | st.sampled_from(["0", "1", "2", "23"]),
    st.just("*") | a_field(1, 31),
    st.just("*"),
    st.just("*") | a_field(0, 7),
).map(" ".join)


@pytest.mark.case(41, pure=True)
@settings(max_examples=100)
@given(expressions, st.sampled_from(ZONED_DAYS), st.data())
def test_slots_are_those_of_a_clock_watched_minute_by_minute(
    expression: str, zoned_day: tuple[str, str], data: st.DataObject
) -> None:
    zone, day = zoned_day
    recurrence, expected = cron(expression, zone), expected_slots(expression, zone, day)
    start, end = us(day), us(day) + (DAYS * 1440 - 1) * MIN
    assert recurrence.slots_between(start, end, 10_000) == (expected, False)

    after, until = sorted((data.draw(st.integers(start, end)), data.draw(st.integers(start, end))))
    window = expected[bisect_right(expected, after) : bisect_right(expected, until)]
    assert recurrence.count_between(after, until) == len(window)
    assert recurrence.newest_between(after, until) == (window[-1] if window else None)
    later = expected[bisect_right(expected, after) :]
    if later:
        assert recurrence.next_after(after) == later[0]


@pytest.mark.case(41, 44)
@pytest.mark.parametrize(("zone", "day"), ZONED_DAYS)
@pytest.mark.parametrize(
    "expression",
    ["30 1,5,23 * * *", "15 0-4 * * *", "*/20 * * * *", "0 12 * * *", "0 12 30 * *"],
)
def test_windows_over_a_change_count_and_end_right(expression: str, zone: str, day: str) -> None:
    recurrence, expected = cron(expression, zone), expected_slots(expression, zone, day)
    edges = [us(day) + n * 331 * MIN for n in range(DAYS * 1440 // 331)]
    for index, after in enumerate(edges):
        for until in edges[index:]:
            window = expected[bisect_right(expected, after) : bisect_right(expected, until)]
            assert recurrence.count_between(after, until) == len(window)
            assert recurrence.newest_between(after, until) == (window[-1] if window else None)
