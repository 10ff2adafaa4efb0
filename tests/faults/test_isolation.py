"""Attempts in child processes: what ends them, what their deaths cost, and that nothing of them is left behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import isolated as kinds
from faults.harness import attempts, history, result, rows, state, until
from faults.pools import GRACE, PATIENCE, end, error_of, fork_server, histories, log_of, noted, run, serves_on, started
from scheduler import Scheduler, Task, TaskFailedError
from scheduler.engine.processes import timeouts as patience
from scheduler.engine.processes.child_handle import ChildHandle
from scheduler.engine.processes.monitor import ChildMonitor
from support.databases import Database, one_database
from support.leftovers import none_left

pytestmark = pytest.mark.faults
TIMEOUT = 0.75  # of Hang and ALoop; of the second attempt, too, which does not wait for it


@pytest.fixture
def jobs(database: Database, shared_fork_server: None) -> Iterator[Scheduler]:
    made = started(database)
    yield made
    end(made)


@pytest.fixture
def patient(database: Database, shared_fork_server: None) -> Iterator[Scheduler]:
    """It gives handlers that are to end all the time they need."""
    made = started(database, process_grace=PATIENCE)
    yield made
    end(made)


# where it runs


@pytest.mark.case(1)
@pytest.mark.parametrize("kind", [kinds.Pid, kinds.APid])
@one_database
def test_an_attempt_runs_in_another_process(jobs: Scheduler, kind: type[Task]) -> None:
    task_id = run(jobs, kind())
    returned = result(jobs, task_id)
    assert (returned["pid"] if isinstance(returned, dict) else returned) != os.getpid()
    assert history(jobs, task_id) == [(1, "succeeded")]


@one_database
def test_nothing_is_started_before_it_is_needed(jobs: Scheduler) -> None:
    pool = jobs.engine.engine_state.processes
    assert pool is not None
    assert run(jobs, kinds.Bystander(0))
    assert pool._thread is None
    serves_on(jobs)
    assert pool.children.fork_server is not None


@one_database
def test_state_is_made_once_in_each_child(database: Database, shared_fork_server: None) -> None:
    jobs = started(database, state="the parent's", child_state="faults.isolated:make_state", processes=1)
    states = [result(jobs, run(jobs, kinds.State())) for _ in range(3)]
    assert states == [{"pid": states[0]["pid"], "made": 1}] * 3
    assert states[0]["pid"] != os.getpid()
    end(jobs)


@one_database
def test_why_no_child_gets_ready_is_logged(
    database: Database, shared_fork_server: None, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = started(database, state="the parent's", child_state="faults.isolated:make_no_state", processes=1)
    jobs.task(kinds.Pid()).schedule()
    until(lambda: "no child process could be started" in caplog.text, "the child has ended")
    assert "RuntimeError: the model is missing" in caplog.text
    end(jobs)


@one_database
def test_state_that_cannot_come_along_is_reported(database: Database, shared_fork_server: None) -> None:
    jobs = started(database, state=object())
    assert "child_state" in error_of(jobs, kinds.State())
    serves_on(jobs)
    end(jobs)


LATE = """
from pathlib import Path
from scheduler import Task, ports
if ports.IN_CHILD and not Path({flag!r}).exists():
    raise OSError("the share is away")
class Late(Task, isolation="process"):
    def run(self, ctx):
        return "late"
"""


@one_database
def test_a_kind_that_comes_later_is_found_by_children_that_there_are(
    database: Database, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its directory, as after a reload; and an import that failed once is tried again."""
    jobs = started(database, processes=1)
    pid = result(jobs, run(jobs, kinds.Pid()))["pid"]
    module = f"late_{mark}"
    (tmp_path / f"{module}.py").write_text(LATE.format(flag=str(tmp_path / "flag")))
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module(module).Late
    jobs.register(late)
    assert "the share is away" in error_of(jobs, late())
    (tmp_path / "flag").touch()
    assert result(jobs, run(jobs, late())) == "late"
    assert result(jobs, run(jobs, kinds.Pid()))["pid"] == pid
    end(jobs)


