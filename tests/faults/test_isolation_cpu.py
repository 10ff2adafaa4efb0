"""Functions of ``ctx.cpu``: they run in child processes, and nothing of an attempt goes on while they do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import isolated as kinds
from faults.harness import attempts, history, result, state, until
from faults.pools import PATIENCE, end, error_of, noted, run, serves_on, started
from scheduler import Scheduler
from support.databases import Database, one_database

pytestmark = pytest.mark.faults


@pytest.fixture
def jobs(database: Database, shared_fork_server: None) -> Iterator[Scheduler]:
    made = started(database)
    yield made
    end(made)


@pytest.mark.case(63)
@pytest.mark.parametrize("kind", [kinds.Compute, kinds.AsyncCompute])
@one_database
def test_a_function_runs_in_another_process(jobs: Scheduler, kind: Any) -> None:
    value, pid = result(jobs, run(jobs, kind()))
    assert value == 49
    assert pid != os.getpid()


@pytest.mark.case(63)
@pytest.mark.parametrize("kind", [kinds.Compute, kinds.AsyncCompute])
@pytest.mark.parametrize("what", ["lambda", "closure", "closure of a closure", "partial", "argument", "method"])
@one_database
def test_a_function_that_no_import_finds_runs_there_too(jobs: Scheduler, kind: Any, what: str) -> None:
    value, pid = result(jobs, run(jobs, kind(what)))
    assert value == 49
    assert pid != os.getpid()


@one_database
def test_functions_beside_each_other(jobs: Scheduler) -> None:
    returned = result(jobs, run(jobs, kinds.AsyncCompute("many")))
    assert [value for value, _ in returned] == [n * n for n in range(10)]


@pytest.mark.case(63)
@one_database
def test_in_a_child_a_function_runs_where_it_is(jobs: Scheduler) -> None:
    own, value, pid = result(jobs, run(jobs, kinds.ComputeInside()))
    assert (value, pid) == (9, own)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("refuse", "LookupError: not 3"),
        ("die", "ProcessDied: its process was killed by SIGKILL"),
        ("raises its own", "OfOneCall: ('said there', 7)"),
        ("lock", "closing_over.<locals>.inner (line "),
        (
            "lock",
            "cannot be sent to another process: its variable 'value', a lock: cannot pickle '_thread.lock' object",
        ),
        ("locked argument", "square cannot be sent to another process: its argument 1, a lock: "),
        ("ctx", "its variable 'ctx', a "),
        ("ctx", "ctx stays in its process: pass what the function needs of it as arguments"),
        ("returns a lock", "returned, a lock, cannot be sent to another process: "),
        ("coroutine", "coroutine is a coroutine function, and a child calls plain functions"),
    ],
)
@one_database
def test_functions_that_fail(jobs: Scheduler, what: str, says: str) -> None:
    assert says in error_of(jobs, kinds.Compute(what))
    serves_on(jobs)


@pytest.mark.case(17, 48)
@pytest.mark.parametrize("kind", [kinds.Compute, kinds.AsyncCompute])
@pytest.mark.parametrize("how", ["timeout", "cancel"])
@one_database
def test_a_function_ends_with_what_waits_for_it(jobs: Scheduler, kind: Any, how: str) -> None:
    builder = jobs.task(kind("hang"))
    task_id = (builder.timeout(0.3) if how == "timeout" else builder).schedule()
    if how == "cancel":
        until(lambda: state(jobs, task_id) == "running", "it runs")
        jobs.cancel_task(task_id)
    jobs.wait([task_id], timeout=PATIENCE)
    (attempt,) = attempts(jobs, task_id)
    if how == "cancel":
        assert str(attempt.outcome) == "cancelled"
    else:
        assert attempt.error_class == "TaskTimeout"
    pool = jobs.engine.engine_state.processes
    assert pool is not None
    until(lambda: not any(child.jobs for child in list(pool.children.children.values())), "its process has ended")
    serves_on(jobs)


@pytest.mark.case(17, 63)
@pytest.mark.parametrize("kind", [kinds.Outlives, kinds.AOutlives])
@one_database
def test_a_retry_begins_when_the_function_has_ended(jobs: Scheduler, tmp_path: Path, kind: Any) -> None:
    """It began beside the function, which only SIGKILL ends."""
    serves_on(jobs)  # so that a child is there, and the function begins in time
    task_id = jobs.task(kind(str(tmp_path / "notes"))).timeout(1).schedule()
    jobs.wait([task_id], timeout=PATIENCE)
    assert [end for _, end in history(jobs, task_id)] == ["retried", "succeeded"]
    assert attempts(jobs, task_id)[0].error_class == "TaskTimeout"
    assert len(kinds.lines(tmp_path / "notes")) == 1
    assert result(jobs, task_id) == []


@pytest.mark.case(17, 48)
@pytest.mark.parametrize("kind", [kinds.Outlives, kinds.AOutlives])
@one_database
def test_a_cancelled_task_ends_when_its_function_has(jobs: Scheduler, tmp_path: Path, kind: Any) -> None:
    notes = tmp_path / "notes"
    task_id = jobs.task(kind(str(notes))).schedule()
    noted(notes, "start")
    jobs.cancel_task(task_id)
    jobs.wait([task_id], timeout=PATIENCE)
    assert history(jobs, task_id) == [(1, "cancelled")]
    assert kinds.living(str(notes)) == []


@pytest.mark.case(17, 63)
@one_database
def test_what_a_function_started_has_ended_when_it_returns(jobs: Scheduler, tmp_path: Path) -> None:
    assert result(jobs, run(jobs, kinds.Leaves(str(tmp_path / "notes")))) == []


@pytest.mark.case(63)
@one_database
def test_a_function_that_is_waited_for_so_long_only_has_ended_then(jobs: Scheduler, tmp_path: Path) -> None:
    """With asyncio's own timeout, and the handler goes on."""
    serves_on(jobs)
    task_id = run(jobs, kinds.AGivesUp(str(tmp_path / "notes")))
    assert history(jobs, task_id) == [(1, "succeeded")]
    assert len(kinds.lines(tmp_path / "notes")) == 1
    assert result(jobs, task_id) == []


