"""Retention keeps up with what a daemon runs, and leaves the time to work that waits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, task
from scheduler.model import state as st
from scheduler.ports import SECOND
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, rows, step, write

pytestmark = pytest.mark.case(87)
DAY = 86_400
BATCH = 250
LONG = 0.02  # seconds that a transaction takes here


@task
def noop(ctx: Context) -> None:
    """Does nothing."""


def over(fleet: Fleet, clock: FakeClock, count: int) -> Scheduler:
    """A worker of whose tasks so many succeeded long ago."""
    jobs = fleet.worker(noop)
    step(jobs)
    with jobs.batch() as batch:
        for _ in range(count):
            batch.task(noop)
    long_ago = jobs.database.now() - 9 * DAY * SECOND
    write(jobs, f"UPDATE schedd_tasks SET state = {st.SUCCESS}, finished_at = {long_ago}, result_until = NULL")
    engine_of(jobs).periodic.retention_job.batch = BATCH
    clock.advance(61)
    return jobs


def left(jobs: Scheduler) -> int:
    return int(rows(jobs, f"SELECT count(*) AS n FROM schedd_tasks WHERE state = {st.SUCCESS}")[0].n)


@contextmanager
def taking(jobs: Scheduler, clock: FakeClock, seconds: float, what: str = "") -> Iterator[None]:
    """Each transaction of the worker's, or each statement that begins so, takes so long by the clock."""
    engine = jobs.database.open()

    def begun(_: object) -> None:
        clock.advance(seconds)

    def executed(_c: object, _cursor: object, text: str, *_: object) -> None:
        if text.startswith(what):
            clock.advance(seconds)

    event, listener = ("before_cursor_execute", executed) if what else ("begin", begun)
    sa.event.listen(engine, event, listener)
    yield
    sa.event.remove(engine, event, listener)


def test_it_goes_on_while_there_is_more(fleet: Fleet, clock: FakeClock) -> None:
    """Without a pause where a batch takes none, and by few statements, however many there are."""
    jobs = over(fleet, clock, 6 * BATCH)
    engine = engine_of(jobs)
    statements = 0

    def executed(*_: object) -> None:
        nonlocal statements
        statements += 1

    sa.event.listen(jobs.database.open(), "before_cursor_execute", executed)
    for batch in range(1, 7):
        assert engine.step() == 0.0
        assert left(jobs) == (6 - batch) * BATCH
    assert statements <= 6 * 40
    engine.step()
    assert engine.step() > 0.05


def test_beside_work_it_takes_a_tenth_of_the_time(fleet: Fleet, clock: FakeClock) -> None:
    jobs = over(fleet, clock, 8 * BATCH)
    with taking(jobs, clock, LONG):
        step(jobs)
        assert left(jobs) == 7 * BATCH
        begun = clock.monotonic()
        while clock.monotonic() < begun + 0.9:
            step(jobs)  # notifications come all the time, and each cycle takes its time
    assert 7 * BATCH - left(jobs) in (4 * BATCH, 5 * BATCH)


def test_an_engine_without_work_gives_it_half_of_its_time(fleet: Fleet, clock: FakeClock) -> None:
    jobs = over(fleet, clock, 8 * BATCH)
    engine = engine_of(jobs)
    with taking(jobs, clock, LONG):
        engine.step()
        begun, before = clock.monotonic(), left(jobs)
        while clock.monotonic() < begun + 0.2:
            clock.advance(max(0.001, engine.step()))
    assert before - left(jobs) >= 3 * BATCH


@pytest.mark.parametrize(("seconds", "grows"), [(0.5, False), (0.001, True)], ids=["long", "short"])
def test_a_batch_is_as_large_as_fits_into_its_time(fleet: Fleet, clock: FakeClock, seconds: float, grows: bool) -> None:
    jobs = over(fleet, clock, 3 * 2 * BATCH)
    engine = engine_of(jobs)
    retention_job = engine.periodic.retention_job
    retention_job.batch = 2 * BATCH
    with taking(jobs, clock, seconds, "DELETE FROM schedd_tasks"):
        engine.step()
    assert retention_job.batch == (2_000 if grows else BATCH + 25)
    if not grows:  # behind an old snapshot, say: the next one comes once four times as long has passed
        assert engine.periodic.until_sweep() == pytest.approx(4 * seconds, abs=0.01)
