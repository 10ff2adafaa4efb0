"""How many workers are started for a backlog: within bounds, enough in the end, and none for nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from scheduler.executors.backlog import PoolBacklog, ScaleRules, Workforce, more_workers, superfluous

RULES = ScaleRules(least=0, most=10, older=10.0, cooldown=30.0)


@pytest.mark.parametrize(
    ("force", "backlog", "more"),
    [
        (Workforce(0, 0, None), PoolBacklog(), 0),
        (Workforce(0, 0, None), PoolBacklog(9.0, 1000), 0),  # many, but young
        (Workforce(0, 0, None), PoolBacklog(10.0, 1000), 1),
        (Workforce(1, 0, 60.0), PoolBacklog(3600.0, 1000), 0),  # the first has not begun
        (Workforce(0, 1, 29.0), PoolBacklog(60.0, 1000), 0),  # it has just begun
        (Workforce(0, 1, 30.0), PoolBacklog(60.0, 1000), 1),
        (Workforce(0, 4, 30.0), PoolBacklog(60.0, 1000), 4),
        (Workforce(0, 4, 30.0), PoolBacklog(60.0, 2), 2),  # not more than there are tasks
        (Workforce(0, 8, 30.0), PoolBacklog(60.0, 1000), 2),
        (Workforce(0, 10, 90.0), PoolBacklog(60.0, 1000), 0),
        (Workforce(0, 12, 90.0), PoolBacklog(60.0, 1000), 0),  # max_workers was lowered
    ],
)
def test_the_age_of_the_backlog_decides(force: Workforce, backlog: PoolBacklog, more: int) -> None:
    assert more_workers(RULES, force, backlog) == more


def test_the_least_number_is_kept_whatever_the_backlog() -> None:
    rules = RULES._replace(least=3)
    assert more_workers(rules, Workforce(1, 0, 0.0), PoolBacklog()) == 2
    assert more_workers(rules, Workforce(0, 3, 0.0), PoolBacklog()) == 0
    assert more_workers(rules._replace(most=2), Workforce(0, 0, None), PoolBacklog()) == 2


def test_jobs_that_have_not_begun_are_cancelled_once_nothing_is_due_for_a_while() -> None:
    assert superfluous(RULES, Workforce(3, 2, 0.0), quiet=59.0, idle=60.0) == 0
    assert superfluous(RULES, Workforce(3, 2, 0.0), quiet=60.0, idle=60.0) == 3
    assert superfluous(RULES._replace(least=4), Workforce(3, 2, 0.0), quiet=60.0, idle=60.0) == 1
    assert superfluous(RULES._replace(least=9), Workforce(3, 2, 0.0), quiet=60.0, idle=60.0) == 0


@settings(max_examples=40, deadline=None)
@given(
    rules=some.builds(
        ScaleRules, some.integers(0, 3), some.integers(3, 12), some.floats(0.0, 20.0), some.floats(0.0, 20.0)
    ),
    arrivals=some.lists(some.tuples(some.integers(0, 60), some.integers(1, 40)), max_size=8),
    delays=some.lists(some.integers(0, 15), min_size=1, max_size=10),
    deaths=some.lists(some.integers(1, 200), max_size=6),
    idle=some.integers(1, 20),
)
def test_bounds_hold_all_is_served_and_nothing_is_left(
    rules: ScaleRules, arrivals: list[tuple[int, int]], delays: list[int], deaths: list[int], idle: int
) -> None:
    """A simulated engine, second by second: workers begin late, run a task a second, die, and end when idle."""
    due: list[int] = []  # since when
    starting: list[int] = []  # when each begins
    idle_since: list[int] = []  # of each that works
    changed, started, at = None, 0, 0
    last = max((when for when, _ in arrivals), default=0)
    while at <= last or due:
        assert at < last + 3000, "the backlog is never served"
        due += [at for when, number in arrivals if when == at for _ in range(number)]
        begun = [when for when in starting if when <= at]
        starting = [when for when in starting if when > at]
        idle_since += [at for _ in begun]
        changed = at if begun else changed
        if at in deaths and idle_since:
            idle_since.pop()
        for index in range(len(idle_since)):
            if due:
                due.pop(0)
                idle_since[index] = at
        idle_since = [since for rank, since in enumerate(idle_since) if at - since < idle or rank < rules.least]
        force = Workforce(len(starting), len(idle_since), None if changed is None else float(at - changed))
        backlog = PoolBacklog(float(at - due[0]), min(len(due), rules.most)) if due else PoolBacklog()
        more = more_workers(rules, force, backlog)
        assert more >= 0
        assert force.jobs + more <= rules.most
        assert force.jobs + more >= rules.least
        if not due:
            assert force.jobs + more <= max(rules.least, force.jobs)
        for _ in range(more):
            starting.append(at + 1 + delays[started % len(delays)])
            started += 1
        changed = at if more else changed
        at += 1
    for second in range(at, at + idle + 40):  # the last end by themselves
        begun = [when for when in starting if when <= second]
        starting = [when for when in starting if when > second]
        idle_since += [second for _ in begun]
        idle_since = [since for rank, since in enumerate(idle_since) if second - since < idle or rank < rules.least]
        force = Workforce(len(starting), len(idle_since), None)
        starting += [second + 1] * more_workers(rules, force, PoolBacklog())
    assert len(idle_since) == rules.least
