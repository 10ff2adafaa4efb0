"""The executor ``process`` by itself: jobs of a shell, found again by another one of the same directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import ConfigError, Resources
from scheduler.config.extensions import find
from scheduler.executors.ports import Executor, ExecutorError, Job, PlacementPhase, Refused, Submitted
from scheduler.executors.process import ProcessExecutor
from scheduler.executors.service import EXECUTORS
from support.fleet import until
from support.job_ends import end_all, over, seen

Made = ProcessExecutor.Settings


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ProcessExecutor]:
    made = ProcessExecutor("it", Made(directory=str(tmp_path / "jobs"), cpus=4, memory="1G"))
    yield made
    end_all(made)


def job(number: int, script: str, **more: Any) -> Job:
    return Job(name=f"schedd-0-{number}-1", argv=["/bin/sh", "-c", script], **more)


def test_schedds_own_types_are_entry_points_too() -> None:
    """For programs that list them; schedd finds its own without a search."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][EXECUTORS.name] == EXECUTORS.own
    for name in EXECUTORS.own:
        assert hasattr(find(EXECUTORS, name), "Settings")


def test_it_is_an_executor(executor: ProcessExecutor) -> None:
    assert isinstance(executor, Executor)
    assert executor.observe() == []
    assert all(finding.ok for finding in executor.check())


def test_a_job_runs_with_its_environment_and_is_told_of(executor: ProcessExecutor) -> None:
    done = job(1, 'echo "$SECRET"; echo to stderr >&2', env={"SECRET": "not in argv"})
    fails = job(2, "exit 3")
    killed = job(3, "kill -9 $$")
    assert executor.submit([done, fails, killed]) == [Submitted(one.name, one.name) for one in (done, fails, killed)]
    assert over(executor, done.name).phase is PlacementPhase.SUCCEEDED
    assert (over(executor, fails.name).exit_code, over(executor, fails.name).reason) == (3, "exit status 3")
    assert (over(executor, killed.name).signal, over(executor, killed.name).reason) == (9, "ended by SIGKILL")
    assert executor.logs(done.name, 1000) == "not in argv\nto stderr\n"
    assert executor.logs(done.name, 7) == "stderr\n"
    assert executor.logs(fails.name, 7) is None
    executor.forget([done.name, fails.name, killed.name])
    assert executor.observe() == []
    executor.forget([done.name])
    assert executor.logs(done.name, 7) is None


