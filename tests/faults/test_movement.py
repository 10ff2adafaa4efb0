"""Where running handlers stand: what moves is stamped, what does not is told of, with where and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from faults import moving as kinds
from faults.moving import PATIENCE, over
from scheduler import Scheduler
from scheduler.engine.maintenance import movement, periodic
from scheduler.store.admin import doctor as checks
from scheduler.store.read.explain import why
from scheduler.store.read.history import standing_of
from scheduler.store.read.status import status
from support.databases import Database, one_database
from support.fleet import until

pytestmark = [pytest.mark.faults, pytest.mark.case(3)]
ONE = pytest.mark.one_is_enough


@pytest.fixture
def jobs(database: Database, monkeypatch: pytest.MonkeyPatch, shared_fork_server: None) -> Iterator[Scheduler]:
    monkeypatch.setattr(movement, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(periodic, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(movement, "STANDS_AFTER", 0.5)
    over.clear()
    made = Scheduler(database.url, lease=3.0, processes=4, process_grace=0.2, unmoved_after=1.0)
    for kind in (*kinds.HERE, *kinds.CALLS, *kinds.CHILDREN, *kinds.FUNCTIONS):
        made.register(kind)
    made.start()
    yield made
    over.set()
    made.stop_now()
    made.close()


def of_kind(jobs: Scheduler, kind: Any) -> int:
    return int(jobs.task(kind() if isinstance(kind, type) else kind).schedule())


def stands(jobs: Scheduler, task_id: int) -> Any:
    with jobs.database.read() as tx:
        return standing_of(tx, task_id, 1)


def unmoved(jobs: Scheduler) -> set[int]:
    with jobs.database.read() as tx:
        return {i for one in status(tx).stuck if one.name == "unmoved" for i in one.tasks}


@pytest.mark.parametrize(
    ("mover", "stander", "where"),
    [
        (kinds.thread_moves, kinds.thread_stands, "stands_still"),
        (kinds.coroutine_moves, kinds.coroutine_stands, "coroutine_stands"),
        pytest.param(kinds.one_of_several_moves, kinds.all_of_several_stand, "all_of_several_stand", marks=ONE),
        pytest.param(kinds.call_in_thread_moves, kinds.call_in_thread_stands, "stands_still", marks=ONE),
        (kinds.ChildMoves, kinds.ChildStands, "run"),
        pytest.param(kinds.AsyncChildMoves, kinds.AsyncChildStands, "run", marks=ONE),
        (kinds.function_moves, kinds.function_stands, "function_stands"),
        pytest.param(kinds.awaited_function_moves, kinds.awaited_function_stands, "function_stands", marks=ONE),
    ],
    ids=["threads", "coroutines", "gathered", "to_thread", "children", "async children", "ctx.cpu", "await ctx.cpu"],
)
def test_what_moves_is_stamped_and_what_does_not_is_named(
    jobs: Scheduler, mover: Any, stander: Any, where: str
) -> None:
    moves, still = of_kind(jobs, mover), of_kind(jobs, stander)
    until(lambda: jobs.get_task(moves).last_heartbeat_at is not None, PATIENCE)
    first = jobs.get_task(moves).last_heartbeat_at
    until(lambda: jobs.get_task(moves).last_heartbeat_at != first, PATIENCE)
    until(lambda: unmoved(jobs), PATIENCE)
    assert unmoved(jobs) == {still}
    assert jobs.get_task(still).last_heartbeat_at is None
    found = stands(jobs, still)
    assert found.where.endswith(where)
    assert found.where.partition(":")[0] == kinds.__file__
    assert stands(jobs, moves) is None
    with jobs.database.read() as tx:
        said = why(tx, still)
        doctor = [one.text for one in checks.check(tx) if one.check == "movement"]
        assert why(tx, moves) is None
    assert said is not None
    assert f", at {found.where}; if it hangs, `schedctl cancel --force {still}` ends it" in said
    assert f"({stander.__name__})" in doctor[0] or f"({stander.task_options.kind})" in doctor[0]
    assert jobs.get_task(moves).state == jobs.get_task(still).state == "running", "nothing is ended for it"


def test_what_goes_on_is_no_longer_said_to_stand(jobs: Scheduler) -> None:
    still = of_kind(jobs, kinds.thread_stands)
    until(lambda: unmoved(jobs) == {still}, PATIENCE)
    assert "over.wait(PATIENCE)" in stands(jobs, still).stack
    assert "execution/run.py" not in stands(jobs, still).stack, "what of ours calls the handler says nothing"
    over.set()
    until(lambda: jobs.get_task(still).state == "success", PATIENCE)
    until(lambda: not unmoved(jobs), PATIENCE)


def test_a_kind_that_promises_signs_of_its_own_is_stamped_by_these_alone(jobs: Scheduler) -> None:
    promised, other = of_kind(jobs, kinds.promises_signs), of_kind(jobs, kinds.thread_moves)
    until(lambda: jobs.get_task(other).last_heartbeat_at is not None, PATIENCE)
    first = jobs.get_task(other).last_heartbeat_at
    until(lambda: jobs.get_task(other).last_heartbeat_at != first, PATIENCE)
    assert jobs.get_task(promised).last_heartbeat_at is None


def test_what_a_timeout_ends_is_no_problem_but_told_of(jobs: Scheduler) -> None:
    limited, still = of_kind(jobs, kinds.bounded), of_kind(jobs, kinds.thread_stands)
    until(lambda: unmoved(jobs), PATIENCE)
    until(lambda: stands(jobs, limited) is not None, PATIENCE)
    assert unmoved(jobs) == {still}
    with jobs.database.read() as tx:
        said = why(tx, limited)
    assert said is not None
    assert said.endswith(f", at {stands(jobs, limited).where}")


def test_it_takes_no_transaction_of_its_own(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamps are part of the lease's renewal, where no cycle writes."""
    moving = [of_kind(jobs, kinds.thread_moves) for _ in range(3)]
    engine = jobs.engine
    until(lambda: all(jobs.get_task(i).state == "running" for i in moving), PATIENCE)
    written: list[int] = []
    renewed: list[float] = []
    write, renew = engine.engine_state.moves.write, engine.lease.renew
    monkeypatch.setattr(
        engine.engine_state.moves, "write", lambda tx, *given: (written.append(1), write(tx, *given))[1]
    )
    monkeypatch.setattr(engine.lease, "renew", lambda *given: (renewed.append(time.monotonic()), renew(*given))[1])
    until(lambda: len(written) >= 2, PATIENCE)
    assert abs(len(renewed) - len(written)) <= 1
    assert all(jobs.get_task(i).last_heartbeat_at is not None for i in moving)


@one_database
def test_what_has_not_run_for_long_is_not_looked_at(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(movement, "LOOK_EVERY", 3600.0)
    monkeypatch.setattr(movement, "look", lambda *given: looked.append(given))
    moving = of_kind(jobs, kinds.thread_moves)
    until(lambda: jobs.get_task(moving).state == "running", PATIENCE)
    rounds = jobs.engine.cycles
    until(lambda: jobs.engine.cycles > rounds + 1, PATIENCE)
    assert not looked
