"""The executor ``slurm`` by itself: what it reads and refuses, and jobs of a real cluster."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import ConfigError, Resources
from scheduler.executors import slurm_parse
from scheduler.executors.ports import Executor, ExecutorError, Job, PlacementPhase, Refused, Submitted
from scheduler.executors.slurm import SlurmExecutor
from support.databases import Database
from support.fleet import until
from support.job_ends import PATIENCE, end_all, over, seen
from support.placing import Place
from support.session import shared_directory
from support.slurm_rig import CPUS, SlurmCluster

Made = SlurmExecutor.Settings
NAME = "schedd-0a1b2c3d-7-1"


def line(state: str, code: int = 0, why: str = "None", number: str = "4711", name: str = NAME) -> str:
    columns = {"JobID": number, "Name": name, "State": state, "exit_code": str(code), "NodeList": "n1", "Reason": why}
    widths = dict(re.findall(r"(\w+):(\d+)\|", slurm_parse.COLUMNS))
    return "".join(f"{columns[one]:{width}}|" for one, width in widths.items()) + "\n"


@pytest.mark.parametrize(
    ("state", "code", "why", "phase", "reason"),
    [
        ("PENDING", 0, "Resources", PlacementPhase.QUEUED, "job 4711, Resources"),
        ("PENDING", 0, "launch failed requeued held", PlacementPhase.FAILED, "job 4711, launch failed requeued held"),
        ("CONFIGURING", 0, "None", PlacementPhase.STARTING, "job 4711"),
        ("RUNNING", 0, "None", PlacementPhase.RUNNING, "job 4711"),
        ("COMPLETING", 0, "None", PlacementPhase.RUNNING, "job 4711"),
        ("SUSPENDED", 0, "None", PlacementPhase.RUNNING, "job 4711"),
        ("COMPLETED", 0, "None", PlacementPhase.SUCCEEDED, "job 4711"),
        ("FAILED", 3 << 8, "NonZeroExitCode", PlacementPhase.FAILED, "job 4711, exit status 3"),
        ("FAILED", 9, "JobLaunchFailure", PlacementPhase.FAILED, "job 4711, ended by SIGKILL"),
        ("CANCELLED", 0, "None", PlacementPhase.CANCELLED, "job 4711"),
        ("PREEMPTED", 0, "None", PlacementPhase.PREEMPTED, "job 4711, PREEMPTED"),
        ("TIMEOUT", 15, "TimeLimit", PlacementPhase.TIMED_OUT, "job 4711, ended by SIGTERM, TIMEOUT"),
        ("DEADLINE", 0, "DeadLine", PlacementPhase.TIMED_OUT, "job 4711, DEADLINE"),
        ("NODE_FAIL", 0, "NodeDown", PlacementPhase.FAILED, "job 4711, NODE_FAIL"),
        ("OUT_OF_MEMORY", 9, "OutOfMemory", PlacementPhase.FAILED, "job 4711, ended by SIGKILL, OUT_OF_MEMORY"),
        ("UNHEARD_OF", 0, "None", PlacementPhase.GONE, "job 4711, UNHEARD_OF"),
    ],
)
def test_states_become_phases(state: str, code: int, why: str, phase: PlacementPhase, reason: str) -> None:
    (row,) = slurm_parse.rows(line(state, code, why))
    seen = row.seen()
    assert (seen.name, seen.handle, seen.phase, seen.node) == (NAME, NAME, phase, "n1")
    if phase is not PlacementPhase.GONE:
        assert seen.reason == reason


def test_an_exit_status_is_told_as_such() -> None:
    (row,) = slurm_parse.rows(line("FAILED", 75 << 8, "NonZeroExitCode"))
    assert (row.seen().exit_code, row.seen().signal) == (75, None)
    (row,) = slurm_parse.rows(line("COMPLETED"))
    assert (row.seen().exit_code, row.seen().signal) == (0, None)
    (row,) = slurm_parse.rows(line("RUNNING"))
    assert (row.seen().exit_code, row.seen().signal) == (None, None)


def test_jobs_that_are_not_ours_are_left_out_and_what_is_cut_off_is_an_error() -> None:
    text = line("RUNNING", name="mine|with a bar") + "\n" + line("RUNNING") + line("RUNNING", name="schedd-x")
    assert [row.name for row in slurm_parse.rows(text)] == [NAME]
    with pytest.raises(ExecutorError, match="cannot be read"):
        slurm_parse.rows(f"4711|{NAME}|RUNNING|\n")


@pytest.mark.parametrize(
    ("text", "later"),
    [
        ("Batch job submission failed: Invalid partition name specified", False),
        ("Batch job submission failed: Requested node configuration is not available", False),
        ("Batch job submission failed: Invalid account or account/partition combination specified", False),
        ("Slurm temporarily unable to accept job, sleeping and retrying", True),
        ("Batch job submission failed: Required partition not available (inactive or drain)", True),
        (
            "QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS "
            "policy (job submit limit, user's size and/or time limits)",
            True,
        ),
        (
            "QOSMaxCpuPerJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
            "(job submit limit, user's size and/or time limits)",
            False,
        ),
    ],
)
def test_refusals_are_for_now_or_for_good(text: str, later: bool) -> None:
    refused = slurm_parse.refusal(NAME, f"sbatch: error: {text}\n")
    assert (refused.later, refused.after is not None) == (later, later)
    assert "sbatch" not in refused.reason
    assert "Batch job submission failed" not in refused.reason


def test_a_controller_that_is_away_refuses_nothing() -> None:
    assert slurm_parse.is_away(
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect fail"
    )
    assert slurm_parse.is_away("squeue: error: slurm_receive_msgs: Socket timed out on send/recv operation")
    assert not slurm_parse.is_away("sbatch: error: invalid partition specified: nix")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"wrap": "rm -rf /"}, "there is no 'wrap'"),
        ({"export": "ALL"}, "there is no 'export'"),
        ({"partition": 3}, "partition must be a text"),
        ({"partition": ""}, "partition must be a text"),
        ({"qos": "a\nb"}, "qos must be a text"),
        ({"nice": -1}, "nice must be a whole number"),
        ({"nice": True}, "nice must be a whole number"),
        ({"time": "1-0"}, "time must be whole minutes"),
        ({"time": 1}, "time must be whole minutes"),
    ],
)
def test_options_that_it_does_not_know_are_refused(options: dict[str, Any], why: str) -> None:
    assert why in str(slurm_parse.wrong_option(options))
    with pytest.raises(ConfigError, match=re.escape(why)):
        SlurmExecutor("it", Made(directory="/tmp/jobs", defaults=options))


@pytest.mark.parametrize("settings", [{"directory": "jobs"}, {"directory": "/tmp/%j"}, {"environment": ("A=B",)}])
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"executors\.it\."):
        SlurmExecutor("it", Made(**{"directory": "/tmp/jobs", **settings}))


def test_resources_and_options_become_arguments() -> None:
    resources = Resources(cpu=1.5, memory="1000K", gpu=2, disk="1G")
    options = {"gres": "shard:1", "partition": "gpu", "time": 90, "nice": 3}
    assert list(slurm_parse.asked_for(resources, options, timed=False)) == [
        "--cpus-per-task=2",
        "--mem=1M",
        "--tmp=1024M",
        "--gres=gpu:2,shard:1",
        "--nice=3",
        "--partition=gpu",
        "--time=90",
    ]
    assert "--time=90" not in list(slurm_parse.asked_for(resources, options, timed=True))
    assert list(slurm_parse.asked_for(Resources(), {}, timed=False)) == ["--cpus-per-task=1"]


# With a cluster


@pytest.fixture
def cluster() -> SlurmCluster:
    return SlurmCluster.shared()


@pytest.fixture
def executor(cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmExecutor]:
    made = make(cluster, tmp_path)
    yield made
    end_all(made)


def make(cluster: SlurmCluster, directory: Path, **more: Any) -> SlurmExecutor:
    return SlurmExecutor("it", Made(directory=str(directory / "jobs"), slurm_conf=str(cluster.conf), **more))


def job(number: int, script: str, **more: Any) -> Job:
    """``number``: of this module's tests, one job each, since they share a cluster."""
    return Job(name=f"schedd-0-{number}-1", argv=["/bin/sh", "-c", script], **more)


