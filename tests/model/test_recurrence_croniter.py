"""A second opinion: croniter on expressions that it reads as cron does, in UTC, where no clock changes."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, date, datetime, timedelta

import pytest
from croniter import croniter

from scheduler.errors import InvalidScheduleError
from scheduler.model.cron import parse, with_numbers
from scheduler.model.recurrence import cron
from scheduler.model.times import instant_us, to_datetime


def _field(rng: random.Random, low: int, high: int) -> str:
    a, b = sorted(rng.sample(range(low, high + 1), 2))
    return rng.choice(["*", f"{a}", f"{a},{b}", f"{a}-{b}", f"*/{rng.randint(2, max(2, high // 2))}"])


def test_agrees_with_croniter_in_utc() -> None:
    rng = random.Random(20261120)
    compared = 0
    for _ in range(400):
        day, weekday = rng.choice([("*", _field(rng, 0, 6)), (_field(rng, 1, 28), "*")])
        expression = f"{_field(rng, 0, 59)} {_field(rng, 0, 23)} {day} {_field(rng, 1, 12)} {weekday}"
        at = datetime(2026, 1, 1, tzinfo=UTC).timestamp() + rng.randrange(5 * 366 * 86400)
        start = datetime.fromtimestamp(at, UTC)
        theirs = croniter(expression, start)
        ours, now = cron(expression), instant_us(start, "start")
        for _ in range(5):
            now = ours.next_after(now)
            assert to_datetime(now) == theirs.get_next(datetime), f"{expression} from {start}"
            compared += 1
    assert compared == 2000


@pytest.mark.parametrize("number", range(5), ids=["minute", "hour", "day", "month", "weekday"])
def test_terms_name_the_numbers_that_arithmetic_has(number: int) -> None:
    """Each kind of term, at every pair of numbers, as arithmetic has it."""
    low, high = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)][number]
    for first, last in itertools.combinations_with_replacement(range(low, high + 1), 2):
        for step in {1, 2, 3, max(1, last - first), high - low + 1}:
            fields = ["0", "0", "*", "*", "*"]
            fields[number] = f"{first}-{last}/{step}"
            read = parse(" ".join(fields))
            wanted = set(range(first, last + 1, step))
            if number == 4:
                assert read.weekdays == {day % 7 for day in wanted}, fields
            elif number < 2:
                assert set(read.times) == {minute * (1 if number == 0 else 60) for minute in wanted}, fields
            else:
                assert (read.days if number == 2 else read.months) == wanted, fields


@pytest.mark.parametrize("day", ["L", "1,L", "L,13"])
def test_the_last_day_of_the_month(day: str) -> None:
    _same(f"30 2 {day} * *", 60)


@pytest.mark.parametrize("day", [1, 2, 15, 28, 30, 31])
def test_the_working_day_nearest_to_a_day(day: int) -> None:
    """Not by croniter, which takes the last day of a month without the day, and whose first versions read no W."""
    expected = []
    for month in [date(2026 + n // 12, n % 12 + 1, 1) for n in range(60)]:
        days = [d for n in range(31) if (d := month + timedelta(days=n)).month == month.month]
        if day <= len(days):
            working = [d for d in days if d.weekday() < 5]
            expected.append(min(working, key=lambda d: abs(d.day - day)))
    for text in (f"{day}W", f"W{day}"):
        now, recurrence, found = instant_us(datetime(2026, 1, 1, tzinfo=UTC), "start"), cron(f"0 12 {text} * *"), []
        for _ in expected:
            now = recurrence.next_after(now)
            found.append(to_datetime(now).date())
        assert found == expected


@pytest.mark.parametrize("weekday", ["FRI#1", "0#5", "7#2", "MON#1,WED#3", "L5", "L0", "L7", "TUE#2,L1"])
def test_weekdays_that_depend_on_the_month(weekday: str) -> None:
    _same(f"30 2 * * {weekday}", 60)


def _same(expression: str, count: int) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    theirs, ours, now = croniter(expression, start), cron(expression), instant_us(start, "start")
    for _ in range(count):
        now = ours.next_after(now)
        assert to_datetime(now) == theirs.get_next(datetime), expression


def test_both_day_fields_and_a_day_that_months_lack() -> None:
    def days(expression: str, count: int) -> list[str]:
        found, now, recurrence = [], instant_us(datetime(2026, 1, 1, tzinfo=UTC), "start"), cron(expression)
        for _ in range(count):
            now = recurrence.next_after(now)
            found.append(f"{to_datetime(now):%m-%d}")
        return found

    assert days("0 12 31W * *", 4) == ["01-30", "03-31", "05-29", "07-31"]
    assert days("0 12 L * MON#1", 4) == ["01-05", "01-31", "02-02", "02-28"]  # either
    assert days("0 12 */2 * FRI#1", 3) == ["04-03", "05-01", "06-05"]  # both
    assert days("0 12 * 2 SUN#5", 1) == ["02-29"]


@pytest.mark.parametrize(
    "expression", ["H H * * *", "H(0-29) 2 * * *", "H/15 * * * *", "H(30-59)/10 1-3 H * H", "5,H 0 1 H *"]
)
def test_h_is_a_number_made_of_the_name(expression: str) -> None:
    with pytest.raises(InvalidScheduleError, match="made of a schedule's name"):
        cron(expression).next_after(0)
    named = {name: cron(expression).named(name) for name in ("billing", "mail", "a", "b", "c")}
    assert len({recurrence.expression for recurrence in named.values()}) > 1
    for name, recurrence in named.items():
        assert recurrence == cron(with_numbers(expression, name)) == cron(expression).named(name)
        parse(recurrence.expression)
    assert all(min(parse(with_numbers("0 0 H * *", f"name {n}")).days) <= 28 for n in range(100))


def test_h_is_what_croniter_makes_of_it() -> None:
    for name in ("billing", "mail", "nightly"):
        theirs, _ = croniter.expand("h(0-59) h(0-23) * * *", hash_id=name.encode())
        assert parse(with_numbers("H H * * *", name)).times == (60 * int(theirs[1][0]) + int(theirs[0][0]),)
