"""When a graph may be over, and what its end waits for."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as some

from scheduler.model.critical_path import Blocker, Expected, LeftTask, estimate
from scheduler.model.state import TaskState

S = TaskState


def task(number: int, p50: int | None = 10, p90: int = 30, **given: Any) -> LeftTask:
    usual = None if p50 is None else Expected(p50, p90)
    return LeftTask(number, given.pop("state", S.WAITING), usual, **given)


def test_the_longest_way_and_its_range() -> None:
    tasks = [task(1), task(2, 50, 60), task(3, 20, 90), task(4)]
    edges = [(1, 2), (1, 3), (2, 4), (3, 4)]
    found = estimate(tasks, edges, 0, {})
    assert found.path == [1, 2, 4]
    assert (found.low, found.high) == (70, 30 + 90 + 30)
    assert found.remaining == 4


def test_the_slots_bound_a_wide_graph() -> None:
    tasks = [task(n, group="low") for n in range(1, 101)]
    found = estimate(tasks, [], 0, {"low": 4})
    assert (found.path_low, found.work_low, found.low) == (10, 250, 250)
    assert found.high == 100 * 30 // 4
    assert estimate(tasks, [], 0, {"low": 0}).low == 10, "without a worker the slots say nothing"


def test_what_runs_counts_by_what_is_left_of_it() -> None:
    running = {"state": S.RUNNING, "begun": 100}
    assert estimate([task(1, 100, 300, **running)], [], 150, {}).low == 50
    late = estimate([task(1, 100, 300, **running)], [], 350, {})
    assert (late.low, late.high) == (10, 50), "past its usual time a tenth of it is left"


def test_a_pause_counts_and_an_event_has_no_end() -> None:
    assert estimate([task(1, state=S.RETRY, due=500)], [], 400, {}).low == 110
    waits = estimate([task(1, state=S.SUSPENDED, due=None), task(2)], [(1, 2)], 0, {})
    assert (waits.low, waits.high) == (20, None)


def test_kinds_that_have_never_run_leave_the_end_open() -> None:
    assert estimate([task(1, None)], [], 0, {})[:2] == (None, None)
    some_known = estimate([task(1, None), task(2)], [(1, 2)], 0, {})
    assert (some_known.low, some_known.high, some_known.unknown) == (10, None, 1)
    assert estimate([], [], 0, {})[:2] == (None, None)


def test_what_waits_for_ever_is_named_with_all_below_it() -> None:
    tasks = [task(1), task(2, stuck=True), task(3), task(4)]
    found = estimate(tasks, [(1, 3), (2, 3), (1, 4)], 0, {})
    assert found.stuck == [2, 3]
    assert found.path == [1, 4]
    assert found.low == 20


def test_blockers_are_what_could_end_next_by_what_comes_after() -> None:
    tasks = [task(n) for n in range(1, 8)]
    edges = [(1, 3), (1, 4), (3, 5), (4, 5), (2, 6)]
    assert estimate(tasks, edges, 0, {}).blockers == [Blocker(1, 3), Blocker(2, 1), Blocker(7, 0)]


@given(some.lists(some.tuples(some.integers(0, 30), some.integers(0, 30)), max_size=60), some.integers(1, 5))
def test_bounds_of_any_graph(pairs: list[tuple[int, int]], slots: int) -> None:
    edges = [(min(p), max(p)) for p in pairs if p[0] != p[1]]
    tasks = [task(n, 10 + n, 40 + 2 * n, group="all") for n in range(31)]
    found = estimate(tasks, edges, 0, {"all": slots})
    assert found.low is not None
    assert found.high is not None
    assert max(40, sum(10 + n for n in range(31)) // slots) <= found.low <= found.high
    assert sum(10 + n for n in found.path) == found.path_low
    assert all((a, b) in edges for a, b in zip(found.path, found.path[1:], strict=False))
    below: dict[int, set[int]] = {}
    for n in range(30, -1, -1):
        below[n] = {c for a, c in edges if a == n} | {d for a, c in edges if a == n for d in below[c]}
    assert all(one.below == len(below[one.id]) for one in found.blockers)


def test_ten_thousand_tasks_take_no_time_to_speak_of() -> None:
    """Sets of descendants are integers: a list for each of a chain of 10,000 would be 50 million entries."""
    tasks = [task(n) for n in range(10_000)]
    found = estimate(tasks, [(n, n + 1) for n in range(9_999)], 0, {})
    assert found.blockers == [Blocker(0, 9_999)]
    assert found.low == 100_000