def pids_written(path: Path) -> None:
    until(lambda: path.exists() and path.read_text().endswith("\n"), PATIENCE)


@pytest.mark.executors
def test_it_is_an_executor(executor: SlurmExecutor, cluster: SlurmCluster, tmp_path: Path) -> None:
    assert isinstance(executor, Executor)
    found = executor.check()
    assert all(finding.ok for finding in found)
    told = " ".join(finding.text for finding in found)
    assert re.search(r"slurm\S* \d\d\.", told)
    assert "main* up" in told
    assert "KillWait is 2 sec" in told
    closed = make(cluster, tmp_path, defaults={"partition": "closed"}).check()
    assert [finding.text for finding in closed if not finding.ok][-1] == (
        "partition closed, which defaults names, is not up"
    )


@pytest.mark.executors
def test_a_job_has_its_environment_and_no_other_user_sees_it(
    executor: SlurmExecutor, cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDD_STORE__URL", "of the daemon")
    monkeypatch.setenv("UNRELATED", "stays here")
    script = 'echo "$SECRET"; echo "$SCHEDD_STORE__URL"; echo "[$UNRELATED]"; echo to stderr >&2'
    one = job(1, script, env={"SECRET": "it's $hidden"}, resources=Resources(cpu=1, memory="100M"), limit=30.0)
    assert executor.submit([one]) == [Submitted(one.name, one.name)]
    shown = cluster.run("scontrol", "show", "job")
    done = over(executor, one.name)
    assert (done.phase, done.exit_code, done.signal) == (PlacementPhase.SUCCEEDED, 0, None)
    assert executor.logs(one.name, 1000) == "it's $hidden\nof the daemon\n[]\nto stderr\n"
    assert executor.logs(one.name, 7) == "stderr\n"
    assert "hidden" not in shown
    assert "of the daemon" not in shown
    assert re.search(r"TimeLimit=00:03:00", shown)  # of 30 seconds, and what is between SIGTERM and the end
    assert "Requeue=0" in shown
    place = tmp_path / "jobs" / one.name
    assert stat.S_IMODE((place / "env").stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    executor.forget([one.name])
    assert (executor.observe(), executor.find([one.name]), executor.logs(one.name, 7)) == ([], {}, None)
    executor.forget([one.name])


@pytest.mark.executors
def test_another_daemon_finds_what_runs_and_a_name_is_started_once(
    executor: SlurmExecutor, cluster: SlurmCluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    one = job(2, f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; exit 4")
    executor.submit([one])
    other = make(cluster, tmp_path)
    assert other.find([one.name, "schedd-0-99-1"]) == {one.name: one.name}
    assert other.submit([one]) == [Submitted(one.name, one.name)]
    assert len(cluster.run("squeue", "-h", "-n", one.name).splitlines()) == 1
    go.touch()
    assert over(other, one.name).exit_code == 4
    assert other.logs(one.name, 100) == "begun\n"


@pytest.mark.executors
def test_a_cancel_asks_and_then_kills(executor: SlurmExecutor, tmp_path: Path) -> None:
    asked, deaf = tmp_path / "asked", tmp_path / "deaf"
    polite = job(3, f"trap 'echo heard > {asked}.heard; exit 0' TERM; echo > {asked}; while :; do sleep 0.05; done")
    stubborn = job(4, f"trap '' TERM; echo > {deaf}; while :; do sleep 0.05; done")
    waits = job(5, "true", resources=Resources(cpu=CPUS))
    executor.submit([polite, stubborn, waits])
    pids_written(asked)
    pids_written(deaf)
    pending = seen(executor, waits.name)
    assert pending is not None
    assert pending.phase is PlacementPhase.QUEUED
    handles = [one.name for one in (polite, stubborn, waits)]
    executor.cancel(handles, 10.0)
    executor.cancel([*handles, "schedd-0-99-1"], 10.0)
    assert [over(executor, name).phase for name in handles] == [PlacementPhase.CANCELLED] * 3
    assert asked.with_suffix(".heard").exists()
    executor.cancel(handles, 10.0)


@pytest.mark.executors
def test_a_job_that_will_never_be_started_is_cancelled(executor: SlurmExecutor, cluster: SlurmCluster) -> None:
    first = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=exit 1").strip()
    never = job(8, "true", resources=Resources(cpu=CPUS))
    executor.submit([job(9, "sleep 60", resources=Resources(cpu=CPUS)), never])
    cluster.run("scontrol", "update", f"JobName={never.name}", f"Dependency=afterok:{first}")
    failed = over(executor, never.name)
    assert (failed.phase, str(failed.reason).rpartition(", ")[2]) == (PlacementPhase.FAILED, "DependencyNeverSatisfied")
    executor.cancel([never.name], 0.0)
    assert over(executor, never.name).phase is PlacementPhase.CANCELLED


@pytest.mark.executors
def test_a_job_hears_of_it_before_it_is_preempted(executor: SlurmExecutor, tmp_path: Path) -> None:
    heard, begun = tmp_path / "heard", tmp_path / "begun"
    script = f"trap 'echo > {heard}; exit 0' TERM; echo > {begun}; while :; do sleep 0.05; done"
    first = job(6, script, resources=Resources(cpu=CPUS))
    executor.submit([first])
    pids_written(begun)
    second = job(7, "true", resources=Resources(cpu=CPUS), options={"partition": "urgent"})
    executor.submit([second])
    assert over(executor, second.name).phase is PlacementPhase.SUCCEEDED
    assert heard.exists()
    assert over(executor, first.name).phase is PlacementPhase.PREEMPTED


@pytest.mark.executors
def test_slurm_refuses_for_now_or_for_good(executor: SlurmExecutor) -> None:
    asked = [
        job(10, "true", options={"partition": "nix"}),
        job(11, "true", options={"gres": "gpu:1"}),
        job(12, "true", resources=Resources(memory="900G")),
        job(13, "true", options={"partition": "closed"}),
        job(14, "true", options={"wrap": "true"}),
        job(15, "true"),
    ]
    answers = executor.submit(asked)
    refused = [one for one in answers if isinstance(one, Refused)]
    assert [one.later for one in refused] == [False, False, False, True, False]
    assert "nvalid partition" in refused[0].reason
    assert "gres" in refused[1].reason
    assert "node configuration is not available" in refused[2].reason
    assert "inactive or drain" in refused[3].reason
    assert "there is no 'wrap'" in refused[4].reason
    assert answers[-1] == Submitted("schedd-0-15-1", "schedd-0-15-1")


@pytest.mark.executors
def test_a_job_that_died_at_once_has_told_why(executor: SlurmExecutor) -> None:
    one = Job(name="schedd-0-16-1", argv=["/nowhere/python"])
    executor.submit([one])
    assert over(executor, one.name).exit_code == 127
    assert "/nowhere/python" in str(executor.logs(one.name, 1000))


@pytest.mark.executors
def test_what_is_left_of_jobs_long_forgotten_is_removed(executor: SlurmExecutor, tmp_path: Path) -> None:
    old, young, other = (tmp_path / "jobs" / name for name in ("schedd-0-17-1", "schedd-0-18-1", "theirs"))
    for place in (old, young, other):
        place.mkdir(parents=True)
    for place in (old, other):
        os.utime(place, (0, 0))
    assert executor.observe() == []
    assert [place.exists() for place in (old, young, other)] == [False, True, True]


@pytest.mark.executors
def test_without_commands_or_a_controller_the_engine_is_away(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = tmp_path / "slurm.conf"
    dead.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", cluster.conf.read_text()))
    away = SlurmExecutor("it", Made(directory=str(tmp_path / "jobs"), slurm_conf=str(dead)))
    with pytest.raises(ExecutorError, match="squeue: "):
        away.observe()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExecutorError, match="squeue cannot be run: No such file"):
        make(cluster, tmp_path).observe()


@pytest.fixture
def own(database: Database) -> Iterator[SlurmCluster]:
    """A cluster whose controller a test kills."""
    place = shared_directory() / f"own-{os.getpid()}-{database.dialect}"
    place.mkdir(mode=0o755)
    cluster = SlurmCluster(place)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(place)


@pytest.fixture
def place(own: SlurmCluster, database: Database, tmp_path: Path) -> Iterator[Place]:
    settings = f'type = "slurm"\ndirectory = "{tmp_path / "jobs"}"\nslurm_conf = "{own.conf}"\n'
    made = Place(database.url, tmp_path, settings)
    yield made
    made.close()


@pytest.mark.executors
def test_a_controller_that_is_killed_after_a_submission_loses_no_task(own: SlurmCluster, place: Place) -> None:
    """It forgets what it has accepted, gives the same numbers again, and has other jobs under them."""
    saved = own.copy_state()
    ids = [place.schedule("wait") for _ in range(3)]
    place.until(lambda: place.lines("begin"))
    numbers = _numbers(own)
    assert len(numbers) == 3
    own.kill_controller(saved)
    place.placer.step()
    own.start_controller()
    assert _numbers(own) == []
    more = [place.schedule() for _ in range(3)]
    place.placer._link._ask_again = 0.0
    place.until(lambda: set(numbers) & set(_numbers(own)))  # given twice
    place.go()

    def all_ended() -> bool:
        own.tend()  # drained: "Duplicate jobid"
        return place.ended(*ids, *more)

    place.until(all_ended)
    for task_id in ids + more:
        assert place.outcomes(task_id)[-1] == "succeeded"
        assert place.outcomes(task_id).count("succeeded") == 1
    assert place.side_by_side() == 0
    assert "held" not in own.run("squeue", "-h", "-t", "PENDING", "-o", "%r")  # nothing that will never be started


@pytest.mark.executors
def test_jobs_that_are_over_hold_no_processors_after_the_controller_lost_that(own: SlurmCluster, place: Place) -> None:
    """It shows them as running, and believes so until the node registers again: minutes, or half an hour."""
    ids = [place.schedule("wait") for _ in range(CPUS)]
    place.until(lambda: len(place.lines("begin")) == CPUS)
    saved = own.save_state()
    place.go()
    place.until(lambda: place.ended(*ids) and not place.handles())
    own.kill_controller(saved)
    own.start_controller()
    place.placer._link._ask_again = 0.0
    assert {(seen.handle, seen.phase) for seen in place.seen()} == {
        (one.name, PlacementPhase.RUNNING) for task_id in ids for one in place.placements(task_id)
    }
    last = place.schedule()
    place.until(lambda: place.ended(last))
    assert place.outcomes(last) == ["succeeded"]
    assert [one for task_id in ids for one in place.outcomes(task_id)] == ["succeeded"] * CPUS


def _numbers(cluster: SlurmCluster) -> list[str]:
    return cluster.run("squeue", "-h", "-t", "all", "-o", "%i").split()
