"""Stopping in good order: what runs ends or goes back, what is queued stays queued."""

from __future__ import annotations

import signal
import time

import pytest

from faults.harness import Fleet, all_ended, attempts, history, result, rows, state, until
from faults.kinds import Deaf, Hold, Work
from scheduler import Scheduler
from scheduler.store.workers import request_restart

pytestmark = [pytest.mark.faults, pytest.mark.case(8)]
TWO = {"pools": {"high": (0, 0), "medium": (2, 0), "low": (0, 0)}, "lease": 1.5}
DAEMON = {f"pools__{pool}__{name}": "0" for pool in ("high", "low") for name in ("slots", "async_slots")}
DAEMON |= {"pools__medium__slots": "2"}


def untouched(jobs: Scheduler, ids: list[int]) -> None:
    """Assert that no worker holds these queued tasks and that their budget is whole."""
    for task_id in ids:
        (row,) = rows(
            jobs,
            "SELECT state, worker, attempt - attempt_base AS used FROM schedd_tasks WHERE id = :id",
            id=task_id,
        )
        assert (row.state, row.worker, row.used) == (1, None, 0)
        assert history(jobs, task_id) == []


def test_running_tasks_finish_and_queued_ones_stay_queued(fleet: Fleet, jobs: Scheduler) -> None:
    for _ in range(50):  # so that the kind is known to be quick, and is claimed ahead
        jobs.task(Work()).schedule()
    worker = fleet.worker(options=TWO)
    all_ended(jobs)
    running = [jobs.task(Hold()).schedule() for _ in range(2)]
    for _ in running:
        worker.expect("body")
    queued = [jobs.task(Work()).schedule() for _ in range(20)]
    worker.send("stop", drain=30)
    until(lambda: rows(jobs, "SELECT 1 FROM schedd_workers WHERE state = 1"), "the worker says that it drains")
    until(lambda: [state(jobs, i) for i in running] == ["running"] * 2, "their rows say that they run")
    worker.open()
    assert worker.expect("stopped") == {"at": "stopped", "left": [], "running": False}
    assert [history(jobs, i) for i in running] == [[(1, "succeeded")]] * 2
    untouched(jobs, queued)
    fleet.worker(options=TWO)
    all_ended(jobs)
    assert [history(jobs, i) for i in queued] == [[(1, "succeeded")]] * 20


def test_an_embedded_stop_tells_what_still_runs_and_keeps_it_until_it_ends(fleet: Fleet, jobs: Scheduler) -> None:
    worker = fleet.worker(options=TWO)
    other = fleet.worker(options=TWO)  # it would reclaim what is not renewed
    running = [jobs.task(Hold()).schedule() for _ in range(2)]
    until(lambda: len(worker.reported("body") + other.reported("body")) == 2, "both run")
    mine = sorted(r["task"] for r in worker.reported("body"))
    theirs = sorted(r["task"] for r in other.reported("body"))
    worker.send("stop", drain=0.1)
    other.send("stop", drain=0.1)
    assert worker.expect("stopped")["left"] == mine
    assert other.expect("stopped")["left"] == theirs
    third = fleet.worker(options=TWO)
    later = jobs.task(Work()).schedule()
    until(lambda: state(jobs, later) == "success", "the third worker works")
    time.sleep(2 * TWO["lease"])  # real leases run out in real time
    assert [state(jobs, i) for i in running] == ["running"] * 2
    assert not third.lines("reclaimed")
    worker.open()
    other.open()
    all_ended(jobs)
    assert [history(jobs, i) for i in running] == [[(1, "succeeded")]] * 2
    until(lambda: len(rows(jobs, "SELECT 1 FROM schedd_workers WHERE state = 2")) == 2, "both are recorded as stopped")


@pytest.mark.parametrize("second_signal", [False, True])
def test_a_daemon_hands_back_what_outlasts_its_drain_time(fleet: Fleet, jobs: Scheduler, second_signal: bool) -> None:
    daemon = fleet.daemon(worker__drain="30" if second_signal else "0.2", **DAEMON)
    running = [jobs.task(Hold()).schedule() for _ in range(2)]
    for _ in running:
        daemon.expect("body")
    queued = [jobs.task(Work()).schedule() for _ in range(5)]
    daemon.kill(signal.SIGTERM)
    if second_signal:
        until(lambda: daemon.lines("stopping"), "the first signal is heard")

        def sent_again() -> bool:  # until it counts as another one
            daemon.kill(signal.SIGTERM)
            return bool(daemon.lines("stopping at once"))

        until(sent_again, "the second signal counts")
    assert daemon.wait() == 0
    untouched(jobs, queued)
    for task_id in running:
        (row,) = rows(
            jobs,
            "SELECT state, worker, run_at, finished_at, attempt - attempt_base AS used "
            "FROM schedd_tasks WHERE id = :id",
            id=task_id,
        )
        assert (row.state, row.worker, row.used) == (1, None, 0)
        assert row.run_at - row.finished_at == 2_000_000
        assert history(jobs, task_id) == [(1, "handed back")]

    worker = fleet.worker(options=TWO)
    for task_id in running:
        worker.expect("body", task=task_id)
    worker.open()
    all_ended(jobs)
    for task_id in running:
        assert [end for _, end in history(jobs, task_id)] == ["handed back", "succeeded"]
        assert result(jobs, task_id) == 1, "the stop used an attempt"
        first, second = fleet.runs(task_id)
        assert first.end is None, "it was not interrupted"
        assert second.start - first.start >= 2e9


@pytest.mark.case(74, 77)
def test_a_restarting_daemon_ends_what_hangs(fleet: Fleet, jobs: Scheduler) -> None:
    """What is past its timeout has used its attempt, all else goes back."""
    daemon = fleet.daemon(worker__drain="0.1", **DAEMON)
    held, deaf = jobs.task(Hold()).schedule(), jobs.task(Deaf()).schedule()
    for _ in (held, deaf):
        daemon.expect("body")
    until(lambda: time.monotonic_ns() > fleet.runs(deaf)[0].start + 0.8e9, "its timeout is over")
    ((worker,),) = rows(jobs, "SELECT id FROM schedd_workers")
    with jobs.database.write() as tx:
        request_restart(tx, worker)
    jobs._notify()
    assert daemon.wait() == 75
    assert history(jobs, held) == [(1, "handed back")]
    assert history(jobs, deaf) == [(1, "retried")]
    assert attempts(jobs, deaf)[0].error_class == "TaskTimeout"


def test_a_daemon_lets_running_tasks_finish(fleet: Fleet, jobs: Scheduler) -> None:
    daemon = fleet.daemon(**DAEMON)
    running = [jobs.task(Hold()).schedule() for _ in range(2)]
    for _ in running:
        daemon.expect("body")
    queued = [jobs.task(Work()).schedule() for _ in range(5)]
    daemon.kill(signal.SIGTERM)
    until(lambda: rows(jobs, "SELECT 1 FROM schedd_workers WHERE state = 1"), "the daemon says that it drains")
    daemon.open()
    assert daemon.wait() == 0
    assert [history(jobs, i) for i in running] == [[(1, "succeeded")]] * 2
    untouched(jobs, queued)