@one_database
def test_many_tasks_are_shared_out(jobs: Scheduler, tmp_path: Path) -> None:
    meeting = [jobs.task(kinds.Meet(str(tmp_path))).schedule() for _ in range(2)]
    jobs.wait(meeting, timeout=PATIENCE)
    pids = {result(jobs, i) for i in meeting}  # both children are there
    with jobs.batch() as batch:
        for n in range(500):
            batch.task(kinds.Pid(n))
    jobs.wait(batch.ids, timeout=PATIENCE)
    returned = rows(jobs, "SELECT id, result FROM schedd_tasks WHERE result LIKE '%parent%' ORDER BY id")
    assert [(row.id, json.loads(row.result)["n"]) for row in returned] == list(zip(batch.ids, range(500), strict=True))
    assert {json.loads(row.result)["pid"] for row in returned} == pids
    assert all(history == [(1, "succeeded")] for history in histories(jobs).values())


@pytest.mark.parametrize("length", [20_000, 60_000, 120_000])
def test_long_payloads_and_results(jobs: Scheduler, length: int) -> None:
    text = "".join(chr(97 + n % 26) for n in range(length))
    task_id = run(jobs, kinds.Big(text))
    assert jobs.result(task_id) == text[::-1]


# deaths


DEATHS = [
    (kinds.Segfault(), "killed by SIGSEGV (segmentation fault)"),
    (kinds.Exit(), "ended by itself with exit status 7"),
    (kinds.Exit(0), "ended by itself with exit status 0"),
    (kinds.Kill(), "killed by SIGKILL"),
    (kinds.Burn(), "killed by SIGXCPU: over its limit of 1 s of CPU time"),
]


@pytest.mark.case(7)
@pytest.mark.parametrize(("task", "says"), DEATHS, ids=[f"{type(t).__name__} {s[-12:]}" for t, s in DEATHS])
@one_database
def test_a_death_fails_its_attempt_alone_and_is_named(jobs: Scheduler, task: Task, says: str) -> None:
    task_id = run(jobs, task)
    (attempt,) = attempts(jobs, task_id)
    assert attempt.error_class == "ProcessDied"
    assert says in str(attempt.error)
    serves_on(jobs)


@pytest.mark.case(7)
@one_database
def test_a_child_killed_from_outside(jobs: Scheduler, tmp_path: Path) -> None:
    task_id = jobs.task(kinds.Ask(str(tmp_path / "notes"))).schedule()
    pid = int(noted(tmp_path / "notes", "start")[1])
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TaskFailedError, match="killed by SIGKILL, from outside"):
        jobs.result(task_id, timeout=PATIENCE)
    serves_on(jobs)


@pytest.mark.case(66)
@one_database
def test_bystanders_in_the_same_child_are_not_blamed(database: Database, shared_fork_server: None) -> None:
    """Quick tasks are given to a child many at a time; those behind a death use no attempt by it."""
    jobs = started(database, processes=1)
    with jobs.batch() as batch:
        for n in range(100):
            batch.task(kinds.Pid(n))
    jobs.wait(batch.ids, timeout=PATIENCE)  # known to be quick from here on
    with jobs.batch() as batch:
        for n in range(200):
            batch.task(kinds.Exit() if n % 50 == 25 else kinds.Pid(n))
    jobs.wait(batch.ids, timeout=PATIENCE)
    all_of_them = histories(jobs)
    for n, task_id in enumerate(batch.ids):
        assert all_of_them[task_id] == [(1, "dead" if n % 50 == 25 else "succeeded")]
    end(jobs)


@one_database
def test_the_signal_that_asks_what_is_done_ends_nothing(jobs: Scheduler, tmp_path: Path) -> None:
    """``systemctl kill`` sends it to all processes of a service."""
    task_id = jobs.task(kinds.Ask(str(tmp_path / "notes"))).schedule()
    pid = int(noted(tmp_path / "notes", "start")[1])
    for one in (fork_server(jobs), pid):
        os.kill(one, signal.SIGUSR1)
    serves_on(jobs)
    jobs.cancel_task(task_id)
    jobs.wait([task_id], timeout=PATIENCE)
    assert history(jobs, task_id) == [(1, "cancelled")]


