"""10,000 generated cron expressions against cronsim, at random instants and around changes of the clock.

Where the two differ, the difference must belong to a class explained in docs/explanation/clock-changes.md, and is
checked to be just that; any other difference fails. America/St_Johns, which once changed its clock a minute after
midnight, is left out: cronsim never returns there. test_recurrence_scan.py looks at that zone.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import islice
from random import Random
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError

from scheduler.errors import InvalidScheduleError
from scheduler.model.recurrence import cron

PAIRS = 10_000
SLOTS = 3
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MINUTE, HOUR, DAY, MONTH, WEEKDAY = (0, 59, []), (0, 23, []), (1, 31, []), (1, 12, MONTHS), (0, 7, WEEKDAYS)
NIGHT = (0, 3, [])  # when clocks are changed
CHANGES = {
    "UTC": [],
    "Asia/Kolkata": [],
    "Europe/Berlin": [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)],
    "America/New_York": [datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)],
    "Australia/Lord_Howe": [datetime(2026, 4, 4, 15, tzinfo=UTC), datetime(2026, 10, 3, 15, 30, tzinfo=UTC)],
    "America/Havana": [datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 11, 1, 5, tzinfo=UTC)],
}
# The zones where cronsim's elapsed time goes wrong at a change; docs/explanation/clock-changes.md says why.
ELAPSED_CLASSES = {"Australia/Lord_Howe": "half-hour shift", "America/Havana": "shift at midnight"}


def a_field(random: Random, field: tuple[int, int, list[str]], star: float) -> str:
    low, high, names = field

    def number(value: int) -> str:
        named = 0 <= value - low < len(names) and random.random() < 0.5
        return names[value - low] if named else str(value)

    def term() -> str:
        shape, first, step = random.random(), random.randint(low, high), random.randint(1, high - low + 1)
        last = random.randint(first, high)
        if shape < 0.45:
            return number(first)
        if shape < 0.65:
            return f"{number(first)}-{number(last)}"
        if shape < 0.8:
            return f"{number(first)}-{number(last)}/{step}"
        return f"*/{step}" if shape < 0.92 else f"{number(first)}/{step}"

    if random.random() < star:
        return "*"
    return ",".join(term() for _ in range(random.choice([1, 1, 1, 2, 3])))


def an_expression(random: Random) -> str:
    hour = (NIGHT, 0.1) if random.random() < 0.5 else (HOUR, 0.3)
    fields = ((MINUTE, 0.2), hour, (DAY, 0.6), (MONTH, 0.7), (WEEKDAY, 0.6))
    return " ".join(a_field(random, field, star) for field, star in fields)


def a_start(random: Random, changes: list[datetime]) -> datetime:
    if changes and random.random() < 0.8:
        return random.choice(changes) + timedelta(seconds=random.randint(-30 * 3600, 6 * 3600))
    return datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=random.randint(0, 10 * 365 * 86400))


def our_slots(expression: str, zone: str, start: datetime) -> list[datetime]:
    recurrence, instant, slots = cron(expression, zone), (start - EPOCH) // timedelta(microseconds=1), []
    for _ in range(SLOTS):
        instant = recurrence.next_after(instant)
        slots.append(EPOCH + timedelta(microseconds=instant))
    return slots


def cronsim_slots(expression: str, zone: str, start: datetime, *, later: bool = False) -> list[datetime]:
    """``later``: leave out what is not after the start."""
    slots = (slot.astimezone(UTC) for slot in CronSim(expression, start.astimezone(ZoneInfo(zone))))
    return list(islice((slot for slot in slots if slot > start or not later), SLOTS))


def value(text: str) -> str:
    return text if text.isdigit() else str((MONTHS.index(text) + 1) if text in MONTHS else WEEKDAYS.index(text))


def without_equal_ranges(expression: str) -> str:
    """``3-3/5`` and ``JAN-1/5`` as 3 and 1, which is what they say; cronsim reads 3/5."""
    return re.sub(r"(\w+)-(\w+)/\d+", lambda m: m[1] if value(m[1]) == value(m[2]) else m[0], expression)


def contradicts_itself(expression: str, zone: str, ours: list[datetime], theirs: list[datetime]) -> bool:
    """Whether cronsim's own fields say that we are right, at the first instant where the two part."""
    fields = CronSim(expression, EPOCH)
    mine, other = next(pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1])
    first = min(mine, other).astimezone(ZoneInfo(zone))
    named = (
        first.month in fields.months
        and fields.match_day(first.date())
        and first.hour in fields.hours
        and first.minute in fields.minutes
    )
    return named == (mine < other)


def difference(expression: str, zone: str, start: datetime) -> str:
    """The class of the difference between cronsim and us, "" when there is none."""
    ours = our_slots(expression, zone, start)
    if ours == cronsim_slots(expression, zone, start):
        return ""
    minute, hour, *_ = expression.split()
    elapsed = minute.startswith("*") or hour.startswith("*")
    plain = without_equal_ranges(expression)
    repeated = not elapsed and start.astimezone(ZoneInfo(zone)).fold == 1
    theirs = cronsim_slots(plain, zone, start, later=repeated)
    if ours == theirs:
        return "start in a repeated hour" if repeated else "equal range with a step"
    if elapsed and zone in ELAPSED_CLASSES and contradicts_itself(plain, zone, ours, theirs):
        return ELAPSED_CLASSES[zone]
    pytest.fail(f"{expression!r} in {zone} from {start.isoformat()}: {ours} here, {theirs} from cronsim")


@pytest.mark.case(39, 41, pure=True)
def test_cronsim_agrees_but_for_the_explained_classes() -> None:
    random, classes = Random(20261120), Counter[str]()
    while classes.total() < PAIRS:
        expression, zone = an_expression(random), random.choice(list(CHANGES))
        start = a_start(random, CHANGES[zone])
        try:
            CronSim(without_equal_ranges(expression), start)
        except CronSimError:  # 31 April and the like
            with pytest.raises(InvalidScheduleError, match="never fires"):
                cron(expression, zone)
            continue
        classes[difference(expression, zone, start)] += 1
    assert classes.keys() == {
        "",
        "equal range with a step",
        "start in a repeated hour",
        "half-hour shift",
        "shift at midnight",
    }
    assert classes[""] > 0.9 * PAIRS


@pytest.mark.parametrize(
    ("expression", "ours", "theirs"),
    [
        ("0 0 * * FRI-SUN", True, False),
        ("*/61 * * * *", False, True),
        ("0 0 * * 5L", False, True),
        ("0 0 LW * *", False, True),
        ("0 0 0 * * *", False, True),
    ],
)
def test_what_only_one_of_the_two_reads(expression: str, ours: bool, theirs: bool) -> None:
    def reads(reader: object, *args: object) -> bool:
        try:
            reader(*args)  # type: ignore[operator]
        except (CronSimError, InvalidScheduleError):
            return False
        return True

    assert (reads(cron, expression), reads(CronSim, expression, EPOCH)) == (ours, theirs)
