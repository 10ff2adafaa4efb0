"""Scheduling in one process wakes the idle worker of another; without a notifier the worker polls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from faults.harness import Fleet, Process, rows, until
from faults.kinds import Work
from scheduler import Scheduler
from scheduler.model.spec import TaskId
from scheduler.store.tasks.enqueue import enqueue
from support.databases import Database

pytestmark = pytest.mark.faults
POLL = 1.0
BOUND = 0.15  # far below the poll interval: it was woken


def latency(fleet: Fleet, schedule: Callable[[], int]) -> float:
    """Seconds from before the scheduling until the handler runs in the worker."""
    before = time.monotonic_ns()
    task_id = schedule()
    (run,) = until(lambda: fleet.runs(task_id), "it starts", every=0.002)
    return (run.start - before) / 1e9


@pytest.mark.alone
@pytest.mark.parametrize("sort", ["worker", "daemon"])
def test_an_idle_worker_of_another_process_starts_it_at_once(
    fleet: Fleet, jobs: Scheduler, tell: Callable[[str], None], sort: str
) -> None:
    if sort == "worker":
        fleet.worker()
    else:
        fleet.daemon()
    latency(fleet, jobs.task(Work()).schedule)
    found = []
    for _ in range(15):
        found.append(latency(fleet, jobs.task(Work()).schedule))
        time.sleep(0.01)  # so that it is idle again
    tell(f"median {statistics.median(found) * 1000:.1f} ms, longest {max(found) * 1000:.1f} ms")
    assert statistics.median(found) < BOUND


def test_what_was_stored_without_ringing_is_found_by_polling(fleet: Fleet, jobs: Scheduler) -> None:
    fleet.worker()
    latency(fleet, jobs.task(Work()).schedule)

    def silently() -> TaskId:
        spec = jobs.task(Work())._finished({})
        with jobs.database.write() as tx:
            return enqueue(tx, [spec])[0]

    assert min(latency(fleet, silently) for _ in range(3)) < POLL + 0.5


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
@pytest.mark.parametrize("broken", ["before", "socket", "directory"])
def test_without_a_usable_socket_it_still_starts_by_polling(
    database: Database, fleet: Fleet, jobs: Scheduler, broken: str
) -> None:
    directory = database.path.with_name("jobs.db.notify")
    if broken == "before":
        directory.write_text("a file where the directory should be: no worker can put a socket there")
    worker = fleet.worker()
    assert len(worker.lines("no notifier")) == (1 if broken == "before" else 0)
    if broken != "before":
        for path in directory.glob("*.sock"):
            path.unlink()
    if broken == "directory":
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
    assert min(latency(fleet, jobs.task(Work()).schedule) for _ in range(3)) < POLL + 0.5
    _well(worker)


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_lost_listening_connection_comes_back(fleet: Fleet, jobs: Scheduler) -> None:
    worker = fleet.worker()
    latency(fleet, jobs.task(Work()).schedule)
    listeners = "FROM pg_stat_activity WHERE application_name = 'schedd listener' AND datname = current_database()"

    def without() -> float:
        """The latency right after it was lost."""
        until(lambda: len(rows(jobs, f"SELECT pid {listeners}")) == 1, "it listens, by one connection")
        assert len(rows(jobs, f"SELECT pg_terminate_backend(pid) {listeners}")) == 1
        return latency(fleet, jobs.task(Work()).schedule)

    assert any(without() < POLL + 0.5 for _ in range(3))
    until(lambda: latency(fleet, jobs.task(Work()).schedule) < BOUND, "it listens again")
    _well(worker)


def _well(worker: Process) -> None:
    assert worker.alive()
    assert "Traceback" not in worker.text()
