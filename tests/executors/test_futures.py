"""The executor ``futures`` by itself: what futures tell of jobs that have not begun, and pools that fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scheduler import ConfigError
from scheduler.executors import job_process
from scheduler.executors.futures import FuturesExecutor
from scheduler.executors.job_process import ask_to_end, lock_to_start, was_started
from scheduler.executors.ports import ExecutorError, Job, PlacementPhase, Refused, Seen, Submitted
from support.fleet import until

PLACE = "support.dask_rig"


def executor_of(tmp_path: Path, factory: str = f"{PLACE}:threads") -> FuturesExecutor:
    return FuturesExecutor("it", FuturesExecutor.Settings(directory=str(tmp_path / "jobs"), factory=factory))


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[FuturesExecutor]:
    made = executor_of(tmp_path)
    yield made
    made.cancel([seen.handle for seen in made.observe()], 0.0)
    until(lambda: all(seen.phase.over for seen in made.observe()), 60)
    made.close()


def job(number: int, script: str = "exit 0", **more: Any) -> Job:
    return Job(name=f"schedd-0-{number}-1", argv=["/bin/sh", "-c", script], **more)


def phases(executor: FuturesExecutor) -> dict[str, PlacementPhase]:
    return {seen.name: seen.phase for seen in executor.observe()}


def over(executor: FuturesExecutor, name: str) -> Seen:
    until(lambda: phases(executor).get(name, PlacementPhase.QUEUED).over, 60)
    return next(seen for seen in executor.observe() if seen.name == name)


def test_a_job_runs_and_is_told_of_by_its_files(executor: FuturesExecutor, tmp_path: Path) -> None:
    one = job(1, 'echo "$TOKEN"; exit 3', env={"TOKEN": "mine"})
    assert executor.submit([one]) == [Submitted(one.name, one.name)]
    seen = over(executor, one.name)
    assert (seen.phase, seen.exit_code, executor.logs(one.name, 100)) == (PlacementPhase.FAILED, 3, "mine\n")
    assert executor_of(tmp_path).find([one.name]) == {one.name: one.name}  # another daemon's
    executor.submit([one])
    assert over(executor, one.name).exit_code == 3
    executor.forget([one.name])
    assert executor.observe() == []


def test_what_waits_in_the_pool_is_queued_and_can_be_cancelled(executor: FuturesExecutor) -> None:
    """The pool has room for two."""
    executor.submit([job(1, "sleep 600"), job(2, "sleep 600"), job(3), job(4)])
    until(lambda: list(phases(executor).values()).count(PlacementPhase.RUNNING) == 2, 60)
    assert [phases(executor)[f"schedd-0-{number}-1"] for number in (3, 4)] == [PlacementPhase.QUEUED] * 2
    assert executor.find(["schedd-0-3-1", "schedd-0-9-1"]) == {"schedd-0-3-1": "schedd-0-3-1"}
    executor.cancel(["schedd-0-3-1", "schedd-0-1-1"], 600.0)
    assert over(executor, "schedd-0-3-1").phase is PlacementPhase.CANCELLED
    seen = over(executor, "schedd-0-1-1")
    assert (seen.phase, seen.reason) == (PlacementPhase.CANCELLED, "ended by SIGTERM")
    assert over(executor, "schedd-0-4-1").phase is PlacementPhase.SUCCEEDED  # there is room for it now


def test_a_job_that_was_to_end_before_the_pool_took_it_up_never_begins(executor: FuturesExecutor) -> None:
    """Though its future could not be cancelled any more."""
    one = job(1, "exit 0")
    (executor._place / one.name).mkdir(parents=True)
    executor.cancel([one.name], 5.0)
    executor.submit([one])
    seen = over(executor, one.name)
    assert (seen.phase, seen.reason) == (PlacementPhase.CANCELLED, "it was to end before it began")


def test_a_job_cancelled_before_it_began_leaves_nothing_to_a_daemon_that_has_no_future_of_it(
    executor: FuturesExecutor, tmp_path: Path
) -> None:
    """Such as the next daemon. The pool takes the job up afterwards, and does not start it."""
    begun, waits = tmp_path / "begun", job(3, f"echo > {tmp_path / 'begun'}")
    executor.submit([job(1, "sleep 600"), job(2, "sleep 600"), waits])
    until(lambda: list(phases(executor).values()).count(PlacementPhase.RUNNING) == 2, 60)
    future, other = executor._futures[waits.name], executor_of(tmp_path)
    assert waits.name not in phases(other)
    other.cancel([waits.name], 5.0)
    assert phases(other)[waits.name] is phases(executor)[waits.name] is PlacementPhase.CANCELLED
    other.forget([waits.name])
    assert waits.name not in phases(other)
    assert not (tmp_path / "jobs" / waits.name).exists()
    executor.cancel(["schedd-0-1-1"], 0.0)
    until(future.done, 60)
    assert not begun.exists()


def test_a_job_that_is_to_end_while_the_pool_takes_it_up_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that has seen it neither alive nor begun says that it is over."""
    place = tmp_path / "schedd-0-1-1"
    place.mkdir()

    def late(place: Path) -> int | None:
        ask_to_end(place, 5.0)
        return lock_to_start(place)

    monkeypatch.setattr(job_process, "lock_to_start", late)
    assert job_process.run_in_pool(str(place), ["/bin/sh", "-c", "exit 3"], {}, None, "python") is None
    assert not was_started(place)


