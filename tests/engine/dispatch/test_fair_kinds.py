"""What quick kinds have ahead of a pool's slots keeps no other kind out."""

from __future__ import annotations

from scheduler import Context, task
from scheduler.testing import drain, engine_of
from support.fleet import Fleet, step


@task
def quick(ctx: Context, n: int) -> None: ...


@task
def other(ctx: Context) -> None: ...


def test_a_kind_without_a_known_duration_gets_in(fleet: Fleet) -> None:
    jobs = fleet.worker(quick, other)
    jobs.task(quick, 0).schedule()
    drain(jobs)  # now its duration is known, and it is claimed ahead
    with jobs.batch() as batch:
        for n in range(1200):
            batch.task(quick, n)
    engine = engine_of(jobs)
    for _ in range(4):
        step(jobs)
    assert len(engine.engine_state.held) > 100  # a line longer than the pool's eight slots
    late = jobs.task(other).schedule()
    step(jobs)
    assert jobs.get_task_status(late) == "claimed"
