"""How much a turn takes on: as much as fits into its own time on this machine, with this database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scheduler import Context, Scheduler, task
from scheduler.engine.planner import BATCH
from scheduler.store import claim as claims
from scheduler.store.gate import Gate
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, run_claimed, step


@task
def plain(ctx: Context) -> None: ...


def largest(jobs: Scheduler) -> int:
    """How much the planner lets a turn take on after some turns with a lot to do."""
    for _ in range(4):
        with jobs.batch() as batch:
            for _ in range(100):
                batch.task(plain)
        step(jobs)
        while run_claimed(jobs):
            step(jobs)
    return engine_of(jobs).turner.planner.batch


def test_a_slow_database_makes_turns_smaller(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = fleet.worker(plain, pools={"medium": (250, 0)})
    claim = claims.claim

    def slowly(*args: object) -> list[claims.Claimed]:
        clock.advance(0.1)
        return claim(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(claims, "claim", slowly)
    assert largest(jobs) < BATCH[1]


def test_waiting_for_other_writers_does_not(fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two daemons on one SQLite file, which take turns, commit half as much each time."""
    jobs = fleet.worker(plain, pools={"medium": (250, 0)})
    passed = Gate.pass_through

    @contextmanager
    def after_a_while(gate: Gate) -> Iterator[None]:
        clock.advance(0.1)
        with passed(gate):
            yield

    monkeypatch.setattr(Gate, "pass_through", after_a_while)
    assert largest(jobs) == BATCH[1]