@pytest.mark.case(8)
@pytest.mark.parametrize("kind", [kinds.Outlives, kinds.AOutlives])
@one_database
def test_a_hard_stop_waits_for_no_function(database: Database, mark: str, tmp_path: Path, kind: Any) -> None:
    """Though it is being ended, and has all the time it needs."""
    jobs = started(database, process_grace=PATIENCE)
    notes = tmp_path / "notes"
    task_id = jobs.task(kind(str(notes))).schedule()
    noted(notes, "start")
    jobs.cancel_task(task_id)
    until(lambda: withdrawn(jobs), "it gets the order to end")
    jobs.stop_now()
    assert kinds.living(str(notes)) == []
    jobs.close()


def withdrawn(jobs: Scheduler) -> bool:
    pool = jobs.engine.engine_state.processes
    assert pool is not None
    return any(child.kill_at is not None for child in list(pool.children.children.values()))


@pytest.mark.case(17)
@one_database
def test_whatever_a_function_raises_its_attempt_has_failed(jobs: Scheduler) -> None:
    """None of them is a cancel, nor the end of the loop, and none is waited for for ever."""
    places: list[tuple[Any, str]] = [
        *((kinds.RaisesOdd, where) for where in ("cpu", "step")),
        *((kinds.ARaisesOdd, where) for where in ("cpu", "step", "gather", "thread")),
        *((kinds.ARaisesInside, where) for where in ("cpu", "step")),
    ]
    made = {
        (kind.__name__, where, which): jobs.task(kind(which=which, where=where)).timeout(PATIENCE).schedule()
        for kind, where in places
        for which in kinds.ODD
    }
    for which in kinds.ODD:
        made["RaisesInside", "", which] = jobs.task(kinds.RaisesInside(which)).timeout(PATIENCE).schedule()
    jobs.wait(made.values(), timeout=2 * PATIENCE)
    found = {place: (state(jobs, task_id), attempts(jobs, task_id)[0].error_class) for place, task_id in made.items()}
    assert {place: got for place, got in found.items() if got[0] != "dead" or got[1] == "TaskTimeout"} == {}
    assert found["RaisesOdd", "cpu", "unpicklable"][1] == "RuntimeError"  # in its name and text
    serves_on(jobs)
