"""A real daemon whose tasks do the worst they can: it serves on, and leaves no process behind, whatever ends it."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults import isolated as kinds
from faults.harness import Fleet, Process, all_ended, attempts, counts, history, result, rows, state, unfinished, until
from scheduler import Scheduler, Task
from support.databases import Database, one_database
from support.leftovers import MARK, marked, none_left

pytestmark = pytest.mark.faults
OPTIONS = {"module": "faults.isolated", "worker__grace": "0.5", "worker__processes": "2", "worker__lease": "5"}


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    for kind in kinds.KINDS:
        made.register(kind)
    yield made
    made.close()


WORST: list[tuple[Task, str]] = [
    (kinds.Hang(), "TaskTimeout"),
    (kinds.Bomb(50, "hang"), "TaskTimeout"),
    (kinds.Allocate(4), "MemoryError"),
    (kinds.Segfault(), "ProcessDied"),
    (kinds.Exit(), "ProcessDied"),
]


@pytest.mark.case(17, 66)
@one_database
def test_a_daemon_serves_on_after_the_worst(fleet: Fleet, jobs: Scheduler, mark: str) -> None:
    daemon = fleet.daemon(**OPTIONS)
    for task, error in WORST:
        task_id = jobs.task(task).timeout(0.5 if isinstance(task, kinds.Hang) else 4).schedule()
        all_ended(jobs)
        first = attempts(jobs, task_id)[0]
        assert first.error_class == error, task
        after = jobs.task(kinds.Pid()).schedule()
        all_ended(jobs)
        assert history(jobs, after) == [(1, "succeeded")]
        until(lambda: len(marked(mark)) <= 4, f"the daemon, the fork server and two children: {task}")
    assert daemon.alive()
    daemon.kill(signal.SIGTERM)
    assert daemon.wait() == 0
    none_left(mark, 0.5)


@pytest.mark.case(6)
@pytest.mark.parametrize("kind", [kinds.Hang, kinds.Ask, kinds.Bomb])
@one_database
def test_nothing_outlives_a_daemon_that_is_killed(
    fleet: Fleet, jobs: Scheduler, mark: str, tmp_path: Path, kind: type[Task]
) -> None:
    daemon = fleet.daemon(**OPTIONS)
    task = kinds.Bomb(50, "hang") if kind is kinds.Bomb else kind(str(tmp_path / "notes"))  # type: ignore[call-arg]
    jobs.task(task).timeout(3600).schedule()
    if kind is kinds.Bomb:
        until(lambda: len(marked(mark)) >= 50, "all are there")
    else:
        until(lambda: kinds.lines(tmp_path / "notes"), "it runs")
    daemon.kill()
    none_left(mark)


@pytest.mark.case(2, 4)
def test_what_runs_ends_with_the_lease_of_a_daemon_that_stands_still(
    fleet: Fleet, jobs: Scheduler, mark: str, tmp_path: Path
) -> None:
    """Its children do not stand still: their handlers ran on, beside those of the worker that took over."""
    daemon = fleet.daemon(**OPTIONS | {"worker__lease": "1.5", "worker__grace": "0.1"})
    task_id = jobs.task(kinds.Hang(str(tmp_path / "notes"))).timeout(3600).schedule()
    until(lambda: kinds.lines(tmp_path / "notes"), "it runs")
    pid = kinds.lines(tmp_path / "notes")[0][1]
    daemon.kill(signal.SIGSTOP)
    until(lambda: not Path("/proc", pid).exists(), "its process has ended by itself")
    daemon.kill(signal.SIGCONT)
    until(lambda: history(jobs, task_id), "no other worker took it over")
    assert history(jobs, task_id)[0] == (1, "handed back")


@pytest.mark.case(8)
@one_database
def test_a_drain_that_takes_too_long_kills_and_hands_back(
    fleet: Fleet, jobs: Scheduler, mark: str, tmp_path: Path
) -> None:
    daemon = fleet.daemon(**OPTIONS, worker__drain="0.2")
    task_id = jobs.task(kinds.Hang(str(tmp_path / "notes"))).timeout(3600).schedule()
    until(lambda: kinds.lines(tmp_path / "notes"), "it runs")
    daemon.kill(signal.SIGTERM)
    assert daemon.wait() == 0
    none_left(mark, 0.5)
    assert history(jobs, task_id) == [(1, "handed back")]


@one_database
def test_children_have_the_state_that_the_configuration_names(fleet: Fleet, jobs: Scheduler, mark: str) -> None:
    fleet.daemon(**OPTIONS, tasks__state='"faults.isolated:make_state"')
    ids = [jobs.task(kinds.State()).schedule() for _ in range(4)]
    all_ended(jobs)
    for returned in (result(jobs, i) for i in ids):
        assert returned["made"] == 1


@one_database
def test_lines_of_children_are_the_daemons_own(fleet: Fleet, jobs: Scheduler, mark: str) -> None:
    daemon = fleet.daemon(**OPTIONS, log__format='"json"')
    task_id = jobs.task(kinds.Report()).schedule()
    all_ended(jobs)
    for text in ("through ctx.log", "through logging"):
        (line,) = daemon.lines(text)
        assert f'"task":{task_id}' in line
        assert '"kind":"Report"' in line


@one_database
def test_an_idle_daemon_has_no_other_process(fleet: Fleet, jobs: Scheduler, mark: str) -> None:
    daemon = fleet.daemon(**OPTIONS)
    jobs.task(kinds.Bystander()).schedule()
    all_ended(jobs)
    assert [line.split()[0] for line in marked(mark)] == [str(daemon.pid)]


@pytest.mark.case(66)
@one_database
def test_a_thread_that_segfaults_ends_dead_and_blames_no_other_task(fleet: Fleet, jobs: Scheduler, mark: str) -> None:
    """The daemon dies of it twice, and is started again. From then on the culprit runs in a child process."""
    with jobs.batch() as batch:
        bystanders = [batch.task(kinds.Bystander()) for _ in range(6)]
        batch.task(kinds.ThreadSegfault())
        bystanders += [batch.task(kinds.Bystander()) for _ in range(6)]
    culprit = batch.ids[6]
    good = [i for i in batch.ids if i != culprit]
    deaths = 0
    daemon: Process | None = None
    deadline = time.monotonic() + 60
    while unfinished(jobs):
        if daemon is None or not daemon.alive():
            if daemon is not None:
                assert daemon.wait() == -signal.SIGSEGV
                deaths += 1
            daemon = fleet.daemon(ready=False, **OPTIONS)
        assert time.monotonic() < deadline, counts(jobs)
        time.sleep(0.02)
    assert daemon is not None
    assert daemon.alive(), "as a suspect it has not taken the daemon with it"
    assert deaths == 2
    assert {state(jobs, i) for i in good} == {"success"}
    assert state(jobs, culprit) == "dead"
    (row,) = rows(jobs, "SELECT error, deaths FROM schedd_tasks WHERE id = :id", id=culprit)
    assert "killed its process 3 times while running alone" in row.error
    assert "SIGSEGV" in row.error
    ends = [str(a.outcome) for a in attempts(jobs, culprit)]
    assert ends[-1] == "dead"
    assert set(ends[:-1]) == {"lost"}
    assert sum("lost" in [end for _, end in history(jobs, i)] for i in good), "no worker that died held one of them"
    after = jobs.task(kinds.Pid()).schedule()
    all_ended(jobs)
    assert state(jobs, after) == "success"
    daemon.kill(signal.SIGTERM)
    assert daemon.wait() == 0
    none_left(mark)
