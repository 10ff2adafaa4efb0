"""The process that forks child processes: it may die, be stopped, or hang."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import isolated as kinds
from faults.harness import history, result, until
from faults.pools import PATIENCE, end, fork_server, noted, run, serves_on, started
from scheduler import Scheduler, TaskFailedError
from scheduler.engine.processes import timeouts as patience
from scheduler.engine.processes.fork_client import ForkServerClient
from scheduler.store.read.explain import why
from support.databases import Database, one_database
from support.leftovers import marked

pytestmark = pytest.mark.faults


@pytest.fixture
def jobs(database: Database, mark: str) -> Iterator[Scheduler]:
    made = started(database)
    yield made
    end(made)


@one_database
def test_the_end_of_the_fork_server_is_survived(jobs: Scheduler, tmp_path: Path) -> None:
    task_id = jobs.task(kinds.Ask(str(tmp_path / "notes"))).schedule()
    noted(tmp_path / "notes", "start")
    os.kill(fork_server(jobs), signal.SIGKILL)
    with pytest.raises(TaskFailedError, match="died together with the one that forks them"):
        jobs.result(task_id, timeout=PATIENCE)
    serves_on(jobs)


@one_database
def test_what_handlers_had_started_ends_with_the_fork_server(jobs: Scheduler, mark: str) -> None:
    """It ran on, beside the task's next attempt."""

    def program() -> list[str]:
        return [line for line in marked(mark) if "signal.signal(15" in line]

    task_id = jobs.task(kinds.Program()).schedule()
    until(program, "the program runs")
    os.kill(fork_server(jobs), signal.SIGKILL)
    with pytest.raises(TaskFailedError, match="died together with the one that forks them"):
        jobs.result(task_id, timeout=PATIENCE)
    assert not program()
    serves_on(jobs)


@pytest.fixture
def single(database: Database, mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """With one child at most, which is there; it does not wait long for its fork server."""
    monkeypatch.setattr(patience, "PING_AFTER_S", 0.1)
    monkeypatch.setattr(patience, "SERVER_CHECK_S", 0.1)
    monkeypatch.setattr(patience, "SERVER_SILENT_S", 0.5)
    made = started(database, processes=1)
    serves_on(made)
    yield made
    end(made)


def stop_with_child(jobs: Scheduler) -> None:
    """Stop the fork server, and kill the child: no process reports its end."""
    pid = result(jobs, run(jobs, kinds.Pid()))["pid"]
    os.kill(fork_server(jobs), signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(pid) == "Z", "it has died, and takes nothing more")


def state_of(pid: int) -> str:
    """What the kernel says of a process: T stopped, Z dead."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@one_database
def test_a_fork_server_that_was_stopped_goes_on(single: Scheduler) -> None:
    """Tasks waited for a child until the operator resumed the fork server, and the log said nothing."""
    server = fork_server(single)
    stop_with_child(single)
    task_id = run(single, kinds.Pid())
    assert history(single, task_id)[-1] == (1, "succeeded")
    assert fork_server(single) == server


@pytest.mark.parametrize("given", [False, True], ids=["waits", "was given to the child"])
@one_database
def test_a_fork_server_that_hangs_is_replaced(
    given: bool, single: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then ``why`` says what the task waits for."""
    server = fork_server(single)
    monkeypatch.setattr(ForkServerClient, "resume", lambda nursery: None)
    if given:
        pool = single.engine.engine_state.processes
        assert pool is not None
        (child,) = pool.children.children.values()
        os.kill(child.pid, signal.SIGSTOP)
        until(lambda: state_of(child.pid) == "T", "it takes nothing")
        task_id = single.task(kinds.Pid()).schedule()
        until(lambda: child.jobs, "it is given to the child")
        os.kill(server, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGKILL)
    else:
        stop_with_child(single)
        task_id = single.task(kinds.Pid()).schedule()

    def reason() -> str:
        with single.database.read() as tx:
            return str(why(tx, task_id))

    until(lambda: "waits for a child process: none can be started" in reason(), "it is said")
    assert f"forks child processes, {server}, has not answered" in caplog.text
    pool = single.engine.engine_state.processes
    assert pool is not None
    monkeypatch.setattr(patience, "KILL_SERVER_AFTER_S", pool.timeouts._silence + 1)
    single.wait([task_id], timeout=PATIENCE)
    assert history(single, task_id)[-1] == (1, "succeeded")
    assert fork_server(single) != server
