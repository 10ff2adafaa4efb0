"""``schedctl executors``, ``--executor`` and ``--resources``, and what ``show`` and ``why`` say of placed tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler import Context, Task
from scheduler.config.executors import ExecutorSection as Section
from scheduler.config.load import load
from scheduler.executors.placer import Placer
from scheduler.executors.worker_placer import WorkerPlacer
from support.bench import Bench
from support.fleet import step
from support.memory_engine import MemoryEngine, NoCommands
from support.worker_engine import WorkerCommands, WorkerEngine

from .conftest import Ctl


class Fit(Task, executor="batch", resources={"cpu": 1}, executor_options={"nice": 3}):
    name: str

    def run(self, ctx: Context) -> None: ...


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "executors.toml"
    file.write_text(f'[executors.batch]\ntype = "process"\ndirectory = "{tmp_path / "jobs"}"\n')
    return str(file)


@pytest.fixture
def placer(live: Bench) -> Placer:
    live.jobs.register(Fit)
    step(live.jobs)
    section = Section(type="memory")
    engine = MemoryEngine()
    jobs = live.jobs
    return Placer("batch", section, engine, jobs.database, jobs.registry, "vm:1:ab", NoCommands(), ring=lambda: None)


def shown(ctl: Ctl, *arguments: str, **environ: str) -> Any:
    return json.loads(ctl("-o", "json", *arguments, **environ).stdout)


def test_executors_are_listed_with_their_daemon_and_jobs(ctl: Ctl, placer: Placer, config: str) -> None:
    (before,) = shown(ctl, "executors", "list", SCHEDD_CONFIG=config)
    assert (before["executor"], before["type"], before["placed_by"]) == ("batch", "process", None)
    ctl("submit", "Fit", "-P", "name=a")
    placer.step()
    (row,) = shown(ctl, "executors", "list", SCHEDD_CONFIG=config)
    assert (row["placed_by"], row["pending"], row["running"], row["draining"]) == ("vm:1:ab", 1, 0, False)
    ctl("worker", "drain", str(row["worker"]))
    assert shown(ctl, "executors", "list")[0]["draining"]  # also one that this configuration does not have
    ctl("worker", "resume", str(row["worker"]))
    assert [one["host"] for one in shown(ctl, "workers")] != []
    assert "executor" not in [one["host"] for one in shown(ctl, "workers")]


def test_checks_are_findings(ctl: Ctl, live: Bench, config: str) -> None:
    found = shown(ctl, "executors", "check", SCHEDD_CONFIG=config)
    assert [one["ok"] for one in found] == [True, True]
    assert "jobs keep their files in" in found[0]["found"]
    assert "there is no executor 'x'; [executors] has batch" in ctl.fails(
        2, "executors", "check", "x", SCHEDD_CONFIG=config
    )
    assert "there is no executor: write one as [executors.NAME]" in ctl.fails(2, "executors", "check")


def test_show_and_why_tell_of_jobs(ctl: Ctl, placer: Placer, live: Bench) -> None:
    ctl("submit", "Fit", "-P", "name=a")
    task_id = str(live.jobs.list_tasks(kind="Fit")[0].id)
    assert "no daemon has had [executors.batch]" in ctl("why", task_id).stdout
    placer.step()
    placer.step()
    assert f"placed on batch as handle-{task_id}-1: queued" in ctl("why", task_id).stdout
    view = shown(ctl, "show", task_id)
    (placement,) = view["placements"]
    assert (placement["executor"], placement["state"], placement["phase"]) == ("batch", "submitted", "queued")
    assert (view["executor"], view["resources"], view["executor_options"]) == ("batch", {"cpu": 1}, {"nice": 3})
    text = ctl("show", task_id).stdout
    assert "placements:" in text
    assert f"handle-{task_id}-1" in text


def test_where_a_task_runs_is_said_on_the_command_line(ctl: Ctl, placer: Placer, live: Bench) -> None:
    ctl("submit", "Fit", "-P", "name=a", "--executor", "local")
    ctl("submit", "Fit", "-P", "name=b", "--executor", "other", "--resources", "cpu=2,memory=1G")
    ctl("submit", "Fit", "-P", "name=c", "--executor", "batch")
    tasks = sorted(live.jobs.list_tasks(kind="Fit"), key=lambda task: task.id)
    assert [task.executor for task in tasks] == [None, "other", "batch"]
    assert [task.executor_options for task in tasks] == [None, None, {"nice": 3}]
    assert str(tasks[1].resources) == "cpu 2, memory 1 GiB"
    assert "executor must be the name" in ctl.fails(2, "submit", "Fit", "-P", "name=a", "--executor", "No such")
    assert "cpu=2,memory=4G" in ctl.fails(2, "submit", "Fit", "-P", "name=a", "--resources", "2")


def test_elastic_workers_are_listed_checked_and_waited_for(ctl: Ctl, live: Bench, tmp_path: Path) -> None:
    file = tmp_path / "elastic.toml"
    file.write_text(
        f'[executors.batch]\ntype = "process"\ndirectory = "{tmp_path / "jobs"}"\nplace = "worker"\nqueues = ["gpu"]\n'
        'max_workers = 3\nscale_when_older = 0\nlifetime = "55m"\nworker_resources = { cpu = 1 }\n'
    )
    live.jobs.register(Fit)
    step(live.jobs)
    engine, jobs = WorkerEngine(live.jobs), live.jobs
    section = load(str(file), {}).executors["batch"]
    placer = WorkerPlacer(
        "batch", section, engine, jobs.database, jobs.registry, "vm:1:ab", WorkerCommands(), ring=lambda: None
    )
    ctl("submit", "Fit", "-P", "name=a", "--queue", "gpu")
    placer.step()
    placer.step()
    (row,) = shown(ctl, "executors", "list", SCHEDD_CONFIG=str(file))
    assert (row["type"], row["place"], row["placed_by"]) == ("process", "worker", "vm:1:ab")
    assert (row["wanted"], row["pending"], row["running"], row["trouble"]) == (1, 1, 0, None)
    (reason,) = shown(ctl, "why", "1")
    assert "waits for a worker of executor batch: pending, Resources (schedd-" in reason["why"]
    engine.begin(engine.waiting[0])
    (row,) = shown(ctl, "executors", "list", SCHEDD_CONFIG=str(file))
    assert (row["wanted"], row["pending"], row["running"]) == (1, 0, 1)
    assert len(shown(ctl, "workers")) == 2
    findings = [one["found"] for one in shown(ctl, "executors", "check", SCHEDD_CONFIG=str(file))]
    assert findings[-1] == (
        "0 to 3 workers serve queue gpu, each with resources cpu 1, for 55m at most; one more once a task has been due "
        "for 0s"
    )


def test_executor_is_another_name_of_executors(ctl: Ctl, config: str) -> None:
    both = [ctl(name, "check", SCHEDD_CONFIG=config) for name in ("executors", "executor")]
    assert both[0].stdout == both[1].stdout != ""
    assert "schedctl executor check" in ctl("executor", "check", "--help").stdout
    assert "  executor " not in ctl("--help").stdout
