"""A cascading cancel goes through a chain at once: 20,000 levels took as many statements each, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.store.db import statements as statement
from scheduler.store.graph import cancel_cascade as cascade
from scheduler.store.tasks import control
from support.bench import Bench, Step, notify_and_step, run_claimed


def chain(bench: Bench, length: int, *, started: bool = False) -> list[int]:
    """Tasks that wait for one another; ``started``: the first one has been claimed."""
    first = int(bench.step("first").schedule())
    if started:
        notify_and_step(bench.jobs)
        assert bench.state(first) == "claimed"
    with bench.jobs.batch() as batch:
        last: Any = first
        for _ in range(length - 1):
            last = batch.task(Step("next")).depend_on([last])
    return [first, *map(int, batch.ids)]


@contextmanager
def counting(jobs: Scheduler) -> Iterator[list[str]]:
    """The statements that are carried out meanwhile."""
    found: list[str] = []
    raw = statement._raw

    def noting(connection: sa.Connection, text: str, bound: Any) -> list[tuple[Any, ...]]:
        found.append(text)
        return raw(connection, text, bound)

    def executed(_conn: Any, _cursor: Any, text: str, *_: Any) -> None:
        found.append(text)

    engine = jobs.database.open()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statement, "_raw", noting)
        sa.event.listen(engine, "before_cursor_execute", executed)
        yield found
        sa.event.remove(engine, "before_cursor_execute", executed)


@pytest.mark.case(37, 48)
def test_of_a_chain_that_waits(bench: Bench) -> None:
    counts = []
    for length in (4, 40):
        ids = chain(bench, length)
        with counting(bench.jobs) as seen:
            done = bench.jobs.cancel_task(ids[0], cascade=True)
        assert done.affected == tuple(ids[1:])
        assert bench.states(*ids) == ["cancelled"] * length
        counts.append(list(seen))
    assert counts[0] == counts[1]


@pytest.mark.case(37, 48)
def test_of_a_chain_below_what_runs(bench: Bench) -> None:
    """The cycle that records its end carries the cascade out, and must not outlast its lease."""
    counts = []
    for length in (4, 40):
        ids = chain(bench, length, started=True)
        with counting(bench.jobs) as asked:
            done = bench.jobs.cancel_task(ids[0], cascade=True)
        assert (done.requested, done.later) == ((ids[0],), tuple(ids[1:]))
        run_claimed(bench.jobs)
        with counting(bench.jobs) as ended:
            notify_and_step(bench.jobs)
        assert bench.states(*ids) == ["cancelled"] * length
        counts.append((len(asked), len(ended)))
    assert counts[0] == counts[1]


@pytest.mark.case(37, 48)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_what_is_stored_below_meanwhile_ends_with_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the look at what is below, before that is locked: once, and once more below what came then."""
    ids = chain(bench, 3)
    late: list[int] = []
    other = bench.worker()
    look = cascade._down

    def looking(*given: Any, **options: Any) -> dict[int, int]:
        found = look(*given, **options)
        if len(late) < 2:
            late.append(int(other.task(Step("late")).depend_on((late or ids)[-1], otherwise="run").schedule()))
        return found

    monkeypatch.setattr(cascade, "_down", looking)
    database = bench.jobs.database
    with database.write() as tx:
        control.cancel(tx, [ids[0]], cascade=True)
    assert bench.states(*ids, *late) == ["cancelled"] * 5


@pytest.mark.case(37, 48)
def test_it_stops_below_what_is_held_but_not_beside_it(bench: Bench) -> None:
    """A task with two parents ends with one of them while the other is held."""
    top = bench.ended("dead")
    held = int(bench.step("held", top, otherwise="run").schedule())
    notify_and_step(bench.jobs)
    bench.jobs.retry_task(top)
    beside = int(bench.step("beside", top).schedule())
    both = int(bench.step("both", held, beside).schedule())
    only = int(bench.step("only", held).schedule())
    last = int(bench.step("last", both).schedule())
    done = bench.jobs.cancel_task(top, cascade=True)
    assert (done.cancelled, done.requested, done.affected) == ((top,), (held,), (beside, both, last))
    assert bench.states(held, only) == ["claimed", "waiting"]
    bench.drain()
    assert bench.states(held, only) == ["cancelled", "cancelled"]
