"""What quick kinds have ahead of a pool's slots keeps no other kind out."""

from __future__ import annotations

from scheduler import Context, Scheduler, task
from scheduler.testing import FakeClock, drain, engine_of
from support.databases import Database


@task
def quick(ctx: Context, n: int) -> None: ...


@task
def other(ctx: Context) -> None: ...


def test_a_kind_without_a_known_duration_gets_in(database: Database) -> None:
    jobs = Scheduler.for_testing(url=database.url, clock=FakeClock())
    jobs.register(quick)
    jobs.register(other)
    jobs.task(quick, 0).schedule()
    drain(jobs)  # now its duration is known, and it is claimed ahead
    with jobs.batch() as batch:
        for n in range(1200):
            batch.task(quick, n)
    engine = engine_of(jobs)
    for _ in range(4):
        engine.ring()
        engine.step()
    assert engine.desk.in_flight[1, False] > 100  # a line longer than the pool's eight slots
    late = jobs.task(other).schedule()
    engine.ring()
    engine.step()
    assert jobs.get_task_status(late) == "claimed"
