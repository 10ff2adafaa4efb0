"""Elastic workers as jobs of a real Slurm cluster, from the first due task to none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler import Resources, Scheduler
from scheduler.config.load import load
from scheduler.executors.ports import Job
from scheduler.executors.service import JobCommands
from scheduler.executors.types import make_executor
from scheduler.executors.worker_placer import WorkerPlacer
from scheduler.store import worker_jobs
from scheduler.store.read.explain import why
from support.databases import Database
from support.job_ends import over
from support.placed import Work
from support.placing import TESTS
from support.slurm_rig import CPUS, SlurmCluster

PATIENCE = 120.0


def until(placer: WorkerPlacer, reached: Callable[[], object]) -> None:
    """Let the placer look until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline
        placer.step()
        time.sleep(0.1)


@pytest.mark.executors
def test_a_backlog_starts_workers_on_slurm_and_none_is_left(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is full at first, so that the worker has to wait, and `why` says for what."""
    cluster = SlurmCluster.shared()
    file, notes = tmp_path / "config.toml", tmp_path / "notes"
    file.write_text(
        f'[store]\nurl = "{database.url}"\n[tasks]\nmodules = ["support.placed"]\npath = ["{TESTS}"]\n'
        f'[worker]\nlease = 5\n[executors.it]\ntype = "slurm"\ndirectory = "{tmp_path / "jobs"}"\n'
        f'slurm_conf = "{cluster.conf}"\nplace = "worker"\nqueues = ["a"]\nmax_workers = 2\nscale_when_older = 0\n'
        'cooldown = 0\ngrace = 2\nidle = 0.5\nlifetime = "10m"\nworker_resources = { cpu = 1, memory = "300M" }\n'
        'worker_options = { partition = "main" }\n'
    )
    monkeypatch.delenv("SCHEDD_STORE__URL", raising=False)
    config, jobs = load(str(file), {}), Scheduler(database.url)
    jobs.register(Work)
    executor, section = make_executor(config, "it"), config.executors["it"]
    blocker = Job(name="schedd-0-9001-1", argv=["/bin/sleep", "3600"], resources=Resources(cpu=CPUS))
    placer = WorkerPlacer(
        "it", section, executor, jobs.database, jobs.registry, "daemon", JobCommands(config, section),
        ring=lambda: None,
    )  # fmt: skip
    try:
        executor.submit([blocker])
        until(placer, lambda: any(seen.phase == "running" for seen in executor.observe()))
        tasks = [jobs.task(Work(str(notes), "plain")).executor("it").queue("a").schedule() for _ in range(4)]

        def reason() -> str:
            with jobs.database.read() as tx:
                return str(why(tx, tasks[0]))

        until(placer, lambda: "waits for a worker of executor it: pending, job" in reason())
        executor.cancel([blocker.name], 1.0)
        until(placer, lambda: all(jobs.get_task(task).state.terminal for task in tasks))
        assert [jobs.get_task(task).state.value for task in tasks] == ["success"] * 4
        until(placer, lambda: not open_jobs(jobs) and not list((tmp_path / "jobs").glob("*-w*")))
    finally:
        handles = [seen.handle for seen in executor.observe() if not seen.phase.over]
        executor.cancel(handles, 1.0)
        for handle in handles:
            over(executor, handle)
        jobs.close()


def open_jobs(jobs: Scheduler) -> list[str]:
    with jobs.database.read() as tx:
        return [one.name for one in worker_jobs.open_workers(tx, "it")]
