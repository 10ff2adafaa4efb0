"""Counting durations in buckets, and reading percentiles from them."""

from __future__ import annotations

import random
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler.model.outcome import AttemptEnd, Outcome, OutcomeColumns
from scheduler.model.rollup import BOUNDS, Histogram, Measure, RollupCounter, bucket_of
from scheduler.ports import SECOND

NOW = 1_767_225_661 * SECOND
MINUTE_START = NOW - NOW % (60 * SECOND)
OTEL = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300, 900, 3600)


class Ran:
    """An attempt, as far as the counter reads it: (kind, queue, due, bits)."""

    def __init__(self, *claimed: object) -> None:
        self.claimed = claimed


def counted(rows: list[tuple[str, str, int, int, AttemptEnd, int]]) -> tuple[list[Ran], OutcomeColumns]:
    """Attempts of (kind, queue, wait, bits, end, run)."""
    attempts = [Ran(kind, queue, NOW - run - wait, bits) for kind, queue, wait, bits, _, run in rows]
    outcomes = [Outcome(i, 1, 1, end, 0, NOW, NOW - run, NOW) for i, (_, _, _, _, end, run) in enumerate(rows, start=1)]
    return attempts, OutcomeColumns.of(outcomes)


def counter() -> RollupCounter:
    return RollupCounter(itemgetter(0, 1, 3), itemgetter(2))


def test_the_bounds_hold_what_metrics_use() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert {round(bound * SECOND) for bound in OTEL} <= set(BOUNDS)
    assert [bucket_of(us) for us in (0, 100, 101, BOUNDS[-1], BOUNDS[-1] + 1)] == [
        0,
        0,
        1,
        len(BOUNDS) - 1,
        len(BOUNDS),
    ]


@given(some.lists(some.tuples(some.sampled_from(["a", "b"]), some.integers(-5, 10**9), some.integers(-5, 10**9))))
def test_one_kind_or_several_are_counted_alike(rows: list[tuple[str, int, int]]) -> None:
    """The short way of a batch of one kind counts what the long way counts."""
    full = [(kind, "q", wait, 0, AttemptEnd.SUCCEEDED, run) for kind, wait, run in rows]
    short, long = counter(), counter()
    for kind in "ab":
        of_kind = [row for row in full if row[0] == kind]
        if of_kind:
            attempts, ends = counted(of_kind)
            short.add_successes(NOW, attempts, ends, [row[5] for row in of_kind])
    long.add(NOW, *counted(full), (), {})
    cells = short.take()
    assert cells == long.take()
    assert not short
    runs = [cell for cell in cells if cell.measure == Measure.RUN]
    assert sum(cell.number for cell in runs) == len(rows)
    assert sum(cell.total for cell in runs) == sum(max(0, run) for _, _, run in rows)
    for cell in runs:
        inside = [run for kind, _, run in rows if kind == cell.kind and bucket_of(max(0, run)) == cell.bucket]
        assert len(inside) == cell.number
    assert {(cell.span, cell.at) for cell in cells} <= {(60, MINUTE_START)}


def test_what_was_lost_or_never_started_does_not_count() -> None:
    ended = AttemptEnd
    attempts, ends = counted([("a", "q", 0, 0, ended.DEAD, 5), ("a", "q", 0, 0, ended.SUCCEEDED, 5)])
    made = counter()
    made.add(NOW, attempts, ends, {(2, 1)}, {1: ended.CANCELLED})
    made.add(NOW, attempts[:1], OutcomeColumns.of([Outcome(1, 1, 1, ended.HANDED_BACK, 1, NOW, None, NOW)]), (), {})
    assert {(cell.outcome, cell.number) for cell in made.take()} == {(ended.CANCELLED.code, 1)}


def test_who_waits_for_others_has_no_wait_of_its_own() -> None:
    made = counter()
    attempts, ends = counted([("a", "q", 10**6, 2, AttemptEnd.SUCCEEDED, 5), ("a", "q", 7, 1, AttemptEnd.SUCCEEDED, 5)])
    made.add_successes(NOW, attempts, ends, [5, 5])
    assert [(c.measure, c.number, c.total) for c in made.take()] == [(Measure.RUN, 2, 10), (Measure.WAIT, 1, 7)]


def test_what_is_put_back_is_counted_on() -> None:
    made = counter()
    attempts, ends = counted([("a", "q", 0, 0, AttemptEnd.SUCCEEDED, 50)])
    made.add_successes(NOW, attempts, ends, [50])
    cells = made.take()
    made.add_successes(NOW, attempts, ends, [50])
    made.put_back(cells)
    assert [cell.number for cell in made.take()] == [2, 2]


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_percentiles_are_near(percent: int) -> None:
    choice = random.Random(1)
    values = [round(choice.lognormvariate(0, 1.5) * 100_000) for _ in range(2_000)]
    found = Histogram()
    for value in values:
        found.add(bucket_of(value), 1, value)
    exact = sorted(values)[len(values) * percent // 100] / SECOND
    read = found.percentile(percent)
    assert read is not None
    assert abs(read - exact) < 0.1 * exact
    assert found.mean == pytest.approx(sum(values) / len(values) / SECOND)


def test_percentiles_at_the_edges() -> None:
    empty = Histogram()
    assert (empty.percentile(50), empty.mean) == (None, None)
    far = Histogram()
    far.add(len(BOUNDS), 3, 10**14)
    assert far.percentile(99) == BOUNDS[-1] / SECOND