@one_database
def test_a_child_that_stands_still_keeps_no_task(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that was handed to it waited for ever, while other children were idle."""
    monkeypatch.setattr(patience, "NOT_BEGUN_TIMEOUT_S", 0.3)
    pid = result(jobs, run(jobs, kinds.Pid()))["pid"]
    os.kill(pid, signal.SIGSTOP)
    task_id = run(jobs, kinds.Pid())
    assert result(jobs, task_id)["pid"] != pid
    assert history(jobs, task_id)[-1] == (1, "succeeded")


def test_hooks_of_an_attempt_that_died_run_in_another_child(jobs: Scheduler, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    task_id = run(jobs, kinds.Hooked(str(notes)))
    assert history(jobs, task_id) == [(1, "retried"), (2, "dead")]
    until(lambda: len(kinds.lines(notes)) == 2, "both hooks")
    assert sorted(line[0] for line in kinds.lines(notes)) == ["failed:2:ProcessDied", "retried:1:ProcessDied"]
    assert str(os.getpid()) not in [line[1] for line in kinds.lines(notes)]


# limits


@one_database
def test_memory_over_the_limit(jobs: Scheduler) -> None:
    assert "the limit of this kind is memory 256 MiB" in error_of(jobs, kinds.Allocate(4))
    assert result(jobs, run(jobs, kinds.Allocate(0))) == 0
    serves_on(jobs)


@one_database
def test_open_files_over_the_limit(jobs: Scheduler) -> None:
    assert "Too many open files; the limit of this kind is files 16" in error_of(jobs, kinds.Open(17))
    assert result(jobs, run(jobs, kinds.Open(14))) == 14
    serves_on(jobs)


@one_database
def test_a_child_is_replaced_after_so_many_tasks(database: Database, shared_fork_server: None) -> None:
    jobs = started(database, processes=1, recycle_tasks=3)
    pids = [result(jobs, run(jobs, kinds.Pid()))["pid"] for _ in range(9)]
    assert [len(set(pids[n : n + 3])) for n in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3
    end(jobs)


@one_database
def test_a_child_that_is_replaced_ends_what_it_has_begun_meanwhile(
    database: Database, shared_fork_server: None
) -> None:
    """It was given several at a time, and has begun the next one when it is to go: that one's end was lost."""
    jobs = started(database, processes=1, recycle_tasks=8)
    first = [result(jobs, run(jobs, kinds.Pid()))["pid"] for _ in range(4)]  # its kind is known to be quick now
    with jobs.batch() as batch:
        for n in range(20):
            batch.task(kinds.Pid(n))
    jobs.wait(batch.ids, timeout=PATIENCE)
    assert [history(jobs, i) for i in batch.ids] == [[(1, "succeeded")]] * 20
    assert result(jobs, run(jobs, kinds.Pid()))["pid"] not in first
    end(jobs)


@one_database
def test_a_child_that_has_grown_is_replaced(database: Database, shared_fork_server: None) -> None:
    jobs = started(database, processes=1, recycle_memory="200M")
    first = result(jobs, run(jobs, kinds.Grow(1)))
    assert result(jobs, run(jobs, kinds.Grow(300 << 20))) == first
    assert result(jobs, run(jobs, kinds.Grow(1))) != first
    end(jobs)


# timeouts


@pytest.mark.case(17)
def test_a_handler_that_ignores_everything_is_killed_and_never_overlaps_its_retry(
    jobs: Scheduler, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    serves_on(jobs)
    scheduled = time.monotonic_ns()  # its own account of its start may be late
    task_id = run(jobs, kinds.Hang(str(notes)))
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    first = attempts(jobs, task_id)[0]
    assert first.error_class == "TaskTimeout"
    assert f"longer than its timeout of {TIMEOUT:g} s; its process was killed" in str(first.error)
    one, two = kinds.lines(notes)
    assert one[1] != two[1]
    assert int(two[2]) - scheduled >= (TIMEOUT + GRACE) * 1e9
    serves_on(jobs)


@pytest.mark.case(17)
@one_database
def test_an_async_handler_is_ended_where_it_awaits(patient: Scheduler, tmp_path: Path) -> None:
    jobs = patient
    notes = tmp_path / "notes"
    task_id = run(jobs, kinds.ALoop(str(notes)))
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    assert attempts(jobs, task_id)[0].error_class == "TaskTimeout"
    assert [line[0] for line in kinds.lines(notes)] == ["start", "cleaned", "cleaned"]


@pytest.mark.case(17)
@one_database
def test_a_handler_that_runs_python_can_clean_up(patient: Scheduler, tmp_path: Path) -> None:
    jobs = patient
    notes = tmp_path / "notes"
    serves_on(jobs)
    scheduled = time.monotonic_ns()
    task_id = jobs.task(kinds.Loop(str(notes))).timeout(TIMEOUT).schedule()
    jobs.wait([task_id], timeout=PATIENCE)
    (attempt,) = attempts(jobs, task_id)
    assert attempt.error_class == "TaskTimeout"
    start, cleaned = kinds.lines(notes)
    assert (start[0], cleaned[0]) == ("start", "cleaned")
    assert TIMEOUT * 1e9 <= int(cleaned[2]) - scheduled < (TIMEOUT + 5) * 1e9


@pytest.mark.case(17)
@one_database
def test_a_handler_that_swallows_its_end_is_killed(jobs: Scheduler, tmp_path: Path) -> None:
    task_id = jobs.task(kinds.Loop(str(tmp_path / "notes"), swallow=True)).timeout(0.3).schedule()
    jobs.wait([task_id], timeout=PATIENCE)
    assert "its process was killed" in str(attempts(jobs, task_id)[0].error)


@pytest.mark.case(17)
@one_database
def test_a_program_that_a_handler_waits_for_ends_with_it(jobs: Scheduler) -> None:
    task_id = jobs.task(kinds.Program()).timeout(3).schedule()  # by then it ignores the signal
    jobs.wait([task_id], timeout=PATIENCE)
    assert attempts(jobs, task_id)[0].error_class == "TaskTimeout"
    assert "program" in log_of(jobs, task_id)


# cancels


@pytest.mark.case(48)
@pytest.mark.parametrize(
    ("kind", "cleans"), [(kinds.Ask, False), (kinds.Loop, True), (kinds.ALoop, True), (kinds.Hang, False)]
)
@one_database
def test_a_running_handler_is_cancelled(
    database: Database, shared_fork_server: None, tmp_path: Path, kind: Any, cleans: bool
) -> None:
    jobs = started(database, process_grace=PATIENCE if cleans else GRACE)
    notes = tmp_path / "notes"
    task_id = jobs.task(kind(str(notes))).timeout(3600).schedule()
    noted(notes, "start")
    jobs.cancel_task(task_id)
    assert jobs.get_task(task_id).cancel_requested or state(jobs, task_id) == "cancelled"
    jobs.wait([task_id], timeout=PATIENCE)
    assert state(jobs, task_id) == "cancelled"
    assert history(jobs, task_id) == [(1, "cancelled")]
    assert ("cleaned" in [line[0] for line in kinds.lines(notes)]) is cleans
    serves_on(jobs)
    end(jobs)


@pytest.mark.case(48)
@one_database
def test_what_waits_behind_a_handler_is_cancelled_at_once(
    database: Database, shared_fork_server: None, tmp_path: Path
) -> None:
    jobs = started(database, processes=1)
    held = jobs.task(kinds.Ask(str(tmp_path / "notes"))).schedule()
    noted(tmp_path / "notes", "start")
    waits = jobs.task(kinds.Pid()).schedule()
    jobs.cancel_task(waits)
    jobs.wait([waits], timeout=PATIENCE)
    assert state(jobs, waits) == "cancelled"
    assert state(jobs, held) in ("claimed", "running")
    jobs.cancel_task(held)
    jobs.wait([held], timeout=PATIENCE)
    end(jobs)


# what a handler leaves behind


@pytest.mark.case(17)
@pytest.mark.parametrize(("how", "ends"), [("return", "succeeded"), ("hang", "dead"), ("die", "dead")])
@one_database
def test_fifty_processes_are_gone_when_the_attempt_is_over(jobs: Scheduler, mark: str, how: str, ends: str) -> None:
    task_id = jobs.task(kinds.Bomb(50, how)).timeout(4).schedule()
    jobs.wait([task_id], timeout=PATIENCE)
    assert history(jobs, task_id) == [(1, ends)]
    pool = jobs.engine.engine_state.processes
    assert pool is not None
    assert len(pool.children.children) <= 2
    serves_on(jobs)
    end(jobs)
    none_left(mark, 1.0)


@one_database
def test_a_handler_that_returns_twice_is_recorded_once(jobs: Scheduler) -> None:
    task_id = run(jobs, kinds.Forks())
    assert result(jobs, task_id) == "parent"
    assert history(jobs, task_id) == [(1, "succeeded")]
    serves_on(jobs)


@one_database
def test_a_worker_that_a_handler_forked_can_be_ended_and_reports_its_end(jobs: Scheduler) -> None:
    """It ignored SIGTERM, so that multiprocessing waited for it for ever, and what it wrote was lost."""
    task_id = run(jobs, kinds.Workers())
    assert result(jobs, task_id) == -signal.SIGTERM
    text = log_of(jobs, task_id)
    assert "printed by a worker\n" in text
    assert "WARNING isolated: logged by a worker\n" in text


@one_database
def test_what_ended_unwaited_for_is_not_kept(database: Database, shared_fork_server: None) -> None:
    """A child collected them over thousands of tasks, until it could start nothing more."""
    jobs = started(database, processes=1)
    returned = [result(jobs, run(jobs, kinds.Unwaited())) for _ in range(2)]
    assert returned == [{"pid": returned[0]["pid"], "before": False}] * 2
    end(jobs)


# stopping


@pytest.mark.case(8)
@one_database
def test_stop_waits_for_what_runs(database: Database, mark: str, tmp_path: Path) -> None:
    jobs = started(database)
    task_id = jobs.task(kinds.Program()).timeout(1).schedule()
    until(lambda: state(jobs, task_id) == "running", "it runs")
    assert jobs.stop(drain=PATIENCE) == []
    assert history(jobs, task_id) == [(1, "dead")]
    none_left(mark)
    jobs.close()


@pytest.mark.case(8)
@one_database
def test_a_hard_stop_kills_before_it_hands_back(database: Database, mark: str, tmp_path: Path) -> None:
    jobs = started(database)
    task_id = jobs.task(kinds.Hang(str(tmp_path / "notes"))).timeout(3600).schedule()
    noted(tmp_path / "notes", "start")
    assert jobs.stop_now() == [task_id]
    none_left(mark, 0.5)
    assert history(jobs, task_id) == [(1, "handed back")]
    assert state(jobs, task_id) == "scheduled"
    jobs.close()


@pytest.fixture
def deaf(database: Database, mark: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """A scheduler that reads its child's messages only when it is closed. The child is ready."""
    jobs = started(database, processes=1)
    run(jobs, kinds.Pid())
    handle_all = ChildMonitor.handle_all
    pool = jobs.engine.engine_state.processes
    assert pool is not None

    def hear(hearing: ChildMonitor, child: ChildHandle, messages: Any) -> None:
        if pool._closed:
            handle_all(hearing, child, messages)
        else:
            time.sleep(0.01)

    monkeypatch.setattr(ChildMonitor, "handle_all", hear)
    yield jobs
    jobs.close()


@pytest.mark.case(8)
def test_what_began_unheard_is_in_the_history_after_a_hard_stop(deaf: Scheduler, mark: str, tmp_path: Path) -> None:
    task_id = deaf.task(kinds.Hang(str(tmp_path / "notes"))).timeout(3600).schedule()
    noted(tmp_path / "notes", "start")
    assert deaf.stop_now() == [task_id]
    none_left(mark, 0.5)
    assert history(deaf, task_id) == [(1, "handed back")]
    assert state(deaf, task_id) == "scheduled"


@pytest.mark.case(8)
@one_database
def test_what_cannot_be_read_keeps_no_hard_stop_from_its_end(deaf: Scheduler, mark: str, tmp_path: Path) -> None:
    task_id = deaf.task(kinds.Garble(str(tmp_path / "notes"))).timeout(3600).schedule()
    noted(tmp_path / "notes", "start")
    pool = deaf.engine.engine_state.processes
    assert pool is not None
    (child,) = pool.children.children.values()
    assert deaf.stop_now() == [task_id]
    none_left(mark, 0.5)
    assert child.talk.fileno() == -1
    assert history(deaf, task_id) == [(1, "handed back")]


@one_database
def test_a_handler_that_garbles_what_its_process_says_is_ended(jobs: Scheduler) -> None:
    assert error_of(jobs, kinds.Garble()).startswith("ProcessDied: its process was killed: something in it had written")


@pytest.mark.case(8)
def test_what_ended_unheard_is_not_run_again_after_a_hard_stop(deaf: Scheduler, mark: str) -> None:
    task_id = deaf.task(kinds.Pid()).schedule()
    pool = deaf.engine.engine_state.processes
    assert pool is not None
    (child,) = pool.children.children.values()
    child.talk.setblocking(True)
    until(lambda: b"done" in child.talk.recv(65536, socket.MSG_PEEK), "it has ended")
    assert deaf.stop_now() == []
    none_left(mark, 0.5)
    assert history(deaf, task_id) == [(1, "succeeded")]
    assert state(deaf, task_id) == "success"


# what is written


@pytest.mark.case(7)
def test_what_is_no_text_is_kept_as_far_as_it_is(jobs: Scheduler) -> None:
    """The retry was lost: the task ended dead, with the error of an encoder."""
    task_id = run(jobs, kinds.Odd())
    assert history(jobs, task_id) == [(1, "retried"), (2, "succeeded")]
    first, _ = attempts(jobs, task_id)
    assert "LookupError: raised ?" in str(first.error)
    assert log_of(jobs, task_id) == "captured ?\n"


@pytest.mark.case(14)
def test_what_its_coroutines_raise_together_means_what_it_means_in_a_thread(jobs: Scheduler) -> None:
    task_id = run(jobs, kinds.Together())
    (only,) = attempts(jobs, task_id)
    assert (only.error, only.status_code) == ("PermanentError: never (and 1 more error)", 410)
    assert history(jobs, task_id) == [(1, "dead")]


@one_database
def test_what_is_written_right_before_the_end_is_kept(jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool reads what was written, then what was said: here the rest of the handler falls between the two."""
    received = ChildHandle.received

    def late(child: ChildHandle, *args: Any, **options: Any) -> Any:
        if child.current is not None:
            until(
                lambda: b"done" in child.talk.recv(65_536, socket.MSG_PEEK | socket.MSG_DONTWAIT), "the handler's end"
            )
        return received(child, *args, **options)

    monkeypatch.setattr(ChildHandle, "received", late)
    assert "of another program" in log_of(jobs, run(jobs, kinds.Report()))


@one_database
def test_output_is_kept_with_the_attempt_and_bounded(jobs: Scheduler) -> None:
    task_id = run(jobs, kinds.Report())
    text = log_of(jobs, task_id)
    for line in (
        "through ctx.log size=3",
        "through print",
        "no newline",
        "through capture",
        "past Python",
        "of another",
    ):
        assert line in text
    dead = run(jobs, kinds.Segfault())
    text = log_of(jobs, dead)
    assert "last words" in text
    assert "of C code" in text
    assert "Segmentation fault" in text, "faulthandler's account"
    chatty = run(jobs, kinds.Chatter())
    text = log_of(jobs, chatty)
    assert len(text) <= 65 * 1024
    assert text.endswith("line 4999 " + "x" * 80 + "\n")


# levels


@pytest.mark.case(60)
def test_a_high_task_does_not_wait_for_lower_ones(database: Database, shared_fork_server: None) -> None:
    jobs = started(database, processes=1)
    held = jobs.task(kinds.Ask()).priority("low").schedule()
    until(lambda: state(jobs, held) == "running", "it runs")
    high = jobs.task(kinds.Pid()).priority("high").schedule()
    medium = jobs.task(kinds.Pid()).schedule()
    assert jobs.result(high, timeout=PATIENCE)
    jobs.cancel_task(held)
    assert jobs.result(medium, timeout=PATIENCE)
    end(jobs)


@pytest.mark.case(60)
def test_nothing_is_claimed_ahead_for_a_child_that_another_level_has_taken(
    database: Database, shared_fork_server: None
) -> None:
    jobs = started(database, processes=1)
    assert result(jobs, run(jobs, kinds.Pid())), "from now on its kind is known to be quick"
    held = jobs.task(kinds.Ask()).priority("low").schedule()
    until(lambda: state(jobs, held) == "running", "it runs")
    (body,) = jobs.engine.engine_state.held.values()
    horizon = jobs.engine.options.ahead
    until(lambda: body.started_mono < time.monotonic() - horizon, "it is not expected to end soon")
    medium = jobs.task(kinds.Pid()).schedule()
    for _ in range(3):
        high = jobs.task(kinds.Pid()).priority("high").schedule()
        assert jobs.result(high, timeout=PATIENCE), "the high tasks have a child of their own"
    (row,) = rows(jobs, "SELECT state, claim FROM schedd_tasks WHERE id = :id", id=medium)
    assert row.claim == 0, "those cycles saw the medium one, too"
    jobs.cancel_task(held)
    assert jobs.result(medium, timeout=PATIENCE)
    end(jobs)


@pytest.mark.case(60)
def test_what_waits_for_a_child_is_not_claimed_and_handed_back_over_and_over(
    database: Database, shared_fork_server: None
) -> None:
    jobs = started(database, processes=1)
    held = jobs.task(kinds.Ask()).schedule()
    until(lambda: state(jobs, held) == "running", "it runs")
    others = [jobs.task(kinds.Pid()).priority(level).schedule() for level in ("medium", "low")]
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 2.5, "what was claimed in vain was handed back")
    for other in others:
        (row,) = rows(jobs, "SELECT claim FROM schedd_tasks WHERE id = :id", id=other)
        assert row.claim <= 1
    jobs.cancel_task(held)
    jobs.wait(others, timeout=PATIENCE)
    end(jobs)