def test_another_one_of_the_same_directory_finds_what_runs(executor: ProcessExecutor, tmp_path: Path) -> None:
    """It was submitted by a process that is gone."""
    go = tmp_path / "go"
    one = job(1, f"while [ ! -e {go} ]; do sleep 0.02; done; exit 4")
    program = (
        "import sys\nfrom scheduler.executors.ports import Job\n"
        "from scheduler.executors.process import ProcessExecutor\n"
        "made = ProcessExecutor('it', ProcessExecutor.Settings(directory=sys.argv[1]))\n"
        "made.submit([Job(name=sys.argv[2], argv=sys.argv[3:])])\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "jobs"), one.name, *one.argv], check=True, timeout=60)
    assert executor.find([one.name, "schedd-0-9-1"]) == {one.name: one.name}
    until(lambda: seen(executor, one.name) is not None)
    found = seen(executor, one.name)
    assert found is not None
    assert found.phase in (PlacementPhase.STARTING, PlacementPhase.RUNNING)
    assert executor.submit([one]) == [Submitted(one.name, one.name)]
    go.touch()
    assert over(executor, one.name).exit_code == 4
    assert executor.submit([one]) == [Submitted(one.name, one.name)]
    assert over(executor, one.name).exit_code == 4  # it did not run again


def test_a_job_that_was_not_started_for_certain_can_be_submitted(executor: ProcessExecutor, tmp_path: Path) -> None:
    """The daemon was killed between the directory and the process."""
    one = job(1, "exit 0")
    (tmp_path / "jobs" / one.name).mkdir(parents=True)
    (tmp_path / "jobs" / one.name / "lock").touch()
    assert executor.find([one.name]) == {}
    assert executor.observe() == []
    executor.submit([one])
    assert over(executor, one.name).phase is PlacementPhase.SUCCEEDED


def test_cancelling_asks_first_and_kills_what_stays(executor: ProcessExecutor) -> None:
    hears, deaf = job(1, "sleep 600"), job(2, "trap '' TERM; sleep 600 & wait; sleep 600")
    executor.submit([hears, deaf])
    until(lambda: all(one.phase is PlacementPhase.RUNNING for one in executor.observe()))
    executor.cancel([hears.name], 600.0)
    executor.cancel([deaf.name], 0.0)
    assert (over(executor, hears.name).phase, over(executor, hears.name).signal) == (
        PlacementPhase.CANCELLED,
        signal.SIGTERM,
    )
    assert (over(executor, deaf.name).phase, over(executor, deaf.name).reason) == (PlacementPhase.CANCELLED, "killed")
    executor.cancel([hears.name, "schedd-0-9-1", "../../etc"], 0.0)  # over, unknown, and no job at all


@pytest.mark.parametrize("how", ["ends", "is cancelled"])
def test_what_a_job_has_started_ends_with_it(executor: ProcessExecutor, tmp_path: Path, how: str) -> None:
    """Also what does not hear SIGTERM, and has no file of the job open."""
    left = tmp_path / "left"
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    waits = "import time; time.sleep(600)" if how == "is cancelled" else ""
    script = (
        "import pathlib, subprocess, sys\n"
        f"started = subprocess.Popen([sys.executable, '-c', {deaf!r}], stdout=subprocess.PIPE)\n"
        "started.stdout.readline()\n"
        f"pathlib.Path({str(left)!r}).write_text(str(started.pid))\n{waits}"
    )
    made = Job(name="schedd-0-1-1", argv=[sys.executable, "-c", script])
    executor.submit([made])
    until(lambda: left.exists() and left.read_text(), 60.0)
    if how == "is cancelled":
        executor.cancel([made.name], 60.0)
    assert over(executor, made.name).phase is (PlacementPhase.SUCCEEDED if how == "ends" else PlacementPhase.CANCELLED)
    until(lambda: not Path(f"/proc/{left.read_text()}").exists(), 10.0)


def test_a_job_that_runs_for_too_long_is_ended(executor: ProcessExecutor) -> None:
    one = job(1, "sleep 600", limit=0.01)
    executor.submit([one])
    assert over(executor, one.name).phase is PlacementPhase.TIMED_OUT


def test_killed_with_its_shell_it_has_ended_without_a_status(executor: ProcessExecutor, tmp_path: Path) -> None:
    one = job(1, "sleep 600")
    executor.submit([one])
    pid = tmp_path / "jobs" / one.name / "pid"
    until(pid.exists)
    os.killpg(int(pid.read_text()), signal.SIGKILL)
    found = over(executor, one.name)
    assert (found.phase, found.signal) == (PlacementPhase.FAILED, signal.SIGKILL)
    assert "machine restarted" in str(found.reason)


def test_what_jobs_ask_for_is_shared_out(executor: ProcessExecutor) -> None:
    holds, waits, never = (
        job(1, "sleep 600", resources=Resources(cpu=3, memory="600M")),
        job(2, "exit 0", resources=Resources(cpu=2)),
        job(3, "exit 0", resources=Resources(gpu=1)),
    )
    first, second, third = executor.submit([holds, waits, never])
    assert isinstance(first, Submitted)
    assert second == Refused(waits.name, True, "it waits for 2 cores: 3 cores of 4 cores are taken", 1.0)
    assert third == Refused(never.name, False, "it asks for 1 GPUs, of 0 GPUs in all")
    (memory,) = executor.submit([job(4, "exit 0", resources=Resources(memory="500M"))])
    assert isinstance(memory, Refused)
    assert memory.reason == "it waits for 500 MiB of memory: 600 MiB of memory of 1 GiB of memory are taken"
    (disk,) = executor.submit([job(5, "exit 0", resources=Resources(disk="1000T"))])
    assert isinstance(disk, Refused)
    assert not disk.later
    executor.cancel([holds.name], 0.0)
    over(executor, holds.name)
    assert isinstance(executor.submit([waits])[0], Submitted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "gpu"}, "executor_options has 'partition'; the type process has nice"),
        ({"nice": -5}, "nice must"),
    ],
)
def test_options_are_checked(executor: ProcessExecutor, options: dict[str, Any], said: str) -> None:
    (answer,) = executor.submit([job(1, "exit 0", options=options)])
    assert isinstance(answer, Refused)
    assert (answer.later, answer.reason.startswith(said)) == (False, True)


def test_options_and_prefix_are_applied(tmp_path: Path) -> None:
    made = ProcessExecutor("it", Made(directory=str(tmp_path / "jobs"), prefix=("env", "FROM_PREFIX=yes")))
    one = job(1, 'echo "$FROM_PREFIX $(nice)"', options={"nice": 7})
    before = os.nice(0)
    made.submit([one])
    over(made, one.name)
    assert made.logs(one.name, 100) == f"yes {min(19, before + 7)}\n"


def test_only_its_own_user_may_read_its_files(executor: ProcessExecutor, tmp_path: Path) -> None:
    one = job(1, "exit 0")
    executor.submit([one])
    over(executor, one.name)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "jobs", tmp_path / "jobs" / one.name)] == [0o700, 0o700]


def test_a_place_that_cannot_be_used_is_an_error_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = ProcessExecutor("it", Made(directory=str(tmp_path / "file" / "jobs")))
    with pytest.raises(ExecutorError, match=r"the jobs' files in .* cannot be used"):
        made.submit([job(1, "exit 0")])
    assert not all(finding.ok for finding in made.check())


@pytest.mark.parametrize("settings", [{"directory": "jobs"}, {"directory": "/tmp/x", "cpus": -1.0}])
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"executors\.it"):
        ProcessExecutor("it", Made(**settings))
