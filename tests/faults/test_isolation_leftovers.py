"""What handlers leave behind in a process, or have done to it: the next ones go on."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator

import pytest

from faults import isolated as kinds
from faults.harness import Fleet, all_ended, history
from scheduler import Scheduler, TaskFailedError
from support.databases import Database, one_database

pytestmark = [pytest.mark.faults, pytest.mark.case(15, 17, 63)]


@pytest.fixture
def jobs(database: Database, shared_fork_server: None) -> Iterator[Scheduler]:
    made = Scheduler(database.url, processes=1)
    for kind in (kinds.CancelsItself, kinds.LeavesAnAlarm, kinds.Dozes, kinds.Pid, kinds.LeavesAThread):
        made.register(kind)
    yield made
    made.close()


def test_a_coroutine_that_is_cancelled_in_its_last_moments_ends_as_it_said(jobs: Scheduler) -> None:
    with jobs:
        assert jobs.result(jobs.task(kinds.CancelsItself()).schedule(), timeout=30) == 1
        raising = jobs.task(kinds.CancelsItself("raises")).schedule()
        with pytest.raises(TaskFailedError, match="ValueError: its own"):
            jobs.result(raising, timeout=30)
    assert history(jobs, raising) == [(1, "retried"), (2, "dead")]


@one_database
def test_an_alarm_that_a_handler_has_left_ends_no_other(jobs: Scheduler) -> None:
    with jobs:
        first, second = jobs.task(kinds.LeavesAnAlarm()).schedule(), jobs.task(kinds.Dozes()).schedule()
        assert jobs.result(first, timeout=30) == jobs.result(second, timeout=30), "in the same child"


@pytest.mark.parametrize("seconds", [0.2, 60.0])
def test_a_default_timeout_of_sockets_is_not_that_of_ours(database: Database, mark: str, seconds: float) -> None:
    socket.setdefaulttimeout(seconds)
    try:
        with Scheduler(database.url, processes=1) as jobs:
            jobs.register(kinds.Pid)
            for _ in range(2):
                assert jobs.result(jobs.task(kinds.Pid()).schedule(), timeout=30)
            if database.is_sqlite:
                listener = jobs.engine.notifier._listener  # type: ignore[attr-defined]
                assert listener.gettimeout() is None, "or the listener misses notifications after that long"
    finally:
        socket.setdefaulttimeout(None)


@one_database
def test_a_daemon_ends_though_a_thread_does_not(fleet: Fleet, jobs: Scheduler) -> None:
    daemon = fleet.daemon(module="faults.isolated")
    jobs.task(kinds.LeavesAThread()).schedule()
    all_ended(jobs)
    daemon.kill(signal.SIGTERM)
    assert daemon.wait(30) == 0
    assert daemon.lines("tasks have left something behind that does not end")
