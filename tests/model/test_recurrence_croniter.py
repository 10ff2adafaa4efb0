"""A second opinion: croniter on expressions that it reads as cron does, in UTC, where no clock changes."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime

import pytest
from croniter import croniter

from scheduler.model.cron import parse
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
def test_croniter_reads_the_terms_that_it_is_given_as_plain_ranges(number: int) -> None:
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