def test_a_job_that_hears_nothing_or_runs_for_too_long_is_killed(executor: FuturesExecutor) -> None:
    deaf, long = job(1, "trap '' TERM; sleep 600 & wait; sleep 600"), job(2, "sleep 600", limit=0.01)
    executor.submit([deaf, long])
    until(lambda: phases(executor).get(deaf.name) is PlacementPhase.RUNNING, 60)
    executor.cancel([deaf.name], 0.0)
    assert over(executor, deaf.name).reason == "killed"
    assert over(executor, long.name).phase is PlacementPhase.TIMED_OUT


def test_a_function_that_fails_in_the_pool_says_why(executor: FuturesExecutor) -> None:
    """Such as a pool whose workers lack schedd."""
    failed: Future[None] = Future()
    failed.set_exception(ModuleNotFoundError("No module named 'scheduler'"))
    executor._futures["schedd-0-1-1"] = failed
    (seen,) = executor.observe()
    assert (seen.phase, seen.reason) == (PlacementPhase.FAILED, "ModuleNotFoundError: No module named 'scheduler'")
    executor.forget(["schedd-0-1-1"])


def test_options_are_keywords_of_submit(executor: FuturesExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    (answer,) = executor.submit([job(1, options={"colour": "red"})])
    assert isinstance(answer, Submitted)  # a thread pool passes keywords on to the function, which refuses them
    seen = over(executor, "schedd-0-1-1")
    assert "unexpected keyword argument 'colour'" in str(seen.reason)

    class Strict:
        def submit(self, function: Any, *arguments: Any) -> Future[None]:
            raise AssertionError

    executor._pool = Strict()
    (answer,) = executor.submit([job(2, options={"colour": "red"})])
    assert isinstance(answer, Refused)
    assert (answer.later, "colour" in answer.reason) == (False, True)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("broken", "OSError: no route to the cluster"),
        ("no_pool", "returns nothing that has submit"),
        ("missing", "AttributeError"),
    ],
)
def test_a_pool_that_cannot_be_made_is_tried_again(tmp_path: Path, factory: str, said: str) -> None:
    made = executor_of(tmp_path, f"{PLACE}:{factory}")
    with pytest.raises(ExecutorError, match=said):
        made.submit([job(1)])
    assert said in next(one.text for one in made.check() if not one.ok)
    made.close()


def test_a_pool_that_is_broken_is_replaced(executor: FuturesExecutor) -> None:
    executor.check()
    executor._pool.shutdown()
    with pytest.raises(ExecutorError, match="the pool takes no job: RuntimeError"):
        executor.submit([job(1)])
    assert isinstance(executor.submit([job(1)])[0], Submitted)
    assert over(executor, "schedd-0-1-1").phase is PlacementPhase.SUCCEEDED


def test_closing_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    """A pool's threads end with it; a client of a cluster is closed, and the cluster goes on."""
    done = []

    class Client:
        def submit(self, *_: Any) -> None: ...

        def shutdown(self) -> None:
            done.append("the cluster is gone")

        def close(self) -> None:
            done.append("closed")

    made = executor_of(tmp_path)
    made._pool = Client()
    made.close()
    assert done == ["closed"]
    made._pool = pool = ThreadPoolExecutor(1)
    pool.submit(threading.Event().is_set)
    made.close()
    with pytest.raises(RuntimeError):
        pool.submit(threading.Event().is_set)


def test_the_factory_is_a_reference(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'executors\.it\.factory must be "module:function"'):
        executor_of(tmp_path, "mycluster")
