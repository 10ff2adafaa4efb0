"""Which slots run now: each policy against what it says, and all of them against a slow reading of the rules."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler.model.catchup import PER_TICK, Fire, plan
from scheduler.model.recurrence import Recurrence, cron, every
from scheduler.model.times import SECOND, instant_us
from scheduler.ports import FOREVER

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
GRACE = MINUTE
RATE = every(3600)


def run(policy: str, late: int, recurrence: Recurrence = RATE) -> tuple[list[Fire], int]:
    """Registered at 0, not looked at until ``late`` after the fifth hour."""
    return plan(recurrence, 0, HOUR, 5 * HOUR + late, policy, GRACE)


@pytest.mark.case(44, pure=True)
@pytest.mark.parametrize(
    ("policy", "fires"),
    [
        ("skip", [Fire(5 * HOUR)]),
        ("last", [Fire(5 * HOUR, 5, HOUR)]),
        ("all", [Fire(n * HOUR) for n in range(1, 6)]),
        ("none", []),
    ],
)
def test_five_missed(policy: str, fires: list[Fire]) -> None:
    assert run(policy, 10 * MINUTE) == (fires, 6 * HOUR)
    assert run(policy, GRACE) == (fires, 6 * HOUR)  # late by the grace is missed


@pytest.mark.case(44, pure=True)
@pytest.mark.parametrize(
    ("policy", "fires"),
    [
        ("skip", [Fire(5 * HOUR)]),
        ("last", [Fire(5 * HOUR, 4, HOUR)]),
        ("all", [Fire(n * HOUR) for n in range(1, 6)]),
        ("none", [Fire(5 * HOUR)]),
    ],
)
@pytest.mark.parametrize("late", [0, GRACE - 1])
def test_four_missed_and_one_on_time(policy: str, fires: list[Fire], late: int) -> None:
    assert run(policy, late) == (fires, 6 * HOUR)


@pytest.mark.parametrize("policy", ["skip", "last", "all", "none"])
def test_nothing_missed(policy: str) -> None:
    assert plan(RATE, 0, HOUR, HOUR, policy, GRACE) == ([Fire(HOUR)], 2 * HOUR)


@pytest.mark.case(44, pure=True)
def test_thousands_missed_are_run_in_ticks() -> None:
    recurrence, now, next_at, seen = every(60), 2500 * MINUTE, MINUTE, []
    ticks = []
    while next_at <= now:
        fires, next_at = plan(recurrence, 0, next_at, now, "all", GRACE)
        ticks.append(len(fires))
        seen += [f.slot for f in fires]
    assert ticks == [PER_TICK, PER_TICK, 500]
    assert seen == [n * MINUTE for n in range(1, 2501)]
    assert next_at == 2501 * MINUTE


@pytest.mark.parametrize("policy", ["skip", "last", "none"])
def test_more_on_time_than_one_tick_holds(policy: str) -> None:
    recurrence, next_at, seen = every(1), SECOND, []
    for _ in range(3):
        fires, next_at = plan(recurrence, 0, next_at, 2500 * SECOND, policy, 3000 * SECOND)
        seen += [f.slot for f in fires]
    assert seen == [n * SECOND for n in range(1, 2501)]


@pytest.mark.parametrize(("policy", "fires"), [("skip", 1), ("last", 1), ("all", 1), ("none", 0)])
def test_fixed_delay_has_one_slot_at_most(policy: str, fires: int) -> None:
    recurrence, now = every(3600, "fixed_delay"), 5 * HOUR + GRACE
    after = FOREVER if fires else now + HOUR  # due again once that run has ended
    assert plan(recurrence, 0, HOUR, now, policy, GRACE) == ([Fire(HOUR)] * fires, after)
    assert plan(recurrence, 0, HOUR, HOUR + GRACE - 1, policy, GRACE) == ([Fire(HOUR)], FOREVER)


def test_cron_in_a_zone() -> None:
    """Three days missed, one of them with the change of the clock."""
    berlin = cron("30 2 * * *", "Europe/Berlin")
    first, now = datetime(2026, 3, 28, 1, 30, tzinfo=UTC), datetime(2026, 3, 30, 12, 0, tzinfo=UTC)
    slots = [first, datetime(2026, 3, 29, 1, 0, tzinfo=UTC), datetime(2026, 3, 30, 0, 30, tzinfo=UTC)]
    us = [instant_us(slot, "slot") for slot in slots]
    after = instant_us(datetime(2026, 3, 31, 0, 30, tzinfo=UTC), "slot")
    given_ = (berlin, 0, us[0], instant_us(now, "now"))
    assert plan(*given_, "all", GRACE) == ([Fire(slot) for slot in us], after)
    assert plan(*given_, "last", GRACE) == ([Fire(us[-1], 3, us[0])], after)


def rules(slots: list[int], now: int, policy: str, grace: int) -> list[Fire]:
    """The design's words, one slot at a time."""
    on_time = [slot for slot in slots if now - slot < grace]
    missed = [slot for slot in slots if now - slot >= grace]
    if policy == "all":
        return [Fire(slot) for slot in slots]
    if policy == "none" or not missed:
        return [Fire(slot) for slot in on_time]
    runs = on_time or [missed[-1]]
    stands_for = (len(missed), missed[0]) if policy == "last" else (None, None)
    return [Fire(runs[0], *stands_for), *(Fire(slot) for slot in runs[1:])]


@given(
    interval=some.integers(1, 50),
    anchor=some.integers(0, 100),
    skipped=some.integers(0, 5),
    late=some.integers(0, 500),
    grace=some.integers(1, 120),
    policy=some.sampled_from(["skip", "last", "all", "none"]),
)
def test_policies_by_the_rules(interval: int, anchor: int, skipped: int, late: int, grace: int, policy: str) -> None:
    recurrence = every(interval)
    next_at = (anchor + (1 + skipped) * interval) * SECOND
    now = next_at + late * SECOND
    fires, after = plan(recurrence, anchor * SECOND, next_at, now, policy, grace * SECOND)
    slots = list(range(next_at, now + 1, interval * SECOND))
    assert fires == rules(slots, now, policy, grace * SECOND)
    assert after == slots[-1] + interval * SECOND
