"""Recurrences: what fires when, in zones that change their clocks, and what is refused when built."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from time import perf_counter
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import InvalidScheduleError
from scheduler.model.recurrence import (
    Recurrence,
    Weekday,
    cron,
    daily_at,
    every,
    fold_marks,
    hourly_at,
    monthly_on,
    weekly_on,
)

S = 1_000_000
MIN = 60 * S
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def us(text: str) -> int:
    """A time as ISO 8601, UTC unless it says otherwise."""
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def local(instant: int, zone: str) -> str:
    return (EPOCH + timedelta(microseconds=instant)).astimezone(ZoneInfo(zone)).isoformat(timespec="minutes")


def slots(recurrence: Recurrence, start: str, count: int) -> list[str]:
    found, more = recurrence.slots_between(us(start), us("2200-01-01"), count)
    assert more or len(found) < count
    return [local(slot, recurrence.tz) for slot in found]


# --- what is written and what fires


@pytest.mark.case(39, pure=True)
@pytest.mark.parametrize(
    ("recurrence", "expected"),
    [
        (hourly_at(5), ["2026-01-01T00:05+00:00", "2026-01-01T01:05+00:00"]),
        (daily_at(2, 30), ["2026-01-01T02:30+00:00", "2026-01-02T02:30+00:00"]),
        (weekly_on(Weekday.SUNDAY, 9, 0), ["2026-01-04T09:00+00:00", "2026-01-11T09:00+00:00"]),
        (weekly_on(Weekday.MONDAY, 9, 0), ["2026-01-05T09:00+00:00", "2026-01-12T09:00+00:00"]),
        (monthly_on(31, 0, 0), ["2026-01-31T00:00+00:00", "2026-03-31T00:00+00:00"]),
        (cron("*/20 9-10 * * *"), ["2026-01-01T09:00+00:00", "2026-01-01T09:20+00:00"]),
        (cron("22 3-3 * * MON"), ["2026-01-05T03:22+00:00", "2026-01-12T03:22+00:00"]),
        (cron("0 0 29 2 *"), ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
        (cron("0 0 1 jan,jul *"), ["2026-07-01T00:00+00:00", "2027-01-01T00:00+00:00"]),
        (cron("5/25 0 * * *"), ["2026-01-01T00:05+00:00", "2026-01-01T00:30+00:00"]),
        (cron("0 0 * * 7"), ["2026-01-04T00:00+00:00", "2026-01-11T00:00+00:00"]),
        (cron("0 0 * * fri-sun/2"), ["2026-01-02T00:00+00:00", "2026-01-04T00:00+00:00"]),
        # Either day field, unless one of them starts with a star: then both.
        (cron("0 0 13 * FRI"), ["2026-01-02T00:00+00:00", "2026-01-09T00:00+00:00"]),
        (cron("0 0 */13 * FRI"), ["2026-02-27T00:00+00:00", "2026-03-27T00:00+00:00"]),
        (cron("0 0 30 2 MON"), ["2026-02-02T00:00+00:00", "2026-02-09T00:00+00:00"]),
    ],
    ids=lambda value: value.describe() if isinstance(value, Recurrence) else "",
)
def test_every_kind_of_recurrence(recurrence: Recurrence, expected: list[str]) -> None:
    assert slots(recurrence, "2026-01-01", 2) == expected


@pytest.mark.case(39, pure=True)
def test_29_february_leaps_over_2100() -> None:
    assert slots(cron("0 0 29 2 *"), "2096-03-01", 1) == ["2104-02-29T00:00+00:00"]
    assert slots(cron("0 0 29 2 */7"), "2088-03-01", 1) == ["2128-02-29T00:00+00:00"]


@pytest.mark.case(39, pure=True)
@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "0 fields; write exactly five"),
        ("* * * *", "4 fields"),
        ("0 0 12 * * *", "6 fields"),
        ("@daily", "write '0 0 \\* \\* \\*'"),
        ("@reboot", "1 field; write exactly five"),
        ("60 * * * *", "minute field '60': 60 is not one of 0-59"),
        ("* 24 * * *", "hour field"),
        ("* * 0 * *", "day-of-month field"),
        ("* * * 13 *", "month field"),
        ("* * * * 8", "day-of-week field '8': 8 is not one of 0-7 or SUN, MON"),
        ("* * * MON *", "month field 'MON'"),
        ("-1 * * * *", "minute field"),
        ("1.5 * * * *", "minute field"),
        ("1,,2 * * * *", "minute field"),
        ("*/0 * * * *", "a step of 0 is not from 1 to 60"),
        ("*/90 * * * *", "use an interval"),
        ("*/90,5 * * * *", "use an interval"),
        ("0 */24,*/25 * * *", "use an interval"),
        ("0 0 */100 * MON", "use an interval"),
        ("0 0 1-7,*/100 * MON", "use an interval"),
        ("5- * * * *", "minute field"),
        ("1-2-3 * * * *", "minute field"),
        ("0 22-2 * * *", "runs backwards"),
        ("0 0 * * 5-0", "runs backwards"),
        ("0 0 * * SAT-MON", "runs backwards"),
        ("0 0 1W,15 * *", "W goes with one day by itself"),
        ("0 0 32W * *", "32 is not one of 1-31"),
        ("0 0 LW * *", "day-of-month field 'LW'"),
        ("0 0 * * MON#6", "day-of-week field 'MON#6'"),
        ("0 0 * * 5L", "day-of-week field '5L'"),
        ("0 0 * * MON#1,TUE", "no other term but their like"),
        ("0 L * * *", "hour field 'L'"),
        ("0 0 31W 4,6 *", "it never fires"),
        ("H(9-3) * * * *", "minute field .*: 9-3 is not a range"),
        ("0 H(0-99) * * *", "hour field .*: 0-99 is not a range"),
        ("HH * * * *", "minute field 'HH'"),
        ("0 0 ? * MON", "day-of-month field"),
        ("٣ * * * *", "minute field"),
        (f"{'9' * 5000} * * * *", "minute field"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 30-31 2 */2", "never fires"),
    ],
)
def test_what_is_invalid_or_never_fires_is_refused_when_built(expression: str, says: str) -> None:
    with pytest.raises(InvalidScheduleError, match=says):
        cron(expression)


@pytest.mark.case(39, pure=True)
@pytest.mark.parametrize(
    ("expression", "days"),
    [
        ("0 0 */100,1-7 * MON", ["2026-02-02", "2026-03-02", "2026-04-06", "2026-05-04", "2026-06-01", "2026-07-06"]),
        ("0 0 */32,15-21 * MON", ["2026-01-19", "2026-02-16", "2026-03-16", "2026-04-20", "2026-05-18", "2026-06-01"]),
        ("0 0 1-7 * */100,MON", ["2026-02-01", "2026-02-02", "2026-03-01", "2026-03-02", "2026-04-05", "2026-04-06"]),
    ],
)
def test_a_step_beyond_a_day_field_lets_both_days_count(expression: str, days: list[str]) -> None:
    start = datetime(2026, 1, 6, tzinfo=UTC)
    assert slots(cron(expression), "2026-01-06", len(days)) == [f"{day}T00:00+00:00" for day in days]
    oracles = [CronSim(expression, start), croniter(expression, start, ret_type=datetime, day_or=False)]
    for oracle in oracles:
        assert [f"{next(oracle):%Y-%m-%d}" for _ in days] == days


@pytest.mark.case(39, pure=True)
def test_times_that_the_clock_always_skips_never_fire() -> None:
    always_skipped = "*/5 2 25-31 3 */7"  # the last Sunday of March, in elapsed time
    with pytest.raises(InvalidScheduleError, match="never fires in Europe/Berlin"):
        cron(always_skipped, "Europe/Berlin")
    assert slots(cron(always_skipped), "2026-01-01", 1) == ["2026-03-29T02:00+00:00"]


@pytest.mark.parametrize(
    "build",
    [
        lambda: daily_at(24, 0),
        lambda: daily_at(0, 60),
        lambda: daily_at(-1, 0),
        lambda: daily_at(True, 0),
        lambda: daily_at(1.0, 0),  # type: ignore[arg-type]
        lambda: hourly_at(60),
        lambda: monthly_on(0, 0, 0),
        lambda: monthly_on(32, 0, 0),
        lambda: weekly_on(0, 0, 0),  # type: ignore[arg-type]
        lambda: cron(None),  # type: ignore[arg-type]
        lambda: cron("* * * * *", None),  # type: ignore[arg-type]
        lambda: every(0),
        lambda: every(-5),
        lambda: every(float("nan")),
        lambda: every(float("inf")),
        lambda: every(10**400),
        lambda: every(1e-6),
        lambda: every(0.999999),
        lambda: every(timedelta(milliseconds=999), "fixed_delay"),
        lambda: every(timedelta(days=40_000)),
        lambda: every("five minutes"),
        lambda: every(5, mode="cron"),  # type: ignore[arg-type]
        lambda: Recurrence.from_json('{"kind":"cron"}'),
        lambda: Recurrence.from_json('{"kind":"lunar"}'),
        lambda: Recurrence.from_json("nonsense"),
    ],
)
def test_helpers_refuse_what_does_not_fit(build: Callable[[], Recurrence]) -> None:
    with pytest.raises(InvalidScheduleError):
        build()


@pytest.mark.case(39, pure=True)
@pytest.mark.parametrize(
    ("zone", "says"),
    [
        ("europe/berlin", "did you mean Europe/Berlin"),
        ("Europe", "unknown time zone 'Europe'"),
        ("", "IANA"),
        ("/etc/passwd", "unknown time zone"),
        ("../UTC", "unknown time zone"),
    ],
)
def test_an_unknown_zone_is_named(zone: str, says: str) -> None:
    with pytest.raises(InvalidScheduleError, match=says):
        daily_at(1, 0, tz=zone)


# --- zones


@pytest.mark.case(41, pure=True)
@pytest.mark.parametrize(
    ("recurrence", "start", "expected"),
    [
        # Spring. 02:30 is skipped in Berlin and New York; on Lord Howe the clock goes from 02:00 to 02:30.
        (daily_at(2, 30, "Europe/Berlin"), "2026-03-28T12:00", ["29T03:00+02:00", "30T02:30+02:00"]),
        (daily_at(2, 30, "America/New_York"), "2026-03-07T12:00", ["08T03:00-04:00", "09T02:30-04:00"]),
        (daily_at(2, 30, "Australia/Lord_Howe"), "2026-10-03T12:00", ["04T02:30+11:00", "05T02:30+11:00"]),
        (daily_at(2, 15, "Australia/Lord_Howe"), "2026-10-03T12:00", ["04T02:30+11:00", "05T02:15+11:00"]),
        (daily_at(1, 30, "Europe/Berlin"), "2026-03-28T12:00", ["29T01:30+01:00", "30T01:30+02:00"]),
        (daily_at(1, 30, "America/New_York"), "2026-03-07T12:00", ["08T01:30-05:00", "09T01:30-04:00"]),
        (daily_at(1, 30, "Australia/Lord_Howe"), "2026-10-03T12:00", ["04T01:30+10:30", "05T01:30+11:00"]),
        # Autumn. A repeated time fires once, the first time.
        (daily_at(2, 30, "Europe/Berlin"), "2026-10-24T12:00", ["25T02:30+02:00", "26T02:30+01:00"]),
        (daily_at(2, 30, "America/New_York"), "2026-10-31T12:00", ["01T02:30-05:00", "02T02:30-05:00"]),
        (daily_at(2, 30, "Australia/Lord_Howe"), "2026-04-04T08:00", ["05T02:30+10:30", "06T02:30+10:30"]),
        (daily_at(1, 30, "Europe/Berlin"), "2026-10-24T12:00", ["25T01:30+02:00", "26T01:30+01:00"]),
        (daily_at(1, 30, "America/New_York"), "2026-10-31T12:00", ["01T01:30-04:00", "02T01:30-05:00"]),
        (daily_at(1, 30, "Australia/Lord_Howe"), "2026-04-04T08:00", ["05T01:30+11:00", "06T01:30+10:30"]),
        # Hourly follows elapsed time: the skipped hour is left out, the repeated one fires twice.
        (hourly_at(0, "Europe/Berlin"), "2026-03-29T00:30", ["29T03:00+02:00", "29T04:00+02:00"]),
        (hourly_at(0, "America/New_York"), "2026-03-08T06:30", ["08T03:00-04:00", "08T04:00-04:00"]),
        (hourly_at(0, "Australia/Lord_Howe"), "2026-10-03T15:00", ["04T03:00+11:00", "04T04:00+11:00"]),
        (hourly_at(30, "Europe/Berlin"), "2026-10-25T00:00", ["25T02:30+02:00", "25T02:30+01:00"]),
        (hourly_at(30, "America/New_York"), "2026-11-01T05:00", ["01T01:30-04:00", "01T01:30-05:00"]),
        (hourly_at(45, "Australia/Lord_Howe"), "2026-04-04T14:30", ["05T01:45+11:00", "05T01:45+10:30"]),
        (hourly_at(15, "Australia/Lord_Howe"), "2026-04-04T14:00", ["05T01:15+11:00", "05T02:15+10:30"]),
        # A range of minutes in the skipped hour fires once, not once for each.
        (cron("0-59 2 * * *", "Europe/Berlin"), "2026-03-28T23:00", ["29T03:00+02:00", "30T02:00+02:00"]),
        # Samoa had no 30 December 2011.
        (daily_at(12, 0, "Pacific/Apia"), "2011-12-30T08:00", ["31T00:00+14:00", "31T12:00+14:00"]),
    ],
    ids=lambda value: value.describe() if isinstance(value, Recurrence) else "",
)
def test_zones_across_both_changes(recurrence: Recurrence, start: str, expected: list[str]) -> None:
    assert [slot[8:] for slot in slots(recurrence, start, 2)] == expected


# --- windows, intervals


@pytest.mark.case(44)
def test_missed_slots_are_listed_in_bounded_pieces_and_counted_without_visiting_them() -> None:
    recurrence, start = cron("* * * * *"), us("2026-01-01")
    end, seen, after = start + 2_500 * MIN, [], start
    pieces = []
    while True:
        piece, more = recurrence.slots_between(after, end, 1_000)
        pieces.append(len(piece))
        seen += piece
        if not more:
            break
        after = piece[-1]
    assert pieces == [1_000, 1_000, 500]
    assert seen == [start + n * MIN for n in range(1, 2_501)]
    assert recurrence.count_between(start, end) == 2_500
    assert recurrence.newest_between(start, end) == end


def test_windows_are_open_at_their_start_and_closed_at_their_end() -> None:
    recurrence, noon, next_noon = daily_at(12, 0), us("2026-05-01T12:00"), us("2026-05-02T12:00")
    assert recurrence.next_after(noon) == next_noon
    assert recurrence.next_after(noon - 1) == noon
    assert recurrence.slots_between(noon, next_noon, 5) == ([next_noon], False)
    assert recurrence.slots_between(noon - 1, next_noon, 1) == ([noon], True)
    assert recurrence.slots_between(next_noon, noon, 5) == ([], False)
    assert recurrence.slots_between(noon, next_noon - 1, 5) == ([], False)
    assert recurrence.count_between(noon, next_noon) == 1
    assert recurrence.count_between(next_noon, noon) == 0
    assert recurrence.newest_between(noon, next_noon - 1) is None
    assert recurrence.newest_between(next_noon, noon) is None
    with pytest.raises(ValueError, match="limit"):
        recurrence.slots_between(noon, next_noon, 0)


def test_the_newest_slot_of_a_rare_schedule_is_found_years_back() -> None:
    now = us("2027-12-01")
    assert cron("0 0 29 2 *").newest_between(us("1970-01-01"), now) == us("2024-02-29")
    assert cron("* * * 1 *").newest_between(us("1970-01-01"), now) == us("2027-01-31T23:59")
    assert cron("0 0 29 2 *").newest_between(us("2025-01-01"), now) is None


@pytest.mark.case(46)
def test_a_fixed_rate_keeps_to_its_anchor_and_a_fixed_delay_to_the_end_of_the_run() -> None:
    anchor, interval = us("2026-01-01"), 10 * S
    rate, delay = every(10), every(timedelta(seconds=10), mode="fixed_delay")
    started, ended = [], []
    slot, run = rate.next_after(anchor, anchor), delay.next_after(anchor)
    for _ in range(4):
        started.append((slot - anchor) / interval)
        slot = rate.next_after(slot + 4 * S, anchor)
        ended.append((run - anchor) / interval)
        run = delay.next_after(run + 4 * S)
    assert started == [1, 2, 3, 4]
    assert ended == pytest.approx([1, 2.4, 3.8, 5.2])


@given(st.integers(S, 10**15), st.integers(0, 4 * 10**15), st.integers(-(10**15), 10**15), st.integers(0, 50))
def test_a_fixed_rate_is_arithmetic(interval: int, anchor: int, offset: int, steps: int) -> None:
    rate = Recurrence(kind="interval", interval_us=interval, mode="fixed_rate")
    after = anchor + offset
    slot = rate.next_after(after, anchor)
    assert slot > after
    assert (slot - anchor) % interval == 0
    assert slot > anchor
    assert slot - interval <= max(after, anchor)

    until = slot + steps * interval
    window = [slot + k * interval for k in range(steps + 1)]
    assert rate.slots_between(after, until, 100, anchor) == (window, False)
    assert rate.count_between(after, until, anchor) == steps + 1
    assert rate.newest_between(after, until, anchor) == until
    assert rate.newest_between(after, slot - 1, anchor) is None


def test_a_fixed_delay_never_has_more_than_one_slot_due() -> None:
    delay, end = every(10, "fixed_delay"), us("2026-01-01")
    assert delay.slots_between(end, end + 100 * S, 5) == ([end + 10 * S], False)
    assert delay.slots_between(end, end + 9 * S, 5) == ([], False)
    assert delay.count_between(end, end + 100 * S) == 1
    assert delay.newest_between(end, end + 100 * S) == end + 10 * S
    assert delay.newest_between(end, end + 9 * S) is None


def test_a_fixed_rate_without_an_anchor_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="anchor_us"):
        every(10).next_after(0)


# --- values


@pytest.mark.case(42)
@pytest.mark.parametrize(
    ("recurrence", "text", "description"),
    [
        (
            daily_at(2, 30, ZoneInfo("Europe/Berlin")),
            '{"kind":"cron","expression":"30 2 * * *","tz":"Europe/Berlin"}',
            "30 2 * * * Europe/Berlin",
        ),
        (
            every(5400),
            '{"kind":"interval","interval_us":5400000000,"mode":"fixed_rate"}',
            "every 1 h 30 min, fixed rate",
        ),
        (
            every(timedelta(days=1, milliseconds=1500), "fixed_delay"),
            '{"kind":"interval","interval_us":86401500000,"mode":"fixed_delay"}',
            "every 1 d 1.5 s, fixed delay",
        ),
    ],
)
def test_a_stored_recurrence_comes_back_the_same(recurrence: Recurrence, text: str, description: str) -> None:
    assert recurrence.to_json() == text
    assert Recurrence.from_json(text) == recurrence
    assert recurrence.describe() == description
    assert hash(Recurrence.from_json(text.encode())) == hash(recurrence)


@pytest.mark.case(42)
def test_spelling_makes_no_other_recurrence() -> None:
    assert cron(" 0  9 * * mon\t") == cron("0 9 * * MON")
    assert cron("0 9 * * MON", "UTC") != cron("0 9 * * MON", "Europe/Berlin")


def test_marks_show_where_the_clock_was_changed() -> None:
    found, _ = hourly_at(30, "Europe/Berlin").slots_between(us("2026-10-24T23:00"), us("2027-01-01"), 4)
    assert [(mark.local[11:], mark.offset, mark.changed) for mark in fold_marks(found, "Europe/Berlin")] == [
        ("01:30:00+02:00", "+02:00", False),
        ("02:30:00+02:00", "+02:00", False),
        ("02:30:00+01:00", "+01:00", True),
        ("03:30:00+01:00", "+01:00", False),
    ]
    assert fold_marks([], "UTC") == []
    with pytest.raises(InvalidScheduleError):
        fold_marks([0], "Nowhere")


def test_the_calendar_has_two_ends() -> None:
    with pytest.raises(InvalidScheduleError, match="9998"):
        daily_at(0, 0).next_after(us("9999-06-01"))
    with pytest.raises(InvalidScheduleError, match="9998"):
        cron("* * * * *", "Asia/Tokyo").next_after(us("0001-01-01"))
    assert cron("0 0 1 1 *").next_after(us("1899-06-01")) == us("1900-01-01")


def test_weekday_numbers_are_those_of_cron() -> None:
    for weekday in Weekday:
        slot = weekly_on(weekday, 0, 0).next_after(us("2026-01-01"))
        assert (date(1970, 1, 1) + timedelta(microseconds=slot)).isoweekday() == weekday.value


@pytest.mark.parametrize(
    "expression",
    ["* * * * *", "30 2 * * *", "*/15 9-17 * * MON-FRI", "0 0 29 2 *", "0 0 29 2 */7", "0 0 1 1 *"],
)
def test_the_next_slot_takes_well_under_a_millisecond(expression: str) -> None:
    recurrence, start = cron(expression, "Europe/Berlin"), us("2026-03-01")
    best = 1.0
    for day in range(50):  # the quickest of many, so that a busy machine does not count
        before = perf_counter()
        recurrence.next_after(start + day * 86400 * S)
        best = min(best, perf_counter() - before)
    assert best < 0.001
