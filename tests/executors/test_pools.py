"""The executor ``futures`` on each pool that the documents name beside Dask: the library itself, on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import TaskState
from scheduler.executors.futures import FuturesExecutor
from scheduler.executors.ports import Job
from support import pools
from support.databases import Database
from support.fleet import until
from support.placing import Place

POOLS = ("processes", "parsl", "executorlib", "submitit")
pytestmark = [pytest.mark.executors, pytest.mark.parametrize("pool", POOLS)]


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pools.PLACE, str(tmp_path / "pool"))
    monkeypatch.setenv("PATH", os.environ["PATH"])  # a factory may add to it


@pytest.fixture
def place(pool: str, database: Database, tmp_path: Path) -> Iterator[Place]:
    settings = f'type = "futures"\ndirectory = "{tmp_path / "jobs"}"\nfactory = "support.pools:{pool}"\n'
    made = Place(database.url, tmp_path, settings)
    yield made
    made.close()


def test_tasks_run_fail_and_run_again(place: Place) -> None:
    good, bad, killed = place.schedule(), place.schedule("fail"), place.schedule("die")
    place.until(lambda: place.ended(good, bad, killed))
    assert place.outcomes(good) == ["succeeded"]
    assert place.state(bad) is TaskState.DEAD
    assert place.outcomes(killed) == ["lost", "succeeded"]
    place.until(lambda: not place.handles())


def test_jobs_that_run_or_wait_are_cancelled(place: Place, tmp_path: Path) -> None:
    """More than the pool has room for, if it has a limit."""
    ids = [place.schedule("wait") for _ in range(pools.ROOM + 2)]
    place.until(lambda: len(place.lines("begin")) >= pools.ROOM)
    for one in ids[1:]:
        place.jobs.cancel_task(one)
    place.until(lambda: place.ended(*ids[1:]))
    place.go()
    place.until(lambda: place.ended(ids[0]))
    assert [place.state(one) for one in ids] == [TaskState.SUCCESS] + [TaskState.CANCELLED] * (len(ids) - 1)
    place.until(lambda: not place.handles())
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_job_that_is_cancelled_at_once_is_over(pool: str, tmp_path: Path) -> None:
    """Whether it has begun or not."""
    settings = FuturesExecutor.Settings(directory=str(tmp_path / "jobs"), factory=f"support.pools:{pool}")
    executor = FuturesExecutor("it", settings)
    jobs = [Job(name=f"schedd-0-{number}-1", argv=["/bin/sleep", "100"]) for number in range(pools.ROOM + 1)]
    executor.submit(jobs)
    executor.cancel([job.name for job in jobs], 0.0)
    until(lambda: all(seen.phase.over for seen in executor.observe()), 60)
    executor.close()
