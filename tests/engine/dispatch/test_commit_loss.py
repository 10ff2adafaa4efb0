"""Claims whose commit was not answered: what the worker does not know that it holds goes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Scheduler
from scheduler.engine.engine import Engine
from scheduler.errors import StoreUnavailableError
from scheduler.testing import engine_of
from support.bench import Bench, notify_and_step, run_claimed


@pytest.fixture
def commit_unknown(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Breaks the connection of a scheduler after its next commits, before the answer: they succeed, it seems not."""

    def arrange(jobs: Scheduler, times: int = 1) -> None:
        real = jobs.database.write
        left = [times]

        @contextlib.contextmanager
        def write(connection: sa.Connection | None = None) -> Iterator[sa.Connection]:
            with real(connection) as c:
                yield c
            if left[0]:
                left[0] -= 1
                raise StoreUnavailableError("the connection broke")

        monkeypatch.setattr(jobs.database, "write", write)

    return arrange


@pytest.mark.case(9)
def test_a_claim_whose_commit_was_not_answered_is_given_back(bench: Bench, commit_unknown: Any) -> None:
    first = bench.step("first").schedule()
    notify_and_step(bench.jobs)
    run_claimed(bench.jobs)
    second = bench.step("second").schedule()
    commit_unknown(bench.jobs)
    with pytest.raises(StoreUnavailableError):
        engine_of(bench.jobs).dispatch.run(engine_of(bench.jobs)._conn(), claiming=True)
    assert bench.states(first, second) == ["success", "claimed"]
    bench.drain()
    assert bench.states(first, second) == ["success", "success"]
    assert bench.script.ran == ["first", "second"]
    assert bench.jobs.get_task(second).attempt == 1
    assert not engine_of(bench.jobs).engine_state.held


def quiet(bench: Bench) -> Engine:
    """An engine that has nothing to do and knows it."""
    notify_and_step(bench.jobs)
    engine = engine_of(bench.jobs)
    engine.step()
    return engine


@pytest.mark.case(9)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
@pytest.mark.parametrize("locked", ["unknown", "ends"])
def test_a_claim_that_no_worker_knows_of_goes_back_though_a_row_is_locked(
    bench: Bench, commit_unknown: Any, locked: str
) -> None:
    """Its own, so that it is left for later; or another's that ends, so that the cycle is done over."""
    quiet(bench)
    engine = engine_of(bench.jobs)
    ends = bench.step("ends").schedule()
    notify_and_step(bench.jobs)
    unknown = bench.step("unknown").schedule()
    commit_unknown(bench.jobs)
    with pytest.raises(StoreUnavailableError):
        engine.dispatch.run(engine._conn(), claiming=True)
    assert bench.states(ends, unknown) == ["claimed", "claimed"]
    assert {key[0] for key in engine.engine_state.held} == {ends}
    run_claimed(bench.jobs)
    row = {"id": unknown if locked == "unknown" else ends}
    with bench.jobs.database.write() as tx:
        tx.connection.execute(sa.text("SELECT id FROM schedd_tasks WHERE id = :id FOR SHARE"), row)
        notify_and_step(bench.jobs)
    bench.drain()
    assert bench.states(ends, unknown) == ["success", "success"]
    assert (bench.script.ran, bench.jobs.get_task(unknown).attempt) == (["ends", "unknown"], 1)
    assert not engine.engine_state.held
